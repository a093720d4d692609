"""Two worker processes equal one device, and end together whatever happens to one."""

import contextlib
import os
import random
import re
import signal
import socket
import subprocess
import sys
import time

import numpy as np
import pytest
import tensorflow as tf

from bert_keras.core.settings import config, loading, strict
from bert_keras.pipelines import examples
from bert_keras.pipelines.engine import engines
from bert_keras.training import pretrain

pytestmark = pytest.mark.slow

SETTINGS = {
    "model": {
        "num_hidden_layers": 2,
        "hidden_size": 32,
        "num_attention_heads": 2,
        "intermediate_size": 64,
        "max_position_embeddings": 32,
    },
    "optimizer": {"learning_rate": 1e-3, "warmup_steps": 2, "max_grad_norm": 0.5},
    "global_batch_size": 8,
    "num_train_steps": 20,
    "save_checkpoint_steps": 10,
    "num_checkpoints": 100,
    "shuffle_buffer_size": 100,
    "precision": "float32",
}
LONG = {"num_train_steps": 600, "save_checkpoint_steps": 20}


def free_addresses(count):
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for listener in sockets:
            listener.bind(("127.0.0.1", 0))
        return [f"127.0.0.1:{listener.getsockname()[1]}" for listener in sockets]


COMMAND_LINE = ("-m", "bert_keras.commands.main")


def start_workers(examples, run, second=(), *, program=COMMAND_LINE, **changes):
    """Both processes of a run; what they say goes to `worker-N.log` beside it."""
    path = run.parent / "config.yaml"
    settings = strict.build_config(config.PretrainingConfig, {**SETTINGS, **changes})
    loading.save(settings, path)
    addresses = ",".join(free_addresses(2))
    processes = []
    for index in range(2):
        command = [
            *(sys.executable, *program, "pretrain"),
            *("--examples", *map(str, np.ravel(examples)), "--output_dir", str(run)),
            *("--config", str(path), "--workers", addresses),
            *("--worker_index", str(index)),
            *(second if index else ()),
        ]
        with open(run.parent / f"worker-{index}.log", "wb") as log:
            processes.append(subprocess.Popen(command, stderr=log))
    return processes


