"""`bert-keras` in processes of its own, and whether two of them made the same."""

import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import safetensors.numpy

COMMAND = [sys.executable, "-m", "bert_keras.commands.main"]
FAULTS = ("503", "429", "cut", "slow")
"""Kinds of faults of a store that every command survives."""

# Many verbs in one process: loading TensorFlow takes ten seconds.
_ALL = """
import json, sys
from bert_keras.commands import main as cli
for words in json.loads(sys.argv[1]):
    if cli.main(words):
        sys.exit(f"failed: {words}")
"""


def run(
    command: str | Sequence[object], environment: Mapping[str, str] = os.environ
) -> subprocess.CompletedProcess:
    """Runs one command, with more variables in its environment."""
    words = shlex.split(command) if isinstance(command, str) else map(str, command)
    return _run([*COMMAND, *words], environment)


def check(
    command: str | Sequence[object], environment: Mapping[str, str] = os.environ
) -> str:
    """Runs a command that succeeds; returns what it said."""
    done = run(command, environment)
    assert done.returncode == 0, done.stderr
    return done.stderr


def check_all(commands: Sequence[str], environment: Mapping[str, str]) -> None:
    words = json.dumps([*map(shlex.split, commands)])
    done = _run([sys.executable, "-c", _ALL, words], environment)
    assert done.returncode == 0, done.stderr


def _run(words, environment) -> subprocess.CompletedProcess:
    return subprocess.run(
        words,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=900,
    )


def start(command: str, environment: Mapping[str, str]) -> subprocess.Popen:
    return subprocess.Popen(
        [*COMMAND, *shlex.split(command)],
        env={**os.environ, **environment},
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_for(process: subprocess.Popen, path: Path) -> None:
    """Waits until a process that goes on has written a file."""
    while not path.exists():
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.01)


def wait_until(condition: Callable[[], object]) -> None:
    for _ in range(1000):
        if condition():
            return
        time.sleep(0.2)
    raise TimeoutError


def assert_same_bytes(found: Path, expected: Path, *names: str) -> None:
    for name in names:
        assert (found / name).read_bytes() == (expected / name).read_bytes(), name


def assert_same_arrays(found: Path, expected: Path) -> None:
    """Of two checkpoints, array by array."""
    arrays, others = map(safetensors.numpy.load_file, (found, expected))
    assert arrays.keys() == others.keys()
    for name in arrays:
        np.testing.assert_array_equal(arrays[name], others[name], err_msg=name)


def names_below(directory: Path) -> set[str]:
    """Names of files, those of events and profiles without time and process."""
    names = (path.relative_to(directory) for path in directory.rglob("*"))
    return {
        f"{name.parent.parent}/*{name.suffix}*"
        if "profile" in name.parts
        else name.as_posix().partition(".tfevents.")[0]
        for name in names
        if (directory / name).is_file()
    }
