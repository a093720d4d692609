"""The code in a card loads what lies beside it, which then answers as the run does."""

import re
from pathlib import Path

import numpy as np
import pytest

import bert_keras
from bert_keras import cli, config, finetuning_config, run_directory
from bert_keras.checkpoints import run_weights
from bert_keras.data import features, tokenization
from bert_keras.inference import fill_mask
from bert_keras.model import networks

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
    "embedding": {},
}
TEXTS = ["The cats sat, the CAFÉ!", "中", "dog"]


@pytest.fixture(scope="module", autouse=True)
def transformers():
    pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()


def make_run(directory: Path, randomize, kind: str) -> Path:
    settings = finetuning_config.FinetuningConfig(
        max_seq_length=24, document_context=False
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
    network = networks.build(BERT_CONFIG, task)
    randomize(network, stddev=0.5)
    results = {"steps": 1, "seconds": 1.0, "num_parameters": 2, "eval": {"loss": 0.5}}
    run_weights.finish_run(run, network, results)
    return directory


def run_card(model: Path, directory: Path) -> dict:
    """What the code of the card defines."""
    given = ["convert", "--input", str(model), "--output", str(directory)]
    assert cli.main([*given, "--to", "hugging_face"]) == 0
    card = (directory / "README.md").read_text(encoding="utf-8")
    code = re.search("```python\n(.*?)```", card, re.DOTALL)[1]
    names = {}
    exec(code.replace("DIRECTORY", str(directory)), names)
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
    given = names["tokenizer"](TEXTS[1], TEXTS[0], return_tensors="pt")
    theirs, found = names["model"](**given), ours.network(ids(given))
    for name in ("start_logits", "end_logits"):
        expected = theirs[name].detach().numpy()
        np.testing.assert_allclose(found[name], expected, atol=1e-5)


def choices_are_alike(names, ours):
    endings = ["sat", "the cat", "中", "!"]
    given = names["tokenizer"]([TEXTS[0]] * 4, endings, padding=True)
    batched = names["tokenizer"].pad(given, return_tensors="pt")
    logits = names["model"](**{k: v[None] for k, v in batched.items()}).logits
    (record,) = ours.predict([(TEXTS[0], endings)])
    odds = logits.softmax(-1).detach().numpy()[0]
    np.testing.assert_allclose(record.probabilities, odds, atol=1e-5)


def vectors_are_alike(names, ours):
    for text, record in zip(TEXTS, ours.predict(TEXTS), strict=True):
        given = names["tokenizer"](text, return_tensors="pt")
        vector = names["model"](**given).last_hidden_state[0].mean(0)
        np.testing.assert_allclose(record.prediction, vector.detach(), atol=1e-5)


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


@pytest.mark.reference
@pytest.mark.parametrize("to", ["saved_model", "onnx"])
@pytest.mark.parametrize("kind", TASKS)
def test_exports_are_called(tmp_path, randomize, kind, to, capsys):
    pytest.importorskip("onnxruntime")
    run = make_run(tmp_path / "run", randomize, kind)
    capsys.readouterr()
    export = ["export", "--model", str(run), "--output", str(tmp_path / "out")]
    if cli.main([*export, "--to", to]) != 0:
        pytest.skip(capsys.readouterr().err)
    card = (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    code = re.search("```python\n(.*?)```", card, re.DOTALL)[1]
    capsys.readouterr()
    exec(code.replace("DIRECTORY", str(tmp_path / "out")), {})
    assert capsys.readouterr().out
