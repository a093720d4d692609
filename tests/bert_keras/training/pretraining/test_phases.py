"""Phases: what is read of directories of examples, and what is said about them."""

import shutil

import pytest

from bert_keras.core import manifest
from bert_keras.core.settings import config
from bert_keras.training.pretraining import phases


def settings(**values):
    values |= {"global_batch_size": 8, "optimizer": {"warmup_steps": 2}}
    return config.PretrainingConfig(num_train_steps=12, **values)


@pytest.fixture
def one_shard(tmp_path, tiny_examples):
    made = manifest.read_manifest(tiny_examples, kind="examples", verb="examples")
    directory = tmp_path / "examples"
    shutil.copytree(tiny_examples, directory)
    only = made.model_copy(update={"shards": made.shards[:1]})
    manifest.write_manifest(directory, only)
    return directory


def test_a_run_without_an_evaluation_is_warned_of(one_shard, tiny_examples, caplog):
    [phase] = phases.read_phases(
        settings(), [one_shard], vocab_path=None, num_replicas=1
    )
    assert not phase.has_evaluation
    [record] = [r for r in caplog.records if r.levelname == "WARNING"]
    assert record.getMessage() == (
        f"{one_shard}: a single shard, which is trained on, so there is no evaluation: "
        "make the examples again with a larger --num_shards (20), and the last one is "
        "kept for it"
    )
    caplog.clear()
    phases.read_phases(
        settings(num_eval_shards=0), [one_shard], vocab_path=None, num_replicas=1
    )
    [phase] = phases.read_phases(
        settings(), [tiny_examples], vocab_path=None, num_replicas=1
    )
    assert phase.has_evaluation
    assert not [r for r in caplog.records if r.levelname == "WARNING"]
