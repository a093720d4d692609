"""Reports that tests of several files read."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.bert_keras.report import runs

WITHOUT_TENSORFLOW = """
import sys
from bert_keras.report import writing
for run in sys.argv[1:]:
    writing.write_report(run)
sys.exit(bool({"tensorflow", "keras", "apache_beam"} & set(sys.modules)))
"""


@pytest.fixture(scope="session")
def reported(made_once) -> Path:
    """A pre-training, `run`, and a fine-tuning, `classification`, with their reports.

    Both are by one process without TensorFlow.
    """

    def fill(directory: Path) -> None:
        runs.pretraining_run(directory / "run", results=runs.RESULTS)
        runs.finished_run(directory / "classification")
        command = [sys.executable, "-c", WITHOUT_TENSORFLOW]
        subprocess.run([*command, *sorted(directory.iterdir())], check=True)

    return made_once.directory("reported", fill)
