"""The page in Chromium: type, read the answer, each kind once."""

import json
import shlex
import subprocess
from typing import Any

import numpy as np
import pytest

pytest.importorskip("fastapi")

from tests import browser as browsers
from tests.bert_keras.serve.conftest import serving

pytestmark = pytest.mark.slow

HOSTILE = "😀 the film <img src=x> is great 日 so dull"
TYPED = {
    "classes": {"text": HOSTILE},
    "pairs": {"text": HOSTILE, "text_pair": "so weak"},
    "several_labels": {"text": HOSTILE},
    "rating": {"text": HOSTILE},
    "tags": {"text": HOSTILE},
    "spans": {"question": "is a film", "context": f"😀 <b>日</b> {HOSTILE}"},
    "spans_or_none": {"question": "is a film", "context": HOSTILE},
    "choice": {
        "sentence": "the film is so",
        "beginning": "a",
        "endings": ["great", "<b>dull</b>", "😀", "weak and awful"],
    },
    "ranking": {
        "question": "is a film",
        "passages": ["😀 great", "dull", "<i>so</i> weak", "the plot is a scene"],
    },
    "vectors": {"text": HOSTILE, "other": "so weak"},
    "masks": {"text": "😀 the [MASK] is <b> [MASK]"},
}

# What a reader sees, as lists of strings.
BARS = "return [...document.querySelectorAll('.bar')].map((bar) => bar.innerText)"
BEST = """
const names = document.querySelectorAll('.best span:not(.value)')
return [...names].map((s) => s.innerText)
"""
MARKS = "return [...document.querySelectorAll('mark')].map((m) => m.firstChild.data)"
PASSAGES = """
return [...document.querySelectorAll('li span:last-child')].map((s) => s.innerText)
"""
BIG = "return document.querySelector('.big').innerText"


@pytest.fixture(scope="module")
def browser():
    with browsers.started() as started:
        yield started


def percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def check(name: str, browser: Any, row: dict[str, Any], answers: list, facts: dict):
    """Compares what the page shows with the answers of the server."""
    answer, read = answers[0], browser.run
    if name in ("classes", "pairs"):
        shares = dict(zip(facts["labels"], answer["probabilities"], strict=True))
        ordered = sorted(shares, key=shares.get, reverse=True)
        assert read(BARS) == [f"{label}\n{percent(shares[label])}" for label in ordered]
        assert read(BEST) == [answer["label"]]
    elif name == "several_labels":
        assert read(BEST) == [label for label in answer["labels"] if label]
    elif name == "rating":
        assert float(read(BIG)) == pytest.approx(answer, abs=6e-4)
    elif name == "tags":
        assert answer["num_entities"] > 1
        assert read(MARKS) == answer["entity"]
        assert read(BARS) == [
            f"{entity} · {kind}\n{percent(share)}"
            for entity, kind, share in zip(
                answer["entity"], answer["type"], answer["probability"], strict=True
            )
        ]
    elif name.startswith("spans"):
        is_there = bool(answer["answer"])
        assert read(MARKS) == [answer["answer"]] * is_there
        assert read(BIG) == (answer["answer"] or "No answer in this text")
        assert read(BARS)[0].endswith(percent(answer["probability"]))
    elif name == "choice":
        shares = zip(row["endings"], answer["probabilities"], strict=True)
        assert read(BARS) == [f"{ending}\n{percent(p)}" for ending, p in shares]
        assert read(BEST) == [row["endings"][answer["best"]]]
    elif name == "ranking":
        assert read(PASSAGES) == [row["passages"][n] for n in answer["ranking"]]
    elif name == "vectors":
        first, second = answers
        cosine = np.dot(first, second) / np.linalg.norm(first) / np.linalg.norm(second)
        assert read(BARS) == [f"alike\n{cosine:.3f}"]
    else:
        bars = [
            f"{token}\n{percent(share)}"
            for tokens, shares in zip(
                answer["tokens"], answer["probabilities"], strict=True
            )
            for token, share in zip(tokens, shares, strict=True)
        ]
        assert len(bars) == 10
        assert read(BARS) == bars


