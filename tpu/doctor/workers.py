"""The workers of a run: the port of this worker, and whether the others answer."""

import os
import socket
from collections.abc import Iterator

from bert_keras.core.errors import InputError
from bert_keras.tpu import cluster
from bert_keras.tpu.doctor.findings import Finding, Problem, look


def examine() -> Iterator[Finding]:
    text = os.environ.get("TF_CONFIG")
    if not text:
        return
    try:
        peers = cluster.cluster_from_tf_config(text)
    except InputError as error:
        yield Finding("TF_CONFIG", "problem", str(error), "unset TF_CONFIG")
        return
    yield look("own port", _own_port, peers)
    yield look("other workers", _peers, peers)


def _own_port(peers: cluster.Cluster) -> str:
    host, port = cluster.host_and_port(peers.address)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        socket.create_server((host, port), family=family).close()
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else str(error)
        found = f"{peers.address} cannot be listened at: {reason}"
        raise Problem(found, f"sudo lsof -i :{port}") from None
    return f"{peers.address} is free"


def _peers(peers: cluster.Cluster) -> str:
    silent = []
    for task, address in enumerate(peers.addresses):
        if task == peers.index:
            continue
        try:
            where = cluster.host_and_port(address)
            socket.create_connection(where, timeout=2).close()
        except ConnectionRefusedError:
            # The machine is there; its worker has not started yet.
            continue
        except OSError as error:
            silent.append(f"{peers.named([task])}: {error.strerror or error}")
    if silent:
        raise Problem(", ".join(silent))
    return "their machines answer"
