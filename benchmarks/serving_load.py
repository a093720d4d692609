"""A SavedModel asked by many clients at once: the answers of `predict`, how fast?

    python -m benchmarks.serving_load --run RUN --dev SST-2/dev.tsv

Exports a run on texts with `--serving tf`; starts `serving_server.py` of the tests,
which speaks TensorFlow Serving's protocol in a process that has nothing of this
project; and sends each text of the dev file in a request of its own, by gRPC and by
REST, from 64 clients at once, with the batching parameters of docs/serving.md and
without. The same for `bert-keras serve`, by REST.

With `--requests 10000`, `bert-keras serve` alone answers so many, and its memory after
a fifth of them stands beside its memory after all.
Needs tensorflow-serving-api. Clients and server share the machine.
"""

import argparse
import concurrent.futures
import contextlib
import functools
import http.client
import json
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks import measuring

REPOSITORY = Path(__file__).resolve().parents[1]
SERVER = REPOSITORY / "tests/bert_keras/export/serving_server.py"

Ask = Callable[[Mapping[str, list[str]]], dict[str, list[Any]]]
"""A client: from columns of texts to columns of answers."""


class Load(NamedTuple):
    """What clients got."""

    answers: list[dict[str, Any]]
    """One for each text."""
    seconds: list[float]
    """Of each request, in any order."""
    wall: float


def batch_requests(version: Path) -> None:
    """Writes the batching parameters of docs/serving.md beside a SavedModel."""
    page = (REPOSITORY / "docs/serving.md").read_text(encoding="utf-8")
    [text] = re.findall(r"```protobuf\n(max_batch_size.*?)```", page, re.DOTALL)
    (version / "batching_params.pbtxt").write_text(text)


@contextlib.contextmanager
def serving(version: Path) -> Iterator[dict[str, Any]]:
    """Starts a server of a version of a model; yields its ports."""
    command = [sys.executable, str(SERVER), str(version)]
    pipe = subprocess.PIPE
    # It ends with its standard input, which `Popen` closes.
    with subprocess.Popen(
        command, stdin=pipe, stdout=pipe, text=True, cwd="/"
    ) as process:
        line = process.stdout.readline()  # pyright: ignore
        if not line:
            raise RuntimeError("the server did not start; its errors are above")
        yield json.loads(line)


