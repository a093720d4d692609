"""SavedModels asked as TensorFlow Serving asks them: by a session, gRPC and REST."""

import importlib.util
import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

from bert_keras import export
from bert_keras.core.settings import finetuning
from bert_keras.data import features, tokenization
from tests import make

pytest.importorskip("tensorflow_serving.apis.prediction_service_pb2_grpc")

REPOSITORY = Path(__file__).resolve().parents[3]
VOCABULARY = tokenization.Vocabulary((*features.SPECIAL_TOKENS, *"abcdefg.[]", "the"))
SPAN = finetuning.SpanConfig(doc_stride=7, max_query_length=9)
TEXTS = ["the a b", "", "c d . e [ ]", "the " * 40, "üben \u0000 日本", "a" * 300] * 32


def load_module(path: Path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def server():
    return load_module(Path(__file__).with_name("serving_server.py"))


@pytest.fixture(scope="module")
def serving_load():
    return load_module(REPOSITORY / "benchmarks/serving_load.py")


def exported(folder: Path, randomize, *, task="text", **of_task) -> tuple[Path, Path]:
    """A run with random weights, and its export for TensorFlow Serving."""
    settings = task and finetuning.FinetuningConfig(
        task=task, max_seq_length=20, precision="float32", span=SPAN
    )
    run = make.make_run(
        folder / "run",
        VOCABULARY,
        settings=settings,
        change=lambda network: randomize(network, stddev=0.6),
        **of_task,
    )
    version = folder / "mine/1"
    export.export_model(run, version, serving="tf")
    return run, version


@pytest.fixture(scope="module")
def pairs(tmp_path_factory, randomize) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("pairs")
    labels = ("bad", "good")
    return exported(
        folder, randomize, kind="classification", labels=labels, has_text_pair=True
    )


def alone(version: Path, server):
    """The model in this process, without batching."""
    (version / server.BATCHING_NAME).unlink(missing_ok=True)
    return server.Model(version)


@pytest.fixture(scope="module")
def model(pairs, server, tmp_path_factory):
    copy = tmp_path_factory.mktemp("alone") / "1"
    return alone(Path(shutil.copytree(pairs[1], copy)), server)


IDS = {
    "input_ids": [[2, 5, 3]],
    "input_mask": [[1, 1, 1]],
    "segment_ids": [[0, 0, 0]],
}


@pytest.mark.parametrize(
    ("signature", "inputs", "sentence"),
    [
        (
            "serving_default",
            {"text": [["a"]], "text_pair": ["a"]},
            "[expected text of shape (batch), got] [1 1]",
        ),
        (
            "serving_default",
            {"text": ["a"], "text_pair": "b"},
            "[expected text_pair of shape (batch), got] []",
        ),
        (
            "serving_default",
            {"text": ["a", "b"], "text_pair": ["a"]},
            "[expected as many rows of text, text_pair, got] [2 1]",
        ),
        (
            "ids",
            {**IDS, "input_ids": [[2, 99, 3]]},
            "[expected ids from 0 to 15, got] [99]",
        ),
        ("ids", {**IDS, "input_mask": [[1, 2, 1]]}, "input_mask from 0 to 1, got] [2]"),
        (
            "ids",
            {**IDS, "segment_ids": [[0, 0, 2]]},
            "segment_ids from 0 to 1, got] [2]",
        ),
        (
            "ids",
            {**IDS, "input_mask": [[1]]},
            "[expected input_ids and input_mask of one shape, got] [[1 3][1 1]]",
        ),
        (
            "ids",
            {name: [[0] * 25] for name in IDS},
            "[expected 24 ids in a row at most, got] [1 25]",
        ),
        (
            "ids",
            {name: np.zeros((1, 0), int) for name in IDS},
            "[expected at least one id in a row, got] [1 0]",
        ),
        (
            "ids",
            {**IDS, "input_ids": [2, 5, 3]},
            "[expected input_ids of shape (batch, columns), got] [3]",
        ),
    ],
)
def test_requests_that_do_not_fit_get_a_sentence(model, signature, inputs, sentence):
    dtype = np.int32 if signature == "ids" else object
    arrays = {name: np.array(value, dtype) for name, value in inputs.items()}
    with pytest.raises(Exception) as caught:
        model.answer(signature, arrays)
    assert sentence in str(caught.value)


def test_an_empty_request_has_no_answers(model):
    none = np.array([], object)
    found = model.answer("serving_default", {"text": none, "text_pair": none})
    assert {k: v.shape for k, v in found.items()} == {
        "label": (0,),
        "probabilities": (0, 2),
    }


def test_warm_up_requests_are_answered(model):
    assert model.warmed_up == {"serving_default": 6, "ids": 6}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("task", "of_task", "signatures"),
    [
        ("span", {"kind": "span"}, ["serving_default", "ids"]),
        (
            "tagging",
            {"kind": "tagging", "labels": ("O", "B-X", "I-X")},
            ["serving_default", "words", "ids", "documents"],
        ),
        ("choice", {"kind": "choice"}, ["serving_default", "ids"]),
        (None, {"kind": "pretraining"}, ["serving_default", "ids"]),
    ],
)
def test_other_kinds_warm_up(task, of_task, signatures, server, randomize, tmp_path):
    version = exported(tmp_path, randomize, task=task, **of_task)[1]
    assert alone(version, server).warmed_up == dict.fromkeys(signatures, 6)


@pytest.mark.slow
def test_64_clients_get_the_answers_of_predict(pairs, serving_load, tmp_path):
    run, version = pairs
    dev = tmp_path / "dev.jsonl"
    rows = zip(TEXTS, TEXTS[::-1], strict=True)
    lines = [
        json.dumps({"text": a, "text_pair": b, "label": "bad"}) + "\n" for a, b in rows
    ]
    dev.write_text("".join(lines))
    columns, records = serving_load.predicted(run, dev)
    # Or this test would see little.
    assert np.ptp([record.probabilities["bad"] for record in records]) > 0.01
    with serving_load.serving(version) as found:
        assert found["project"] == []
        assert found["warmed_up"] == {"serving_default": 6, "ids": 6}
        for connect in (
            lambda: serving_load.over_grpc(found),
            lambda: serving_load.over_rest(found, "mine"),
            lambda: serving_load.over_rest(found, "mine", in_rows=False),
        ):
            got = serving_load.load(connect, columns, clients=64)
            labels, change = serving_load.differences(got, records)
            assert labels == 0
            assert change < 1e-5
            p50, p99 = np.percentile(got.seconds, (50, 99)) * 1000
            print(f"p50 {p50:.0f} ms, p99 {p99:.0f} ms")
