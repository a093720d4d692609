"""Two worker processes equal one device, and end together whatever happens to one."""

import contextlib
import functools
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time

import numpy as np
import pytest

from bert_keras.core.settings import finetuning, loading
from tests import conftest, make
from tests.bert_keras.training import test_resumed_runs as resuming
from tests.bert_keras.training.finetuning.test_finetune import (
    BERT_CONFIG,
    make_init,
    opinions,
    run_finetune,
    write_tsv,
)
from tests.bert_keras.training.finetuning.test_finetune_embedding import topical_pairs

pytestmark = pytest.mark.slow

PRETRAINING = conftest.PRETRAINING | {
    "model": conftest.PRETRAINING["model"] | {"num_hidden_layers": 2},
    "optimizer": {"learning_rate": 1e-3, "warmup_steps": 2, "max_grad_norm": 0.5},
    "num_train_steps": 20,
    "save_checkpoint_steps": 10,
    "num_checkpoints": 100,
    # As often as evaluations: a kill comes before the end.
    "draw_steps": None,
}
TUNING = finetuning.FinetuningConfig(
    max_seq_length=24, batch_size=16, num_train_epochs=2, learning_rate=3e-4
)
LONG = {
    "pretrain": {"num_train_steps": 600, "save_checkpoint_steps": 20},
    "finetune": {"num_train_epochs": 40, "save_checkpoint_steps": 10},
}
COMMAND_LINE = ("-m", "bert_keras.commands.main")


def free_addresses(count):
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for listener in sockets:
            listener.bind(("127.0.0.1", 0))
        return [f"127.0.0.1:{listener.getsockname()[1]}" for listener in sockets]


@pytest.fixture(scope="module")
def files(tiny_examples, tmp_path_factory):
    """Options by verb or task: examples, or a model, texts to train on and for dev."""
    folder = tmp_path_factory.mktemp("files")
    init, header = make_init(folder / "init", BERT_CONFIG), ("text", "text_pair")
    pairs = [(one, f"so {other}") for one, other in topical_pairs(42, seed=1)]
    return {
        "pretrain": {"examples": tiny_examples},
        "finetune": {
            "init": init,
            "train": write_tsv(folder / "train.tsv", opinions(90, seed=1)),
            "dev": write_tsv(folder / "dev.tsv", opinions(21, seed=2)),
        },
        "embedding": {
            "init": init,
            "train": write_tsv(folder / "pairs.tsv", pairs, header),
            "dev": write_tsv(folder / "dev_pairs.tsv", pairs[:15], header),
        },
    }


def settings_of(verb, **changes):
    if verb == "finetune":
        return TUNING.model_copy(update=changes)
    return make.pretraining_config(**PRETRAINING | changes)


def start_workers(
    verb,
    files,
    run,
    second=(),
    *,
    program=COMMAND_LINE,
    folder=None,
    environment=None,
    **changes,
):
    """Both processes of a run; what they say goes to `worker-N.log` in the folder.

    `files` are options of the verb, `second` more of them for the second worker. The
    folder is that of the run, if none is given.
    """
    folder = folder or run.parent
    loading.save(settings_of(verb, **changes), folder / "config.yaml")
    addresses = ",".join(free_addresses(2))
    processes = []
    for index in range(2):
        command = [sys.executable, *program, verb]
        for name, value in files.items():
            command += [f"--{name}", *map(str, np.ravel(value))]
        command += ["--config", str(folder / "config.yaml"), "--output_dir", str(run)]
        command += ["--workers", addresses, "--worker_index", str(index)]
        command += second if index else ()
        with open(folder / f"worker-{index}.log", "wb") as log:
            process = subprocess.Popen(
                command, stderr=log, env={**os.environ, **(environment or {})}
            )
        processes.append(process)
    return processes


def train_alone(verb, files, run, **changes):
    settings = settings_of(verb, **changes)
    if verb == "pretrain":
        make.pretrain([files["examples"]], run, settings)
    else:
        run_finetune(**files, output_dir=run, settings=settings)


