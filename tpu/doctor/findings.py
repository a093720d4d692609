"""A finding of the doctor: its name, its state, and a command that fixes it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Finding:
    name: str
    """Of what was looked at; the same on every machine, for programs."""
    state: Literal["ok", "problem"]
    """`problem`: a run would fail, or train on other devices than those asked for."""
    found: str
    fix: str | None = None
    """Command to run; `None` if all is well, or no command is known to help."""


class Problem(Exception):
    """What is wrong, and the command that fixes it, if one is known."""

    def __init__(self, found: str, fix: str | None = None):
        super().__init__(found, fix)


def look(name: str, check: Callable[..., str], *arguments: object) -> Finding:
    """Runs a check, which returns what is well or raises a `Problem`."""
    try:
        return Finding(name, "ok", check(*arguments))
    except Problem as problem:
        return Finding(name, "problem", *problem.args)
