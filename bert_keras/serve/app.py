"""A page to try a model on, and TensorFlow Serving's REST beside it."""

import asyncio
import queue
import socket
from importlib import resources
from typing import Any

import fastapi
import uvicorn
from starlette import exceptions, requests
from starlette.middleware import trustedhost

from bert_keras import __version__
from bert_keras.core import files
from bert_keras.core.errors import InputError
from bert_keras.export import writing
from bert_keras.export.servers import warm_up
from bert_keras.kinds import served
from bert_keras.serve import answering, rest

MAX_BYTES, GRACE_SECONDS = 1 << 20, 60
"""The largest body of a request, and the time that a signal leaves for answers."""

PAGE = {"": "text/html", "page.css": "text/css", "page.js": "text/javascript"}
"""Files of the page; at the root is `page.html`."""
POLICY = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
POLICY += "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"


def build(answerer: answering.Answerer, name: str, *, host: str) -> fastapi.FastAPI:
    """Returns the application for a model that clients call `name`."""
    app = fastapi.FastAPI(title=name, version=__version__, redoc_url=None)
    if host in (local := ["127.0.0.1", "localhost"]):
        # No page of another site may reach this server by a name of its own.
        app.add_middleware(trustedhost.TrustedHostMiddleware, allowed_hosts=local)
    faults = exceptions.HTTPException, InputError, requests.ClientDisconnect, Exception
    for kind in faults:
        app.add_exception_handler(kind, _refuse)
    inputs = answerer.signatures[served.STRINGS].inputs
    texts = {1: "a text", 2: ["a text", "another"]}
    example = {"instances": [{spec.name: texts[spec.shape.rank] for spec in inputs}]}
    body = {"content": {"application/json": {"example": example}}}

    @app.post("/v1/models/{model}:predict", openapi_extra={"requestBody": body})
    async def predict(model: str, request: fastapi.Request) -> fastapi.Response:
        """Answers `instances` or `inputs`, as TensorFlow Serving does."""
        status(model)
        answer = await _answer(answerer, await _body(request))
        return fastapi.Response(answer, media_type="application/json")

    @app.get("/v1/models/{model}")
    def status(model: str) -> dict[str, Any]:
        if model != name:
            raise fastapi.HTTPException(404, f"no model of this name, but {name}")
        is_fine = {"error_code": "OK", "error_message": ""}
        state = {"version": "1", "state": "AVAILABLE", "status": is_fine}
        return {"model_version_status": [state]}

    facts = {
        "name": name,
        "kind": answerer.model.trained.task.kind,
        "labels": answerer.model.labels,
        "inputs": {spec.name: spec.shape.rank for spec in inputs},
        "outputs": [*answerer.functions[served.STRINGS].structured_outputs],
    }
    app.get("/page.json", include_in_schema=False)(lambda: facts)
    folder = resources.files("bert_keras.serve")
    headers = {"Content-Security-Policy": POLICY, "X-Content-Type-Options": "nosniff"}
    for path, media_type in PAGE.items():
        file = (folder / (path or "page.html")).read_bytes()
        response = fastapi.Response(file, headers=headers, media_type=media_type)
        app.add_route(f"/{path}", lambda _, response=response: response)
    return app


async def _refuse(_, error: Any) -> fastapi.Response:
    status, reason = 500, f"the model failed: {type(error).__name__}"
    if isinstance(error, InputError):
        status, reason = 400, str(error)
    elif isinstance(error, exceptions.HTTPException):
        status, reason = error.status_code, error.detail
    headers = getattr(error, "headers", None)
    return fastapi.responses.JSONResponse({"error": reason}, status, headers)


async def _body(request: fastapi.Request) -> bytes:
    # FastAPI's own bound answers without JSON.
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > MAX_BYTES:
            raise fastapi.HTTPException(413, f"expected {MAX_BYTES} bytes at most")
    return body


async def _answer(answerer: answering.Answerer, body: bytes) -> bytes:
    signature, columns, has_rows = rest.read(body, answerer.signatures)
    try:
        future = answerer.submit(signature, columns)
    except queue.Full:
        reason = "too many requests are waiting: try again in a second"
        raise fastapi.HTTPException(503, reason, {"Retry-After": "1"}) from None
    return rest.write(await asyncio.wrap_future(future), has_rows=has_rows)


def run(model_dir: str, listener: socket.socket) -> None:
    """Serves a model of any format that `export` takes, until a signal, and then
    answers what has begun. Texts are not logged."""
    directory = files.path(model_dir).absolute()
    answerer = answering.Answerer(writing.load(directory))
    # So that the first user does not wait for kernels and buffers.
    name, inputs = next(warm_up.requests(answerer.model))
    answerer.submit(name, list(inputs.values())).result()
    host, port = listener.getsockname()[:2]
    app = build(answerer, directory.name, host=host)
    print(f"http://{f'[{host}]' if ':' in host else host}:{port}/", flush=True)
    config = uvicorn.Config(app, log_config=None, access_log=False, ws="none")
    config.timeout_graceful_shutdown = GRACE_SECONDS
    uvicorn.Server(config).run(sockets=[listener])
