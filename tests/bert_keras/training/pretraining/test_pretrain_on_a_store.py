"""Pre-training whose files are in a store in memory."""

import numpy as np
import pytest
import tensorflow as tf

from bert_keras.checkpoints import conversion
from bert_keras.core import files, stores
from bert_keras.core.errors import Unavailable
from bert_keras.core.settings import loading
from bert_keras.core.settings.pretraining import PretrainingConfig
from bert_keras.training import pretrain
from bert_keras.training.step import learner, replicas


class Gone(tf.errors.UnavailableError):
    def __init__(self):
        text = "All 10 retry attempts failed when reading ram://one/examples/a"
        super().__init__(None, None, text)


@pytest.fixture
def examples(tiny_examples, monkeypatch, memory_store) -> str:
    monkeypatch.setattr(stores.time, "sleep", lambda seconds: None)
    directory = f"{memory_store}/examples"
    for path in tiny_examples.iterdir():
        files.write_atomically(files.join(directory, path.name), path.read_bytes())
        # For TensorFlow's own readers.
        with tf.io.gfile.GFile(files.join(directory, path.name), "wb") as file:
            file.write(path.read_bytes())
    return directory


def train(examples: str, pretrained_run) -> str:
    run_dir = examples.replace("/examples", "/run")
    pretrain.pretrain(
        loading.load(PretrainingConfig, pretrained_run / "config.yaml"),
        [examples],
        run_dir,
        strategy=tf.distribute.OneDeviceStrategy("/cpu:0"),
    )
    return run_dir


@pytest.mark.slow
def test_examples_that_are_gone_for_a_while(examples, pretrained_run, monkeypatch):
    """After a step and before an evaluation: the run goes on, to the same bytes."""
    make_steps, evaluate = learner.Learner.make_steps, learner.Learner.evaluate
    calls = []

    def make_some(trained, stream, schedule, **follow):
        calls.append(schedule.last_step)
        if len(calls) > 1:
            return make_steps(trained, stream, schedule, **follow)
        make_steps(trained, stream, replicas.Schedule(3), **follow)
        raise Gone

    def evaluate_later(*arguments, **options):
        calls.append("evaluation")
        if calls.count("evaluation") == 2:
            raise Gone
        return evaluate(*arguments, **options)

    monkeypatch.setattr(learner.Learner, "make_steps", make_some)
    monkeypatch.setattr(learner.Learner, "evaluate", evaluate_later)
    run_dir = train(examples, pretrained_run)
    assert calls.count("evaluation") == 4
    for name in ("checkpoints/step-0000000012.npz", "checkpoints/scores.json"):
        assert files.read_bytes(f"{run_dir}/{name}") == (
            (pretrained_run / name).read_bytes()
        )
    found, wanted = (
        conversion.read(directory).arrays for directory in (run_dir, pretrained_run)
    )
    assert found.keys() == wanted.keys()
    for name in wanted:
        np.testing.assert_array_equal(found[name], wanted[name])


def test_examples_that_stay_away(examples, pretrained_run, monkeypatch):
    monkeypatch.setattr(stores, "GIVES_UP_SECONDS", 0)

    def fail(*_, **__):
        raise Gone

    monkeypatch.setattr(learner.Learner, "make_steps", fail)
    message = r"ram://.*/examples: .*retry attempts failed.*; give the same command"
    with pytest.raises(Unavailable, match=message):
        train(examples, pretrained_run)
