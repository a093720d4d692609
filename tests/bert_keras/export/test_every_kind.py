"""Every kind of tuned model in every format, as a file and quantised."""

import functools
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from bert_keras import export
from bert_keras.core.settings import architecture, finetuning
from bert_keras.data import features, tokenization
from bert_keras.inference import finetuned
from tests import make

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
OTHERS = TEXTS[7:] + TEXTS[:7]


def table(header: str, *columns) -> str:
    rows = ["\t".join(map(str, row)) for row in zip(*columns, strict=True)]
    return "\n".join([header.replace(" ", "\t"), *rows]) + "\n"


def conll() -> str:
    blocks = (
        "".join(f"{w} {'B-PER' if i % 3 else 'O'}\n" for i, w in enumerate(t.split()))
        for t in TEXTS
    )
    return "\n".join(blocks)


def squad(version: str) -> str:
    answer = {"text": "a", "answer_start": 0}
    paragraphs = [
        {
            "context": f"a {text}",
            "qas": [{"id": str(i), "question": "a b", "answers": [answer]}],
        }
        for i, text in enumerate(TEXTS)
    ]
    data = [{"title": "", "paragraphs": paragraphs}]
    return json.dumps({"version": version, "data": data})


def endings() -> str:
    rows = [
        f"{text},,{','.join(LETTERS[(i + j) % 26] for j in range(4))},{i % 4}\n"
        for i, text in enumerate(TEXTS)
    ]
    return "sent1,sent2,ending0,ending1,ending2,ending3,label\n" + "".join(rows)


class Case(NamedTuple):
    """A tuned model, and a dev file for it."""

    task: Mapping[str, Any]
    settings: Mapping[str, Any]
    dev: str
    metric: str
    suffix: str = ".tsv"


CLASSES = {"kind": "classification", "labels": ("x", "y")}
TAGS = {"kind": "tagging", "labels": ("O", "B-PER", "I-PER")}
SPAN = {"doc_stride": 4, "max_query_length": 4}
LABELS = table("text label", TEXTS, "xy" * 20)
PAIRS = table("text text_pair label", TEXTS, OTHERS, np.linspace(0, 1, 40))
SENTENCES = {"task": "tagging", "document_context": False, "max_seq_length": 16}
CASES = {
    "classes": Case(CLASSES, {}, LABELS, "accuracy"),
    "windows": Case(
        CLASSES, {"max_seq_length": 8, "long_texts": "windows_max"}, LABELS, "accuracy"
    ),
    "pairs": Case(
        {**CLASSES, "has_text_pair": True},
        {"long_texts": "head_tail", "max_seq_length": 16},
        table("text text_pair label", TEXTS, OTHERS, "xy" * 20),
        "accuracy",
    ),
    "rating": Case(
        {"kind": "regression"},
        {"regression": True},
        table("text label", TEXTS, np.linspace(-1, 1, 40)),
        "pearson",
    ),
    "several_labels": Case(
        {**CLASSES, "kind": "multi_label"},
        {"multi_label": True},
        table("text label", TEXTS, ["x", "x,y", "y", ""] * 10),
        "macro_f1",
    ),
    "tags": Case(TAGS, SENTENCES, conll(), "f1", ".txt"),
    "tags_of_documents": Case(
        {**TAGS, "bilstm_units": 4},
        {**SENTENCES, "document_context": True, "bilstm_units": 4},
        *(conll(), "f1", ".txt"),
    ),
    "tags_of_features": Case(
        {**TAGS, "feature_layers": "last"},
        {**SENTENCES, "feature_layers": "last"},
        *(conll(), "f1", ".txt"),
    ),
    "spans": Case(
        {"kind": "span"},
        {"task": "span", "max_seq_length": 16, "span": SPAN},
        *(squad("1.1"), "f1", ".json"),
    ),
    "spans_or_none": Case(
        {"kind": "span", "has_impossible": True},
        {"task": "span", "max_seq_length": 16, "span": SPAN},
        *(squad("2.0"), "f1", ".json"),
    ),
    "choice": Case(
        {"kind": "choice"}, {"task": "choice"}, endings(), "accuracy", ".csv"
    ),
    "vectors": Case(
        {"kind": "embedding", "normalize": True, "pooling": "cls"},
        {"task": "embedding", "embedding": {"normalize": True, "pooling": "cls"}},
        *(table("text text_pair", TEXTS, OTHERS), "recall_at_10"),
    ),
    "similarity": Case(
        {"kind": "embedding"},
        {"task": "embedding", "embedding": {"metric": "spearman"}},
        *(PAIRS, "spearman"),
    ),
    "ranking": Case(
        {"kind": "ranking", "has_text_pair": True},
        {"task": "ranking"},
        table(
            "question passage relevance",
            [text for text in TEXTS[:10] for _ in range(4)],
            *(OTHERS, [1, 0, 0, 2] * 10),
        ),
        "ndcg_at_10",
    ),
}


@pytest.fixture(scope="module")
def run_of(tmp_path_factory, randomize) -> Callable[[str], tuple[Path, Path]]:
    """A function from a case to its run, with random weights, and its dev file."""
    folder = tmp_path_factory.mktemp("runs")

    @functools.cache
    def write(name: str) -> tuple[Path, Path]:
        case = CASES[name]
        run = make.make_run(
            folder / name,
            VOCABULARY,
            settings=finetuning.FinetuningConfig(
                **{"task": "text", "max_seq_length": 32, **case.settings}
            ),
            bert_config=BERT_CONFIG,
            change=lambda network: randomize(network, stddev=0.3),
            **case.task,
        )
        dev = folder / f"{name}_dev{case.suffix}"
        dev.write_text(case.dev)
        return run, dev

    return write


FORMATS = {
    ("saved_model", None): (),
    ("saved_model", "bfloat16"): (),
    ("onnx", None): ("tf2onnx",),
    ("onnx", "int8"): ("tf2onnx", "onnxruntime"),
    ("litert", None): ("ai_edge_litert",),
    ("litert", "int8"): ("ai_edge_litert", "ai_edge_quantizer"),
}
FAST = {("classes", "onnx", None), ("ranking", "onnx", "int8")}


def every_export():
    for name in CASES:
        for to, quantize in FORMATS:
            if CASES[name].task.get("bilstm_units") and to == "litert":
                continue  # LiteRT has none
            is_fast = (name, to, quantize) in FAST
            yield pytest.param(
                *(name, to, quantize),
                marks=[] if is_fast else pytest.mark.slow,
                id=f"{name}-{to}-{quantize or 'float32'}",
            )


@pytest.mark.parametrize(("name", "to", "quantize"), [*every_export()])
def test_every_kind_in_every_format(name, to, quantize, run_of, tmp_path):
    """An export asks what it wrote, and compares the answers with the run's."""
    for package in FORMATS[to, quantize]:
        pytest.importorskip(package)
    run, dev = run_of(name)
    if quantize is None:
        assert export.export_model(run, tmp_path / "1", to=to) is None
        return
    check = export.export_model(
        run, tmp_path / "1", to=to, quantize=quantize, dev=dev, max_drop=100
    )
    metric = CASES[name].metric
    assert (check["metric"], check["examples"]) == (metric, len_of(name))
    unit = 1 if name.startswith("spans") else 100
    score = unit * finetuned.evaluate(run, dev)[metric]
    assert check["score"]["float32"] == pytest.approx(score, abs=1e-3)
    if "bilstm_units" not in CASES[name].task:  # here too small to be worth its scales
        assert check["bytes"]["quantised"] < check["bytes"]["float32"]


def len_of(name: str) -> int:
    return 10 if name == "ranking" else 40
