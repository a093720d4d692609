"""The verb: what it refuses, and how it ends."""

import http.client
import json
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request

import pytest

pytest.importorskip("fastapi")

from bert_keras.commands import main as cli
from tests import conftest, make
from tests.bert_keras.serve.conftest import LONG, VOCABULARY


@pytest.fixture
def refusal(capsys):
    """A function from options to the line that refuses them."""

    def refuse(model, *options: str) -> str:
        models = [] if model is None else ["--model", str(model)]
        assert cli.main(["serve", *models, *options]) == 2
        [line] = capsys.readouterr().err.splitlines()
        return line.removeprefix("bert-keras serve: error: ")

    return refuse


def test_what_cannot_be_served(refusal, run_of, tmp_path, monkeypatch):
    run = run_of("classes")
    assert refusal(tmp_path / "none").startswith(f"{tmp_path / 'none'}: ")
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        expected = f"--host 127.0.0.1 --port {port}: Address already in use"
        assert refusal(run, "--port", port).startswith(expected)
    expected = "--port is a number from 0 to 65535, got 70000"
    assert refusal(run, "--port", "70000") == expected
    expected = "--host is an address of this machine, got an empty one"
    assert refusal(run, "--host", "", "--port", "0") == expected
    expected = "--host 192.0.2.1 --port 0: Cannot assign requested address"
    assert refusal(run, "--host", "192.0.2.1", "--port", "0").startswith(expected)
    encoder = make.make_run(tmp_path / "encoder", VOCABULARY, kind="encoder")
    expected = f"{encoder}: an encoder without a head, which answers nothing"
    assert refusal(encoder, "--port", "0").startswith(expected)
    neither = "give a model with --model, or an index with --index"
    assert refusal(None) == refusal(run, "--rerank", str(run)) == neither
    for place, problem in ((run, "no manifest.json"), (tmp_path / "x", "no such dir")):
        assert refusal(None, "--index", str(place)).startswith(f"{place}: {problem}")
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    missing = refusal(run)
    assert missing.startswith("`serve` needs the package uvicorn (")
    assert missing.endswith(
        ": run `pip install '.[serve]' -c constraints.txt` in the checkout"
    )


def test_an_index_of_another_model(refusal, index_dir, run_of):
    index = ("--port", "0", "--index", str(index_dir))
    other = refusal(run_of("ranking"), *index)
    assert other.startswith(f"{run_of('ranking')}: ")
    other = refusal(None, *index, "--rerank", str(run_of("vectors")))
    assert other.startswith(f"{run_of('vectors')}: ")


def test_a_port_in_use_is_refused_before_tensorflow_is_loaded(run_of):
    program = (
        "import sys\nfrom bert_keras.commands import main\nmain.main(sys.argv[1:])"
    )
    program += "\nassert 'tensorflow' not in sys.modules"
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        command = ["serve", "--model", str(run_of("classes")), "--port", port]
        done = conftest.run_python("-c", program, *command)
    assert "Address already in use" in done.stderr


@pytest.mark.slow
def test_sigterm_finishes_what_has_begun(run_of):
    run = run_of("spans")
    command = [sys.executable, "-m", "bert_keras", "serve", "--model", str(run)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen([*command, "--port", "0"], **pipes) as server:
        url = server.stdout.readline().strip()
        port = int(url.rstrip("/").rpartition(":")[2])
        assert b"<form" in urllib.request.urlopen(url, timeout=60).read()
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
        row = {"question": "SECRET?", "context": LONG * 150}
        body = json.dumps({"instances": [row] * 16})
        connection.request("POST", f"/v1/models/{run.name}:predict", body)
        time.sleep(0.5)
        begin = time.monotonic()
        server.send_signal(signal.SIGTERM)
        time.sleep(0.3)
        with pytest.raises(urllib.error.URLError):
            urllib.request.urlopen(url, timeout=60)
        response = connection.getresponse()
        assert response.status == 200
        assert len(json.load(response)["predictions"]) == 16
        # The request was under way when the signal came.
        assert time.monotonic() - begin > 0.5
        connection.close()
        assert server.wait(60) == 143
        errors = server.stderr.read()
    assert "stopped by SIGTERM" in errors
    assert "SECRET" not in errors and "Traceback" not in errors


@pytest.mark.slow
def test_the_verb_serves_an_index(index_dir, indexes, run_of):
    command = [sys.executable, "-m", "bert_keras", "serve", "--index", str(index_dir)]
    ranker = str(run_of("ranking"))
    command += ["--rerank", ranker, "--port", "0"]
    body = json.dumps({"question": "film", "top": 2}).encode()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        url = server.stdout.readline().strip()
        page = urllib.request.urlopen(url, timeout=60).read()
        facts = json.load(urllib.request.urlopen(f"{url}page.json", timeout=60))
        hits = json.load(urllib.request.urlopen(f"{url}v1/search", body, timeout=60))
        server.terminate()
        assert server.wait(60) == 143
    assert b"<title>Search" in page
    assert facts == {"name": "own", "num_pieces": 14, "reranker": ranker}
    expected = [hit.text for hit in indexes["R"].search("film", 2)]
    assert [hit["text"] for hit in hits["hits"]] == expected
