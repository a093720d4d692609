"""Pre-training that goes on from another model's weights."""

import dataclasses
import json
import logging
import re
import shutil

import numpy as np
import pytest
import tensorflow as tf

from bert_keras.checkpoints import (
    conversion,
    run_directory,
    run_weights,
    starting_point,
    weights,
)
from bert_keras.core.errors import InputError
from bert_keras.core.settings import config, finetuning, loading, strict
from bert_keras.data import tokenization
from bert_keras.kinds import registry
from bert_keras.pipelines import examples
from bert_keras.pipelines.engine import engines
from bert_keras.training import pretrain
from tests import conftest

SIZES = {
    "num_hidden_layers": 1,
    "hidden_size": 16,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": 32,
    "hidden_act": "gelu_tanh",
}
CPU = tf.distribute.OneDeviceStrategy("/cpu:0")
SEED = 12345


def settings(**changes):
    values = {
        "optimizer": {"learning_rate": 1e-3, "warmup_steps": 2},
        "global_batch_size": 8,
        "num_train_steps": 6,
        "save_checkpoint_steps": 3,
        "num_eval_shards": 0,
        "shuffle_buffer_size": 100,
        "precision": "float32",
        **changes,
    }
    return strict.build_config(config.PretrainingConfig, values)


def still(**changes):
    """One step that moves no weight."""
    return settings(
        optimizer={"learning_rate": 1e-30, "warmup_steps": 0, "weight_decay_rate": 0},
        num_train_steps=1,
        **changes,
    )


def make_run(directory, vocabulary, *, kind="pretraining", num_nans=0, **sizes):
    """A finished run with random weights, none of them 0 or 1."""
    bert_config = config.BertConfig(**{"vocab_size": len(vocabulary), **SIZES, **sizes})
    labels = ("a", "b", "c") if kind == "classification" else None
    task = config.Task(kind=kind, labels=labels)
    run = run_directory.create_run(
        directory,
        finetuning.FinetuningConfig() if labels else config.PretrainingConfig(),
        task=task,
        bert_config=bert_config,
        vocabulary=vocabulary,
        do_lower_case=True,
        inputs={},
    )
    network = registry.build_network(bert_config, task)
    random = np.random.default_rng(7)
    for weight in network.weights:
        values = random.standard_normal(weight.shape, dtype=np.float32)
        weight.assign(values * 0.05 + weight.path.endswith("gamma"))
    if num_nans:
        table = network.encoder.word_embeddings.numpy()
        table[7, :num_nans] = np.nan
        network.encoder.word_embeddings.assign(table)
    run_weights.finish_run(run, network, {"steps": 0})
    return directory


def arrays_of(directory):
    return dict(conversion.read(directory).arrays)


def assert_same_arrays(found, wanted, *, atol=0.0):
    assert found.keys() == wanted.keys()
    for name in found:
        np.testing.assert_allclose(
            found[name], wanted[name], rtol=0, atol=atol, err_msg=name
        )


def state_of(run):
    newest = sorted((run / "checkpoints").glob("*.npz"))[-1]
    with np.load(newest) as arrays:
        return {name: arrays[name] for name in arrays.files}


@pytest.fixture(scope="module")
def vocabulary(tiny_vocab):
    return tokenization.Vocabulary.load(tiny_vocab)


@pytest.fixture(scope="module")
def source(pretrained_run):
    return pretrained_run


@pytest.fixture(scope="module")
def continued(source, tiny_examples, tmp_path_factory):
    """Six more steps, with checkpoints after 3 and 6."""
    directory = tmp_path_factory.mktemp("continued") / "run"
    pretrain.pretrain(settings(), [tiny_examples], directory, strategy=CPU, init=source)
    return directory


def test_it_begins_with_the_weights_and_their_architecture(
    source, tiny_examples, tmp_path, caplog
):
    """The evaluation after a step that moves nothing is the last one of the source."""
    run = tmp_path / "run"
    options = still(model={"hidden_dropout_prob": 0.3}, num_eval_shards=1)
    results = pretrain.pretrain(
        options, [tiny_examples], run, strategy=CPU, init=source
    )
    assert_same_arrays(arrays_of(run), arrays_of(source), atol=1e-29)
    before = json.loads((source / "results.json").read_text())
    assert results["eval"] == pytest.approx(before["eval"], rel=1e-6)
    old, new = (loading.read_bert_config(d / "bert_config.json") for d in (source, run))
    assert new == old.model_copy(update={"hidden_dropout_prob": 0.3})
    assert "initialized from" not in caplog.text


def test_optimizer_and_schedule_begin_anew(source, continued):
    assert state_of(continued)["optimizer/bert_adamw/iteration"] == 6
    before, after = arrays_of(source), arrays_of(continued)
    moved = [np.abs(after[name] - before[name]).max() for name in before]
    assert min(moved) > 0
    assert max(moved) < 0.02


