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
        assert cli.main(["serve", "--model", str(model), *options]) == 2
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
    expected = "--host 192.0.2.1 --port 0: Cannot assign requested address"
    assert refusal(run, "--host", "192.0.2.1", "--port", "0").startswith(expected)
    encoder = make.make_run(tmp_path / "encoder", VOCABULARY, kind="encoder")
    expected = f"{encoder}: an encoder without a head, which answers nothing"
    assert refusal(encoder, "--port", "0").startswith(expected)
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    missing = refusal(run)
    assert missing.startswith("`serve` needs the package uvicorn (")
    assert missing.endswith(
        ": run `pip install '.[serve]' -c constraints.txt` in the checkout"
    )


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
