"""Reasons to end a command early: errors that the user can fix, or a wish of theirs."""

import difflib
import re
import signal
from collections.abc import Iterable


class InputError(ValueError):
    """Something given by the user cannot be used.

    The message is one line: what was expected, what came, what to do. The command
    line prints it without a traceback and exits with code 2. Control characters in it,
    which may be a damaged file's, are shown as escapes.
    """

    def __init__(self, message: str):
        super().__init__(_CONTROL.sub(lambda found: ascii(found[0])[1:-1], message))


_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
"""Characters that move a terminal's cursor, or end a line for some programs."""


class Unavailable(Exception):
    """A store did not answer for as long as it was asked; the same command resumes.

    Not an `OSError`, which many readers report as a fault of the file. The command line
    exits with code 75 (`EX_TEMPFAIL`), on which schedulers may start a command again.
    """

    exit_code = 75


class NotRun(Exception):
    """Beam prepared a job without running it, as requested: not a failure."""


class Stopped(BaseException):
    """A run was asked to stop by a signal; the same command resumes it.

    Not an `Exception`, as `KeyboardInterrupt` is none: a handler raises it anywhere,
    and TensorFlow makes an error of its own of each `Exception` in the building of a
    graph.

    The command line exits with 128 and the signal's number, as a process does that the
    signal ends: schedulers and `&&` must not take it for finished.
    """

    def __init__(self, message: str, *, signal_number: int = signal.SIGTERM):
        super().__init__(message)
        self.exit_code = 128 + signal_number


def one_line(error: Exception) -> str:
    """An error's message for ours: a line of at most 300 characters."""
    return " ".join(str(error).split())[:300]


def nearest(name: str, known: Iterable[str]) -> str:
    """Returns `"; did you mean 'x'?"` for the most alike known name, or `""`."""
    matches = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {matches[0]!r}?" if matches else ""


def check_choice(name: str, value: str, known: Iterable[str]) -> None:
    """Raises InputError, with the nearest choice, unless `value` is a known one.

    The message calls it `name`: the option or setting as the user writes it.
    """
    known = list(known)
    if value not in known:
        raise InputError(
            f"{name} is one of {', '.join(known)}, got {value!r}{nearest(value, known)}"
        )
