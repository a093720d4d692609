"""Sentences' scores: those of transformers and minicons, and what cannot be scored."""

import random

import keras
import numpy as np
import pytest

from bert_keras.checkpoints import conversion, weights
from bert_keras.checkpoints.formats import hugging_face
from bert_keras.core.errors import InputError
from bert_keras.core.settings import tasks
from bert_keras.data import tokenization
from bert_keras.model import pretrainer
from bert_keras.scoring import scored_files, scorer
from tests import conftest

WORDS = [a + b for a in "bdgkl" for b in "aeiou"]
TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
TOKENS += [f"##{word}" for word in WORDS] + [".", ","]
CONFIG = conftest.TINY.model_copy(update={"vocab_size": len(TOKENS)})


def made_up(number: int) -> list[str]:
    """Returns sentences of words of one to four pieces, some of them unknown."""
    choose = random.Random(number)

    def word():
        letters = "".join(choose.choices(WORDS, k=choose.choice((1, 1, 2, 3, 4))))
        return choose.choice((letters, letters, letters.title(), "xyz"))

    return [
        " ".join(word() for _ in range(choose.randint(1, 7))) + choose.choice(("", "."))
        for _ in range(number)
    ]


@pytest.fixture(scope="module")
def network(randomize):
    network = pretrainer.BertPretrainer(CONFIG)
    network.build()
    randomize(network)
    return network


@pytest.fixture(scope="module")
def model(network, tmp_path_factory):
    """A directory as transformers writes it."""
    directory = tmp_path_factory.mktemp("model")
    checkpoint = weights.Checkpoint(
        bert_config=CONFIG,
        task=tasks.Task(kind="pretraining"),
        arrays=weights.from_network(network),
        vocabulary=tokenization.Vocabulary(TOKENS),
        do_lower_case=True,
    )
    hugging_face.write(checkpoint, directory)
    return directory


@pytest.fixture(scope="module")
def theirs(model):
    pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    return (
        transformers.BertForMaskedLM.from_pretrained(model).eval(),
        transformers.BertTokenizerFast.from_pretrained(model),
    )


@pytest.mark.reference
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("pll", ["original", "word_l2r"])
def test_scores_equal_transformers(model, theirs, pll):
    import torch

    network, tokenizer = theirs
    sentences = made_up(25)
    for ours in scored_files.score(model, sentences, pll=pll):
        (ids,) = tokenizer(ours.text, return_tensors="pt")["input_ids"]
        pieces = tokenizer.convert_ids_to_tokens(ids)
        expected = []
        for place in range(1, len(ids) - 1):
            end = place + 1
            while pll == "word_l2r" and pieces[end].startswith("##"):
                end += 1
            masked = ids.clone()
            masked[place:end] = tokenizer.mask_token_id
            with torch.no_grad():
                logits = network(masked[None]).logits[0, place]
            expected.append(logits.log_softmax(0)[ids[place]].item())
        assert list(ours.pieces) == pieces[1:-1]
        np.testing.assert_allclose(ours.log_probs, expected, atol=1e-5)


@pytest.mark.reference
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("pll", "metric"), [("original", "original"), ("word_l2r", "within_word_l2r")]
)
def test_sums_equal_minicons(model, pll, metric):
    minicons = pytest.importorskip("minicons.scorer")
    sentences = made_up(60)
    theirs = minicons.MaskedLMScorer(str(model), "cpu")
    # transformers 5 has no other name for it.
    theirs.tokenizer.batch_encode_plus = theirs.tokenizer
    expected = theirs.sequence_score(
        sentences, reduction=lambda values: values.sum(0).item(), PLL_metric=metric
    )
    ours = [score.total for score in scored_files.score(model, sentences, pll=pll)]
    np.testing.assert_allclose(ours, expected, atol=1e-4)


def test_a_left_to_right_model_sums_what_it_predicts(network, model):
    left_to_right = CONFIG.model_copy(update={"attention": "left_to_right"})
    causal = pretrainer.BertPretrainer(left_to_right)
    causal.build()
    weights.assign(causal, weights.from_network(network))
    tokenizer = conversion.read_with_tokenizer(model).tokenizer
    (score,) = scorer.SentenceScorer(causal, tokenizer, pll="word_l2r")(["baba de."])
    ids = np.array([[2, *tokenizer.encode("baba de."), 3]])
    inputs = {"input_ids": ids, "input_mask": np.ones_like(ids), "segment_ids": 0 * ids}
    outputs = causal(inputs | {"masked_lm_positions": np.arange(ids.size)[None]})
    log_probs = np.array(keras.ops.log_softmax(outputs["masked_lm_logits"][0]))
    expected = [log_probs[n, ids[0, n + 1]] for n in range(ids.size - 2)]
    assert score.pieces == ("ba", "##ba", "de", ".")
    np.testing.assert_allclose(score.log_probs, expected, atol=1e-5)


def test_words_and_unknown_words_are_counted(model):
    scores = scored_files.score(model, ["Babe xyz, kubo!", "ba"])
    assert scores[0].pieces == ("ba", "##be", "[UNK]", ",", "ku", "##bo", "[UNK]")
    assert [score.num_words for score in scores] == [5, 1]
    assert [score.num_unknown for score in scores] == [2, 0]


def test_the_order_and_the_parts_of_a_long_input_do_not_matter(model, monkeypatch):
    sentences = made_up(40)
    whole = scored_files.score(model, sentences)
    assert [score.text for score in whole] == sentences
    monkeypatch.setattr(scorer, "_SENTENCES_AT_ONCE", 7)
    parts = scored_files.score(model, sentences)
    for one, other in zip(whole, parts, strict=True):
        np.testing.assert_allclose(one.log_probs, other.log_probs, atol=1e-5)


def test_a_run_of_lower_precision_is_scored_in_float32(network, model):
    with_policy = keras.config.dtype_policy()
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        scores = scored_files.score(model, ["ba be bi."])
    finally:
        keras.config.set_dtype_policy(with_policy)
    (expected,) = scored_files.score(model, ["ba be bi."])
    np.testing.assert_allclose(scores[0].log_probs, expected.log_probs, atol=1e-6)


def test_fixed_shapes_change_nothing(network, model):
    """As on a TPU; the last rows and columns are filled up."""
    tokenizer = conversion.read_with_tokenizer(model).tokenizer
    score = scorer.SentenceScorer(network, tokenizer, ladder=(8, 32))
    sentences = made_up(30)
    whole = scored_files.score(model, sentences)
    for ours, plain in zip(score(sentences), whole, strict=True):
        np.testing.assert_allclose(ours.log_probs, plain.log_probs, atol=1e-5)


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["ba", " "], "sentence 2: expected a sentence, got ' '"),
        (["ba " * 31], "sentence 1: a sentence of 33 tokens with .* takes 32: 'ba ba"),
    ],
)
def test_what_cannot_be_scored(model, texts, message):
    with pytest.raises(InputError, match=message):
        scored_files.score(model, texts)


def test_the_longest_sentence_has_all_positions(model):
    (score,) = scored_files.score(model, ["ba " * 30])
    assert len(score.pieces) == 30


def test_weights_that_are_not_finite(network, model):
    damaged = pretrainer.BertPretrainer(CONFIG)
    damaged.build()
    damaged.set_weights([w * np.nan for w in network.get_weights()])
    tokenizer = conversion.read_with_tokenizer(model).tokenizer
    with pytest.raises(InputError, match="probabilities are not finite"):
        list(scorer.SentenceScorer(damaged, tokenizer)(["ba be"]))
