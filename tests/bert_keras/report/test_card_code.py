"""The code in a card loads what lies beside it, which then answers as the run does."""

import re
from pathlib import Path

import numpy as np
import pytest

import bert_keras
from bert_keras.checkpoints import run_directory, run_weights
from bert_keras.commands import main as cli
from bert_keras.core.settings import config, finetuning
from bert_keras.data import features, tokenization
from bert_keras.inference import fill_mask
from bert_keras.kinds import registry

VOCABULARY = tokenization.Vocabulary(
    (*features.SPECIAL_TOKENS, "the", "cat", "sat", "caf", "##e", "!", ",", "##s", "中")
)
BERT_CONFIG = config.BertConfig(
    vocab_size=len(VOCABULARY),
    hidden_size=16,
    num_hidden_layers=1,
    num_attention_heads=2,
    intermediate_size=32,
    max_position_embeddings=24,
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
    task = config.Task(kind=kind, **TASKS[kind])
    run = run_directory.create_run(
        directory,
        settings,
        task=task,
        bert_config=BERT_CONFIG,
        vocabulary=VOCABULARY,
        do_lower_case=True,
        inputs={},
    )
    run_directory.describe_run(run, settings)
    network = registry.build_network(BERT_CONFIG, task)
    randomize(network, stddev=0.2)
    results = {"steps": 1, "seconds": 1.0, "num_parameters": 2, "eval": {"loss": 0.5}}
    run_weights.finish_run(run, network, results)
    return directory


def run_card(model: Path, directory: Path) -> dict:
    """What the code of the card defines, for the last and longest of `TEXTS`."""
    given = ["convert", "--input", str(model), "--output", str(directory)]
    assert cli.main([*given, "--to", "hugging_face"]) == 0
    card = (directory / "README.md").read_text(encoding="utf-8")
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
    theirs = ("input_ids", "attention_mask", "token_type_ids")
    arrays = [np.reshape(np.asarray(found[name], "int32"), (1, -1)) for name in theirs]
    return dict(
        zip(("input_ids", "input_mask", "segment_ids"), arrays, strict=True),
    )


def texts_are_alike(names, ours):
    for text, record in zip(TEXTS, ours.predict(TEXTS), strict=True):
        scores = {a["label"]: a["score"] for a in names["answer"](text, top_k=None)}
        if ours.task.kind == "regression":
            assert list(scores.values()) == pytest.approx([record.prediction], abs=1e-5)
        else:
            assert scores == pytest.approx(record.probabilities, abs=1e-5)


def tags_are_alike(names, ours):
    words = ["the", "cat", "sat", "中", "dog", "!"]
    found = names["answer"](" ".join(words), ignore_labels=[])
    (record,) = ours.predict([words])
    assert [a["entity"] for a in found] == list(record.prediction)
    features_of = ids(names["answer"].tokenizer(" ".join(words)))
    logits = np.array(ours.network(features_of)["logits"])[0, 1:-1]
    odds = np.exp(logits - logits.max(-1, keepdims=True))
    scores = (odds / odds.sum(-1, keepdims=True)).max(-1)
    np.testing.assert_allclose([a["score"] for a in found], scores, atol=1e-5)


def spans_are_alike(names, ours):
    assert names["inputs"]["input_ids"].shape == (1, 12)
    found = ours.network(ids(names["inputs"]))
    for name in ("start_logits", "end_logits"):
        expected = names["outputs"][name].detach().numpy()
        np.testing.assert_allclose(found[name], expected, atol=1e-5)


def choices_are_alike(names, ours):
    (record,) = ours.predict([(TEXTS[-1], names["endings"])])
    odds = names["logits"].softmax(-1).detach().numpy()[0]
    np.testing.assert_allclose(record.probabilities, odds, atol=1e-5)
    assert np.ptp(odds) > 1e-3


def vectors_are_alike(names, ours):
    (record,) = ours.predict(TEXTS[-1:])
    vector = names["shown"].detach()
    np.testing.assert_allclose(record.prediction, vector, atol=1e-5)


ALIKE = {
    **dict.fromkeys(("classification", "multi_label", "regression"), texts_are_alike),
    "tagging": tags_are_alike,
    "span": spans_are_alike,
    "choice": choices_are_alike,
    "embedding": vectors_are_alike,
}


@pytest.mark.reference
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", TASKS)
def test_tuned_models(tmp_path, randomize, kind):
    run = make_run(tmp_path / "run", randomize, kind)
    ALIKE[kind](run_card(run, tmp_path / "theirs"), bert_keras.load(run))


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


# Of each kind the fast form; SavedModels of all kinds take a minute.
EXPORTS = [
    pytest.param(kind, to, marks=pytest.mark.slow if is_slow else ())
    for kind in TASKS
    for to in ("saved_model", "onnx")
    for is_slow in [to == "saved_model" and kind != "regression"]
]


@pytest.mark.reference
@pytest.mark.parametrize(("kind", "to"), EXPORTS)
def test_exports_are_called(tmp_path, randomize, kind, to, capsys):
    pytest.importorskip("onnxruntime")
    run = make_run(tmp_path / "run", randomize, kind)
    capsys.readouterr()
    export = ["export", "--model", str(run), "--output", str(tmp_path / "out")]
    assert cli.main([*export, "--to", to]) == 0, capsys.readouterr().err
    card = (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    code = re.search("```python\n(.*?)```", card, re.DOTALL)[1]
    capsys.readouterr()
    exec(code.replace("DIRECTORY", str(tmp_path / "out")), {})
    assert capsys.readouterr().out
