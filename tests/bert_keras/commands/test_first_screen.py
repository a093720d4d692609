"""A terminal shows what a training says, and nothing of TensorFlow's own."""

import os
import re

import pytest
import tensorflow as tf

from bert_keras.core import requirements
from bert_keras.core.settings import loading
from tests import conftest, make

OURS = {
    "finetune": "train.tsv: |dev.tsv: |may be wrong: |fine-tuning on |training on "
    "|step |evaluation at |wrote ",
    "pretrain": "checking hashes |may be wrong: |steps |training on |step "
    "|evaluation at |wrote ",
}
"""Beginnings of lines, by verb."""

OF_LIBRARIES = r"WARNING: All log messages before absl|I0000 .* (port|cudart_stub)\.cc:"
"""Two libraries of TensorFlow 2.21 say this when they are loaded, before any level can
be set."""


def test_users_may_ask_for_messages(monkeypatch):
    monkeypatch.setenv("KERAS_BACKEND", "tensorflow")
    for given, expected in ((None, "3"), ("0", "0")):
        monkeypatch.delenv("TF_CPP_MIN_LOG_LEVEL", raising=False)
        if given is not None:
            monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", given)
        requirements.quiet_tensorflow()
        assert os.environ["TF_CPP_MIN_LOG_LEVEL"] == expected


@pytest.mark.slow
@pytest.mark.parametrize("verb", OURS)
def test_a_training_on_a_processor(
    pretrained_run, tiny_examples, tmp_path, monkeypatch, verb
):
    """Of devices that are missing, of counted datasets and of graphs traced again."""
    monkeypatch.delenv("TF_CPP_MIN_LOG_LEVEL", raising=False)
    for name in ("train", "dev"):
        rows = "".join(f"the {name} {n}\t{'ab'[n % 2]}\n" for n in range(40))
        (tmp_path / f"{name}.tsv").write_text(f"text\tlabel\n{rows}")
    words = (
        f"finetune --task text --train train.tsv --dev dev.tsv --init {pretrained_run}"
    )
    words += " --set num_train_epochs=2 --set max_seq_length=16 --output_dir run"
    if verb == "pretrain":
        loading.save(make.pretraining_config(num_train_steps=6), tmp_path / "c.yaml")
        words = f"pretrain --examples {tiny_examples} --output_dir run --config c.yaml"
    done = conftest.run_python("-m", "bert_keras", *words.split(), cwd=tmp_path)
    lines = done.stderr.splitlines()
    if tf.__version__.startswith("2.21"):
        lines = [line for line in lines if not re.match(OF_LIBRARIES, line)]
    assert [line for line in lines if not re.match(OURS[verb], line)] == []
    assert any(line.startswith("training on 1 CPU") for line in lines)
