"""Pre-training whose files are in a store in memory."""

import pytest
import tensorflow as tf

from bert_keras.core import files, stores
from bert_keras.core.errors import Unavailable
from bert_keras.core.settings import loading
from bert_keras.core.settings.pretraining import PretrainingConfig
from bert_keras.training import pretrain
from bert_keras.training.step import learner


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


def test_examples_that_stay_away(examples, pretrained_run, monkeypatch):
    monkeypatch.setattr(stores, "GIVES_UP_SECONDS", 0)

    def fail(*_, **__):
        raise Gone

    monkeypatch.setattr(learner.Learner, "make_steps", fail)
    message = r"ram://.*/examples: .*retry attempts failed.*; run the same command"
    with pytest.raises(Unavailable, match=message):
        train(examples, pretrained_run)
