"""Pages to try a model and to search an index, and JSON for programs beside them."""

import asyncio
import dataclasses
import functools
import json
import queue
import re
import socket
from importlib import resources
from typing import Any

import anyio
import fastapi
import uvicorn
from starlette import concurrency, exceptions, requests

from bert_keras import __version__
from bert_keras.core import files
from bert_keras.core.errors import InputError
from bert_keras.core.settings import strict
from bert_keras.export import writing
from bert_keras.export.servers import warm_up
from bert_keras.kinds import served
from bert_keras.search import searching
from bert_keras.serve import answering, rest

MAX_BYTES, GRACE_SECONDS = 1 << 20, 60
"""The largest body of a request, and the time that a signal leaves for answers."""

LOCAL_NAMES = ("127.0.0.1", "::1", "localhost")
MEDIA_TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript"}
POLICY = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
POLICY += "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"


def build(answerer: answering.Answerer, name: str, *, host: str) -> fastapi.FastAPI:
    """Returns the application for a model that clients call `name`."""
    inputs = answerer.signatures[served.STRINGS].inputs
    facts = {
        "name": name,
        "kind": answerer.model.trained.task.kind,
        "labels": answerer.model.labels,
        "is_calibrated": answerer.model.decision.is_promise,
        "inputs": {spec.name: spec.shape.rank for spec in inputs},
        "outputs": [*answerer.functions[served.STRINGS].structured_outputs],
    }
    app = _with_pages("page", facts, host=host)
    texts = {1: "a text", 2: ["a text", "another"]}
    example = {"instances": [{spec.name: texts[spec.shape.rank] for spec in inputs}]}

    @app.post("/v1/models/{model}:predict", openapi_extra=_shown(example))
    async def predict(model: str, request: fastapi.Request) -> fastapi.Response:
        """Answers `instances` or `inputs`, as TensorFlow Serving does."""
        status(model)
        signature, columns, has_rows = rest.read(
            await _body(request), answerer.signatures
        )
        outputs = await asyncio.wrap_future(answerer.submit(signature, columns))
        answer = rest.write(outputs, has_rows=has_rows)
        return fastapi.Response(answer, media_type="application/json")

    @app.get("/v1/models/{model}")
    def status(model: str) -> dict[str, Any]:
        """Says whether the model is ready, as TensorFlow Serving does."""
        if model != name:
            raise fastapi.HTTPException(404, f"no model of this name, but {name}")
        is_fine = {"error_code": "OK", "error_message": ""}
        state = {"version": "1", "state": "AVAILABLE", "status": is_fine}
        return {"model_version_status": [state]}

    return app


def build_search(
    index: searching.SearchIndex, name: str, *, host: str, reranker: str | None = None
) -> fastapi.FastAPI:
    """Returns the application for an index, opened with `reranker`."""
    facts = {"name": name, "num_pieces": len(index), "reranker": reranker}
    app = _with_pages("search", facts, host=host)
    # A search uses all processors, so two at once would gain nothing.
    turn = anyio.CapacityLimiter(1)
    example = {"question": "a question", "top": 10, "by": "both"}

    @app.post("/v1/search", openapi_extra=_shown(example))
    async def search(request: fastapi.Request) -> fastapi.Response:
        """Finds the pieces of texts that answer a question best. `by` is `both`,
        `words` or `vectors`; `top` is a number of pieces from 1."""
        body = rest.parse(await _body(request))
        asked = strict.build_config(rest.Search, body)
        if turn.statistics().tasks_waiting >= answering.MAX_WAITING:
            raise queue.Full
        async with turn:
            # Someone who types on hangs up, and asks anew.
            if await request.is_disconnected():
                raise requests.ClientDisconnect
            hits = await concurrency.run_in_threadpool(
                index.search, asked.question, asked.top, by=asked.by
            )
        body = json.dumps({"hits": [dataclasses.asdict(hit) for hit in hits]})
        return fastapi.Response(body, media_type="application/json")

    return app


