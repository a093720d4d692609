"""A small model server that speaks TensorFlow Serving's gRPC and REST.

    python serving_server.py MODEL/VERSION

Reads a SavedModel with a session, as TensorFlow Serving does (which checks no shapes),
in a process that has `tensorflow` and `tensorflow_text` but not this project; answers
the warm-up requests; puts requests of the same signature together if the version has
batching parameters; prints its ports and what it found as a line of JSON; and serves
until its standard input ends. REST follows TensorFlow Serving's `api_rest.md`.
"""

import collections
import concurrent.futures
import http.server
import json
import pathlib
import queue
import re
import sys
import threading

import grpc
import numpy as np
import tensorflow as tf
import tensorflow_text
from tensorflow.core.protobuf import config_pb2
from tensorflow_serving.apis import (
    predict_pb2,
    prediction_log_pb2,
    prediction_service_pb2_grpc,
)

assert tensorflow_text  # registers its operations

BATCHING_NAME = "batching_params.pbtxt"


class Signature:
    """One way to ask, alone or in batches of several requests."""

    def __init__(self, session, definition, batching):
        self.inputs, self.outputs = dict(definition.inputs), dict(definition.outputs)
        options = config_pb2.CallableOptions()
        options.feed.extend(info.name for info in self.inputs.values())
        options.fetch.extend(info.name for info in self.outputs.values())
        # Not `session.run`, which compares shapes with the signature.
        self._run = session._make_callable_from_options(options)
        self._batching = batching
        self._waiting = queue.Queue()
        for _ in range(2 if batching else 0):
            threading.Thread(target=self._batches, daemon=True).start()

    def answer(self, arrays):
        """Outputs by name of inputs by name."""
        values = [arrays[name] for name in self.inputs]
        if not self._batching:
            return self._named(self._run(*values))
        if any(value.ndim == 0 for value in values):
            raise ValueError("Batching Run() input tensors must have at least 1 dim")
        found = concurrent.futures.Future()
        self._waiting.put((values, found))
        return found.result()

    def _named(self, values):
        return dict(zip(self.outputs, values, strict=True))

    def _batches(self):
        while True:
            tasks = [self._waiting.get()]
            try:
                while sum(len(t[0][0]) for t in tasks) < self._batching["most"]:
                    tasks.append(self._waiting.get(timeout=self._batching["timeout"]))
            except queue.Empty:
                pass
            self._run_together(tasks)

    def _run_together(self, tasks):
        sizes = np.cumsum([len(values[0]) for values, _ in tasks])[:-1]
        columns = zip(*(values for values, _ in tasks), strict=True)
        try:
            found = self._run(*(np.concatenate(column) for column in columns))
            parts = zip(*(np.split(value, sizes) for value in found), strict=True)
            for (_, future), values in zip(tasks, parts, strict=True):
                future.set_result(self._named(values))
        except Exception as error:
            for _, future in tasks:
                if not future.done():
                    future.set_exception(error)


class Model:
    """A version of a model."""

    def __init__(self, directory):
        session = tf.compat.v1.Session(graph=tf.Graph())
        with session.graph.as_default():
            loaded = tf.compat.v1.saved_model.loader.load(
                session, ["serve"], str(directory)
            )
        batching = _batching(directory / BATCHING_NAME)
        self.signatures = {
            name: Signature(session, definition, batching)
            for name, definition in loaded.signature_def.items()
            if not name.startswith("__")
        }
        self.warmed_up = self._warm_up(
            directory / "assets.extra/tf_serving_warmup_requests"
        )

    def predict(self, request):
        """Answers a PredictRequest."""
        name = request.model_spec.signature_name or "serving_default"
        arrays = {key: tf.make_ndarray(v) for key, v in request.inputs.items()}
        response = predict_pb2.PredictResponse()
        for key, value in self.answer(name, arrays).items():
            response.outputs[key].CopyFrom(tf.make_tensor_proto(value))
        return response

    def answer(self, name, arrays):
        return self.signatures[name].answer(arrays)

    def rest(self, body):
        """Answers a JSON request for strings in rows or in columns, with names."""
        rows, columns = body.get("instances"), body.get("inputs")
        if rows is not None:
            columns = {key: [row[key] for row in rows] for key in rows[0]}
        arrays = {key: np.array(values, object) for key, values in columns.items()}
        answers = self.answer("serving_default", arrays)
        decode = np.vectorize(bytes.decode, otypes=[object])
        found = {
            key: (decode(value) if value.dtype == object else value).tolist()
            for key, value in answers.items()
        }
        if rows is None:
            return {"outputs": found}
        rows = zip(*found.values(), strict=True)
        return {"predictions": [dict(zip(found, row, strict=True)) for row in rows]}

    def _warm_up(self, path):
        """Number of requests answered, by signature."""
        counts = collections.Counter()
        if path.exists():
            for record in tf.data.TFRecordDataset(str(path)).as_numpy_iterator():
                log = prediction_log_pb2.PredictionLog.FromString(record)
                request = log.predict_log.request
                self.predict(request)
                counts[request.model_spec.signature_name] += 1
        return counts


def _batching(path):
    """The parameters used here, of TensorFlow Serving's BatchingParameters."""
    if not path.exists():
        return None
    found = dict(re.findall(r"(\w+) { value: (\w+) }", path.read_text()))
    return {
        "most": int(found["max_execution_batch_size"]),
        "timeout": int(found["batch_timeout_micros"]) / 1e6,
    }


def _message(error):
    return getattr(error, "message", None) or str(error)


class Grpc(prediction_service_pb2_grpc.PredictionServiceServicer):
    def __init__(self, model):
        self._model = model

    def Predict(self, request, context):
        try:
            return self._model.predict(request)
        except Exception as error:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, _message(error))


def _rest_handler(model, name):
    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            try:
                if self.path != f"/v1/models/{name}:predict":
                    raise ValueError(f"Servable not found for request: {self.path}")
                status, found = 200, model.rest(json.loads(body))
            except Exception as error:
                status, found = 400, {"error": _message(error)}
            data = json.dumps(found).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *args):
            pass

    return Handler


def main():
    directory = pathlib.Path(sys.argv[1]).absolute()
    model = Model(directory)
    server = grpc.server(concurrent.futures.ThreadPoolExecutor(64))
    service = prediction_service_pb2_grpc
    service.add_PredictionServiceServicer_to_server(Grpc(model), server)
    port = server.add_insecure_port("localhost:0")
    server.start()
    http.server.ThreadingHTTPServer.request_queue_size = 128
    handler = _rest_handler(model, directory.parent.name)
    rest = http.server.ThreadingHTTPServer(("localhost", 0), handler)
    threading.Thread(target=rest.serve_forever, daemon=True).start()
    found = {
        "grpc": port,
        "rest": rest.server_address[1],
        "warmed_up": model.warmed_up,
        "project": [name for name in sys.modules if name.startswith("bert_keras")],
    }
    print(json.dumps(found), flush=True)
    sys.stdin.read()
    server.stop(None)


if __name__ == "__main__":
    main()
