"""Verdicts on quantised exports of all kinds of tuned models."""

import json
from pathlib import Path

import numpy as np
import pytest

from bert_keras import export
from bert_keras.checkpoints import conversion
from bert_keras.core.settings import architecture, finetuning
from bert_keras.data import features, tokenization
from bert_keras.export import loading
from bert_keras.export.quantized import accuracy_check
from bert_keras.inference import finetuned
from bert_keras.kinds import registry, served
from tests import make

pytestmark = pytest.mark.slow

LETTERS = "abcdefghijklmnopqrstuvwxyz"
VOCABULARY = tokenization.Vocabulary((*features.SPECIAL_TOKENS, *LETTERS))
BERT_CONFIG = architecture.BertConfig(
    vocab_size=len(VOCABULARY),
    hidden_size=32,
    num_hidden_layers=1,
    num_attention_heads=2,
    intermediate_size=64,
    max_position_embeddings=64,
)
TEXTS = [" ".join(np.roll(list(LETTERS), i)[: 2 + 3 * i % 25]) for i in range(40)]


def table(path: Path, header: str, cells) -> Path:
    rows = [f"{t}\t{cell}\n" for t, cell in zip(TEXTS, cells, strict=True)]
    path.write_text(f"text\t{header}\n" + "".join(rows))
    return path


def sentences(path: Path) -> Path:
    blocks = [
        "".join(f"{w} {'B-PER' if i % 3 else 'O'}\n" for i, w in enumerate(t.split()))
        for t in TEXTS
    ]
    path.write_text("\n".join(blocks))
    return path


def questions(path: Path) -> Path:
    paragraphs = [
        {
            "context": text,
            "qas": [
                {
                    "id": str(i),
                    "question": "a b",
                    "answers": [{"text": text[:1], "answer_start": 0}],
                }
            ],
        }
        for i, text in enumerate(TEXTS)
    ]
    path.write_text(json.dumps({"data": [{"title": "", "paragraphs": paragraphs}]}))
    return path


def endings(path: Path) -> Path:
    names = ["sent1", "sent2", *(f"ending{i}" for i in range(4)), "label"]
    rows = [
        f"{text},,{','.join(LETTERS[(i + j) % 26] for j in range(4))},{i % 4}\n"
        for i, text in enumerate(TEXTS)
    ]
    path.write_text(f"{','.join(names)}\n" + "".join(rows))
    return path


CLASSES = {"kind": "classification", "labels": ("x", "y"), "has_text_pair": False}
SPAN = {"doc_stride": 4, "max_query_length": 4}
WINDOWS = {"task": "text", "max_seq_length": 8, "long_texts": "windows_mean"}
KINDS = {
    "windows": (CLASSES, WINDOWS, "accuracy", lambda p: table(p, "label", "xy" * 20)),
    "regression": (
        {"kind": "regression", "has_text_pair": False},
        {"task": "text", "regression": True},
        "pearson",
        lambda p: table(p, "label", np.linspace(-1, 1, 40)),
    ),
    "multi_label": (
        {**CLASSES, "kind": "multi_label"},
        {"task": "text", "multi_label": True},
        "macro_f1",
        lambda p: table(p, "label", ["x", "x,y", "y", ""] * 10),
    ),
    "tagging": (
        {"kind": "tagging", "labels": ("O", "B-PER")},
        {"task": "tagging", "document_context": False, "max_seq_length": 16},
        "f1",
        sentences,
    ),
    "span": (
        {"kind": "span"},
        {"task": "span", "max_seq_length": 16, "span": SPAN},
        "f1",
        questions,
    ),
    "choice": ({"kind": "choice"}, {"task": "choice"}, "accuracy", endings),
}
SUFFIXES = {"span": ".json", "choice": ".csv", "tagging": ".txt"}


@pytest.fixture(scope="module", params=KINDS)
def made(request, tmp_path_factory, randomize):
    """A run with random weights, and a dev file of its kind."""
    folder = tmp_path_factory.mktemp(request.param)
    task, settings, _, write = KINDS[request.param]
    run = make.make_run(
        folder / "run",
        VOCABULARY,
        settings=finetuning.FinetuningConfig(**{"max_seq_length": 32, **settings}),
        bert_config=BERT_CONFIG,
        change=lambda network: randomize(network, stddev=0.3),
        **task,
    )
    dev = write(folder / f"dev{SUFFIXES.get(request.param, '.tsv')}")
    return request.param, run, dev


def compare(kind: str, directory: Path, dev: Path, change) -> dict:
    """Compares a model with itself, its numbers changed; checks its score."""
    checkpoint = conversion.read_with_tokenizer(directory)
    trained = loading.load(checkpoint, path=directory)
    model = registry.find(checkpoint.task.kind).served(trained, top_k=5)

    def exact(ids):
        return served.as_arrays(model.compute(served.as_tensors(ids)))

    def changed(ids):
        return {name: change(values) for name, values in exact(ids).items()}

    check = accuracy_check.DevFile(dev, trained).compare(exact, changed)
    assert (check["metric"], check["examples"]) == (KINDS[kind][2], 40)
    unit = 1 if kind == "span" else 100
    score = unit * finetuned.evaluate(directory, dev)[check["metric"]]
    assert check["score"]["float32"] == pytest.approx(score, abs=1e-3)
    return check


def test_scores_are_those_of_evaluate(made):
    check = compare(*made, np.negative)
    assert check["score"]["quantised"] != check["score"]["float32"]
    assert 20 < check["changed_answers"]["quantised"] <= 40


def test_every_kind_is_quantised(made, tmp_path):
    pytest.importorskip("tf2onnx")
    _, directory, dev = made
    options = {"to": "onnx", "quantize": "int8", "dev": dev, "max_drop": 100}
    check = export.export_model(directory, tmp_path / "small", **options)
    assert check["bytes"]["quantised"] < check["bytes"]["float32"]
    assert check["examples"] == 40


def test_models_of_hugging_face_have_a_verdict(made, tmp_path):
    kind, directory, dev = made
    if kind in ("windows", "span"):
        pytest.skip("their configuration does not say how long texts are read")
    theirs = tmp_path / "theirs"
    conversion.convert(directory, theirs, to="hugging_face")
    changed = compare(kind, theirs, dev, lambda values: values)["changed_answers"]
    assert changed["quantised"] == 0
    if kind != "regression":  # numbers are rounded by the batch
        assert changed["one_at_a_time"] == 0
