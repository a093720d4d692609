"""Devices of a strategy: what suits them, what they can, and errors of lost ones."""

import types

import keras
import numpy as np
import pytest
import tensorflow as tf

from bert_keras.training.step import engine, fit, precision, replicas


def test_this_keras_is_the_one_whose_private_name_is_used():
    assert keras.__version__.startswith("3.15.")
    assert callable(keras.Model._maybe_symbolic_build)


def test_a_value_outside_of_replicas_is_itself():
    assert float(replicas.sum_over_replicas(tf.constant(3.0))) == 3.0


def test_what_suits_the_devices():
    strategies = [
        (
            types.SimpleNamespace(extended=types.SimpleNamespace(worker_devices=names)),
            *x,
        )
        for names, *x in (
            (["/device:CPU:0", "/device:CPU:1"], "CPU", 1),
            (["/device:GPU:0", "/device:GPU:1"], "GPU", 10),
            (["/device:CPU:0", "/device:GPU:0"], "GPU", 10),
            # Those of preflight are said to be TPUs.
            (["/device:TPU:0"], "TPU", 10),
        )
    ]
    # A TPU's devices are named by the host's.
    tpu = object.__new__(tf.distribute.TPUStrategy)
    for strategy, kind, num_steps in (*strategies, (tpu, "TPU", 50)):
        assert replicas.kind_of_devices(strategy) == kind
        assert replicas.steps_per_execution(strategy) == num_steps


def workers(monkeypatch, strategy, of_each):
    """Makes sums over workers those of processes with these values."""
    found = []

    def add_up(_, numbers):
        found.append(numbers)
        return numbers

    monkeypatch.setattr(replicas, "_sum_over_workers", add_up)
    for values in of_each:
        replicas.differing(strategy, values)
    total = np.sum(found, axis=0)
    monkeypatch.setattr(replicas, "_sum_over_workers", lambda *_: total)


def test_equal_values_raise_no_alarm(monkeypatch):
    values = {"step": 2**24 - 1, "--init": "ab", "x": None, "fractions": [0.9, 0.1]}
    for num_workers in (1, 2, 33, 1000):
        strategy = types.SimpleNamespace(num_replicas_in_sync=num_workers)
        workers(monkeypatch, strategy, [values] * num_workers)
        assert replicas.differing(strategy, values) == []


def test_one_worker_of_many_that_differs(monkeypatch):
    strategy = types.SimpleNamespace(num_replicas_in_sync=1000)
    values = {"step": 5, "seed": 1, "--init": "ab"}
    others = [values] * 999
    workers(monkeypatch, strategy, [*others, values | {"seed": 2, "--init": "ac"}])
    assert replicas.differing(strategy, values) == ["seed", "--init"]


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_checksums_see_every_bit_and_the_order(dtype):
    strategy = tf.distribute.OneDeviceStrategy("/cpu:0")
    values = np.array([[1.0, -0.0, np.nan], [0.5, 2.0, 1e-40]], dtype)

    def checksums(array):
        variables = {
            "w": keras.Variable(array, dtype=dtype),
            "step": keras.Variable(7, dtype="int64"),
        }
        return replicas.checksums(strategy, variables)

    expected = checksums(values)
    assert expected == checksums(values.copy())
    assert expected["step"] == [7, 7]
    swapped, flipped = values[::-1], values.copy()
    flipped.view(f"uint{8 * values.itemsize}")[1, 2] ^= 1
    for other in (swapped, flipped, np.abs(values)):
        assert checksums(np.ascontiguousarray(other))["w"] != expected["w"]


def test_a_model_must_be_built_before_fit():
    model = fit.ReplicatedModel()
    with pytest.raises(ValueError, match="build the model inside the strategy's scope"):
        model._maybe_symbolic_build()