@pytest.mark.parametrize("name", TYPED)
def test_someone_types_and_reads_the_answer(name, browser, client_of):
    client, row = client_of(name), TYPED[name]
    facts = client.get("/page.json").json()
    asked = [{key: value for key, value in row.items() if key != "other"}]
    if "other" in row:
        asked.append({"text": row["other"]})
    body = {"instances": asked}
    answers = client.post(f"/v1/models/{name}:predict", json=body).json()["predictions"]
    browser.look(width=400, is_dark=True)
    with serving(client.app) as port:
        browser.open(f"http://127.0.0.1:{port}/")
        browser.wait("return document.querySelector('textarea')")
        for field, value in row.items():
            lines = "\n".join(value) if isinstance(value, list) else value
            browser.type(f"textarea[name={field}]", lines)
        # The answer to all that was typed.
        ends = [v[-1] if isinstance(v, list) else v for v in row.values()]
        shown = "document.querySelector('#request').textContent"
        browser.wait(f"return {ends!r}.every((end) => {shown}.includes(end))")
        check(name, browser, row, answers, facts)
    check_is_text(browser)


def check_is_text(browser: Any) -> None:
    """Nothing that was typed or answered has become HTML, and all fits."""
    made = "return document.querySelectorAll('main img, main b *, main i').length"
    assert browser.run(made) == 0
    for width in (400, 1200):
        browser.look(width=width)
        too_wide = "document.documentElement.scrollWidth > innerWidth"
        assert browser.run(f"return [innerWidth, {too_wide}]") == [width, False]


TEXTS = "return [...document.querySelectorAll('li .text')].map((p) => p.innerText)"
PLACES = "return [...document.querySelectorAll('li b')].map((b) => b.innerText)"


@pytest.mark.parametrize("reranker", [None, "R"])
def test_someone_searches(reranker, browser, search_client):
    client = search_client(reranker)
    question = "<img src=x> FÍLM so 日?"
    with serving(client.app) as port:
        browser.open(f"http://127.0.0.1:{port}/")
        browser.wait("return document.querySelector('#size').innerText")
        browser.type("input[name=question]", question)
        browser.wait("return document.querySelector('li')")
        asked = {"question": question, "top": 10}
        hits = client.post("/v1/search", json=asked).json()["hits"]
        assert browser.run(TEXTS) == [hit["text"] for hit in hits]
        # Of a file its name, of a document its whole title.
        names = [hit["document"] for hit in hits]
        assert "TCP/IP" in names
        short = [n if n == "TCP/IP" else n.rpartition("/")[2] for n in names]
        assert browser.run(PLACES) == short
        # Words are marked without regard to case and accents, each ideograph alone.
        marks = set(browser.run(MARKS))
        assert marks == {"film", "img", "src", "x", "so", "日"}
        check_is_text(browser)
        # Words alone, with the keyboard: the radio button after the question.
        browser.press("\ue004", "\ue014")
        request = "document.querySelector('#request').textContent"
        browser.wait(f"return {request}.includes('words')")
        asked["by"] = "words"
        hits = client.post("/v1/search", json=asked).json()["hits"]
        assert browser.run(TEXTS) == [hit["text"] for hit in hits]
        # The address is that of this search.
        browser.open(browser.run("return location.href"))
        browser.wait("return document.querySelector('li')")
        assert browser.run(TEXTS) == [hit["text"] for hit in hits]
        browser.type("input[name=question]", "bridge")
        browser.wait("return !document.querySelector('li')")
        shown = browser.run("return document.querySelector('#answer').innerText")
        assert shown == "No piece has a word of the question."


@pytest.mark.parametrize("is_search", [False, True])
def test_requests_are_shown_without_a_network(
    is_search, browser, client_of, search_client
):
    client = search_client() if is_search else client_of("classes")
    with serving(client.app) as port:
        browser.open(f"http://127.0.0.1:{port}/docs")
        browser.wait("return document.querySelector('pre')")
        shown = browser.run("return document.querySelector('pre').innerText")
        done = subprocess.run(shlex.split(shown), capture_output=True, check=True)
        assert "error" not in json.loads(done.stdout)
        loaded = "return performance.getEntriesByType('resource').map((r) => r.name)"
        home = f"http://127.0.0.1:{port}/"
        assert all(name.startswith(home) for name in browser.run(loaded))
    # A policy that refuses a file says so.
    assert not [m for m in browser.messages() if "Content Security Policy" in m]


def test_a_server_that_has_gone_and_an_error_are_told(browser, client_of):
    with serving(client_of("classes").app) as port:
        browser.open(f"http://127.0.0.1:{port}/")
        browser.wait("return document.querySelector('textarea')")
        browser.run("document.querySelector('textarea').value = 'a'.repeat(100001)")
        browser.run("document.querySelector('button').click()")
        shown = "return document.querySelector('#error').innerText"
        assert browser.wait(shown).startswith("expected 100000 bytes in a text at most")
    browser.type("textarea", "a")
    browser.wait(f"{shown} === 'The server does not answer.'")
