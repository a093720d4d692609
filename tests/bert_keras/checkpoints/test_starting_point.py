"""Pre-training that goes on from another model's weights."""

import dataclasses
import logging
import re
import shutil

import numpy as np
import pytest
import safetensors.numpy
import tensorflow as tf

from bert_keras.checkpoints import conversion, native, starting_point, weights
from bert_keras.core.errors import InputError
from bert_keras.core.settings import (
    architecture,
    loading,
    pipelines,
    pretraining,
    strict,
    tasks,
)
from bert_keras.data import tokenization
from bert_keras.kinds import registry
from bert_keras.pipelines import examples
from bert_keras.pipelines.engine import engines
from bert_keras.training import pretrain
from tests import conftest
from tests.bert_keras.checkpoints.formats import making

CPU = tf.distribute.OneDeviceStrategy("/cpu:0")
SEED = 12345


def settings(**changes):
    values = {
        "optimizer": {"learning_rate": 1e-4, "warmup_steps": 2},
        "model": {"hidden_dropout_prob": 0.3},
        "global_batch_size": 8,
        "num_train_steps": 6,
        "save_checkpoint_steps": 3,
        "num_eval_shards": 0,
        "shuffle_buffer_size": 100,
        "precision": "float32",
        **changes,
    }
    return strict.build_config(pretraining.PretrainingConfig, values)


def make_checkpoint(vocabulary, *, kind="pretraining", **sizes):
    values = {**making.SIZES, "num_hidden_layers": 1, "vocab_size": len(vocabulary)}
    bert_config = architecture.BertConfig(
        **values | {"hidden_act": "gelu_tanh"} | sizes
    )
    return making.make_checkpoint(kind, bert_config=bert_config, vocabulary=vocabulary)


def arrays_of(directory):
    return dict(conversion.read(directory).arrays)


def assert_near(found, wanted, *, atol):
    assert found.keys() == wanted.keys()
    for name in found:
        np.testing.assert_allclose(
            found[name], wanted[name], rtol=0, atol=atol, err_msg=name
        )


def state_of(run):
    newest = sorted((run / "checkpoints").glob("*.safetensors"))[-1]
    return safetensors.numpy.load_file(newest)


@pytest.fixture(scope="module")
def vocabulary(tiny_vocab):
    return tokenization.Vocabulary.load(tiny_vocab)


@pytest.fixture(scope="module")
def train(pretrained_run, tiny_examples):
    """A function that goes on from the weights of a run."""

    def train_in(directory, options=None, *, init=pretrained_run):
        pretrain.pretrain(
            options or settings(),
            [tiny_examples],
            directory,
            strategy=CPU,
            init=init and conversion.init(init),
        )

    return train_in


@pytest.fixture(scope="module")
def continued(train, tmp_path_factory):
    """Six more steps, with checkpoints after 3 and 6."""
    directory = tmp_path_factory.mktemp("continued") / "run"
    train(directory)
    return directory


def test_it_begins_with_the_weights_and_a_new_schedule(pretrained_run, continued):
    assert state_of(continued)["optimizer/bert_adamw/iteration"] == 6
    before, after = arrays_of(pretrained_run), arrays_of(continued)
    moved = {name: np.abs(after[name] - before[name]).max() for name in before}
    assert min(moved.values()) > 0
    assert max(moved.values()) < 2e-3
    old, new = (
        loading.read_bert_config(run / "bert_config.json")
        for run in (pretrained_run, continued)
    )
    assert new == old.model_copy(update={"hidden_dropout_prob": 0.3})


def test_its_configuration_finds_the_same_run(train, continued, caplog):
    """Also the one that was saved, in which every key is set."""
    caplog.set_level(logging.INFO, logger="bert_keras")
    saved = loading.load(pretraining.PretrainingConfig, continued / "config.yaml")
    assert saved.model.hidden_act == "gelu_tanh"
    for options in (settings(), saved):
        train(continued, options)
    assert caplog.text.count("finished already, at step 6") == 2


