"""TensorFlow Serving's REST from memory, beside the exported SavedModel."""

import json
import queue
import re
from importlib import resources

import numpy as np
import pytest
import tensorflow as tf

pytest.importorskip("fastapi")

from bert_keras.export import formats
from bert_keras.serve import app, rest
from tests.bert_keras.serve.conftest import CASES

FAST = ("classes", "tags_of_documents")


def plain(values: np.ndarray):
    """JSON of an output of a SavedModel."""
    if values.dtype != object:
        return values.tolist()
    return np.vectorize(bytes.decode, otypes=[object])(values).tolist()


def assert_same(answer, expected):
    """Compares JSON: types and strings as they are, floats within 1e-5."""
    assert type(answer) is type(expected)
    if isinstance(expected, dict):
        assert answer.keys() == expected.keys()
        for key, value in expected.items():
            assert_same(answer[key], value)
    elif isinstance(expected, list):
        assert len(answer) == len(expected)
        for one, other in zip(answer, expected, strict=True):
            assert_same(one, other)
    elif isinstance(expected, float):
        assert answer == pytest.approx(expected, abs=1e-5, rel=1e-5)
    else:
        assert answer == expected


@pytest.fixture(scope="module")
def signatures_of(answerer_of, tmp_path_factory):
    """A function from the name of a case to the signatures of its SavedModel."""

    def load(name: str):
        directory = tmp_path_factory.mktemp(name)
        model = answerer_of(name).model
        signatures = formats.signatures_of(model)
        tf.saved_model.save(model, str(directory), signatures=signatures)
        loaded = tf.saved_model.load(str(directory))
        return loaded, loaded.signatures

    return load


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=() if n in FAST else pytest.mark.slow) for n in CASES],
)
def test_answers_are_those_of_the_saved_model(
    name, answerer_of, client_of, signatures_of
):
    loaded, signatures = signatures_of(name)
    client, rows, path = client_of(name), CASES[name].rows, f"/v1/models/{name}:predict"
    columns = {key: [row[key] for row in rows] for key in rows[0]}
    row_ids = [[2, 7, 8, 3], [2, 9, 3, 0]]
    ids = {
        "input_ids": row_ids,
        "input_mask": [[min(1, number) for number in row] for row in row_ids],
        "segment_ids": [[0, 0, 1, 1], [0, 1, 1, 0]],
    }
    if "masked_lm_positions" in signatures["ids"].structured_input_signature[1]:
        ids["masked_lm_positions"] = [[2], [0]]
    if {"endings", "passages"} & columns.keys():
        ids = {key: [value, value[::-1]] for key, value in ids.items()}
    asked = [("serving_default", columns), ("ids", ids)]
    if name.startswith("tags"):
        sentences = [["the", "film", ""], ["so", "dull", "."], ["a", "", ""]]
        asked.append(("words", {"words": sentences}))
        if name == "tags_of_documents":
            both = {"words": sentences, "document": ["1", "1", "2"]}
            asked.append(("documents", both))
    assert {signature for signature, _ in asked} == set(signatures)
    for signature, columns in asked:
        specs = signatures[signature].structured_input_signature[1]
        tensors = {k: tf.constant(v, specs[k].dtype) for k, v in columns.items()}
        outputs = signatures[signature](**tensors)
        expected = {key: plain(value.numpy()) for key, value in outputs.items()}
        in_rows = [
            dict(zip(expected, row, strict=True))
            for row in zip(*expected.values(), strict=True)
        ]
        if len(expected) == 1:
            # TensorFlow Serving leaves out the name of an only output.
            [expected] = expected.values()
            in_rows = expected
        body = {"inputs": columns, "signature_name": signature}
        assert_same(client.post(path, json=body).json(), {"outputs": expected})
        rows = [
            dict(zip(columns, row, strict=True))
            for row in zip(*columns.values(), strict=True)
        ]
        body = {"instances": rows, "signature_name": signature}
        assert_same(client.post(path, json=body).json(), {"predictions": in_rows})


