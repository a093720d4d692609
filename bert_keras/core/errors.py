"""Exceptions that end a command: user errors, and requests to stop."""

import difflib
import errno
import re
import signal
from collections.abc import Iterable

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
"""Characters that move a terminal's cursor, or end a line for some programs."""

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_NO_RIGHT = (errno.EACCES, errno.EPERM, errno.EROFS)
DISK_ERRORS = {
    **dict.fromkeys(_FULL, "make room, or choose another place"),
    **dict.fromkeys(_NO_RIGHT, "get the right to write there, or choose another place"),
}
"""Ways out of errors of a full or protected disk."""


class InputError(ValueError):
    """An input that the user can correct.

    The message is one line: what was expected, what came, what to do. The command line
    prints it without a traceback and exits with code 2. Control characters, which may
    come from a damaged file, are shown as escapes.
    """

    exit_code = 2

    def __init__(self, message: str):
        super().__init__(_CONTROL.sub(lambda match: ascii(match[0])[1:-1], message))


class Unavailable(Exception):
    """A store did not answer for as long as it was asked; the same command resumes.

    Not an `OSError`, which many readers report as a fault of the file. The command line
    exits with code 75 (`EX_TEMPFAIL`), on which schedulers may start a command again.
    """

    exit_code = 75


class NotRun(Exception):
    """Beam prepared a job and did not run it, as requested: not a failure."""


class Stopped(BaseException):
    """A run was asked to stop by a signal; the same command resumes it.

    It is no `Exception`, like `KeyboardInterrupt`: a handler raises it anywhere, and
    TensorFlow turns each `Exception` in the building of a graph into its own error. The
    command line exits with 128 plus the signal's number, as a killed process does, so
    that schedulers and `&&` do not take the command for finished.
    """

    def __init__(self, message: str, *, signal_number: int = signal.SIGTERM):
        super().__init__(message)
        self.exit_code = 128 + signal_number


def not_writable(path: object, error: OSError) -> InputError:
    """Returns the error for a file or directory that cannot be written."""
    way_out = DISK_ERRORS.get(error.errno or 0, "choose another place")
    return InputError(
        f"{path}: cannot be written: {error.strerror}; {way_out}, and run the same "
        "command again"
    )


def one_line(error: Exception) -> str:
    """Returns the message of an error as one line of at most 300 characters."""
    return " ".join(str(error).split())[:300]


def nearest(name: str, known: Iterable[str]) -> str:
    """Returns `"; did you mean 'x'?"` for the most alike known name, or `""`."""
    # All options are alike in their dashes.
    by_text = {text.lstrip("-"): text for text in known}
    matches = difflib.get_close_matches(name.lstrip("-"), by_text, n=1)
    return f"; did you mean {by_text[matches[0]]!r}?" if matches else ""


def check_choice(name: str, value: str, known: Iterable[str]) -> None:
    """Refuses a value that is not `known`, and suggests the nearest one. The message
    calls it `name`, the option or setting as the user writes it."""
    known = list(known)
    if value not in known:
        raise InputError(
            f"{name} is one of {', '.join(known)}, got {value!r}{nearest(value, known)}"
        )
