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
    names = "bert_keras pipelines tpu keras tensorflow apache_beam numpy"
    for name in (*names.split(), "multiprocessing"):
        (tmp_path / name).mkdir()
        program = f"import os, sys\nsys.stderr.write('wrong {name}\\n')\nos._exit(77)\n"
        (tmp_path / name / "__init__.py").write_text(program)
    command = [sys.executable, "-c", "import pipelines"]
    assert subprocess.run(command, cwd=tmp_path).returncode == 77
    return tmp_path


def run(command, folder):
    done = subprocess.run(
        command, cwd=folder, env=ENVIRONMENT, capture_output=True, text=True
    )
    assert "wrong" not in done.stderr
    return done


@pytest.mark.parametrize(
    "beam",
    ["", pytest.param("-- --runner FnApiRunner", marks=pytest.mark.slow)],
    ids=["passes", "beam"],
)
def test_workers_of_a_data_job(beam, folder, tmp_path_factory):
    program = tmp_path_factory.mktemp("bin") / "bert-keras"
    program.write_text(PROGRAM)
    (folder / "docs.jsonl").write_text('{"id": "a", "text": "some words of text"}\n')
    arguments = "corpus --jsonl docs.jsonl --output out --workers 2"
    arguments += f" --set min_document_words=1 {beam}"
    command = [sys.executable, program, *arguments.split()]
    done = run(command, folder)
    assert done.returncode == 0, done.stderr
    assert (folder / "out/manifest.json").exists()


def test_a_run_of_a_sweep_and_a_command_of_the_demo(folder, monkeypatch, capfd):
    message = "error: none: no such directory"
    assert message in run([*running.RUNNER, "inspect", "none"], folder).stderr
    monkeypatch.chdir(folder)
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    with pytest.raises(demo.InputError, match="`bert-keras inspect` failed"):
        demo._run_command(["inspect", "none"])
    assert message in capfd.readouterr().err


@pytest.mark.slow
def test_the_process_that_serves_the_demo_s_model(folder, monkeypatch):
    monkeypatch.chdir(folder)
    with pytest.raises(demo.InputError, match="SavedModel") as caught:
        demo._ask_saved_model(folder / "none", ["text"])
    assert "wrong" not in str(caught.value)
