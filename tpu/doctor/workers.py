"""The workers of a run: the port of this worker, and whether the others answer."""

import os
import socket
from collections.abc import Iterator

from bert_keras.core.errors import InputError
from bert_keras.tpu import cluster
from bert_keras.tpu.doctor.findings import Finding


def examine() -> Iterator[Finding]:
    text = os.environ.get("TF_CONFIG")
    if not text:
        return
    try:
        peers = cluster.cluster_from_tf_config(text)
    except InputError as error:
        yield Finding("TF_CONFIG", "problem", str(error), "unset TF_CONFIG")
        return
    yield _own_port(peers)
    yield _peers(peers)


def _own_port(peers: cluster.Cluster) -> Finding:
    host, port = cluster.host_and_port(peers.address)
    name = "own port"
    try:
        socket.create_server((host, port), family=_family(host)).close()
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else str(error)
        told = f"{peers.address} cannot be listened at: {reason}"
        return Finding(name, "problem", told, f"sudo lsof -i :{port}")
    return Finding(name, "ok", f"{peers.address} is free")


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def _peers(peers: cluster.Cluster) -> Finding:
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
            silent.append((task, error.strerror or str(error)))
    if not silent:
        return Finding("other workers", "ok", "their machines answer")
    told = ", ".join(f"{peers.named([task])}: {why}" for task, why in silent)
    return Finding("other workers", "problem", told)
