"""Workers on this machine, without TensorFlow."""

import contextlib
import json
import logging
import socket
import threading
from concurrent import futures

import pytest

from bert_keras.core.errors import InputError
from bert_keras.tpu import cluster


def free_addresses(count):
    with contextlib.ExitStack() as stack:
        sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
        held = map(stack.enter_context, sockets)
        return tuple(f"127.0.0.1:{one.getsockname()[1]}" for one in held)


def tf_config(cluster_jobs, job="worker", index=0):
    return json.dumps({"cluster": cluster_jobs, "task": {"type": job, "index": index}})


CHIEF = {"worker": ["b:2", "c:3"], "chief": ["a:1"]}


@pytest.mark.parametrize(
    ("text", "addresses", "index"),
    [
        (tf_config({"worker": ["a:1", "b:2"]}, index=1), ("a:1", "b:2"), 1),
        # A chief comes before the workers.
        (tf_config(CHIEF, "chief"), ("a:1", "b:2", "c:3"), 0),
        (tf_config(CHIEF), ("a:1", "b:2", "c:3"), 1),
    ],
)
def test_tf_config(text, addresses, index):
    expected = cluster.Cluster(addresses, index)
    assert cluster.cluster_from_tf_config(text) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[" * 99_999, "TF_CONFIG is not JSON .brackets are nested too deeply"),
        ("{", "TF_CONFIG is not JSON .*: '{'"),
        ("[]", r"TF_CONFIG needs 'cluster', an object, got \[\]"),
        ("{}", "TF_CONFIG needs 'cluster', an object, got {}"),
        ('{"cluster": {}}', "TF_CONFIG needs 'task', an object"),
        ('{"cluster": {}, "task": {"type": "worker"}}', "task needs 'index', a number"),
        (tf_config({"worker": "a:1"}), "cluster needs 'worker', a list"),
        (
            tf_config({"worker": ["a:1", "b:2"]}, index=2),
            "this is worker 2, but its cluster has 2 of job 'worker'",
        ),
        (
            tf_config({"worker": ["a:1"]}, "chief"),
            "this is chief 0, but its cluster has 0 of job 'chief'",
        ),
        (tf_config({"worker": ["a:1"], "ps": ["b:2"]}), "are supported, got 'ps'"),
        (tf_config({"worker": ["a:1"]}, "evaluator"), "are supported, got 'evaluator'"),
        (tf_config({"chief": ["a:1", "b:2"]}, "chief"), "one chief at most"),
        (tf_config({"worker": [7]}), "address is HOST:PORT, got '7'"),
    ],
)
def test_what_tf_config_cannot_be(text, message):
    with pytest.raises(InputError, match=message):
        cluster.cluster_from_tf_config(text)


@pytest.mark.parametrize(
    ("addresses", "index", "message"),
    [
        ((), 0, "at least one worker"),
        (("a:1", "b"), 0, "address is HOST:PORT, got 'b'"),
        (("a:1", ":2"), 0, "address is HOST:PORT, got ':2'"),
        (("a:1", "b:x"), 0, "address is HOST:PORT, got 'b:x'"),
        (("a:1", "b:70000"), 0, "a port is 1 to 65535, got 'b:70000'"),
        (("a:1", "a:1"), 0, "distinct addresses, got a:1 twice"),
        (("a:1", "b:2"), 2, "index is 0 to 1 with 2 workers, got 2"),
        (("a:1", "b:2"), -1, "index is 0 to 1 with 2 workers, got -1"),
    ],
)
def test_workers_that_cannot_be(addresses, index, message):
    with pytest.raises(InputError, match=message):
        cluster.Cluster(addresses, index)


def work(addresses, index, everyone, timeout_seconds):
    """Finds the others as a worker does, and then holds the port as TensorFlow does."""
    found = cluster.Cluster(addresses, index)
    cluster.wait_for_peers(found, timeout_seconds=timeout_seconds)
    with socket.create_server(cluster.host_and_port(addresses[index])):
        everyone.wait(timeout_seconds)


def test_workers_find_each_other_in_any_order():
    addresses, everyone = free_addresses(3), threading.Barrier(3)
    with futures.ThreadPoolExecutor(3) as pool:
        workers = [pool.submit(work, addresses, i, everyone, 60) for i in (2, 0, 1)]
        assert [worker.result() for worker in workers] == [None] * 3


def test_a_missing_worker_is_named_by_all_others():
    addresses, everyone = free_addresses(3), threading.Barrier(3)
    message = rf"task 2 \({addresses[2]}\) did not answer within 3 s;"
    with futures.ThreadPoolExecutor(2) as pool:
        for worker in [pool.submit(work, addresses, i, everyone, 3) for i in (0, 1)]:
            with pytest.raises(InputError, match=f"^{message}"):
                worker.result()


def test_who_is_waited_for_is_logged(caplog):
    found = cluster.Cluster(free_addresses(2), 0)
    with (
        caplog.at_level(logging.INFO, logger="bert_keras.tpu.cluster"),
        pytest.raises(InputError, match="did not answer within 0.5 s"),
    ):
        cluster.wait_for_peers(found, timeout_seconds=0.5, report_every_seconds=0)
    assert f"task 0 waits for {found.named([1])}, 0 s of 0.5 s" in caplog.messages


def test_an_address_in_use():
    with socket.create_server(("127.0.0.1", 0)) as held:
        own = f"127.0.0.1:{held.getsockname()[1]}"
        message = rf"this process is task 1 \({own}\), but its address is in use"
        found = cluster.Cluster(("127.0.0.1:1", own), 1)
        with pytest.raises(InputError, match=message):
            cluster.wait_for_peers(found, timeout_seconds=1)


@pytest.mark.parametrize("host", ["192.0.2.1", "no-such-host.invalid"])
def test_an_address_of_another_machine(host):
    found = cluster.Cluster((f"{host}:4000", "127.0.0.1:1"), 0)
    message = r"task 0 .* cannot be listened at here \(.+\): is the index right\?"
    with pytest.raises(InputError, match=message):
        cluster.wait_for_peers(found, timeout_seconds=1)


@pytest.mark.parametrize(
    ("host", "is_local"),
    [("localhost", True), ("127.0.0.9", True), ("[::1]", True), ("10.0.0.1", False)],
)
def test_addresses_for_one_machine(host, is_local):
    assert cluster.Cluster((f"{host}:4000",), 0).is_local is is_local
    assert cluster.host_and_port(f"{host}:4000") == (host.strip("[]"), 4000)
