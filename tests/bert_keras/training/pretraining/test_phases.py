"""Phases: what is read of directories of examples, and what is said about them."""

import dataclasses
import functools
import json
import re
import shutil
import types

import numpy as np
import pytest
import tensorflow as tf

from bert_keras.core.errors import InputError
from bert_keras.core.settings import pretraining
from bert_keras.data import tokenization
from bert_keras.training import pretrain
from bert_keras.training.pretraining import phases

read = functools.partial(phases.read_phases, vocab_path=None, num_replicas=1)


def settings(**values):
    values |= {"global_batch_size": 8, "optimizer": {"warmup_steps": 2}}
    return pretraining.PretrainingConfig(num_train_steps=12, **values)


@pytest.fixture
def changed(tiny_examples, tmp_path):
    """A function: a copy of the examples whose manifest says something else."""

    def change(*, vocabulary="", num_shards=3, other_bucket="", **values):
        directory = shutil.copytree(tiny_examples, tmp_path / "other")
        manifest = json.loads((directory / "manifest.json").read_text())
        manifest["config"] |= values
        manifest["shards"] = manifest["shards"][:num_shards]
        if other_bucket:
            shard = manifest["shards"][1]
            name = shard["name"].replace("00001-of-00003", other_bucket)
            (directory / shard["name"]).rename(directory / name)
            shard["name"] = name
        if vocabulary:
            with (directory / "vocab.txt").open("a") as file:
                file.write(vocabulary)
            made = tokenization.Vocabulary.load(directory / "vocab.txt")
            manifest |= {"vocab_sha256": made.sha256, "vocab_size": len(made)}
        (directory / "manifest.json").write_text(json.dumps(manifest))
        return directory

    return change


def test_a_run_without_an_evaluation_is_warned_of(changed, tiny_examples, caplog):
    one_shard = changed(num_shards=1)
    [phase] = read(settings(), [one_shard])
    assert not phase.has_evaluation
    [record] = [r for r in caplog.records if r.levelname == "WARNING"]
    assert record.getMessage() == (
        f"{one_shard}: a single shard, which is trained on, so there is no evaluation: "
        "make the examples again with a larger --num_shards (20), and the last one is "
        "kept for it"
    )
    caplog.clear()
    read(settings(num_eval_shards=0), [one_shard])
    [phase] = read(settings(), [tiny_examples])
    assert phase.has_evaluation
    assert not [r for r in caplog.records if r.levelname == "WARNING"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"do_lower_case": False}, "is lower-cased, .* cased: make both with the same"),
        (
            {"packing": "full_sentences"},
            "has `packing` sentence_pairs, .* full_sentences: only sentence pairs "
            "train next-sentence prediction: make both with the same, or set",
        ),
        (
            {"vocabulary": "more\n"},
            "made with another vocabulary than .*; make both with the same",
        ),
        (
            {"num_shards": 2},
            "have different shards, 3 and 2: one would train on documents that the",
        ),
        (
            {"other_bucket": "00002-of-00004"},
            "have different shards, 3 and 3: .* so few that no shard is empty",
        ),
    ],
)
def test_phases_that_do_not_belong_together(changed, tiny_examples, change, message):
    """Without next sentences, packings may differ."""
    both = [tiny_examples, changed(**change)]
    plan = {"phases": [{"fraction": 0.75}, {"fraction": 0.25}]}
    with pytest.raises(InputError, match=message):
        read(settings(**plan), both)
    if "packing" in change:
        assert len(read(settings(**plan, next_sentence=False), both)) == 2


def test_a_device_without_memory(tiny_examples):
    [phase] = read(settings(), [tiny_examples])
    for num_replicas, num_parts, advice in (
        (1, 1, "8 examples .*set `gradient_accumulation_steps` .here 1. to 2 and run"),
        (2, 2, "2 examples .*set `gradient_accumulation_steps` .here 2. to 4 and run"),
        (4, 2, "1 examples of 32 tokens at once: set `recompute` to layers, or take"),
    ):
        strategy = types.SimpleNamespace(num_replicas_in_sync=num_replicas)
        devices = types.SimpleNamespace(strategy=strategy, in_words=lambda error: None)
        devices.is_chief = True
        job = pretrain.PretrainingJob(
            *(settings(), [tiny_examples], "run"),
            **{"vocab_path": None, "init": None, "verify": False},
            **{"engine": devices, "paths": {}},
        )
        job._phase = dataclasses.replace(phase, num_parts=num_parts)
        error = tf.errors.ResourceExhaustedError(None, None, "OOM")
        assert re.search(advice, str(job.in_words(error)))


def test_masks_that_cannot_fall(changed, tiny_examples):
    directory = changed(masking="dynamic", masked_lm_prob=0.05)
    for path, model, message in (
        (tiny_examples, {}, "made with masking=static, so `masked_lm_prob_end`"),
        (directory, {}, "end` is 0.1, above the `masked_lm_prob` of .*, 0.05, for"),
        (directory, {"attention": "left_to_right"}, "masks nothing"),
    ):
        with pytest.raises(InputError, match=message):
            read(settings(masked_lm_prob_end=0.1, model=model), [path])


def test_the_share_of_masks_falls_over_all_phases(tiny_examples):
    plan = {"phases": [{"fraction": 0.75}, {"fraction": 0.25}]}
    falls = settings(masked_lm_prob_end=0.05, **plan)
    shares = []
    for phase in read(settings(**plan), [tiny_examples] * 2):
        share = dataclasses.replace(phase, settings=falls).batches.mask_share
        # The second phase's batches come behind the first one's, of the same examples.
        shares += [float(share(n)) for n in range(phase.first_step, phase.last_step)]
    assert shares == pytest.approx([0.15 - 0.1 * step / 12 for step in range(12)])


def test_a_phase_goes_on_in_examples_of_an_earlier_one(tiny_examples, changed):
    """Rows, masks and the names of shards; with another batch size, from a batch on."""

    def batches(phase, start_step):
        data = phase.to_train(start_step=start_step)
        data = data.take(phase.last_step - start_step)
        return [batch["input_ids"].numpy() for batch in data]

    [whole] = read(settings(), [tiny_examples])
    fractions = [{"fraction": f} for f in (0.5, 0.25, 0.25)]
    directories = [tiny_examples, changed(dupe_factor=7), tiny_examples]
    first, other, last = read(settings(phases=fractions), directories)
    assert [phase.first_batch for phase in (first, other, last)] == [0, 0, 6]
    expected = batches(whole, 0)
    np.testing.assert_array_equal(batches(first, 0), expected[:6])
    np.testing.assert_array_equal(batches(last, 9), expected[6:9])
    np.testing.assert_array_equal(batches(last, 10), expected[7:9])
    np.testing.assert_array_equal(batches(other, 6), expected[:3])
    assert last.describe_data(10, 12) == whole.describe_data(7, 9)
    fractions[-1]["global_batch_size"] = 20
    *_, last = read(settings(phases=fractions), directories)
    assert last.first_batch == 3  # 48 rows are read: 60 are left out.


def test_batches_that_replicas_cannot_share(tiny_examples):
    message = "`global_batch_size` is 8, which 3 replicas .* make it a multiple of 3"
    with pytest.raises(InputError, match=message):
        read(settings(), [tiny_examples], num_replicas=3)