def test_without_a_data_sheet_there_is_no_utilization():
    """A measured peak is none: 1.75 of it was reached once."""
    mirrored = tf.distribute.MirroredStrategy(["/cpu:0", "/cpu:1"])
    for strategy in (tf.distribute.OneDeviceStrategy("/cpu:0"), mirrored):
        assert precision.peak_flops(strategy, "float32") is None


def test_each_gpu_counts(monkeypatch):
    monkeypatch.setattr(replicas, "are_gpus", lambda strategy: True)
    mirrored = tf.distribute.MirroredStrategy(["/cpu:0", "/cpu:1"])
    for names, expected in (
        (["NVIDIA A100", "NVIDIA A100"], 2 * 312e12),
        # The faster one waits for the slower one.
        (["NVIDIA H100", "NVIDIA A100"], 2 * 312e12),
        (["NVIDIA A100", "NVIDIA GeForce GTX 1080"], None),
    ):
        monkeypatch.setattr(replicas, "details_of_gpus", lambda *_, of=names: of)
        assert precision.peak_flops(mirrored, "mixed_bfloat16") == expected


def test_the_loss_scale_grows_after_many_good_steps():
    now, scales = (tf.constant(8.0), tf.constant(1998)), []
    for is_finite in (True, True, True, False, True):
        now = precision.next_loss_scale(*now, tf.constant(is_finite))
        scales.append((float(now[0]), int(now[1])))
    assert scales == [(8, 1999), (16, 0), (16, 1), (8, 0), (8, 1)]


def test_the_processor_tells_whether_it_multiplies_in_bfloat16(tmp_path):
    path, tells = tmp_path / "cpuinfo", precision.processor_multiplies_in_bfloat16
    assert not tells(path)
    for flags, expected in (("avx512_bf16 amx_tile", True), ("avx2 avx512f", False)):
        path.write_text(f"flags\t: fpu {flags}\n")
        assert tells(path) == expected


ENGINE = engine.KerasEngine(tf.distribute.get_strategy())
HEARTBEAT = """Graph execution error:

Detected at node CollectiveReduceV2 defined at (most recent call last):
Collective ops is aborted by: Error reported from /job:worker/task:3: The following \
tasks are unhealthy (stopped sending heartbeats):
/job:worker/replica:0/task:3
/job:worker/replica:0/task:12
The tasks have crashed. Check the task logs for an earlier error, or scheduler events \
(e.g. preemption, eviction) to debug further.
The error could be from a previous operation. Restart your program to reset.
\t [[{{node CollectiveReduceV2}}]] [Op:__inference_step_42]"""
RESET = """{{function_node __wrapped__CollectiveReduceV2_device_/job:worker/replica:0\
/task:1/device:CPU:0}} Collective ops is aborted by: recvmsg:Connection reset by peer
Additional GRPC error information from remote target /job:worker/replica:0/task:0 \
while calling /tensorflow.WorkerService/CompleteInstance:
:UNKNOWN:Error received from peer  {grpc_status:14}"""
SOCKET = "Collective ops is aborted by: Socket closed"


@pytest.mark.parametrize(
    ("text", "who"),
    [(HEARTBEAT, "task 3 and task 12"), (RESET, "task 0"), (SOCKET, "another worker")],
)
def test_a_lost_worker_is_named(text, who):
    """The texts are TensorFlow's: a killed worker, seen by the chief and by another."""
    message = ENGINE.in_words(tf.errors.UnavailableError(None, None, text))
    assert message == (
        f"{who} no longer answers (ended, killed, stopped or cut off); start all "
        "workers again with the same command to go on from the last checkpoint"
    )


def test_another_error_is_no_lost_worker():
    for error in (
        tf.errors.UnavailableError(None, None, "gs://bucket: Connection refused"),
        tf.errors.InternalError(None, None, "Collective ops is aborted by: bad shapes"),
        tf.errors.InvalidArgumentError(None, None, SOCKET),
        ValueError(SOCKET),
    ):
        assert ENGINE.in_words(error) is None
