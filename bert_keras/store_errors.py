"""Errors of the packages that speak to stores: what may pass, and what each means."""

import errno
import re
from collections.abc import Collection, Iterator


def reason(error: BaseException) -> str:
    """What an error says, in one line."""
    return " ".join(str(error).split()) or type(error).__name__


def _chain(error: BaseException) -> Iterator[BaseException]:
    """An error, those that Beam put into it, and its causes."""
    waiting: list[BaseException | None] = [error]
    seen = set()
    while waiting:
        found = waiting.pop()
        if found is None or id(found) in seen:
            continue
        seen.add(id(found))
        yield found
        details = getattr(found, "exception_details", None)
        inner = details.values() if isinstance(details, dict) else ()
        # Context too: some packages raise their own error while handling another.
        waiting += [e for e in inner if isinstance(e, BaseException)]
        waiting += [found.__cause__, found.__context__]


def _statuses(error: BaseException) -> Iterator[int]:
    """HTTP's status codes in an error."""
    for found in _chain(error):
        response = getattr(found, "response", None)
        for code in (
            getattr(response, "status_code", None),
            getattr(found, "code", None),
        ):
            if isinstance(code, int) and code >= 100:
                yield int(code)


_PASSING_NAMES = (
    # TensorFlow's, by `grpc`'s status codes.
    "AbortedError",
    "DeadlineExceededError",
    "InternalError",
    "ResourceExhaustedError",
    "UnavailableError",
    "UnknownError",
    # Of `requests`, `urllib3`, `http` and `google.auth`, which Beam speaks through.
    "ChunkedEncodingError",
    "ConnectTimeout",
    "IncompleteRead",
    "ProtocolError",
    "ReadTimeout",
    "ReadTimeoutError",
    "RetryError",
    "SSLError",
    "TransportError",
)
# Beam gives some errors as text alone.
_PASSING_TEXT = re.compile(
    r"TooManyRequests\(|ServiceUnavailable\(|InternalServerError\(|BadGateway\("
    r"|GatewayTimeout\(|Connection(?:Reset|Aborted|)Error\(|RemoteDisconnected\("
    r"|ReadTimeout\(|resolve host|resolve proxy"
)


def _is_any_of(error: BaseException, names: Collection[str]) -> bool:
    """Whether a class of the error has one of the names: its package is not loaded
    for that."""
    return any(base.__name__ in names for base in type(error).__mro__)


def may_pass(error: BaseException) -> bool:
    """Whether the same request may succeed later."""
    if is_missing(error):
        return False
    statuses = list(_statuses(error))
    if statuses:
        return any(status in (408, 429) or status >= 500 for status in statuses)
    return any(
        isinstance(found, ConnectionError | TimeoutError)
        or _is_any_of(found, (*_PASSING_NAMES, "ConnectionError", "Timeout"))
        or _PASSING_TEXT.search(str(found))
        for found in _chain(error)
    )


def is_missing(error: BaseException) -> bool:
    """Whether there is no such object or bucket."""
    return any(
        isinstance(found, FileNotFoundError)
        or _is_any_of(found, ("NotFoundError", "NotFound"))
        or "NotFound(" in str(found)
        for found in _chain(error)
    ) or 404 in _statuses(error)


def as_os_error(error: BaseException, path: str) -> OSError:
    """The `OSError` that a local file would raise.

    Every store's package has its own errors, and none has the path as an attribute.
    """
    if is_missing(error):
        return FileNotFoundError(errno.ENOENT, "No such file or bucket", path)
    names = ("PermissionDeniedError", "UnauthenticatedError", "Forbidden")
    is_refused = any(
        _is_any_of(found, names) or "Forbidden(" in str(found)
        for found in _chain(error)
    ) or {401, 403} & set(_statuses(error))
    number = errno.EACCES if is_refused else errno.EIO
    return OSError(number, reason(error)[:300], path)
