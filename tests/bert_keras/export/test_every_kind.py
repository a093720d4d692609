"""Every kind of tuned model in every format, as a file and quantised."""

import functools
import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from bert_keras import export
from bert_keras.core.settings import finetuning
from bert_keras.data import features, tokenization
from bert_keras.inference import finetuned
from tests import make
from tests.bert_keras.kinds.kind_data import BAD, DATA, FILLER, GOOD

VOCABULARY = tokenization.Vocabulary((*features.SPECIAL_TOKENS, *GOOD, *BAD, *FILLER))
SIZES = {"hidden_size": 32, "intermediate_size": 64, "max_position_embeddings": 64}
BERT_CONFIG = make.small_config(len(VOCABULARY), **SIZES)
NUM_EXAMPLES = 40


class Case(NamedTuple):
    """A tuned model, and what is measured on a dev file for it."""

    task: Mapping[str, Any]
    settings: Mapping[str, Any]
    metric: str
    data: str | None = None
    """The kind of the file's rows; `None`: that of the task."""


CLASSES = {"kind": "classification", "labels": ("good", "bad")}
TAGS = {"kind": "tagging", "labels": ("O", "B-GOOD")}
SPAN = {"task": "span", "span": {"doc_stride": 4, "max_query_length": 4}}
SENTENCES = {"task": "tagging", "document_context": False, "max_seq_length": 16}
CASES = {
    "classes": Case(CLASSES, {}, "accuracy"),
    "windows": Case(
        CLASSES, {"max_seq_length": 8, "long_texts": "windows_max"}, "accuracy"
    ),
    "pairs": Case(
        {**CLASSES, "has_text_pair": True},
        {"long_texts": "head_tail", "max_seq_length": 16},
        *("accuracy", "regression"),
    ),
    "rating": Case(
        {"kind": "regression", "has_text_pair": True}, {"regression": True}, "pearson"
    ),
    "several_labels": Case(
        {**CLASSES, "kind": "multi_label"}, {"multi_label": True}, "macro_f1"
    ),
    "tags": Case(TAGS, SENTENCES, "f1"),
    "tags_of_documents": Case(
        {**TAGS, "bilstm_units": 4},
        {**SENTENCES, "document_context": True, "bilstm_units": 4},
        "f1",
    ),
    "tags_of_features": Case(
        {**TAGS, "feature_layers": "last"},
        {**SENTENCES, "feature_layers": "last"},
        "f1",
    ),
    "spans": Case({"kind": "span"}, {**SPAN, "max_seq_length": 16}, "f1"),
    "spans_or_none": Case(
        {"kind": "span", "has_impossible": True}, {**SPAN, "max_seq_length": 16}, "f1"
    ),
    "choice": Case({"kind": "choice"}, {"task": "choice"}, "accuracy"),
    "vectors": Case(
        {"kind": "embedding", "normalize": True, "pooling": "cls"},
        {"task": "embedding", "embedding": {"normalize": True, "pooling": "cls"}},
        "recall_at_10",
    ),
    "similarity": Case(
        {"kind": "embedding"},
        {"task": "embedding", "embedding": {"metric": "spearman"}},
        *("spearman", "regression"),
    ),
    "ranking": Case(
        {"kind": "ranking", "has_text_pair": True}, {"task": "ranking"}, "ndcg_at_10"
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
        data, rng = DATA[case.data or case.task["kind"]], random.Random(5)
        rows = [data.row(rng, number) for number in range(NUM_EXAMPLES)]
        if name == "pairs":
            rows = [
                row | {"label": "good" if row["label"] < 2 else "bad"} for row in rows
            ]
        version = "2.0" if "has_impossible" in case.task else "1.1"
        dev = folder / f"{name}_dev{data.suffix}"
        dev.write_text(data.write(rows, True).replace('"1.1"', f'"{version}"'))
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
    assert (check["metric"], check["examples"]) == (metric, NUM_EXAMPLES)
    unit = 1 if name.startswith("spans") else 100
    score = unit * finetuned.evaluate(run, dev)[metric]
    assert check["score"]["float32"] == pytest.approx(score, abs=1e-3)
    if "bilstm_units" not in CASES[name].task:  # here too small to be worth its scales
        assert check["bytes"]["quantised"] < check["bytes"]["float32"]