def test_its_configuration_finds_the_same_run(source, continued, tiny_examples, caplog):
    """Also the one that was saved, in which every key is set."""
    caplog.set_level(logging.INFO, logger="bert_keras")
    saved = loading.load(config.PretrainingConfig, continued / "config.yaml")
    assert saved.model.hidden_act == "gelu_tanh"
    for options in (settings(), saved):
        pretrain.pretrain(
            options, [tiny_examples], continued, strategy=CPU, init=source
        )
    assert caplog.text.count("finished already, at step 6") == 2


def broken_off(run, copy):
    """A copy of a run as it would be if it had been killed after its third step."""
    shutil.copytree(run, copy)
    for name in ("results.json", "model.weights.h5", "checkpoints/step-0000000006.npz"):
        (copy / name).unlink()
    return copy


@pytest.mark.slow
def test_a_resumed_run_ends_like_an_uninterrupted_one(
    source, continued, tiny_examples, tmp_path, monkeypatch
):
    """From its checkpoint: the weights to begin with are not put in again."""
    resumed = broken_off(continued, tmp_path / "resumed")
    monkeypatch.delattr(starting_point, "assign")
    pretrain.pretrain(settings(), [tiny_examples], resumed, strategy=CPU, init=source)
    first, second = state_of(continued), state_of(resumed)
    assert first.keys() == second.keys()
    for name in first:
        np.testing.assert_array_equal(first[name], second[name], err_msg=name)


def test_a_run_belongs_to_the_weights_it_began_with(
    continued, vocabulary, tiny_examples, tmp_path
):
    sizes = conftest.PRETRAINING["model"]
    other = make_run(tmp_path / "other", vocabulary, **sizes)
    resumed = broken_off(continued, tmp_path / "resumed")
    for init in (other, None):
        with pytest.raises(InputError, match="begun by another run, with init_sha256="):
            pretrain.pretrain(
                settings(model=sizes), [tiny_examples], resumed, strategy=CPU, init=init
            )


@pytest.mark.slow
def test_two_replicas_equal_one_device(source, continued, tiny_examples, tmp_path):
    mirrored = tf.distribute.MirroredStrategy(
        ["/cpu:0", "/cpu:1"],
        # Collectives of one process are of one group size, and tests use several.
        cross_device_ops=tf.distribute.ReductionToOneDevice(),
    )
    run = tmp_path / "run"
    pretrain.pretrain(settings(), [tiny_examples], run, strategy=mirrored, init=source)
    assert_same_arrays(arrays_of(run), arrays_of(continued), atol=1e-6)


@pytest.fixture(scope="module")
def old(vocabulary):
    """That of the tiny examples, and entries to put others into."""
    entries = ("[unused1]", "[unused2]", "##da")
    return tokenization.Vocabulary((*vocabulary.tokens, *entries))


@pytest.fixture(scope="module")
def new_examples(old, tiny_examples, tmp_path_factory):
    """With `bada` in an unused entry, `##dada` and `zoo` after the last one."""
    directory = tmp_path_factory.mktemp("extended")
    tokens = [*old.tokens, "##dada", "zoo"]
    tokens[old.ids["[unused1]"]] = "bada"
    tokenization.Vocabulary(tuple(tokens)).save(directory / "vocab.txt")
    examples.build_examples(
        tiny_examples.parent / "corpus",
        directory / "vocab.txt",
        directory / "examples",
        config=config.ExamplesConfig(max_seq_length=32, dupe_factor=1),
        do_lower_case=True,
        num_shards=2,
        engine=engines.make_engine(),
    )
    return directory / "examples"


def with_new_rows(before, old):
    """A row for each entry of the new vocabulary, those of the old one given."""
    ba, da, slot, free = (old.ids[t] for t in ("ba", "##da", "[unused1]", "[unused2]"))
    used = np.delete(before[: len(old)], [slot, free], axis=0)
    rows = np.concatenate([before[: len(old)], [before[da], used.mean(axis=0)]])
    rows[slot] = (before[ba] + before[da]) / 2
    return rows


WORDS, BIAS = "encoder/embeddings/word_embeddings", "masked_lm_head/output_bias"


