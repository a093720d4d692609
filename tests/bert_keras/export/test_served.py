"""SavedModels asked as TensorFlow Serving asks them: by a session, gRPC and REST."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from tests.bert_keras.export.conftest import VOCABULARY

server = pytest.importorskip("tests.bert_keras.export.serving_server")
serving_load = pytest.importorskip("benchmarks.serving_load")

TEXTS = ["the a b", "", "c d . e [ ]", "the " * 40, "üben \u0000 日本", "a" * 300] * 32


@pytest.fixture(scope="module")
def model(saved_model):
    return server.Model(saved_model)


LAST_ID = len(VOCABULARY) - 1
IDS = {"input_ids": [[2, 5, 3]], "input_mask": [[1, 1, 1]], "segment_ids": [[0, 0, 0]]}


def ids(**changes) -> tuple[str, dict]:
    return "ids", {name: np.array(v, np.int32) for name, v in (IDS | changes).items()}


def strings(text, text_pair) -> tuple[str, dict]:
    inputs = {"text": text, "text_pair": text_pair}
    return "serving_default", {k: np.array(v, object) for k, v in inputs.items()}


@pytest.mark.parametrize(
    ("request_", "sentence"),
    [
        (strings([["a"]], ["a"]), "[expected text of shape (batch), got] [1 1]"),
        (strings(["a"], "b"), "[expected text_pair of shape (batch), got] []"),
        (strings(["a", "b"], ["a"]), "as many rows of text, text_pair, got] [2 1]"),
        (ids(input_ids=[[2, 99, 3]]), f"[expected ids from 0 to {LAST_ID}, got] [99]"),
        (ids(input_ids=[[2, -1, 3]]), f"[expected ids from 0 to {LAST_ID}, got] [-1]"),
        (ids(input_mask=[[1, 2, 1]]), "input_mask from 0 to 1, got] [2]"),
        (ids(segment_ids=[[0, 0, 2]]), "segment_ids from 0 to 1, got] [2]"),
        (ids(input_mask=[[1]]), "input_ids and input_mask of one shape, got] [[1 3][1"),
        (
            ids(**{name: [[0] * 25] for name in IDS}),
            "24 ids in a row at most, got] [1 ",
        ),
        (ids(**{name: [[]] for name in IDS}), "at least one id in a row, got] [1 0]"),
        (ids(input_ids=[2, 5, 3]), "input_ids of shape (batch, columns), got] [3]"),
    ],
)
def test_requests_that_do_not_fit_get_a_sentence(model, request_, sentence):
    with pytest.raises(Exception) as caught:
        model.answer(*request_)
    assert sentence in str(caught.value)


def test_an_empty_request_has_no_answers(model):
    answers = model.answer(*strings([], []))
    shapes = {name: values.shape for name, values in answers.items()}
    assert shapes == {"label": (0,), "probabilities": (0, 2)}


def test_warm_up_requests_are_answered(model):
    assert model.warmed_up == {"serving_default": 6, "ids": 6}


@pytest.mark.slow
def test_64_clients_get_the_answers_of_predict(classifier, saved_model, tmp_path):
    dev = tmp_path / "dev.jsonl"
    rows = zip(TEXTS, TEXTS[::-1], strict=True)
    lines = [
        json.dumps({"text": a, "text_pair": b, "label": "good"}) + "\n" for a, b in rows
    ]
    dev.write_text("".join(lines))
    columns, records = serving_load.predicted(classifier, dev)
    # Or this test would see little.
    assert np.ptp([record.probabilities["good"] for record in records]) > 0.01
    version = Path(shutil.copytree(saved_model, tmp_path / "mine/1"))
    serving_load.batch_requests(version)
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
