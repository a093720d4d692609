import os
import signal
import subprocess
import sys

import pytest
import tensorflow as tf

from bert_keras.core import chips
from bert_keras.core.errors import InputError
from bert_keras.tpu import strategy
from tests.tpu import test_cluster

needs_no_gpu = pytest.mark.skipif(
    bool(tf.config.list_physical_devices("GPU")), reason="this machine has a GPU"
)


@needs_no_gpu
@pytest.mark.parametrize("name", ["cpu", "auto"])
def test_cpu(name):
    made = strategy.get_strategy(name)
    assert isinstance(made, tf.distribute.OneDeviceStrategy)
    assert "CPU:0" in made.extended.worker_devices[0]


@needs_no_gpu
def test_a_gpu_that_is_not_there():
    message = "TensorFlow sees no GPU here, only .*CPU:0.*; use --strategy cpu"
    with pytest.raises(InputError, match=message):
        strategy.get_strategy("gpu")


@needs_no_gpu
def test_memory_of_gpus_grows(monkeypatch):
    grown = []

    def grow(gpu, does):
        grown.append((gpu, does))
        if gpu == "in use":
            raise RuntimeError("Physical devices cannot be modified")

    listed = {"GPU": ["in use", "new"]}
    monkeypatch.setattr(tf.config, "list_physical_devices", listed.get)
    monkeypatch.setattr(tf.config.experimental, "set_memory_growth", grow)
    strategy.get_strategy("cpu")
    assert grown == [("in use", True), ("new", True)]


@needs_no_gpu
def test_a_gpu_that_tensorflow_cannot_use_is_not_passed_over(monkeypatch):
    """As where its CUDA libraries are missing: training would take weeks, unsaid."""
    monkeypatch.setattr(chips, "visible_gpus", lambda: ["0", "1"])
    message = "has 2 NVIDIA GPUs, but TensorFlow cannot use them: run `pip .*gpu"
    for name in ("auto", "gpu"):
        with pytest.raises(InputError, match=message):
            strategy.get_strategy(name)
    assert "CPU:0" in strategy.get_strategy("cpu").extended.worker_devices[0]


TWO = {"workers": ["a:1", "b:2"]}


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("tpu", {}, "--strategy tpu: no TPU .*use --strategy cpu"),
        pytest.param(
            *("tpu:none-of-that-name", {}, "--strategy tpu: no TPU .*--strategy cpu"),
            marks=pytest.mark.slow,
        ),
        ("cuda", {}, "--strategy is one of auto, cpu, gpu, .*, tpu:NAME, got 'cuda'"),
        ("cpu", TWO | {"worker_index": 0}, "go with --strategy multi_worker, got.*cpu"),
        ("auto", {"worker_index": 0}, "--worker_index needs --workers"),
        ("auto", TWO, "--workers needs --worker_index, 0 to 1"),
        ("multi_worker", {}, "multi_worker needs --workers .* or .*TF_CON"),
    ],
)
def test_mistakes(monkeypatch, name, options, message):
    monkeypatch.delenv("TF_CONFIG", raising=False)
    with pytest.raises(InputError, match=message):
        strategy.get_strategy(name, **options)


def test_auto_takes_the_workers_of_the_environment(monkeypatch):
    monkeypatch.setenv("TF_CONFIG", "{}")
    with pytest.raises(InputError, match="TF_CONFIG needs 'cluster'"):
        strategy.get_strategy("auto")


def test_a_missing_worker():
    workers = test_cluster.free_addresses(2)
    with pytest.raises(InputError, match=rf"task 1 \({workers[1]}\) did not answer"):
        strategy.get_strategy(
            "auto", workers=workers, worker_index=0, startup_timeout_seconds=0.5
        )


WORKER = """
import signal, sys
import tensorflow as tf
from bert_keras.training.step import engine, replicas
from bert_keras.tpu import strategy

made = strategy.get_strategy("auto", startup_timeout_seconds=60, **WORKERS)
index = made.cluster_resolver.task_id
total = tf.function(
    lambda: made.run(lambda: replicas.sum_over_replicas(tf.constant(index + 1)))
)
first = made.experimental_local_results(total())[0].numpy()
by_default = signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
devices = engine.KerasEngine(made)
print(index, first, devices.is_chief, by_default, flush=True)
try:
    while True:
        total()
except tf.errors.OpError as error:
    print(devices.in_words(error) or repr(error), flush=True)
"""


def start_worker(index, addresses, *, by_tf_config):
    """A process that sums over all workers until one of them is lost."""
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    options = {"workers": addresses, "worker_index": index}
    if by_tf_config:
        jobs = {"worker": addresses}
        environment["TF_CONFIG"] = test_cluster.tf_config(jobs, index=index)
        options = {}
    return subprocess.Popen(
        [sys.executable, "-c", WORKER.replace("WORKERS", repr(options))],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=environment,
        text=True,
    )


@needs_no_gpu
@pytest.mark.slow
def test_two_workers_and_the_loss_of_one_that_hangs():
    addresses = test_cluster.free_addresses(2)
    workers = [start_worker(i, addresses, by_tf_config=i == 1) for i in range(2)]
    # Worker, sum, chief, and whether SIGTERM ends it: TensorFlow would swallow it.
    assert workers[0].stdout.readline() == "0 3 True True\n"
    assert workers[1].stdout.readline() == "1 3 False True\n"
    workers[1].send_signal(signal.SIGSTOP)
    output, _ = workers[0].communicate(timeout=60)
    workers[1].kill()
    workers[1].communicate()
    assert output.startswith("task 1 no longer answers")
