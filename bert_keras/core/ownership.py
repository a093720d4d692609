"""Owners of output directories: one process writes into a directory at a time.

The file `.owner` in it names the process. On a local disk its lock (`flock`) decides.
Locks do not exist on stores such as `gs://` and do not reach other machines on some
network disks. There the heartbeat decides: the owner writes the time every ten seconds,
and an owner that writes nothing for a minute has gone. On stores each of these writes
is conditional: it replaces the version that this process has seen, or fails.
"""

import contextlib
import errno
import fcntl
import functools
import inspect
import json
import logging
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any, TypeVar, cast

from bert_keras.core import files, stores
from bert_keras.core.errors import InputError, Unavailable, not_writable

logger = logging.getLogger(__name__)

OWNER_NAME = ".owner"
HEARTBEAT_SECONDS = 10.0
SILENCE_SECONDS = 60.0
"""Time without a heartbeat after which an owner counts as gone."""
_LONG_GONE_SECONDS = 600.0
"""Age of a heartbeat that needs no watching, even if the machines' clocks differ."""
_SETTLING_SECONDS = 2.0
"""Time for two processes that took a directory at once to see each other."""

_NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL)

_Function = TypeVar("_Function", bound=Callable[..., Any])


class Owner:
    """This process as the owner of an output; see `owned`."""

    def __init__(self, path: str, output: files.Path):
        self._path, self._output = path, output
        self._is_remote = files.is_remote(path)
        self._name = {
            "host": socket.gethostname(),
            "pid": os.getpid(),
            **_place_of_pids(),
            "since": time.strftime("%Y-%m-%d %H:%M:%S"),
            "token": uuid.uuid4().hex,
        }
        self.descriptor: int | None = None
        """The open owner file, whose lock a child that inherits it holds too."""
        self._tag: stores.Tag | None = None
        """Of the file's version on a store that this process has seen last."""
        self._successor: dict[str, Any] | None = None
        self._one_at_a_time = threading.Lock()

    def check(self) -> None:
        """Raises an `InputError` if another process has taken the output over, and
        `OSError` or `Unavailable` if the disk or store does not answer. Called before
        each write that matters: this process may have been suspended."""
        self._renew()
        if self._successor is not None:
            raise self._refusal(self._successor)

    def acquire(self) -> None:
        """Takes the output, or raises an `InputError` that names its owner."""
        is_locked = self._lock()
        owner = self._read()
        if owner and not self._is_gone(owner, is_locked=is_locked):
            raise self._refusal(owner)
        # On a store, the first heartbeat of `check` takes it.
        if not self._is_remote:
            self._write()
            # Of two processes the last to write stays; `check` tells the other.
            if not is_locked:
                time.sleep(_SETTLING_SECONDS)
        self.check()

    def beat_until(self, stopped: threading.Event) -> None:
        """Writes the heartbeat until the event or a successor comes."""
        while not stopped.wait(HEARTBEAT_SECONDS) and self._successor is None:
            # A disk that does not answer now may answer the next time.
            with contextlib.suppress(OSError, InputError, Unavailable):
                self._renew()

    def release(self) -> None:
        with contextlib.suppress(OSError, InputError, Unavailable):
            # Nobody takes it within `SILENCE_SECONDS` of this heartbeat.
            self.check()
            files.delete(self._path)

    def _renew(self) -> None:
        # The thread of the heartbeat and those that write may be here at once.
        with self._one_at_a_time:
            if self._successor is not None:
                return
            if self._is_remote:
                line, tag = self._line(), self._tag
                try:
                    self._tag = stores.write_if_unchanged(self._path, line, tag)
                    return
                except OSError as error:
                    # Without a tag there was no owner file: the bucket is missing.
                    is_missing = isinstance(error, FileNotFoundError) and tag
                    if not is_missing and not isinstance(error, FileExistsError):
                        raise not_writable(self._output, error) from None
            owner = self._read() or {}
            # The file on a store is ours if only the answer to our write was lost.
            if owner.get("token") != self._name["token"]:
                self._successor = owner
            elif not self._is_remote:
                self._write()

    def _lock(self) -> bool:
        """Locks the owner file; returns whether the file system has locks."""
        while not self._is_remote:
            try:
                descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o644)
            except OSError as error:
                raise not_writable(self._output, error) from None
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                if error.errno in _NO_LOCKS:
                    self.descriptor = descriptor
                    return False
                os.close(descriptor)
                if error.errno not in (errno.EAGAIN, errno.EACCES):
                    raise
                raise self._refusal(self._read() or {}) from None
            # The owner before may have deleted the file between our two calls.
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(descriptor), os.stat(self._path)):
                    self.descriptor = descriptor
                    return True
            os.close(descriptor)
        return False

    def _is_gone(self, owner: dict[str, Any], *, is_locked: bool) -> bool:
        # A lock reaches all processes of one machine, a process id those of one
        # container; containers of two machines may have the same host name.
        if owner.get("boot") == self._name["boot"]:
            if is_locked:
                return True
            if owner.get("pid_namespace") == self._name["pid_namespace"]:
                try:
                    os.kill(owner["pid"], 0)
                except ProcessLookupError:
                    return True
                except OSError:
                    pass  # a process of another user
        if time.time() - owner["time"] > _LONG_GONE_SECONDS:
            return True
        logger.info(
            "%s: last used by %s; waiting up to %g s for a sign of it",
            self._output,
            _described(owner),
            SILENCE_SECONDS,
        )
        deadline = time.monotonic() + SILENCE_SECONDS
        while time.monotonic() < deadline:
            time.sleep(min(1.0, SILENCE_SECONDS / 10))
            asked = time.monotonic()
            if (now := self._read()) != owner:
                # A finished owner deletes its name.
                return now is None
            # While a store does not answer us, its owner cannot write to it either.
            deadline += time.monotonic() - asked
        return True

    def _refusal(self, owner: dict[str, Any]) -> InputError:
        return InputError(
            f"{self._output}: in use by {_described(owner)}: wait for its end, or "
            "choose another directory"
        )

    def _read(self) -> dict[str, Any] | None:
        """Reads the name of the owner; `None`: no owner yet, or a damaged file."""
        try:
            if self._is_remote:
                self._tag = None
                data, self._tag = stores.read_version(self._path)
            else:
                data = files.read_bytes(self._path)
            owner = files.parse_json(data.decode())
        except (FileNotFoundError, ValueError):
            return None
        if not isinstance(owner, dict) or not isinstance(owner.get("time"), float):
            return None
        pid = owner.get("pid")
        return owner if isinstance(pid, int) and 0 < pid < 2**31 else None

    def _line(self) -> bytes:
        return json.dumps({**self._name, "time": time.time()}).encode() + b"\n"

    def _write(self) -> None:
        line, descriptor = self._line(), cast(int, self.descriptor)
        # In place: a renamed file would have no lock.
        os.pwrite(descriptor, line, 0)
        os.ftruncate(descriptor, len(line))
        os.fsync(descriptor)


