"""A user's own folders, named as modules are, in the directory where a command runs."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from bert_keras.lab import demo
from bert_keras.lab.sweep import running

REPOSITORY = Path(__file__).resolve().parents[1]
PROGRAM = (
    "from bert_keras.commands import main\n"
    "if __name__ == '__main__': main.entry_point()\n"
)
"""An installed `bert-keras`: its own folder is on the path, not that of the user."""

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(REPOSITORY)}


@pytest.fixture
def folder(tmp_path):
    """A directory with packages that end whoever imports them."""
    names = (
        "bert_keras pipelines tpu keras tensorflow apache_beam numpy multiprocessing"
    )
    for name in names.split():
        (tmp_path / name).mkdir()
        program = f"import os, sys\nsys.stderr.write('wrong {name}\\n')\nos._exit(77)\n"
        (tmp_path / name / "__init__.py").write_text(program)
    return tmp_path


def run(command, folder):
    done = subprocess.run(
        command, cwd=folder, env=ENVIRONMENT, capture_output=True, text=True
    )
    assert "wrong" not in done.stderr
    return done


def test_the_folder_is_found_where_it_is_looked_for(folder):
    done = subprocess.run([sys.executable, "-c", "import pipelines"], cwd=folder)
    assert done.returncode == 77


@pytest.mark.parametrize(
    "beam",
    [
        pytest.param((), id="passes"),
        pytest.param(
            ("--", "--runner", "FnApiRunner"), id="beam", marks=pytest.mark.slow
        ),
    ],
)
def test_workers_of_a_data_job(beam, folder, tmp_path_factory):
    program = tmp_path_factory.mktemp("bin") / "bert-keras"
    program.write_text(PROGRAM)
    (folder / "docs.jsonl").write_text('{"id": "a", "text": "some words of text"}\n')
    arguments = "corpus --jsonl docs.jsonl --output out --workers 2"
    settings = "--set min_document_words=1"
    command = [sys.executable, program, *arguments.split(), *settings.split(), *beam]
    done = run(command, folder)
    assert done.returncode == 0, done.stderr
    assert (folder / "out/manifest.json").exists()


def test_a_run_of_a_sweep(folder):
    done = run([*running.RUNNER, "inspect", "none"], folder)
    assert "bert-keras inspect: error: none: no such directory" in done.stderr


def test_a_command_of_the_demo(folder, monkeypatch, capfd):
    monkeypatch.chdir(folder)
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    with pytest.raises(demo.InputError, match="`bert-keras inspect` failed"):
        demo._run_command(["inspect", "none"])
    assert "error: none: no such directory" in capfd.readouterr().err


@pytest.mark.slow
def test_the_process_that_serves_the_demo_s_model(folder, monkeypatch):
    monkeypatch.chdir(folder)
    with pytest.raises(demo.InputError) as caught:
        demo._ask_saved_model(folder / "none", ["text"])
    assert "wrong" not in str(caught.value)
    assert "SavedModel" in str(caught.value)
