import dataclasses

import numpy as np
import pytest

from bert_keras.checkpoints import conversion
from bert_keras.checkpoints.formats import hugging_face
from bert_keras.core.errors import InputError
from bert_keras.core.settings import tasks
from bert_keras.data import tokenization
from bert_keras.inference import fill_mask
from tests import conftest, make


@pytest.fixture(scope="module")
def fill(pretrained_run):
    return fill_mask.FillMask(pretrained_run)


def test_guesses_are_the_logits_of_the_masked_position(pretrained_run, fill):
    checkpoint, network = fill_mask.load_pretrainer(pretrained_run)
    tokens = "[CLS] ba be [MASK] bo da [SEP]".split()
    outputs = network(
        {
            "input_ids": np.array([[checkpoint.vocabulary.ids[t] for t in tokens]]),
            "input_mask": np.ones((1, 7), "int32"),
            "segment_ids": np.zeros((1, 7), "int32"),
            "masked_lm_positions": np.array([[3]]),
        }
    )
    logits = np.array(outputs["masked_lm_logits"])[0, 0]
    expected = np.exp(logits - logits.max()) / np.exp(logits - logits.max()).sum()
    (guesses,) = fill("ba be [MASK] bo da", top_k=1000)
    found = [guess.probability for guess in guesses]
    assert len(found) == 49
    assert sum(found) == pytest.approx(1, rel=1e-5)
    np.testing.assert_allclose(found, sorted(expected, reverse=True), rtol=1e-4)
    assert guesses[0].token == checkpoint.vocabulary.tokens[int(logits.argmax())]
    assert fill("ba be [MASK] bo da", top_k=2) == [guesses[:2]]


def test_lines_for_people():
    guesses = [fill_mask.Guess("cat", 0.5), fill_mask.Guess("dog", 0.25)]
    assert list(fill_mask.describe("a [MASK]", [guesses])) == [
        "a [MASK]",
        "  [MASK]: cat 50.0%  dog 25.0%",
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ba be", r"expected a text with \[MASK\]: 'ba be'"),
        ("[MASK]" + " ba" * 40, "a text of 43 tokens, the model takes 32"),
    ],
)
def test_texts_that_cannot_be_filled(fill, text, message):
    with pytest.raises(InputError, match=message):
        fill(text)


def test_models_of_other_formats(pretrained_run, fill, tmp_path):
    """Without the part that answers for next sentences, too."""
    source = conversion.read(pretrained_run)
    only_masked_lm = {
        name: array
        for name, array in source.arrays.items()
        if not name.startswith(("encoder/pooler/", "next_sentence_head/"))
    }
    hugging_face.write(dataclasses.replace(source, arrays=only_masked_lm), tmp_path)
    text = "[MASK] be bo [MASK]"
    expected = [guess for guesses in fill(text, top_k=49) for guess in guesses]
    first, second = fill_mask.FillMask(tmp_path)(text, top_k=49)
    assert len(first) == len(second) == 49
    for guess, other in zip(first + second, expected, strict=True):
        assert guess.token == other.token
        assert guess.probability == pytest.approx(other.probability, rel=1e-5)


def test_rows_above_the_vocabulary_are_no_guesses(pretrained_run, monkeypatch):
    """Here the likeliest of all, of which nobody knows the name."""
    source = conversion.read(pretrained_run)
    arrays = dict(source.arrays)
    for name, value in (
        ("encoder/embeddings/word_embeddings", np.zeros([3, 32])),
        ("masked_lm_head/output_bias", np.full(3, 20.0)),
    ):
        arrays[name] = np.concatenate([arrays[name], value]).astype("float32")
    bert_config = source.bert_config.model_copy(update={"vocab_size": 52})
    larger = dataclasses.replace(source, bert_config=bert_config, arrays=arrays)
    monkeypatch.setattr(conversion, "read", lambda path: larger)
    (guesses,) = fill_mask.FillMask(pretrained_run)("ba [MASK]", top_k=52)
    assert len(guesses) == 49
    assert sum(guess.probability for guess in guesses) < 0.01


def test_a_model_without_a_masked_lm_head(pretrained_run, tmp_path):
    source = conversion.read(pretrained_run)
    hugging_face.write(
        dataclasses.replace(source, task=tasks.Task(kind="encoder")), tmp_path
    )
    message = (
        r"has no head for masked words \(it is a model for encoder\): give a model as "
        "its pre-training left it, or train such a head with `pretrain --init "
        f"{tmp_path}`$"
    )
    with pytest.raises(InputError, match=message):
        fill_mask.FillMask(tmp_path)


def test_a_tuned_model_gets_a_head_by_further_training(tiny_examples, tmp_path):
    tuned, again = tmp_path / "tuned", tmp_path / "again"
    vocabulary = tokenization.Vocabulary.load(tiny_examples / "vocab.txt")
    config = make.small_config(len(vocabulary), **conftest.PRETRAINING["model"])
    make.make_run(
        tuned,
        vocabulary,
        bert_config=config,
        kind="classification",
        labels=("a", "b"),
    )
    with pytest.raises(InputError, match=f"or train .* `pretrain --init {tuned}`$"):
        fill_mask.FillMask(tuned)
    make.pretrain([tiny_examples], again, init=conversion.init(tuned))
    [guesses] = fill_mask.FillMask(again)("ba [MASK]", top_k=3)
    assert len(guesses) == 3