@contextlib.contextmanager
def trying(run: Path) -> Iterator[dict[str, Any]]:
    """Starts `bert-keras serve`; yields its port and its process."""
    command = [sys.executable, "-m", "bert_keras", "serve"]
    command += ["--model", str(run), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        line = process.stdout.readline()  # pyright: ignore
        try:
            yield {"rest": int(re.findall(r":(\d+)/", line)[0]), "pid": process.pid}
        finally:
            process.terminate()


@contextlib.contextmanager
def over_grpc(found: Mapping[str, Any]) -> Iterator[Ask]:
    """Yields a client of `PredictionService`, with a channel of its own."""
    import grpc
    import tensorflow as tf
    from tensorflow_serving.apis import predict_pb2, prediction_service_pb2_grpc

    options = [("grpc.use_local_subchannel_pool", 1)]
    channel = grpc.insecure_channel(f"localhost:{found['grpc']}", options)
    service = prediction_service_pb2_grpc.PredictionServiceStub(channel)

    def ask(columns: Mapping[str, list[str]]) -> dict[str, list[Any]]:
        request = predict_pb2.PredictRequest()
        for name, values in columns.items():
            request.inputs[name].CopyFrom(tf.make_tensor_proto(values))
        outputs = service.Predict(request, timeout=600).outputs
        return {key: _plain(tf.make_ndarray(value)) for key, value in outputs.items()}

    with channel:
        yield ask


@contextlib.contextmanager
def over_rest(
    found: Mapping[str, Any], model: str, *, in_rows: bool = True
) -> Iterator[Ask]:
    """Yields a client of `:predict` that keeps its connection."""
    connection = http.client.HTTPConnection("localhost", found["rest"])

    def ask(columns: Mapping[str, list[str]]) -> dict[str, list[Any]]:
        body: dict[str, Any] = {"inputs": dict(columns)}
        if in_rows:
            rows = zip(*columns.values(), strict=True)
            body = {"instances": [dict(zip(columns, r, strict=True)) for r in rows]}
        connection.request("POST", f"/v1/models/{model}:predict", json.dumps(body))
        response = json.load(connection.getresponse())
        if "error" in response:
            raise RuntimeError(response["error"])
        if not in_rows:
            return response["outputs"]
        rows = response["predictions"]
        return {key: [row[key] for row in rows] for key in rows[0]}

    with contextlib.closing(connection):
        yield ask


def _plain(values: np.ndarray) -> list[Any]:
    if values.dtype == object:
        return [text.decode() for text in values]
    return values.tolist()


def load(
    connect: Callable[[], contextlib.AbstractContextManager[Ask]],
    columns: Mapping[str, Sequence[str]],
    *,
    clients: int,
) -> Load:
    """Asks for each text by itself; each client for every `clients`-th, in turn."""
    rows = list(zip(*columns.values(), strict=True))
    answers: list[dict[str, Any]] = [{} for _ in rows]
    seconds: list[float] = []

    def work(first: int) -> None:
        with connect() as ask:
            for number in range(first, len(rows), clients):
                texts = {n: [v] for n, v in zip(columns, rows[number], strict=True)}
                begin = time.perf_counter()
                found = ask(texts)
                seconds.append(time.perf_counter() - begin)
                answers[number] = {name: value[0] for name, value in found.items()}

    begin = time.perf_counter()
    with concurrent.futures.ThreadPoolExecutor(clients) as pool:
        list(pool.map(work, range(clients)))
    return Load(answers, seconds, time.perf_counter() - begin)


def predicted(run: Path, dev: Path) -> tuple[dict[str, list[str]], list[Any]]:
    """Returns columns of the texts, and the records of `predict` in float32."""
    from bert_keras.inference import finetuned

    model = finetuned.FinetunedModel.load(run, precision="float32")
    data = model.read(dev, has_labels=True)
    columns = {"text": [row.text for row in data.rows]}
    if data.rows[0].text_pair is not None:
        columns["text_pair"] = [row.text_pair for row in data.rows]
    return columns, list(model.answer(data).records())


def differences(found: Load, records: Sequence[Any]) -> tuple[int, float]:
    """Returns the number of other labels, and the largest change of a probability."""
    labels = sum(
        answer["label"] != record.prediction
        for answer, record in zip(found.answers, records, strict=True)
    )
    served = np.array([answer["probabilities"] for answer in found.answers])
    wanted = np.array([list(record.probabilities.values()) for record in records])
    return labels, float(np.abs(served - wanted).max())


def measured(connect: Any, columns: Any, records: Any, clients: int) -> list:
    """Asks each text; returns cells of a table."""
    got = load(connect, columns, clients=clients)
    num = len(got.answers)
    labels, change = differences(got, records[:num])
    times = [f"{ms:.0f}" for ms in np.percentile(got.seconds, (50, 99)) * 1e3]
    return [clients, num, labels, f"{change:.1e}", *times, f"{num / got.wall:.0f}"]


def rows(version: Path, columns: Any, records: Any, clients: int) -> Iterator[list]:
    batching = "yes" if (version / "batching_params.pbtxt").exists() else "no"
    with serving(version) as found:
        for name, connect in (
            ("gRPC", lambda: over_grpc(found)),
            ("REST", lambda: over_rest(found, version.parent.name)),
        ):
            for count in (1, clients):
                share = {k: v if count > 1 else v[:100] for k, v in columns.items()}
                yield [name, batching, *measured(connect, share, records, count)]


def rows_of_serve(
    run: Path, columns: Any, records: Any, requests: Sequence[tuple[int, int]]
) -> Iterator[list]:
    """Asks `bert-keras serve`, for each number of clients and of requests in turn."""
    import psutil

    with trying(run) as found:
        for clients, count in requests:
            numbers = [number % len(records) for number in range(count)]
            share = {name: [v[n] for n in numbers] for name, v in columns.items()}
            connect = functools.partial(over_rest, found, run.resolve().name)
            cells = measured(connect, share, [records[n] for n in numbers], clients)
            memory = psutil.Process(found["pid"]).memory_info().rss / 1e6
            yield ["`serve`", "yes", *cells, f"{memory:.0f}"]


def all_rows(args: argparse.Namespace) -> Iterator[list]:
    from bert_keras import export

    columns, records = predicted(args.run, args.dev)
    if args.requests:
        first = args.requests // 5
        requests = [(args.clients, first), (args.clients, args.requests - first)]
        yield from rows_of_serve(args.run, columns, records, requests)
        return
    with tempfile.TemporaryDirectory() as folder:
        version = Path(folder) / "mine" / "1"
        export.export_model(args.run, version, serving="tf")
        alone = shutil.copytree(version, Path(folder) / "alone" / "1")
        batch_requests(version)
        yield from rows(version, columns, records, args.clients)
        yield from rows(alone, columns, records, args.clients)
    requests = [(1, 100), (args.clients, len(records))]
    yield from rows_of_serve(args.run, columns, records, requests)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--run", type=Path, required=True)
    parser.add_argument("--dev", type=Path, required=True)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--requests", type=int)
    print(measuring.machine("tensorflow"))
    header = ["", "batching", "clients", "requests", "other labels"]
    header += ["largest change of a probability", "p50, ms", "p99, ms", "requests/s"]
    header += ["memory, MB"]
    measuring.print_table(header, all_rows(parser.parse_args()))


if __name__ == "__main__":
    main()
