"""The code in a card loads what lies beside it, which then answers as the run does."""

import re
from pathlib import Path

import numpy as np
import pytest

import bert_keras
from bert_keras import export
from bert_keras.checkpoints import conversion
from bert_keras.core.settings import finetuning
from bert_keras.data import features, tokenization
from bert_keras.inference import fill_mask
from bert_keras.report import model_card
from tests import make

VOCABULARY = tokenization.Vocabulary(
    (*features.SPECIAL_TOKENS, "the", "cat", "sat", "caf", "##e", "!", ",", "##s", "中")
)
TASKS = {
    "classification": {"labels": ("übel", "so so", "good")},
    "multi_label": {"labels": ("a", "b")},
    "regression": {},
    "tagging": {"labels": ("O", "B-X", "I-X")},
    "span": {"has_text_pair": True},
    "choice": {"has_text_pair": True},
    "embedding": {"normalize": True, "pooling": "mean"},
}
TEXTS = ["The cats sat, the CAFÉ!", "中", "dog", "the cat sat, " * 3]


@pytest.fixture(scope="module", autouse=True)
def transformers():
    pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()


def make_run(directory: Path, randomize, kind: str) -> Path:
    settings = finetuning.FinetuningConfig(
        max_seq_length=12, document_context=False, span={"max_query_length": 5}
    )
    return make.make_run(
        directory,
        VOCABULARY,
        settings=settings,
        change=lambda network: randomize(network, stddev=0.2),
        results={"steps": 1, "num_parameters": 2, "eval": {"loss": 0.5}},
        kind=kind,
        **TASKS[kind],
    )


def run_card(model: Path, directory: Path) -> dict:
    """What the code of the card defines, for the last and longest of `TEXTS`."""
    conversion.convert(model, directory, to="hugging_face")
    card = model_card.text(model, name="theirs", form="hugging_face")
    code = re.search("```python\n(.*?)```", card, re.DOTALL)[1]
    names = {"print": lambda shown: names.update(shown=shown)}
    code = code.replace("DIRECTORY", str(directory))
    for example in ("A text.", "Ada left early.", "She opens a book and"):
        code = code.replace(example, TEXTS[-1])
    for example, word in {"sings": "the", "sleeps": "cat", "runs": "中"}.items():
        code = code.replace(example, word)
    exec(code, names)
    return names


def ids(found) -> dict:
    """Features of our networks, from what their tokenizer gave."""
    names = {"input_mask": "attention_mask", "segment_ids": "token_type_ids"}
    names |= {"input_ids": "input_ids"}
    return {n: np.int32(found[theirs]).reshape(1, -1) for n, theirs in names.items()}


def assert_texts_are_alike(names, ours):
    for text, record in zip(TEXTS, ours.predict(TEXTS), strict=True):
        scores = {a["label"]: a["score"] for a in names["answer"](text, top_k=None)}
        if ours.task.kind == "regression":
            assert list(scores.values()) == pytest.approx([record.prediction], abs=1e-5)
        else:
            assert scores == pytest.approx(record.probabilities, abs=1e-5)


def assert_tags_are_alike(names, ours):
    words = ["the", "cat", "sat", "中", "dog", "!"]
    found = names["answer"](" ".join(words), ignore_labels=[])
    (record,) = ours.predict([words])
    assert [a["entity"] for a in found] == list(record.prediction)
    features_of = ids(names["answer"].tokenizer(" ".join(words)))
    logits = np.array(ours.network(features_of)["logits"])[0, 1:-1]
    odds = np.exp(logits - logits.max(-1, keepdims=True))
    scores = (odds / odds.sum(-1, keepdims=True)).max(-1)
    np.testing.assert_allclose([a["score"] for a in found], scores, atol=1e-5)


def assert_spans_are_alike(names, ours):
    assert names["inputs"]["input_ids"].shape == (1, 12)
    found = ours.network(ids(names["inputs"]))
    for name in ("start_logits", "end_logits"):
        expected = names["outputs"][name].detach().numpy()
        np.testing.assert_allclose(found[name], expected, atol=1e-5)


def assert_choices_are_alike(names, ours):
    (record,) = ours.predict([(TEXTS[-1], names["endings"])])
    odds = names["logits"].softmax(-1).detach().numpy()[0]
    np.testing.assert_allclose(record.probabilities, odds, atol=1e-5)
    assert np.ptp(odds) > 1e-3


def assert_vectors_are_alike(names, ours):
    (record,) = ours.predict(TEXTS[-1:])
    vector = names["shown"].detach()
    np.testing.assert_allclose(record.prediction, vector, atol=1e-5)


ASSERTIONS = {
    **dict.fromkeys(
        ("classification", "multi_label", "regression"), assert_texts_are_alike
    ),
    "tagging": assert_tags_are_alike,
    "span": assert_spans_are_alike,
    "choice": assert_choices_are_alike,
    "embedding": assert_vectors_are_alike,
}


# A pipeline, and a model that has none.
FAST = ("classification", "choice")
SLOW = [pytest.param(k, marks=pytest.mark.slow) for k in TASKS if k not in FAST]


@pytest.mark.reference
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", [*FAST, *SLOW])
def test_tuned_models(tmp_path, randomize, kind):
    run = make_run(tmp_path / "run", randomize, kind)
    ASSERTIONS[kind](run_card(run, tmp_path / "theirs"), bert_keras.load(run))


@pytest.mark.reference
@pytest.mark.filterwarnings("ignore")
def test_masks_of_a_pretrained_model(pretrained_run, tmp_path):
    names = run_card(pretrained_run, tmp_path / "theirs")
    text = "a [MASK] ."
    theirs = names["answer"](text, top_k=3)
    (ours,) = fill_mask.FillMask(pretrained_run)(text, top_k=3)
    assert [a["token_str"] for a in theirs] == [guess.token for guess in ours]
    scores = [guess.probability for guess in ours]
    assert [a["score"] for a in theirs] == pytest.approx(scores, abs=1e-5)


@pytest.mark.slow
@pytest.mark.reference
@pytest.mark.parametrize("kind", TASKS)
@pytest.mark.parametrize("to", ["saved_model", "onnx"])
def test_exports_are_called(tmp_path, randomize, kind, to, capsys):
    pytest.importorskip("onnxruntime")
    run = make_run(tmp_path / "run", randomize, kind)
    export.export_model(run, tmp_path / "out", to=to)
    card = (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    code = re.search("```python\n(.*?)```", card, re.DOTALL)[1]
    capsys.readouterr()
    exec(code.replace("DIRECTORY", str(tmp_path / "out")), {})
    assert capsys.readouterr().out