def broken_off(run, copy):
    """A copy of a run as it would be if it had been killed after its third step."""
    shutil.copytree(run, copy)
    for name in (
        "results.json",
        "model.safetensors",
        "checkpoints/step-0000000006.safetensors",
    ):
        (copy / name).unlink()
    return copy


@pytest.mark.slow
def test_a_resumed_run_ends_like_an_uninterrupted_one(
    train, continued, tmp_path, monkeypatch
):
    """From its checkpoint: the weights to begin with are not put in again."""
    resumed = broken_off(continued, tmp_path / "resumed")
    monkeypatch.delattr(starting_point, "assign")
    train(resumed)
    first, second = state_of(continued), state_of(resumed)
    assert first.keys() == second.keys()
    for name in first:
        np.testing.assert_array_equal(first[name], second[name], err_msg=name)


def test_a_run_belongs_to_the_weights_it_began_with(
    train, continued, vocabulary, tmp_path, monkeypatch
):
    sizes = conftest.PRETRAINING["model"]
    other = make_checkpoint(vocabulary, **sizes)
    monkeypatch.setattr(conversion, "read", lambda path: other)
    resumed = broken_off(continued, tmp_path / "resumed")
    options = settings(model={**sizes, "hidden_dropout_prob": 0.3})
    message = "begun by another run, with other contents of --init"
    for init in ("other", None):
        with pytest.raises(InputError, match=message):
            train(resumed, options, init=init)


@pytest.fixture(scope="module")
def old(vocabulary):
    """That of the tiny examples, and entries to put others into."""
    entries = ("[unused1]", "[unused2]", "##da")
    return tokenization.Vocabulary((*vocabulary.tokens, *entries))


@pytest.fixture(scope="module")
def new(old):
    """With `bada` in an unused entry, `##dada` and `zoo` after the last one."""
    tokens = [*old.tokens, "##dada", "zoo"]
    tokens[old.ids["[unused1]"]] = "bada"
    return tokenization.Vocabulary(tuple(tokens))


def with_new_rows(before, old):
    """A row for each entry of the new vocabulary, those of the old one given."""
    ba, da, slot, free = (old.ids[t] for t in ("ba", "##da", "[unused1]", "[unused2]"))
    used = np.delete(before[: len(old)], [slot, free], axis=0)
    rows = np.concatenate(
        [before[: len(old)], [before[da], used.mean(axis=0, dtype="f8")]]
    )
    rows[slot] = (before[ba] + before[da]) / 2
    return rows


WORDS, BIAS = "encoder/embeddings/word_embeddings", "masked_lm_head/output_bias"


@pytest.mark.slow
def test_an_encoder_whose_heads_are_made_new(old, new, tiny_examples, tmp_path, caplog):
    """A classifier's, whose own head is not taken; one step moves no weight."""
    tuned, run = tmp_path / "tuned", tmp_path / "run"
    tuned.mkdir()
    native.write(make_checkpoint(old, kind="classification"), tuned)
    new.save(tmp_path / "vocab.txt")
    examples.build_examples(
        tiny_examples.parent / "corpus",
        tmp_path / "vocab.txt",
        tmp_path / "examples",
        config=pipelines.ExamplesConfig(max_seq_length=32, dupe_factor=1),
        do_lower_case=True,
        num_shards=2,
        engine=engines.make_engine(),
    )
    still = {"learning_rate": 1e-30, "warmup_steps": 0, "weight_decay_rate": 0}
    options = settings(optimizer=still, num_train_steps=1)
    pretrain.pretrain(
        options, [tmp_path / "examples"], run, strategy=CPU, init=conversion.init(tuned)
    )
    bert_config = loading.read_bert_config(run / "bert_config.json")
    assert bert_config.vocab_size == len(old) + 2
    task = tasks.Task(kind="pretraining")
    wanted = weights.from_network(registry.build_network(bert_config, task, seed=SEED))
    wanted |= starting_point.encoder_arrays(conversion.read(tuned))
    wanted[WORDS] = with_new_rows(wanted[WORDS], old)
    assert_near(arrays_of(run), wanted, atol=1e-8)
    message = (
        f"{tuned}: has no masked_lm_head/output_bias, masked_lm_head/transform, "
        "masked_lm_head/layer_norm, next_sentence_head/classifier; initialized "
        "from the seed"
    )
    assert message in caplog.messages