PATH = "/v1/models/classes:predict"
LONGEST = rest.MAX_TEXT_BYTES


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "expected JSON: Expecting value: line 1 column 1 (char 0)"),
        (b"\xff", "expected JSON: 'utf-8' codec can't decode byte 0xff in position 0"),
        (b"[" * 100_000, "expected JSON: brackets are nested too deeply"),
        (b"[]", "expected an object with either `instances` or `inputs`"),
        ({}, "expected an object with either `instances` or `inputs`"),
        ({"instances": ["a"], "inputs": ["a"]}, "expected an object with either"),
        ({"instances": []}, "expected `instances` to be a list that is not empty"),
        ({"instances": "a"}, "expected `instances` to be a list that is not empty"),
        ({"instances": [{"txt": "a"}]}, "expected the inputs text and no others"),
        (
            {"instances": [{"text": "a", "../x": 1}]},
            "expected the inputs text and no others",
        ),
        (
            {"instances": ["a"], "signature_name": "idz"},
            "`signature_name` is one of serving_default, ids, got 'idz'; did you mean",
        ),
        ({"instances": [5]}, "expected text of shape (batch), full lists of texts"),
        ({"instances": [["a"]]}, "expected text of shape (batch), full lists of texts"),
        (
            b'{"instances": ' + b"[" * 300 + b"]" * 300 + b"}",
            "expected JSON: brackets are nested too deeply",
        ),
        ({"inputs": "a"}, "expected text of shape (batch), full lists of texts"),
        ({"instances": [None]}, "expected text of shape (batch), full lists of texts"),
        (b'{"inputs": ["\\ud800"]}', "expected text of shape (batch), full lists of t"),
        ({"instances": [{"b64": "?"}]}, "expected JSON: "),
        ({"instances": ["a"] * 129}, "expected 128 rows at most, got 129"),
        (
            {"instances": ["a" * (LONGEST + 1)]},
            "expected 100000 bytes in a text at most, got 100001",
        ),
        (
            {"inputs": {"input_ids": [[1]], "input_mask": [[1]]}},
            "expected the inputs text and no others",
        ),
        (
            {
                "signature_name": "ids",
                "inputs": {
                    "input_ids": [[99]],
                    "input_mask": [[1]],
                    "segment_ids": [[0]],
                },
            },
            "expected ids from 0 to 24, got [99]",
        ),
        *(
            (
                {
                    "signature_name": "ids",
                    "inputs": {
                        "input_ids": [[number]],
                        "input_mask": [[1]],
                        "segment_ids": [[0]],
                    },
                },
                "expected input_ids of shape (batch, columns), full lists of 32-bit",
            )
            for number in (1.5, 2**32 + 1)
        ),
        (
            {
                "signature_name": "ids",
                "inputs": {
                    "input_ids": [[1], [1]],
                    "input_mask": [[1]],
                    "segment_ids": [[0]],
                },
            },
            "expected as many rows of input_ids, input_mask, segment_ids",
        ),
    ],
)
def test_a_request_that_does_not_fit_gets_a_sentence(body, message, client_of):
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    response = client_of("classes").post(PATH, content=content)
    assert response.status_code == 400
    assert response.json().keys() == {"error"}
    error = response.json()["error"]
    assert error.startswith(message) and "\n" not in error


def test_a_question_without_endings_gets_a_sentence(client_of):
    row = CASES["choice"].rows[0] | {"endings": []}
    body = {"instances": [row, row]}
    response = client_of("choice").post("/v1/models/choice:predict", json=body)
    assert response.status_code == 400
    message = "expected at least one of the endings in a row, got [2 0]"
    assert response.json() == {"error": message}
    row = CASES["ranking"].rows[0] | {"passages": []}
    response = client_of("ranking").post(
        "/v1/models/ranking:predict", json={"instances": [row]}
    )
    assert response.json() == {"predictions": [{"ranking": [], "scores": []}]}


def test_names_methods_and_sizes_of_requests(client_of):
    client = client_of("classes")
    other = client.post("/v1/models/other:predict", json={"instances": ["a"]})
    assert other.status_code == 404
    assert other.json() == {"error": "no model of this name, but classes"}
    assert client.get("/v1/models/other").status_code == 404
    assert client.put(PATH).status_code == 405
    for path in ("/../setup.cfg", "/page.py", "/%2e%2e/app.py"):
        assert client.get(path).json() == {"error": "Not Found"}
    large = client.post(PATH, content=b" " * (app.MAX_BYTES + 1))
    assert large.status_code == 413
    assert large.json() == {"error": "expected 1048576 bytes at most"}
    [state] = client.get("/v1/models/classes").json()["model_version_status"]
    assert state["state"] == "AVAILABLE"
    for host in (
        "evil.example",
        "127.0.0.1.evil.example",
        "evil@127.0.0.1",
        "",
        "[",
        ":",
    ):
        for path in ("/", "/openapi.json", "/page.js", "/v1/models/classes"):
            other = client.get(path, headers={"Host": host})
            assert other.status_code == 400
            message = "no host of this name, but 127.0.0.1, ::1, localhost"
            assert other.json() == {"error": message}
    for host in ("localhost", "localhost:80", "127.0.0.1:8000", "[::1]:80", "[::1]"):
        assert client.get("/", headers={"Host": host}).status_code == 200


def test_requests_are_described_with_examples(client_of, search_client):
    expected = {
        "classes": ["/v1/models/{model}:predict", "/v1/models/{model}"],
        "own": ["/v1/search"],
    }
    for client in (client_of("classes"), search_client()):
        described = client.get("/openapi.json").json()
        name = described["info"]["title"]
        assert [*described["paths"]] == expected[name]
        for path, operations in described["paths"].items():
            for method, operation in operations.items():
                assert operation["description"]
                content = operation.get("requestBody", {}).get("content", {})
                example = content.get("application/json", {}).get("example")
                own = path.replace("{model}", name)
                answer = client.request(method, own, json=example)
                assert answer.status_code == 200