def _with_pages(page: str, facts: dict[str, Any], *, host: str) -> fastapi.FastAPI:
    """Returns an application that has a page, its files, and a page of all requests."""
    faults = (exceptions.HTTPException, InputError, queue.Full, OSError)
    faults += (requests.ClientDisconnect, Exception)
    app = fastapi.FastAPI(
        title=facts["name"],
        version=__version__,
        # Our page describes the requests, and theirs would not check the host.
        openapi_url=None,
        dependencies=[fastapi.Depends(_check_host)] if host in LOCAL_NAMES else (),
        exception_handlers=dict.fromkeys(faults, _refuse),
    )
    app.get("/page.json", include_in_schema=False)(lambda: facts)
    app.get("/openapi.json", include_in_schema=False)(app.openapi)
    folder = resources.files("bert_keras.serve")
    headers = {"Content-Security-Policy": POLICY, "X-Content-Type-Options": "nosniff"}
    names = ("page.css", "common.js", f"{page}.js", "docs.js")
    paths = {"": f"{page}.html", "docs": "docs.html", **{name: name for name in names}}
    for path, name in paths.items():
        media_type = MEDIA_TYPES[name.rpartition(".")[2]]
        file = (folder / name).read_bytes()
        response = fastapi.Response(file, headers=headers, media_type=media_type)
        answer = functools.partial(lambda own: own, response)
        app.get(f"/{path}", include_in_schema=False)(answer)
    return app


def _shown(example: dict[str, Any]) -> dict[str, Any]:
    """Returns the description of a request whose body is read without FastAPI."""
    return {"requestBody": {"content": {"application/json": {"example": example}}}}


async def _check_host(request: fastapi.Request) -> None:
    """Refuses requests to other hosts: no page of another site may reach a server of
    this machine by a name of its own."""
    name = re.sub(r":\d*$", "", request.headers.get("host", "")).strip("[]")
    if name not in LOCAL_NAMES:
        expected = ", ".join(LOCAL_NAMES)
        raise fastapi.HTTPException(400, f"no host of this name, but {expected}")


async def _refuse(_, error: Any) -> fastapi.Response:
    status, reason, headers = 500, f"the model failed: {type(error).__name__}", None
    if isinstance(error, exceptions.HTTPException):
        status, reason, headers = error.status_code, error.detail, error.headers
    elif isinstance(error, InputError):
        status, reason = 400, str(error)
    elif isinstance(error, queue.Full):
        status, headers = 503, {"Retry-After": "1"}
        reason = "too many requests are waiting: try again in a second"
    elif isinstance(error, OSError) and error.filename is not None:
        # A client learns no path.
        status, reason = 503, f"a file cannot be read: {error.strerror}"
    return fastapi.responses.JSONResponse({"error": reason}, status, headers)


async def _body(request: fastapi.Request) -> bytes:
    # FastAPI's own bound answers without JSON.
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > MAX_BYTES:
            raise fastapi.HTTPException(413, f"expected {MAX_BYTES} bytes at most")
    return body


def run(
    listener: socket.socket,
    *,
    model: str | None = None,
    index: str | None = None,
    reranker: str | None = None,
) -> None:
    """Serves a model of any format that `export` takes, or an index, whose model may
    have moved to `model`, until a signal, and then answers what has begun. Texts are
    not logged."""
    host, port = listener.getsockname()[:2]
    # The first question is ours, so that no user waits for kernels and buffers.
    if index is not None:
        opened = searching.SearchIndex(index, model=model, reranker=reranker)
        opened.search("a")
        name = files.path(index).absolute().name
        app = build_search(opened, name, reranker=reranker, host=host)
    else:
        directory = files.path(str(model)).absolute()
        answerer = answering.Answerer(writing.load(directory))
        signature, inputs = next(warm_up.requests(answerer.model))
        answerer.submit(signature, list(inputs.values())).result()
        app = build(answerer, directory.name, host=host)
    print(f"http://{f'[{host}]' if ':' in host else host}:{port}/", flush=True)
    config = uvicorn.Config(app, log_config=None, access_log=False, ws="none")
    config.timeout_graceful_shutdown = GRACE_SECONDS
    uvicorn.Server(config).run(sockets=[listener])