def test_rows_to_spare_for_new_entries(old, new):
    """Some of them become those of the new entries, the others stay."""
    checkpoint = make_checkpoint(old, vocab_size=len(old) + 5)
    start = starting_point.pretraining_start(
        checkpoint, new, do_lower_case=True, path="x"
    )
    assert start.vocab_size == len(old) + 5
    wanted = dict(checkpoint.arrays)
    for name in (WORDS, BIAS):
        spare = wanted[name][len(new) :]
        assert len(spare) == 3
        wanted[name] = np.concatenate([with_new_rows(wanted[name], old), spare])
    assert_near(dict(start.arrays), wanted, atol=1e-7)


def test_a_vocabulary_that_is_no_extension(vocabulary, new):
    reordered = tokenization.Vocabulary(
        (*vocabulary.tokens[:-2], *vocabulary.tokens[:-3:-1])
    )
    message = (
        "x: not the vocabulary of the examples, nor one that it extends: line 48: 'to' "
        "there, 'ti' here; line 49: 'ti' there, 'to' here. New"
    )
    checkpoint = make_checkpoint(reordered)
    with pytest.raises(InputError, match=re.escape(message)):
        starting_point.pretraining_start(checkpoint, new, do_lower_case=True, path="x")


@pytest.mark.parametrize(
    ("source", "model", "message"),
    [
        (
            {},
            {"intermediate_size": 64, "hidden_act": "gelu"},
            "a model of another architecture than configured: `model.intermediate_size`"
            " is 64, of the checkpoint 24; `model.hidden_act` is 'gelu', of the "
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
        (None, {}, "source: does not exist"),
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
    source, model, message, vocabulary, train, tmp_path, monkeypatch
):
    if source is not None:
        told = {k: source[k] for k in source if k in ("vocabulary", "do_lower_case")}
        sizes = {k: source[k] for k in source if k not in told}
        checkpoint = make_checkpoint(vocabulary, **sizes)
        checkpoint = dataclasses.replace(checkpoint, **told)
        monkeypatch.setattr(conversion, "read", lambda path: checkpoint)
    run = tmp_path / "run"
    with pytest.raises(InputError, match=message):
        train(run, settings(model=model), init=tmp_path / "source")
    assert not run.exists()


def digest(checkpoint, **changes):
    checkpoint = dataclasses.replace(checkpoint, **changes)
    return starting_point.digest(checkpoint, starting_point.encoder_arrays(checkpoint))


def test_the_digest_depends_on_all_that_decides_and_on_no_order(vocabulary):
    checkpoint = make_checkpoint(vocabulary)
    arrays = checkpoint.arrays
    names = [name for name in arrays if name.startswith("encoder/")]
    reordered = {name: arrays[name].copy() for name in reversed(names)}
    assert digest(checkpoint, arrays=reordered) == digest(checkpoint)
    name = "encoder/layer_0/self_attention/key/kernel"
    array = arrays[name].copy()
    array[3, 5] = np.nextafter(array[3, 5], 1, dtype=np.float32)
    # No array shows the number of heads.
    bert_config = checkpoint.bert_config.model_copy(update={"num_attention_heads": 2})
    others = [
        digest(checkpoint, arrays={**arrays, name: array}),
        digest(checkpoint, arrays={**arrays, name: array.T}),
        digest(checkpoint, vocabulary=None),
        digest(checkpoint, do_lower_case=False),
        digest(checkpoint, bert_config=bert_config),
    ]
    assert len({digest(checkpoint), *others}) == 6


def test_the_settings_say_how_tokens_attend(vocabulary):
    """No weight depends on it: a model that reads left to right can learn both ways."""
    sizes = conftest.PRETRAINING["model"]
    checkpoint = make_checkpoint(vocabulary, **sizes, attention="left_to_right")
    for attention in ("bidirectional", "left_to_right"):
        model = architecture.ModelConfig(attention=attention)
        found = starting_point.model_config(model, checkpoint, path="init")
        assert found.attention == attention
        assert found.hidden_size == sizes["hidden_size"]
