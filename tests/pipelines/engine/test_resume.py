"""The data line killed again and again with SIGKILL ends as if nothing had happened."""

import hashlib
import itertools
import json
import os
import random
import shlex
import signal
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


def write_input(folder):
    choose = random.Random(5)
    with open(folder / "texts.jsonl", "w") as file:
        for number in range(3000):
            paragraphs = [
                " ".join(choose.choices(WORDS, k=choose.randint(12, 60))) + "."
                for _ in range(choose.randint(1, 5))
            ]
            document = {"id": number, "text": "\n\n".join(paragraphs)}
            file.write(json.dumps(document) + "\n")
    (folder / "vocab.txt").write_text("\n".join([*features.SPECIAL_TOKENS, *WORDS]))


def commands(output):
    return [
        f"corpus --jsonl texts.jsonl --output {output}/corpus --workers 2",
        f"examples --corpus {output}/corpus --vocab vocab.txt --num_shards 20 "
        f"--set dupe_factor=2 --output {output}/examples --workers 2",
    ]


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
            process.send_signal(signal.SIGKILL)
            process.communicate()
            assert is_killed
            continue
        # It may have been killed between its last deed and its end.
        is_finished = num_kills and b"holds a finished output already" in errors
        assert process.returncode == 0 or is_finished, errors.decode()
        return num_kills


def contents(directory):
    return {
        str(path.relative_to(directory)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in directory.rglob("*")
        if path.is_file()
    }


@pytest.mark.slow
def test_killed_and_run_again(tmp_path):
    write_input(tmp_path)
    (tmp_path / "program.py").write_text(PROGRAM)
    for command in commands("whole"):
        run(command, tmp_path, is_killed=False)
    num_kills = [run(one, tmp_path, is_killed=True) for one in commands("killed")]
    assert min(num_kills) >= 2
    assert contents(tmp_path / "killed") == contents(tmp_path / "whole")
