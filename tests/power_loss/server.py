"""Runs a command in a process of its own, forked from one that has imported much."""

import os
import sys
import tempfile

from bert_keras.commands import main as commands


def run(words: list[str]) -> tuple[int, str]:
    """Returns the exit code of a command, and what it said."""
    with tempfile.TemporaryFile("w+") as said:
        os.dup2(said.fileno(), 1)
        os.dup2(said.fileno(), 2)
        code = commands.main(words)
        sys.stdout.flush()
        sys.stderr.flush()
        said.seek(0)
        return code, said.read()