def test_forms_of_one_input(client_of):
    client = client_of("classes")
    named = client.post(PATH, json={"instances": [{"text": "dull"}]}).json()
    for body in (
        {"instances": ["dull"]},
        {"instances": [{"b64": "ZHVsbA=="}]},
        {"instances": [{"text": {"b64": "ZHVsbA=="}}], "signature_name": ""},
    ):
        assert client.post(PATH, json=body).json() == named
    nothing = client.post(PATH, json={"inputs": []}).json()
    assert nothing == {"outputs": {"probabilities": [], "label": []}}


def test_a_full_queue_and_a_model_that_fails(client_of, answerer_of, monkeypatch):
    client, answerer = client_of("classes"), answerer_of("classes")

    def fail(error):
        def submit(*_):
            raise error

        monkeypatch.setattr(answerer, "submit", submit)
        return client.post(PATH, json={"instances": ["a"]})

    response = fail(queue.Full())
    assert (response.status_code, response.headers["Retry-After"]) == (503, "1")
    assert response.json()["error"].startswith("too many requests are waiting")
    response = fail(MemoryError("of /home/me"))
    assert response.status_code == 500
    assert response.json() == {"error": "the model failed: MemoryError"}


def test_numbers_that_are_not_finite_are_written_as_tensorflow_serving_does():
    outputs = {"score": np.array([np.nan, np.inf], np.float32)}
    assert rest.write(outputs, has_rows=True) == b'{"predictions": [NaN, Infinity]}'


def test_the_pages_load_nothing_from_elsewhere(client_of, search_client):
    for client, script in ((client_of("classes"), "page"), (search_client(), "search")):
        files = {"/": "html", "/docs": "html", "/page.css": "css"}
        files |= dict.fromkeys(
            ("/common.js", "/docs.js", f"/{script}.js"), "javascript"
        )
        for path, kind in files.items():
            response = client.get(path)
            assert response.headers["content-type"] == f"text/{kind}; charset=utf-8"
            policy = response.headers["content-security-policy"]
            assert policy.startswith("default-src 'none'; script-src 'self';")
            assert not re.search(
                "https?://|//[a-z]|innerHTML|<script>|style=", response.text
            )
            for name in re.findall(r'(?:src|href)="([\w.]+)"', response.text):
                assert client.get(f"/{name}").status_code == 200, name


def test_facts_of_the_page(client_of):
    client = client_of("classes")
    assert client.get("/page.json").json() == {
        "name": "classes",
        "kind": "classification",
        "labels": ["good", "<b>bäd</b>"],
        "is_calibrated": False,
        "inputs": {"text": 1},
        "outputs": ["probabilities", "label"],
    }


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=() if n in FAST else pytest.mark.slow) for n in CASES],
)
def test_the_page_draws_every_kind(name, client_of):
    facts = client_of(name).get("/page.json").json()
    script = (resources.files("bert_keras.serve") / "page.js").read_text()
    views = re.findall(r"^  \[(\[.*\]), \w+\],$", script, re.MULTILINE)
    outputs = [sorted(json.loads(view)) for view in views]
    assert outputs.count(sorted(facts["outputs"])) == 1
    assert all(f"  {key}: " in script for key in facts["inputs"])


def contrast(one: str, other: str) -> float:
    """The contrast of two colours as WCAG 2 defines it."""

    def luminance(colour):
        shares = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [
            s / 12.92 if s <= 0.04045 else ((s + 0.055) / 1.055) ** 2.4 for s in shares
        ]
        return np.dot([0.2126, 0.7152, 0.0722], linear)

    dark, light = sorted(map(luminance, (one, other)))
    return (light + 0.05) / (dark + 0.05)


def test_colours_have_the_contrast_of_wcag_aa():
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)
    style = (resources.files("bert_keras.serve") / "page.css").read_text()
    light, dark = (
        dict(re.findall(r"--([\w-]+): (#\w{6});", block))
        for block in re.findall(r":root \{(.*?)\}", style, re.DOTALL)
    )
    assert light.keys() == dark.keys()
    for colours in (light, dark):
        marks = [c for name, c in colours.items() if re.match("mark|hue", name)]
        assert len(marks) == 7
        for ground in (colours["paper"], colours["panel"]):
            for name in ("ink", "muted", "accent", "error"):
                assert contrast(colours[name], ground) >= 4.5, name
            for name in ("line", "bar", "accent"):
                assert contrast(colours[name], ground) >= 3, name
        assert contrast(colours["on-accent"], colours["accent"]) >= 4.5
        for mark in marks:
            assert contrast(colours["ink"], mark) >= 4.5
