"""The data line killed again and again with SIGKILL ends as if nothing had happened."""

import itertools
import json
import os
import random
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from bert_keras.data import features

WORDS = [a + b for a in "bdfgklmnprstvz" for b in ("a", "en", "io", "um")]
# Small passes, so that a few seconds hold many.
PROGRAM = """
import sys
from bert_keras.commands import main as cli
from bert_keras.pipelines.engine import passes
passes.PASS_BYTES = 60_000
if __name__ == "__main__":
    sys.exit(cli.main(sys.argv[1:]))
"""
COMMANDS = (
    "corpus --jsonl texts.jsonl --output {0}/corpus --workers 2",
    "examples --corpus {0}/corpus --vocab vocab.txt --num_shards 20 "
    "--set dupe_factor=2 --output {0}/examples --workers 2",
)


def run(command, folder, *, is_killed):
    """Runs a command; kills it after longer and longer times, until it ends before.

    Returns the number of kills.
    """
    for num_kills in itertools.count():
        process = subprocess.Popen(
            [sys.executable, str(folder / "program.py"), *shlex.split(command)],
            cwd=folder,
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[3])},
        )
        try:
            timeout = 0.4 + 0.2 * num_kills if is_killed else 300
            _, errors = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            assert is_killed
            continue
        # It may have been killed between its last deed and its end.
        is_finished = num_kills and b"holds a finished output already" in errors
        assert process.returncode == 0 or is_finished, errors.decode()
        return num_kills


def contents(directory):
    paths = (path for path in directory.rglob("*") if path.is_file())
    return {path.relative_to(directory): path.read_bytes() for path in paths}


@pytest.mark.slow
def test_killed_and_run_again(tmp_path):
    choose = random.Random(5)
    with open(tmp_path / "texts.jsonl", "w") as file:
        for number in range(3000):
            paragraphs = [
                " ".join(choose.choices(WORDS, k=choose.randint(12, 60))) + "."
                for _ in range(choose.randint(1, 5))
            ]
            document = {"id": number, "text": "\n\n".join(paragraphs)}
            file.write(json.dumps(document) + "\n")
    (tmp_path / "vocab.txt").write_text("\n".join([*features.SPECIAL_TOKENS, *WORDS]))
    (tmp_path / "program.py").write_text(PROGRAM)
    for command in COMMANDS:
        run(command.format("whole"), tmp_path, is_killed=False)
    kills = [run(one.format("killed"), tmp_path, is_killed=True) for one in COMMANDS]
    assert min(kills) >= 2
    assert contents(tmp_path / "killed") == contents(tmp_path / "whole")
