"""The processes of one multi-worker run: their addresses, and waiting for all.

TensorFlow itself waits for its peers without a word, holds Python's lock meanwhile and
takes SIGTERM away: neither a thread nor Ctrl-C ends it. So workers first find each
other here, and TensorFlow is called only when all of them answer.
"""

import contextlib
import errno
import logging
import socket
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from bert_keras.core import files
from bert_keras.core.errors import InputError

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Cluster:
    """All workers of a run, and this process's place among them."""

    addresses: tuple[str, ...]
    """`HOST:PORT` of each worker; the same tuple in each of them."""
    index: int
    """Index of this worker in `addresses`; 0 is the chief, which alone writes files."""

    def __post_init__(self):
        if not self.addresses:
            raise InputError("a cluster needs at least one worker, got none")
        for address in self.addresses:
            host_and_port(address)
        twice = {a for a in self.addresses if self.addresses.count(a) > 1}
        if twice:
            raise InputError(f"workers need distinct addresses, got {min(twice)} twice")
        if not 0 <= self.index < len(self.addresses):
            raise InputError(
                f"a worker's index is 0 to {len(self.addresses) - 1} with "
                f"{len(self.addresses)} workers, got {self.index}"
            )

    @property
    def is_local(self) -> bool:
        """Whether the address of this worker is meant for this machine alone."""
        host, _ = host_and_port(self.addresses[self.index])
        return host == "localhost" or host == "::1" or host.startswith("127.")

    def named(self, tasks: Iterable[int]) -> str:
        """Returns a text such as `"task 1 (10.0.0.2:4000), task 3 (10.0.0.4:4000)"`."""
        return ", ".join(f"task {task} ({self.addresses[task]})" for task in tasks)


def host_and_port(address: str) -> tuple[str, int]:
    """Splits `HOST:PORT`; an IPv6 host is in brackets."""
    host, _, port = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isascii() or not port.isdigit():
        raise InputError(f"a worker's address is HOST:PORT, got {address!r}")
    if not 0 < int(port) < 2**16:
        raise InputError(f"a port is 1 to 65535, got {address!r}")
    return host, int(port)


def cluster_from_tf_config(text: str) -> Cluster:
    """Returns the cluster of the environment variable `TF_CONFIG`.

    Jobs `worker`, and `chief` before the workers, as
    `{"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 0}}`.
    Other jobs (parameter servers, evaluators) are refused.
    """
    try:
        config = files.parse_json(text)
    except ValueError as error:
        raise InputError(f"TF_CONFIG is not JSON ({error}): {text!r:.300}") from None
    jobs = _get(config, "cluster", dict, within="TF_CONFIG")
    task = _get(config, "task", dict, within="TF_CONFIG")
    job = _get(task, "type", str, within="TF_CONFIG's task")
    index = _get(task, "index", int, within="TF_CONFIG's task")
    for name in (*jobs, job):
        if name not in ("chief", "worker"):
            raise InputError(
                f"TF_CONFIG: only the jobs chief and worker are supported, got {name!r}"
            )
    within = "TF_CONFIG's cluster"
    addresses: dict[str, list] = {"chief": [], "worker": []}
    addresses |= {name: _get(jobs, name, list, within=within) for name in jobs}
    chiefs = addresses["chief"]
    if len(chiefs) > 1:
        raise InputError(f"TF_CONFIG: one chief at most, got {chiefs}")
    if not 0 <= index < len(addresses[job]):
        raise InputError(
            f"TF_CONFIG: this is {job} {index}, but its cluster has "
            f"{len(addresses[job])} of job {job!r}"
        )
    # As in TensorFlow, the chief comes first, and all other numbers move up.
    everyone = tuple(map(str, chiefs + addresses["worker"]))
    return Cluster(everyone, index if job == "chief" else len(chiefs) + index)


def _get(mapping: Any, key: str, kind: type, *, within: str) -> Any:
    value = mapping.get(key) if isinstance(mapping, dict) else None
    if not isinstance(value, kind) or isinstance(value, bool):
        names = {dict: "an object", list: "a list", str: "a string", int: "a number"}
        raise InputError(f"{within} needs {key!r}, {names[kind]}, got {mapping!r}")
    return value


def wait_for_peers(
    cluster: Cluster, *, timeout_seconds: float, report_every_seconds: float = 10.0
) -> None:
    """Waits until every worker answers at its address, this one included.

    Meanwhile this process holds its own port, which is free for TensorFlow on return,
    and regularly reports the missing workers. Refuses workers that do not answer in
    time, and an own address that is in use or not this machine's.
    """
    started = reported = time.monotonic()
    peers = [task for task in range(len(cluster.addresses)) if task != cluster.index]
    answered: set[int] = set()
    # Peers can connect to a port that is listened at, and no other process can take it.
    host, port = host_and_port(cluster.addresses[cluster.index])
    try:
        places = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        family, _, _, _, address = places[0]
        listener = socket.create_server(address, family=family, backlog=128)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            problem = "is in use: a worker of an earlier run, or two of one index?"
        else:
            reason = error.strerror or str(error)
            problem = f"cannot be listened at here ({reason}): is the index right?"
        own = cluster.named([cluster.index])
        raise InputError(f"this process is {own}, but its address {problem}") from None
    with listener:
        listener.setblocking(False)
        while missing := [task for task in peers if not _answers(cluster, task)]:
            _accept_all(listener)
            # A worker that gave up waiting is gone, but is not the missing one.
            answered |= set(peers) - set(missing)
            waited = time.monotonic() - started
            if waited >= timeout_seconds:
                never = [task for task in missing if task not in answered]
                raise InputError(
                    f"{cluster.named(never or missing)} did not answer within "
                    f"{timeout_seconds:g} s; start every worker, each with the same "
                    "list of workers and its own index"
                )
            if time.monotonic() - reported >= report_every_seconds:
                reported = time.monotonic()
                logger.info(
                    f"task {cluster.index} waits for {cluster.named(missing)}, "
                    f"{waited:.0f} s of {timeout_seconds:g} s"
                )
            time.sleep(min(0.5, timeout_seconds - waited))
        _accept_all(listener)


def _accept_all(listener: socket.socket) -> None:
    """Accepts all connections, so that their queue never fills up."""
    with contextlib.suppress(BlockingIOError):
        while True:
            listener.accept()[0].close()


def _answers(cluster: Cluster, task: int) -> bool:
    try:
        address = host_and_port(cluster.addresses[task])
        socket.create_connection(address, timeout=2).close()
    except OSError:
        return False
    return True
