"""A finding of the doctor: its name, its state, and a command that fixes it."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Finding:
    name: str
    """Of what was looked at; the same on every machine, for programs."""
    state: Literal["ok", "warning", "problem"]
    """`problem`: a run would fail, or train on other devices than those asked for."""
    found: str
    fix: str | None = None
    """Command to run; `None` if all is well, or no command is known to help."""
