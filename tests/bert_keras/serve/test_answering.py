"""Many clients at once: each gets its own answers, whatever the others do."""

import concurrent.futures
import http.client
import json
import queue
import random
import socket
import threading
import time

import numpy as np
import pytest

pytest.importorskip("fastapi")

from bert_keras.core.errors import InputError
from bert_keras.serve import answering
from tests.bert_keras.kinds.kind_data import BAD, FILLER, GOOD
from tests.bert_keras.serve.conftest import serving

NAME = "tags_of_documents"


def ask(port: int, body: dict) -> tuple[int, dict]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("POST", f"/v1/models/{NAME}:predict", json.dumps(body))
    response = connection.getresponse()
    answer = response.status, json.load(response)
    connection.close()
    return answer


def hang_up(port: int, body: bytes, *, promised: int) -> None:
    """Sends less than it promises, or does not wait for the answer."""
    head = f"POST /v1/models/{NAME}:predict HTTP/1.1\r\nHost: localhost\r\n"
    head += f"Content-Length: {promised}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(head.encode() + body)


def assert_close(answer, expected):
    if isinstance(expected, list):
        assert len(answer) == len(expected)
        for one, other in zip(answer, expected, strict=True):
            assert_close(one, other)
    elif isinstance(expected, dict):
        assert answer.keys() == expected.keys()
        assert_close([*answer.values()], [*expected.values()])
    else:
        assert answer == pytest.approx(expected, abs=1e-5)


def test_each_client_gets_its_own_answers(client_of, caplog):
    rng, client = random.Random(3), client_of(NAME)
    words = [*GOOD, *BAD, *FILLER]
    bodies = []
    for number in range(120):
        # Answers have as many columns as the entities of the longest text.
        texts = [" ".join(rng.choices(words, k=rng.randint(0, 9))) for _ in range(3)]
        rows = [{"text": text} for text in texts[: rng.randint(1, 3)]]
        bodies.append({"instances": rows})
        if number % 10 == 0:
            bodies[-1] = {"signature_name": "words", "inputs": [texts[0].split()]}
    path = f"/v1/models/{NAME}:predict"
    expected = [client.post(path, json=body).json() for body in bodies]
    assert len({json.dumps(answer) for answer in expected}) > 90
    full = json.dumps(bodies[1]).encode()
    with serving(client.app) as port:

        def work(first: int) -> list:
            if first == 0:
                for _ in range(10):
                    hang_up(port, full[:9], promised=len(full))
                    hang_up(port, full, promised=len(full))
            return [ask(port, body) for body in bodies[first::12]]

        with concurrent.futures.ThreadPoolExecutor(12) as pool:
            answers = list(pool.map(work, range(12)))
    # Clients that hung up leave no traceback.
    assert not caplog.records
    for first, own in enumerate(answers):
        assert [status for status, _ in own] == [200] * 10
        for (_, answer), wanted in zip(own, expected[first::12], strict=True):
            assert_close(answer, wanted)


@pytest.fixture
def busy_answerer(answerer_of, monkeypatch):
    """A model that computes until it is freed, and the sizes of what comes next."""
    answerer, sizes, is_free = answerer_of(NAME), [], threading.Event()

    def counted(function):
        def run(*values):
            sizes.append(len(values[0]))
            is_free.wait(60)
            return function(*values)

        return run

    counting = {name: counted(f) for name, f in answerer.functions.items()}
    monkeypatch.setattr(answerer, "functions", counting)
    answerer.submit("serving_default", [np.array([b"a"], object)])
    while not sizes:
        time.sleep(0.01)
    sizes.clear()
    return answerer, sizes, is_free


def test_rows_of_several_requests_are_computed_together(busy_answerer):
    answerer, sizes, is_free = busy_answerer
    texts = [np.array([b"great film"] * count, object) for count in (1, 2, 3)]
    words = np.array([[b"the", b"film"], [b"so", b""]], object)
    asked = [answerer.submit("serving_default", [text]) for text in texts]
    asked += [answerer.submit("words", [words[:, :n]]) for n in (1, 2, 2)]
    # Two clients with a document of one name do not share it.
    names = np.array([b"1", b"1"], object)
    asked += [answerer.submit("documents", [words, names]) for _ in range(2)]
    is_free.set()
    outputs = [future.result(60) for future in asked]
    assert [len(o["probability"]) for o in outputs] == [1, 2, 3, 2, 2, 2, 2, 2]
    assert sizes == [6, 2, 4, 2, 2]


def test_a_request_that_fails_does_not_hurt_its_neighbours(busy_answerer):
    answerer, sizes, is_free = busy_answerer
    ids = [np.array([[2, 7, 3]], np.int32), *[np.array([[1, 1, 1]], np.int32)] * 2]
    wrong = [np.array([[2, 99, 3]], np.int32), *ids[1:]]
    gone, *asked = [answerer.submit("ids", row) for row in (ids, ids, wrong, ids)]
    assert gone.cancel()
    is_free.set()
    assert asked[0].result(60)["logits"].shape == (1, 3, 3)
    with pytest.raises(InputError, match=r"^expected ids from 0 to 24, got \[99\]$"):
        asked[1].result(60)
    assert asked[2].result(60)["logits"].shape == (1, 3, 3)
    assert sizes == [3, 1, 1, 1]


def test_the_queue_is_bounded(answerer_of, monkeypatch):
    answerer, is_free = answerer_of(NAME), threading.Event()
    function = answerer.functions["serving_default"]

    def wait(*values):
        is_free.wait(60)
        return function(*values)

    monkeypatch.setattr(answering, "ROWS_AT_ONCE", 1)
    monkeypatch.setitem(answerer.functions, "serving_default", wait)
    text = [np.array([b"a"], object)]
    asked = [answerer.submit("serving_default", text)]
    with pytest.raises(queue.Full):
        for _ in range(answering.MAX_WAITING + 1):
            asked.append(answerer.submit("serving_default", text))
    is_free.set()
    assert answering.MAX_WAITING <= len(asked) <= answering.MAX_WAITING + 1
    for future in asked:
        assert future.result(60)["num_entities"].shape == (1,)
