"""The package as it is built and shipped: archives, Docker files, citation."""

import json
import os
import re
import shutil
import subprocess
import tarfile
import zipfile
from pathlib import Path

import pytest
import yaml

import bert_keras
from bert_keras.commands import main as cli
from tests import conftest

REPOSITORY = Path(__file__).resolve().parents[1]


def tracked_files():
    """Paths that git knows; without git, as in an sdist, there are none."""
    if not (REPOSITORY / ".git").exists():
        pytest.skip("needs the git checkout")
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=REPOSITORY, capture_output=True, text=True
    )
    names = filter(None, listed.stdout.split("\0"))
    return [name for name in names if os.path.lexists(REPOSITORY / name)]


def installed_name(name):
    """Path in a wheel of a file of the checkout; `None`: it is not in the wheel."""
    if name.startswith(("pipelines/", "tpu/")):
        return f"bert_keras/{name}"
    is_link = (REPOSITORY / name).is_symlink()
    return name if name.startswith("bert_keras/") and not is_link else None


@pytest.fixture(scope="module")
def archives(tmp_path_factory):
    """A wheel and an sdist, built from a copy of the tracked files."""
    directory = tmp_path_factory.mktemp("archives")
    for name in tracked_files():
        copy = directory / "copy" / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(REPOSITORY / name, copy, follow_symlinks=False)
    (directory / "out").mkdir()
    program = "from setuptools import build_meta as build; import sys\n"
    program += "for make in (build.build_sdist, build.build_wheel): make('../out')"
    conftest.run_python("-W", "ignore", "-c", program, cwd=directory / "copy")
    return directory / "out"


@pytest.fixture
def wheel(archives):
    (path,) = archives.glob("*.whl")
    with zipfile.ZipFile(path) as opened:
        yield opened


@pytest.fixture
def sdist(archives):
    (path,) = archives.glob("*.tar.gz")
    with tarfile.open(path) as opened:
        yield opened


def test_a_wheel_has_the_packages_and_their_data(wheel):
    found = {name for name in wheel.namelist() if ".dist-info/" not in name}
    name = f"bert_keras-{bert_keras.__version__}.dist-info/METADATA"
    assert "Author: The bert-keras developers\n" in wheel.read(name).decode()
    assert found == set(filter(None, map(installed_name, tracked_files())))
    assert {"bert_keras/py.typed", "bert_keras/pipelines/corpus.py"} < found


def test_packages_of_the_users_own_are_left_alone(wheel, tmp_path):
    """Folders of a user that have the names of ours, first on the path."""
    installed, project = tmp_path / "installed", tmp_path / "project"
    wheel.extractall(installed)
    for name in ("pipelines", "tpu", "tests", "docs"):
        (project / name).mkdir(parents=True)
        (project / name / "__init__.py").write_text(f"raise SystemExit('{name}')\n")
    text = "A sentence of a user that is long enough to be kept. " * 9
    (project / "a.jsonl").write_text(json.dumps({"id": "1", "text": text}))
    command = "corpus --jsonl a.jsonl --output corpus --workers 2"
    for verb in (command, "doctor --help"):
        words = ("-P", "-m", "bert_keras", *verb.split())
        path = {"PYTHONPATH": f"{project}:{installed}"}
        conftest.run_python(*words, cwd=project, environment=path)
    assert (project / "corpus/manifest.json").is_file()


def test_an_sdist_has_all_files(sdist):
    names = {name.partition("/")[2] for name in sdist.getnames()}
    assert {installed_name(name) or name for name in tracked_files()} <= names


@pytest.mark.slow
def test_the_tests_run_from_an_sdist(sdist, tmp_path):
    sdist.extractall(tmp_path, filter="data")
    (root,) = tmp_path.glob("bert_keras-*")
    tests = ["tests/bert_keras/commands/test_main.py", "tests/test_architecture.py"]
    command = ("-m", "pytest", "-q", "-p", "no:cacheprovider", *tests)
    conftest.run_python(*command, cwd=root, environment={"PYTHONPATH": str(root)})


def test_the_citation_is_of_this_version():
    citation = yaml.safe_load((REPOSITORY / "CITATION.cff").read_text())
    assert citation["version"] == bert_keras.__version__
    assert {"cff-version", "message", "title", "authors"} < set(citation)
    assert citation["cff-version"] == "1.2.0"


DOCKER_FILES = sorted((REPOSITORY / "docker").iterdir())
INSTRUCTIONS = ("FROM", "ARG", "COPY", "RUN", "ENV", "WORKDIR", "ENTRYPOINT")


@pytest.mark.parametrize("path", DOCKER_FILES, ids=lambda path: path.name)
def test_a_docker_file_has_what_there_is(path):
    text = path.read_text()
    ignored = (REPOSITORY / ".dockerignore").read_text().splitlines()
    stages = set()
    for line in text.splitlines():
        if not line or line.startswith("#"):
            continue
        keyword, *words = line.split()
        assert keyword in INSTRUCTIONS, keyword
        if keyword == "FROM":
            assert words[0] in stages or ":" in words[0], "a tag, or an earlier stage"
            stages.update(words[2:])
        elif keyword == "COPY" and words[0].startswith("--from="):
            assert words[0].removeprefix("--from=") in stages
        elif keyword == "COPY":
            for source in words[:-1]:
                # The wheel is made before the image.
                assert source == "dist/*.whl" or (REPOSITORY / source).exists(), source
                assert f"!{source}" in ignored, source
    # Its versions and commands are ours.
    pins = (REPOSITORY / "constraints.txt").read_text()
    for version in re.findall(r"beam_python3\.11_sdk:([\d.]+)", text):
        assert f"\napache-beam=={version}\n" in pins
    for verb in re.findall(r"^#.* bert-keras ([a-z-]+) ", text, flags=re.MULTILINE):
        with pytest.raises(SystemExit) as end:
            cli.build_parser().parse_args([verb, "--help"])
        assert end.value.code == 0
    for program in re.findall(r'ENTRYPOINT \["(.*?)"', text):
        assert f"{program} = " in (REPOSITORY / "setup.cfg").read_text()
