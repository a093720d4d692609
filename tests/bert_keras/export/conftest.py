"""A run and its exports, which the tests of several files ask."""

import collections
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from bert_keras import export
from bert_keras.checkpoints import run_directory
from bert_keras.core.settings import finetuning
from bert_keras.data import features, tokenization
from tests import make

VOCABULARY = tokenization.Vocabulary(
    (*features.SPECIAL_TOKENS, *"abcdefghijklmnopqrstuvwxyz", *"0123456789.,!?'[]")
    + tuple(f"##{char}" for char in "abcdefghijklmnopqrstuvwxyz")
    + ("日", "the", "σας", "и", "##ии", "α", "##σ", "##ς", "σ", "mask")
)
SPAN = finetuning.SpanConfig(doc_stride=7, max_query_length=9)


IDS = ("input_ids", "input_mask", "segment_ids")


def signatures_of(exported) -> dict[str, tuple[dict, dict]]:
    """Rank and type of each input and output of the signatures of a SavedModel."""

    def facts(specs):
        return {name: (spec.shape.rank, spec.dtype) for name, spec in specs.items()}

    for signature in exported.values():
        for name, spec in signature.structured_input_signature[1].items():
            assert spec == tf.TensorSpec([None] * spec.shape.rank, spec.dtype, name)
    return {
        name: (facts(s.structured_input_signature[1]), facts(s.structured_outputs))
        for name, s in exported.items()
    }


def numbers_of(model, inputs):
    """The numbers of all words or tokens of a data set's inputs, by name."""
    outputs = collections.defaultdict(list)
    for first in range(0, len(inputs.lengths), 32):
        rows = np.arange(first, min(first + 32, len(inputs.lengths)))
        batch, places = inputs.batch(rows), inputs.places(rows)
        ids = {spec.name: tf.constant(batch[spec.name]) for spec in model.id_specs}
        for name, values in model.compute(ids).items():
            outputs[name].append(values.numpy()[places.index])
    return {name: np.concatenate(parts) for name, parts in outputs.items()}


@pytest.fixture(scope="session")
def make_run(randomize) -> Callable[..., Path]:
    """A function that makes a finished run with random weights, for 20 tokens."""

    def make_one(directory: Path, *, task: str | None = "text", **of_task) -> Path:
        settings = task and finetuning.FinetuningConfig(
            task=task, max_seq_length=20, precision="mixed_bfloat16", span=SPAN
        )

        def change(network) -> None:
            randomize(network, stddev=0.6)
            if of_task["kind"] == "classification":
                # Else all texts would get one label.
                network.head.classifier.bias.assign([-3.4, 0.0])

        return make.make_run(
            directory, VOCABULARY, settings=settings, change=change, **of_task
        )

    return make_one


@pytest.fixture(scope="session")
def classifier(made_once, make_run) -> Path:
    """A run that classifies pairs of texts, with scores."""

    def fill(directory: Path) -> None:
        task = {"kind": "classification", "labels": ("übel", "good")}
        run = make_run(directory / "run", **task, has_text_pair=True)
        results = {"steps": 1, "seconds": 1.0, "num_parameters": 2}
        run_directory.write_results(run, {**results, "eval": {"loss": 0.5}})

    return made_once.directory("classifier", fill) / "run"


@pytest.fixture(scope="session")
def saved_model(made_once, classifier) -> Path:
    """The SavedModel of `classifier`, for TensorFlow Serving."""

    def fill(directory: Path) -> None:
        export.export_model(classifier, directory / "mine/1", serving="tf")

    return made_once.directory("saved_model", fill) / "mine/1"


@pytest.fixture(scope="session")
def onnx_model(made_once, classifier) -> Path:
    """The directory of the ONNX file of `classifier`."""
    pytest.importorskip("tf2onnx")
    pytest.importorskip("onnxruntime")

    def fill(directory: Path) -> None:
        export.export_model(classifier, directory / "onnx", to="onnx")

    return made_once.directory("onnx_model", fill) / "onnx"