class TestExtendedVocabulary:
    @pytest.mark.slow
    def test_of_an_encoder_whose_heads_are_made_new(
        self, old, new_examples, tmp_path, caplog
    ):
        """A classifier's, whose own head is not taken."""
        tuned = make_run(tmp_path / "tuned", old, kind="classification")
        run = tmp_path / "run"
        pretrain.pretrain(still(), [new_examples], run, strategy=CPU, init=tuned)
        bert_config = loading.read_bert_config(run / "bert_config.json")
        assert bert_config.vocab_size == len(old) + 2
        task = config.Task(kind="pretraining")
        fresh = registry.build_network(bert_config, task, seed=SEED)
        wanted = weights.from_network(fresh)
        wanted |= starting_point.encoder_arrays(conversion.read(tuned))
        wanted[WORDS] = with_new_rows(wanted[WORDS], old)
        assert_same_arrays(arrays_of(run), wanted, atol=1e-8)
        message = (
            f"{tuned}: has no masked_lm_head/output_bias, masked_lm_head/transform, "
            "masked_lm_head/layer_norm, next_sentence_head/classifier; initialized "
            "from the seed"
        )
        assert message in caplog.messages

    def test_rows_to_spare(self, old, new_examples, tmp_path):
        """Some of them become those of the new entries, the others stay."""
        init = make_run(tmp_path / "init", old, vocab_size=len(old) + 5)
        checkpoint = conversion.read(init)
        new = tokenization.Vocabulary.load(new_examples / "vocab.txt")
        start = starting_point.pretraining_start(
            checkpoint, new, do_lower_case=True, path=init
        )
        assert start.vocab_size == len(old) + 5
        wanted = dict(checkpoint.arrays)
        for name in (WORDS, BIAS):
            spare = wanted[name][len(new) :]
            assert len(spare) == 3
            wanted[name] = np.concatenate([with_new_rows(wanted[name], old), spare])
        assert_same_arrays(dict(start.arrays), wanted, atol=1e-8)

    def test_any_other_difference(self, vocabulary, new_examples, tmp_path):
        reordered = tokenization.Vocabulary(
            (*vocabulary.tokens[:-2], *vocabulary.tokens[:-3:-1])
        )
        init = make_run(tmp_path / "init", reordered)
        message = (
            f"{init}: not the vocabulary of the examples, nor one that it extends: "
            "line 48: 'to' there, 'ti' here; line 49: 'ti' there, 'to' here. New"
        )
        with pytest.raises(InputError, match=re.escape(message)):
            pretrain.pretrain(
                still(), [new_examples], tmp_path / "run", strategy=CPU, init=init
            )


@pytest.fixture(scope="module")
def init(vocabulary, tmp_path_factory):
    return make_run(tmp_path_factory.mktemp("init") / "run", vocabulary)


@pytest.mark.parametrize(
    ("source", "changes", "message"),
    [
        (
            {},
            {"intermediate_size": 64, "hidden_act": "gelu"},
            "a model of another architecture than configured: `model.intermediate_size`"
            " is 64, of the checkpoint 32; `model.hidden_act` is 'gelu', of the "
            "checkpoint 'gelu_tanh'; leave these keys out",
        ),
        (
            {},
            {"vocab_size": 64},
            "`model.vocab_size` is 64, but with the weights of .* it is 49: leave",
        ),
        (
            {"max_position_embeddings": 16},
            {},
            "sequences of 32 tokens, but `model.max_position_embeddings` is 16 in "
            ".*source: make shorter examples",
        ),
        (
            {"num_nans": 1},
            {},
            "not finite: 1 of encoder/embeddings/word_embeddings: the training",
        ),
        (None, {}, "source: no known checkpoint format"),
        (
            {"do_lower_case": False},
            {},
            "trained on cased text, but the examples are of lower-cased text: make "
            "them with --cased",
        ),
        ({"vocabulary": None}, {}, "has no vocabulary: put the vocab.txt"),
    ],
)
def test_weights_that_cannot_be_used(
    source, changes, message, vocabulary, tiny_examples, tmp_path, monkeypatch
):
    init, read = tmp_path / "source", conversion.read
    if source is not None:
        told = {k: source[k] for k in source if k in ("vocabulary", "do_lower_case")}
        sizes = {k: source[k] for k in source if k not in told}
        make_run(init, vocabulary, **sizes)
        # As if its files said something else.
        monkeypatch.setattr(
            conversion, "read", lambda path: dataclasses.replace(read(path), **told)
        )
    with pytest.raises(InputError, match=message):
        pretrain.pretrain(
            still(model=changes),
            [tiny_examples],
            tmp_path / "run",
            strategy=CPU,
            init=init,
        )
    assert not (tmp_path / "run").exists()


class TestDigest:
    @staticmethod
    def digest(checkpoint, **changes):
        checkpoint = dataclasses.replace(checkpoint, **changes)
        return starting_point.digest(
            checkpoint, starting_point.encoder_arrays(checkpoint)
        )

    @pytest.fixture
    def checkpoint(self, init):
        return conversion.read(init)

    def test_of_the_encoder_in_any_order(self, checkpoint):
        names = [n for n in checkpoint.arrays if n.startswith("encoder/")]
        arrays = {name: checkpoint.arrays[name].copy() for name in reversed(names)}
        assert self.digest(checkpoint, arrays=arrays) == self.digest(checkpoint)

    def test_it_depends_on_all_that_decides(self, checkpoint):
        name = "encoder/layer_0/self_attention/key/kernel"
        array = checkpoint.arrays[name].copy()
        array[3, 5] = np.nextafter(array[3, 5], 1, dtype=np.float32)
        bert_config = checkpoint.bert_config
        other = [
            self.digest(checkpoint, arrays={**checkpoint.arrays, name: array}),
            self.digest(checkpoint, arrays={**checkpoint.arrays, name: array.T}),
            self.digest(checkpoint, vocabulary=None),
            self.digest(checkpoint, do_lower_case=False),
            self.digest(
                checkpoint,
                # No array shows it.
                bert_config=bert_config.model_copy(update={"num_attention_heads": 4}),
            ),
        ]
        assert len({self.digest(checkpoint), *other}) == 6
