"""Exports for browsers, of each kind, and the library, which npm has to install."""

import functools
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from bert_keras import export
from bert_keras.core.settings import finetuning
from bert_keras.data import tokenization
from tests import make
from tests.bert_keras.export import conftest
from tests.bert_keras.export.test_every_kind import CASES

# A vowel sign of two parts: the first is a mark, the second a letter.
VOCABULARY = tokenization.Vocabulary((*conftest.VOCABULARY.tokens, "ಕ", "##\u0cd5"))
SETTINGS = {"task": "text", "max_seq_length": 24}
# Windows of these texts have room for a question.
SPAN = {"span": finetuning.SpanConfig(doc_stride=7, max_query_length=9)}
# Each way in which an entity begins and ends.
NAMES = ("O", *(f"{p}-{name}" for name in "AB" for p in "BIES"))
TAGS = {"names": NAMES, "parts_of_speech": ("O", "NN", "VB")}
WITHOUT_SETTINGS = {"words": {"kind": "pretraining"}, "encoder": {"kind": "encoder"}}


@pytest.fixture(scope="session")
def exported(tmp_path_factory, randomize) -> Callable[[str], tuple[Path, Path]]:
    """A function from a case to its run, with random weights, and its export."""
    pytest.importorskip("tf2onnx")
    pytest.importorskip("onnxruntime")
    folder = tmp_path_factory.mktemp("browser")

    @functools.cache
    def write(name: str) -> tuple[Path, Path]:
        task, settings = WITHOUT_SETTINGS.get(name), None
        if task is None:
            case = CASES["tags" if name in TAGS else name]
            task, of_case = case.task, case.settings
            if name in TAGS:
                task = {**task, "labels": TAGS[name]}
            values = {**SETTINGS, **of_case, "document_context": False}
            settings = finetuning.FinetuningConfig(
                **{**values, "max_seq_length": 24, **(SPAN if "span" in name else {})}
            )
        (folder / name).mkdir()
        run = make.make_run(
            *(folder / name / "run", VOCABULARY),
            settings=settings,
            change=lambda network: randomize(network, stddev=0.5),
            **task,
        )
        page = folder / name / "page"
        embedding = "mean" if name == "encoder" else None
        export.export_model(run, page, to="transformers_js", embedding=embedding)
        return run, page

    return write


@pytest.fixture(scope="session")
def node_modules() -> Path:
    """The folder in which npm installed @huggingface/transformers."""
    path = Path(os.environ.get("BERT_KERAS_NODE_MODULES", "node_modules")).absolute()
    if not (path / "@huggingface/transformers").is_dir():
        pytest.skip(
            "needs `npm install --ignore-scripts @huggingface/transformers@4.3.2` here "
            "or in the folder whose node_modules BERT_KERAS_NODE_MODULES names"
        )
    return path
