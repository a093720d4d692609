PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Packages without a wheel are built as current versions of pip do it, whatever pip there is.
PIP_INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --use-pep517 --constraint constraints.txt

.PHONY: install install-tpu install-gpu demo test test-python test-pages test-part test-slow lint clean

install: $(VENV)/.installed

$(VENV)/.installed: setup.cfg pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13) and "Python 3.11, 3.12 or 3.13 is needed, this is " + sys.version.split()[0] + ": make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)
	$(PIP_INSTALL) --editable '.[train]'
	touch $@

# TensorFlow for TPUs, in an environment of its own: it owns the folder of the package `tensorflow`.
TPU_VENV := .venv-tpu
TPU_PIP := $(TPU_VENV)/bin/python -m pip install --quiet --disable-pip-version-check --use-pep517 --constraint constraints.txt

install-tpu: setup.cfg constraints.txt requirements/tpu.txt
	$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 12) and "tensorflow-tpu needs Python 3.11 or 3.12, this is " + sys.version.split()[0] + ": make install-tpu PYTHON=python3.12")'
	$(PYTHON) -m venv $(TPU_VENV)
	$(TPU_PIP) --editable '.[tpu]' --requirement requirements/tpu.txt
	$(TPU_PIP) --no-deps tensorflow-text

# CUDA's libraries in the environment of `make install`.
install-gpu: $(VENV)/.installed requirements/gpu.txt
	$(PIP_INSTALL) --requirement requirements/gpu.txt

# The same environment, with the tools and the packages that tests compare with.
$(VENV)/.installed-dev: $(VENV)/.installed
	$(PIP_INSTALL) --editable '.[train,dev]'
	touch $@

demo: install
	$(BIN)/bert-keras demo --output_dir demo

# Whole files, the longest first (tests/conftest.py has their order); a worker that is
# lost ends the run, for xdist would wait for it. One worker more than cores: some tests
# wait for processes of their own, and each worker holds less. No more than nine: each
# may come to hold 3 GB.
WORKERS = $(shell $(PYTHON) -c 'import os; print(min(len(os.sched_getaffinity(0)), 8) + 1)')

test: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -m 'not slow' --numprocesses $(WORKERS) --dist loadfile --no-loadscope-reorder --max-worker-restart 0

# With another Python, `make test-python PYTHON=python3.13`, in an environment beside .venv.
PYTHON_VERSION = $(shell $(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])')
test-python:
	$(MAKE) test VENV=.venv-$(PYTHON_VERSION)

test-pages: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -m slow tests/test_pages.py

# A seventh of the slow tests, by the day of the week, without the pages: they have a
# target of their own. Two workers: a test that kills and resumes needs the cores.
PART = $(shell date +%w)
test-part: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -m slow --part $(PART) --deselect tests/test_pages.py --numprocesses 2 --dist loadfile --max-worker-restart 0

test-slow: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -m slow

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/hadolint docker/*

clean:
	rm -rf $(VENV) $(TPU_VENV) .venv-3.* build *.egg-info