def finish(processes, timeout=240):
    """Their exit codes; none is left behind."""
    try:
        return [process.wait(timeout=timeout) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()


def log_of(run, index):
    return (run.parent / f"worker-{index}.log").read_text()


def wait_for_step(run, step, processes):
    """Until there is a checkpoint of this step or a later one."""
    deadline = time.monotonic() + 240
    while (
        not (paths := list(run.glob("checkpoints/step-*.npz")))
        or step_of(max(paths)) < step
    ):
        assert all(process.poll() is None for process in processes)
        assert time.monotonic() < deadline
        time.sleep(0.02)


def step_of(path):
    return int(path.stem.removeprefix("step-"))


def state(run):
    newest = max(run.glob("checkpoints/step-*.npz"))
    with np.load(newest) as arrays:
        return {name: arrays[name] for name in arrays.files}


def assert_same_state(first, second):
    first, second = state(first), state(second)
    assert first.keys() == second.keys()
    for name in first:
        np.testing.assert_array_equal(first[name], second[name], err_msg=name)


@pytest.fixture(scope="module")
def uninterrupted(tiny_examples, tmp_path_factory):
    """A run of two workers that nothing happened to."""
    run = tmp_path_factory.mktemp("whole") / "run"
    processes = start_workers(tiny_examples, run, **LONG)
    assert finish(processes) == [0, 0], log_of(run, 0)
    return run


def test_two_workers_equal_one_device(tiny_examples, tmp_path):
    run = tmp_path / "run"
    assert finish(start_workers(tiny_examples, run)) == [0, 0], log_of(run, 0)
    settings = strict.build_config(config.PretrainingConfig, SETTINGS)
    pretrain.pretrain(
        settings,
        [tiny_examples],
        tmp_path / "one",
        strategy=tf.distribute.OneDeviceStrategy("/cpu:0"),
    )
    one, two = state(tmp_path / "one"), state(run)
    assert one.keys() == two.keys()
    for index in range(2):
        assert "2 devices add up right and train as one does" in log_of(run, index)
    for name in one:
        np.testing.assert_allclose(one[name], two[name], atol=1e-6, err_msg=name)


def test_one_worker_is_killed_ten_times(uninterrupted, tiny_examples, tmp_path):
    """Either of them; each time the other one ends too, and both are started again."""
    run, choose = tmp_path / "run", random.Random(1)
    for count in range(10):
        processes = start_workers(tiny_examples, run, **LONG)
        wait_for_step(run, LONG["save_checkpoint_steps"] * 2 * (count + 1), processes)
        time.sleep(choose.uniform(0, 0.2))
        killed = choose.randrange(2)
        processes[killed].send_signal(signal.SIGKILL)
        codes = finish(processes)
        assert codes[killed] == -signal.SIGKILL
        assert codes[1 - killed] == 2, log_of(run, 1 - killed)
        assert f"task {killed} no longer answers" in log_of(run, 1 - killed)
        assert "start all workers again with the same" in log_of(run, 1 - killed)
        assert not (run / "results.json").exists()
        assert ("resuming after step" in log_of(run, 0)) == (count > 0)
    assert finish(start_workers(tiny_examples, run, **LONG)) == [0, 0], log_of(run, 0)
    assert_same_state(uninterrupted, run)


@pytest.mark.parametrize("index", [0, 1])
def test_sigterm_to_one_stops_both_at_the_same_step(
    uninterrupted, tiny_examples, tmp_path, index
):
    run = tmp_path / "run"
    processes = start_workers(tiny_examples, run, **LONG)
    wait_for_step(run, 2 * LONG["save_checkpoint_steps"], processes)
    os.kill(processes[index].pid, signal.SIGTERM)
    assert finish(processes) == [143, 143], log_of(run, index)
    stops = [log_of(run, worker).splitlines()[-1] for worker in range(2)]
    assert stops[0] == stops[1]
    step = step_of(max(run.glob("checkpoints/*")))
    assert f"stopped by SIGTERM at step {step}" in stops[0]
    assert finish(start_workers(tiny_examples, run, **LONG)) == [0, 0], log_of(run, 0)
    assert_same_state(uninterrupted, run)


SIGTERM_IN_EVALUATION = """
import os, signal, sys
from bert_keras.commands import main as cli
from bert_keras.training.step import replicas, stopping

ended = stopping.StopOnSignal.on_test_batch_end
def end(self, batch, logs=None):
    print("batch", batch, "of", replicas.optimizer_step(self.model), file=sys.stderr)
    if batch == 0 and replicas.optimizer_step(self.model) == 5 and "1" in sys.argv:
        os.kill(os.getpid(), signal.SIGTERM)
    ended(self, batch, logs)
stopping.StopOnSignal.on_test_batch_end = end
cli.entry_point()
"""


def test_sigterm_to_one_stops_the_evaluation_of_both(tiny_examples, tmp_path):
    """At a step that is not saved; the request travels with the next batch."""
    options = {"global_batch_size": 2, "evaluate_steps": 5}
    run = tmp_path / "run"
    processes = start_workers(
        tiny_examples, run, program=("-c", SIGTERM_IN_EVALUATION), **options
    )
    assert finish(processes) == [143, 143], log_of(run, 0)
    for worker in range(2):
        last = log_of(run, worker).splitlines()[-2:]
        assert last[0].startswith("batch 1 of 5")
        assert "stopped by SIGTERM at step 5; give" in last[1]
    assert finish(start_workers(tiny_examples, run, **options)) == [0, 0]
    assert "evaluation at step 5 " in log_of(run, 0)


def test_the_chiefs_clock_tells_both_when_to_evaluate(tiny_examples, tmp_path):
    """The request travels with the next step."""
    run = tmp_path / "run"
    options = {"evaluate_minutes": 1e-9, "draw_minutes": 1e-9, "num_train_steps": 6}
    assert finish(start_workers(tiny_examples, run, **options)) == [0, 0]
    found = re.findall(r"evaluation at step (\d+) ", log_of(run, 0))
    assert found == ["2", "4", "6"]


def test_files_of_their_own(tiny_examples, tmp_path):
    """Three shards, one for evaluation: one for each of two workers."""
    run = tmp_path / "run"
    processes = start_workers(tiny_examples, run, input_sharding="file")
    assert finish(processes) == [0, 0], log_of(run, 0)
    processes = start_workers(
        tiny_examples, tmp_path / "few", input_sharding="file", num_eval_shards=2
    )
    assert finish(processes)[0] == 2
    assert "input_sharding" in log_of(tmp_path / "few", 0)


OTHER_ROUNDING = """
import sys
import numpy as np
from bert_keras.commands import main as cli

compute = np.linalg.svd
def rounded(*arguments, **options):
    return [factor * (1 + 1e-12) for factor in compute(*arguments, **options)]
if sys.argv[sys.argv.index("--worker_index") + 1] == "1":
    np.linalg.svd = rounded
cli.entry_point()
"""


def test_both_take_the_positions_that_the_first_one_continues(
    tiny_examples, tiny_vocab, tmp_path
):
    """The second one's processor rounds otherwise; a checkpoint compares the bits."""
    examples.build_examples(
        tiny_examples.parent / "corpus",
        tiny_vocab,
        tmp_path / "longer",
        config=config.ExamplesConfig(max_seq_length=64, dupe_factor=2),
        do_lower_case=True,
        num_shards=3,
        engine=engines.make_engine(),
    )
    run = tmp_path / "run"
    processes = start_workers(
        [tiny_examples, tmp_path / "longer"],
        run,
        program=("-c", OTHER_ROUNDING),
        model={**SETTINGS["model"], "max_position_embeddings": 64},
        num_train_steps=4,
        save_checkpoint_steps=2,
        phases=[{"fraction": 0.5}, {"fraction": 0.5}],
        grow_positions="extrapolate",
    )
    assert finish(processes) == [0, 0], log_of(run, 0)
    assert "positions 31 to 63 go on from those before" in log_of(run, 1)


def test_workers_that_are_given_something_else(tiny_examples, tmp_path):
    run = tmp_path / "run"
    second = ("--set", "seed=2", "--set", "optimizer.learning_rate=2e-3")
    assert finish(start_workers(tiny_examples, run, second)) == [2, 2], log_of(run, 0)
    for index, here in enumerate(("0.001", "0.002")):
        message = f"differ in 2 things: optimizer.learning_rate is {here} on this one; "
        assert message in log_of(run, index)
    assert not list(run.glob("checkpoints/*"))