def finish(processes, timeout=240):
    """Their exit codes; none is left behind."""
    try:
        return [process.wait(timeout=timeout) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()


def run_both(verb, files, run, **options):
    """Both processes to their good end."""
    codes = finish(start_workers(verb, files, run, **options))
    assert codes == [0, 0], log_of(run, 0)


def log_of(run, index):
    return (run.parent / f"worker-{index}.log").read_text()


def wait_for_step(run, step, processes):
    """Until there is a checkpoint of this step or a later one."""
    deadline = time.monotonic() + 240
    while (
        not (paths := list(run.glob("checkpoints/step-*.safetensors")))
        or step_of(max(paths)) < step
    ):
        assert all(process.poll() is None for process in processes)
        assert time.monotonic() < deadline
        time.sleep(0.02)


def step_of(path):
    return int(path.stem.removeprefix("step-"))


def results(run):
    return json.loads((run / "results.json").read_text())


@pytest.fixture(scope="module")
def uninterrupted(files, tmp_path_factory):
    """A function: a run of two workers that nothing happened to."""

    @functools.cache
    def whole(verb):
        run = tmp_path_factory.mktemp("whole") / "run"
        run_both(verb, files[verb], run, **LONG[verb])
        return run

    return whole


@pytest.mark.parametrize(
    ("verb", "name", "options"),
    [
        ("pretrain", "pretrain", {}),
        (
            *("finetune", "finetune"),
            {"keep": "best", "evaluate_steps": 4, "lengths": (16, 24)},
        ),
        # Each compares its texts with those of both.
        ("finetune", "embedding", {"task": "embedding"}),
    ],
)
def test_two_workers_equal_one_device(verb, name, options, files, tmp_path):
    run, one = tmp_path / "run", tmp_path / "one"
    run_both(verb, files[name], run, **options)
    train_alone(verb, files[name], one, **options)
    resuming.assert_same_state(run, one, atol=1e-6)
    for index in range(2):
        assert "2 devices add up right and train as one does" in log_of(run, index)
    ours, theirs = results(run), results(one)
    assert ours.get("kept_step") == theirs.get("kept_step")
    assert ours["eval"] == pytest.approx(theirs["eval"], rel=1e-5, abs=1e-5)
    assert {p.name for p in run.iterdir()} == {p.name for p in one.iterdir()}


@pytest.mark.parametrize(("verb", "num_kills"), [("pretrain", 10), ("finetune", 1)])
def test_one_worker_is_killed(verb, num_kills, uninterrupted, files, tmp_path):
    """Either of them; each time the other one ends too, and both are started again."""
    run, choose, options = tmp_path / "run", random.Random(1), LONG[verb]
    for count in range(num_kills):
        processes = start_workers(verb, files[verb], run, **options)
        step = options["save_checkpoint_steps"] * 2 * (count + 1)
        wait_for_step(run, step, processes)
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
    run_both(verb, files[verb], run, **options)
    resuming.assert_same_state(uninterrupted(verb), run)


@pytest.mark.parametrize(
    ("verb", "index"), [("pretrain", 0), ("pretrain", 1), ("finetune", 1)]
)
def test_sigterm_to_one_stops_both_at_the_same_step(
    verb, index, uninterrupted, files, tmp_path
):
    run, options = tmp_path / "run", LONG[verb]
    processes = start_workers(verb, files[verb], run, **options)
    wait_for_step(run, 2 * options["save_checkpoint_steps"], processes)
    os.kill(processes[index].pid, signal.SIGTERM)
    assert finish(processes) == [143, 143], log_of(run, index)
    stops = [log_of(run, worker).splitlines()[-1] for worker in range(2)]
    assert stops[0] == stops[1]
    step = step_of(max(run.glob("checkpoints/step-*")))
    assert f"stopped by SIGTERM at step {step}" in stops[0]
    assert not (run / "results.json").exists()
    run_both(verb, files[verb], run, **options)
    resuming.assert_same_state(uninterrupted(verb), run)


SIGTERM_IN_EVALUATION = """
import itertools, os, signal, sys
from bert_keras.commands import main as cli
from bert_keras.training.step import fit

evaluate = fit.ReplicatedModel.evaluate_round
def evaluate_and_signal(self, evaluation, *, after_test_batch):
    step, numbers = fit.replicas.optimizer_step(self), itertools.count()
    def after(stop_is_requested):
        batch = next(numbers)
        print("batch", batch, "of", step, file=sys.stderr)
        if batch == 0 and step == 5 and "1" in sys.argv:
            os.kill(os.getpid(), signal.SIGTERM)
        after_test_batch(stop_is_requested)
    return evaluate(self, evaluation, after_test_batch=after)
fit.ReplicatedModel.evaluate_round = evaluate_and_signal
cli.entry_point()
"""


def test_sigterm_to_one_stops_the_evaluation_of_both(files, tmp_path):
    """At a step that is not saved; the request travels with the next batch."""
    options = {"global_batch_size": 2, "evaluate_steps": 5}
    run = tmp_path / "run"
    processes = start_workers(
        "pretrain",
        files["pretrain"],
        run,
        program=("-c", SIGTERM_IN_EVALUATION),
        **options,
    )
    assert finish(processes) == [143, 143], log_of(run, 0)
    for worker in range(2):
        last = log_of(run, worker).splitlines()[-2:]
        assert last[0].startswith("batch 1 of 5")
        assert "stopped by SIGTERM at step 5; run" in last[1]
    run_both("pretrain", files["pretrain"], run, **options)
    assert "evaluation at step 5 " in log_of(run, 0)


OTHER_ROUNDING = """
import sys
import numpy as np
from bert_keras.commands import main as cli

def rounded(compute):
    return lambda *arguments, **options: [
        factor * (1 + 1e-7) for factor in compute(*arguments, **options)
    ]
if sys.argv[sys.argv.index("--worker_index") + 1] == "1":
    for name in ("svd", "qr"):
        setattr(np.linalg, name, rounded(getattr(np.linalg, name)))
cli.entry_point()
"""


def test_both_take_the_embeddings_that_the_first_one_computes(
    tiny_examples, examples_of, tmp_path
):
    """The second one's processor rounds otherwise; a checkpoint compares the bits."""
    longer = examples_of(max_seq_length=64, dupe_factor=2)
    run = tmp_path / "run"
    run_both(
        "pretrain",
        {"examples": [tiny_examples, longer]},
        run,
        program=("-c", OTHER_ROUNDING),
        model={**PRETRAINING["model"], "max_position_embeddings": 64},
        num_train_steps=4,
        save_checkpoint_steps=2,
        phases=[{"fraction": 0.5}, {"fraction": 0.5}],
        grow_positions="extrapolate",
        word_embeddings="counts",
    )
    assert "word embeddings from the neighbours of" in log_of(run, 1)
    assert "positions 31 to 63 go on from those before" in log_of(run, 1)


def test_workers_that_are_given_something_else(files, tmp_path):
    options = ("--set", "seed=2", "--set", "optimizer.learning_rate=2e-3")
    other = write_tsv(tmp_path / "other.tsv", opinions(90, seed=3))
    for verb, second, messages in (
        (
            "pretrain",
            options,
            [
                f"differ in 2 things: optimizer.learning_rate is {here} on this one; "
                for here in ("0.001", "0.002")
            ],
        ),
        (
            "finetune",
            ("--train", str(other)),
            ["the workers differ in 1 things: train_sha256 is"] * 2,
        ),
    ):
        run = tmp_path / verb / "run"
        run.parent.mkdir()
        processes = start_workers(verb, files[verb], run, second)
        assert finish(processes) == [2, 2], log_of(run, 0)
        for index, message in enumerate(messages):
            assert message in log_of(run, index)
        assert not list(run.glob("checkpoints/*"))
