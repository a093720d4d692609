"""JSON of an index, beside the search in Python."""

import concurrent.futures
import dataclasses
import http.client
import json
import socket
import threading
import time

import pytest

pytest.importorskip("fastapi")
pytest.importorskip("faiss")

from bert_keras.search import searching
from bert_keras.serve import answering, app, rest
from tests.bert_keras.serve.conftest import LINES, serving

QUESTIONS = ("the FILM", "so weak and dull", "日", "a lovely plot", "😀")


@pytest.mark.parametrize("reranker", [None, "R"])
def test_hits_are_those_of_python(reranker, search_client, indexes):
    client, index = search_client(reranker), indexes[reranker]
    for question in QUESTIONS:
        for by, top in (("both", 10), ("words", 2), ("vectors", 3)):
            body = {"question": question, "by": by, "top": top}
            found = client.post("/v1/search", json=body).json()
            hits = index.search(question, top, by=by)
            assert found == {"hits": [dataclasses.asdict(hit) for hit in hits]}
    hits = client.post("/v1/search", json={"question": "film"}).json()["hits"]
    assert {hit["document"].rpartition("/")[2] for hit in hits} >= {
        "lines.txt:1",
        "<i>é.txt:1",
    }
    assert LINES[0] in [hit["text"] for hit in hits]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "expected JSON: Expecting value: line 1 column 1 (char 0)"),
        (b"\xff", "expected JSON: 'utf-8' codec can't decode byte 0xff in position 0"),
        (b"[" * 100_000, "expected JSON: brackets are nested too deeply"),
        ([], "input should be a valid dictionary"),
        ({}, "`question`: field required"),
        ({"question": None}, "`question`: input should be a valid string, got None"),
        ({"question": 5}, "`question`: input should be a valid string, got 5"),
        ({"question": " "}, "expected a question and a number of hits from 1, got ' '"),
        ({"question": "a", "top": 0}, "`top`: input should be greater than or equal"),
        ({"question": "a", "top": 129}, "`top`: input should be less than or equal to"),
        ({"question": "a", "top": True}, "`top`: expected a number, not true or false"),
        (
            {"question": "a", "top": 1.5},
            "input should be a valid integer, got a number",
        ),
        (
            {"question": "a", "by": "bm25"},
            "`by`: input should be 'words', 'vectors' or",
        ),
        ({"question": "a", "tpo": 5}, "no key 'tpo'; did you mean 'top'?"),
        (
            {"question": "a" * (rest.MAX_QUESTION + 1)},
            "expected 2000 characters at most, got 2001",
        ),
        ({"question": "a", "index": "/etc"}, "no key 'index'"),
    ],
)
def test_a_question_that_does_not_fit_gets_a_sentence(body, message, search_client):
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    response = search_client().post("/v1/search", content=content)
    assert response.status_code == 400
    assert response.json().keys() == {"error"}
    error = response.json()["error"]
    assert error.lower().startswith(message.lower()) and "\n" not in error
    assert len(error) < 300


def test_sizes_and_paths_of_requests(search_client):
    client = search_client()
    large = client.post("/v1/search", content=b" " * (app.MAX_BYTES + 1))
    assert large.status_code == 413
    assert large.json() == {"error": "expected 1048576 bytes at most"}
    assert client.get("/v1/search").status_code == 405
    assert client.get("/v1/models/own").json() == {"error": "Not Found"}
    longest = {"question": "film " * (rest.MAX_QUESTION // 5)}
    assert client.post("/v1/search", json=longest).json()["hits"]
    # Half of a pair of surrogates is a character of JSON, and of no text.
    assert client.post("/v1/search", content=b'{"question": "\\ud83d film"}').json()
    assert client.get("/page.json").json() == {
        "name": "own",
        "num_pieces": 14,
        "reranker": None,
    }


def ask(port: int, question: str) -> tuple[int, dict]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("POST", "/v1/search", json.dumps({"question": question}))
    response = connection.getresponse()
    answer = response.status, json.load(response)
    connection.close()
    return answer


def wait_until(is_so) -> None:
    end = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_clients_that_wait_hang_up_or_are_too_many(
    search_client, indexes, monkeypatch, caplog
):
    client, asked, is_free = search_client(), [], threading.Event()
    expected = {
        q: client.post("/v1/search", json={"question": q}).json() for q in QUESTIONS
    }
    search = searching.SearchIndex.search

    def counted(index, question, *others, **options):
        asked.append(question)
        is_free.wait(60)
        return search(index, question, *others, **options)

    monkeypatch.setattr(searching.SearchIndex, "search", counted)
    monkeypatch.setattr(answering, "MAX_WAITING", 20)
    with serving(client.app) as port, concurrent.futures.ThreadPoolExecutor(21) as pool:
        # 1. One is under way, and four that will hang up wait.
        first = pool.submit(ask, port, QUESTIONS[0])
        body = json.dumps({"question": "GONE"}).encode()
        head = "POST /v1/search HTTP/1.1\r\nHost: localhost\r\n"
        head += f"Content-Length: {len(body)}\r\n\r\n"
        wait_until(lambda: asked)
        address = ("127.0.0.1", port)
        gone = [socket.create_connection(address) for _ in range(4)]
        for connection in gone:
            connection.sendall(head.encode() + body)
        time.sleep(0.5)
        # 2. Sixteen more wait; others are sent away.
        questions = [QUESTIONS[number % 5] for number in range(20)]
        others = [pool.submit(ask, port, question) for question in questions]
        wait_until(lambda: sum(other.done() for other in others) == 4)
        for connection in gone:
            connection.close()
        time.sleep(0.5)
        is_free.set()
        answers = [other.result(60) for other in others]
        refused = [answer for status, answer in answers if status == 503]
        assert len(refused) == 4
        assert refused[0]["error"].startswith("too many requests are waiting")
        # 3. Those who waited get their own answers.
        for question, (status, answer) in zip(questions, answers, strict=True):
            assert status == 503 or answer == expected[question]
        assert first.result(60) == (200, expected[QUESTIONS[0]])
    assert len(asked) == 17 and "GONE" not in asked
    assert not caplog.records


def test_a_search_that_fails_tells_no_path(search_client, indexes, monkeypatch):
    def fail(*_, **__):
        raise OSError("/home/me/own: Input/output error")

    monkeypatch.setattr(indexes[None], "search", fail)
    response = search_client().post("/v1/search", json={"question": "a"})
    assert response.status_code == 500
    assert response.json() == {"error": "the model failed: OSError"}


def test_a_truncated_index_is_told_without_its_path(
    search_client, indexes, monkeypatch
):
    sizes = indexes[None]._sizes
    larger = {path: num_bytes + 1 for path, num_bytes in sizes.items()}
    monkeypatch.setattr(indexes[None], "_sizes", larger)
    response = search_client().post("/v1/search", json={"question": "a"})
    assert response.status_code == 503
    message = "truncated while the index was open: make the index again"
    assert response.json() == {"error": f"a file cannot be read: {message}"}