def _place_of_pids() -> dict[str, str]:
    """Returns the boot and the namespace in which a process id is unique."""
    place = {"boot": "", "pid_namespace": ""}
    with contextlib.suppress(OSError):
        with open("/proc/sys/kernel/random/boot_id") as file:
            place["boot"] = file.read().strip()
        place["pid_namespace"] = os.readlink("/proc/self/ns/pid")
    # An unknown place equals no other place, so the heartbeat decides.
    return {name: value or uuid.uuid4().hex for name, value in place.items()}


def _described(owner: dict[str, Any]) -> str:
    """Returns a text such as `process 4711 on gpu-3, since 2026-11-22 14:03:11`."""
    if not owner:
        return "another process"
    pid, host, since = (owner.get(key) for key in ("pid", "host", "since"))
    return f"process {pid} on {host}, since {since}"


def check_free(output: files.Path) -> None:
    """Refuses a directory that a process of this machine writes, before expensive work.
    `owned` decides; stores and other machines are left to it."""
    try:
        descriptor = os.open(files.join(output, OWNER_NAME), os.O_RDONLY)
    except OSError:
        return
    try:
        # Shared: the workers of a run may check at once.
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.EACCES):
            owner = Owner(files.join(output, OWNER_NAME), output)
            raise owner._refusal(owner._read() or {}) from None
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def owned(output: files.Path, *, is_file: bool = False) -> Iterator[Owner]:
    """Makes this process the only one that writes an output until the block ends. The
    output is a directory, made if it is missing, or with `is_file` a future file;
    `.NAME.owner` is then next to it. An `InputError` names another owner."""
    directory = os.path.dirname(str(output)) if is_file else str(output)
    is_new = not is_file and not files.exists(directory)
    files.make_directory(directory or ".")
    name = f".{files.name_of(output)}.owner" if is_file else OWNER_NAME
    owner = Owner(files.join(directory, name), output)
    stopped = threading.Event()
    heart = threading.Thread(target=owner.beat_until, args=(stopped,), daemon=True)
    try:
        owner.acquire()
        heart.start()
        try:
            yield owner
            owner.check()
        finally:
            stopped.set()
            # Not without a limit: a disk that does not answer may hold the thread.
            heart.join(HEARTBEAT_SECONDS)
            owner.release()
    finally:
        if owner.descriptor is not None:
            os.close(owner.descriptor)
        if is_new and not files.is_remote(directory):
            # The command was refused, so the directory is empty.
            with contextlib.suppress(OSError):
                os.rmdir(directory)


def owns(
    parameter: str,
    *,
    is_file: bool = False,
    after: Callable[[dict[str, Any]], None] = lambda arguments: None,
) -> Callable[[_Function], _Function]:
    """Decorates a function that owns the output named by the argument `parameter`.
    `after` checks the arguments, by name, before the output is touched."""

    def decorate(function: _Function) -> _Function:
        signature = inspect.signature(function)

        @functools.wraps(function)
        def own_and_call(*args: Any, **kwargs: Any) -> Any:
            arguments = signature.bind(*args, **kwargs).arguments
            after(arguments)
            with owned(arguments[parameter], is_file=is_file):
                return function(*args, **kwargs)

        return cast(_Function, own_and_call)

    return decorate
