"""Circumstances of a run, for `results.json`: versions, machine, command, code."""

import importlib.metadata
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import bert_keras


def describe(*, devices: str, paths: Mapping[str, Any]) -> dict[str, Any]:
    """Describes this process; nothing in the description affects a result. `paths` are
    the inputs by option, and become absolute."""
    names = ("tensorflow", "keras", "tensorflow-text", "numpy")
    packages = {name: installed_version(name) for name in names}
    return {
        "version": bert_keras.__version__,
        "commit": commit(Path(bert_keras.__file__).parent),
        "python": platform.python_version(),
        **{name: version for name, version in packages.items() if version},
        "host": platform.node(),
        "platform": platform.platform(),
        "devices": devices,
        "command": shlex.join(sys.argv),
        "directory": os.getcwd(),
        **{name: absolute(path) for name, path in paths.items() if path is not None},
    }


def commit(directory: Path) -> str | None:
    """Returns a checkout's commit, with `+changes` if files differ; else `None`."""

    def ask(*words: str) -> subprocess.CompletedProcess[str]:
        command = ["git", "-C", str(directory), *words]
        return subprocess.run(command, capture_output=True, text=True, timeout=10)

    try:
        head = ask("rev-parse", "HEAD", "--show-toplevel")
        name, _, top = head.stdout.strip().partition("\n")
        # An environment may lie in a repository of something else.
        if head.returncode or Path(top) != directory.resolve().parent:
            return None
        changes = ask("status", "--porcelain", "--untracked-files=no", ".")
    except (OSError, subprocess.TimeoutExpired):
        return None
    return name + ("+changes" if changes.stdout.strip() else "")


def installed_version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def absolute(path: Any) -> Any:
    """Returns one path or several as seen from any directory; addresses stay."""
    if isinstance(path, list | tuple):
        return [absolute(item) for item in path]
    text = str(path)
    return text if "://" in text else os.path.abspath(text)
