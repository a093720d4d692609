"""Small models of every kind, with random weights, and their servers."""

import contextlib
import functools
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from bert_keras.core.settings import finetuning
from bert_keras.data import features, tokenization
from tests import conftest, make
from tests.bert_keras.kinds.kind_data import BAD, FILLER, GOOD

VOCABULARY = tokenization.Vocabulary(
    (*features.SPECIAL_TOKENS, *GOOD, *BAD, *FILLER, "😀", "日", ".", "##b")
)
TEXTS = ["the film is great", "😀 dull 日 so very weak .", "a", ""]
LONG = "the plot is so awful and a scene is lovely " * 6


class Case(NamedTuple):
    """A kind of model, and rows that one may ask it."""

    task: Mapping[str, Any]
    rows: list[dict[str, Any]]
    settings: Mapping[str, Any] | None = {}


CLASSES = {"kind": "classification", "labels": ("good", "<b>bäd</b>")}
TAGS = {"kind": "tagging", "labels": ("O", "B-GOOD", "B-BAD")}
SPAN = {"task": "span", "span": {"doc_stride": 4, "max_query_length": 4}}
SINGLE = [{"text": text} for text in (*TEXTS, LONG)]
PAIRS = [
    {"text": text, "text_pair": LONG[:number]} for number, text in enumerate(TEXTS)
]
CONTEXTS = [{"question": "is a film", "context": text} for text in (LONG, *TEXTS)]
CASES = {
    "classes": Case(CLASSES, SINGLE),
    "pairs": Case({**CLASSES, "has_text_pair": True}, PAIRS),
    "several_labels": Case(
        {**CLASSES, "kind": "multi_label"}, SINGLE, {"multi_label": True}
    ),
    "rating": Case({"kind": "regression"}, SINGLE, {"regression": True}),
    "tags": Case(TAGS, SINGLE, {"task": "tagging", "document_context": False}),
    "tags_of_documents": Case(TAGS, SINGLE, {"task": "tagging"}),
    "spans": Case({"kind": "span"}, CONTEXTS, SPAN),
    "spans_or_none": Case({"kind": "span", "has_impossible": True}, CONTEXTS, SPAN),
    "choice": Case(
        {"kind": "choice", "has_text_pair": True},
        [
            {"sentence": text, "beginning": "a", "endings": ["so", text, LONG, "b"]}
            for text in TEXTS
        ],
        {"task": "choice"},
    ),
    "ranking": Case(
        {"kind": "ranking", "has_text_pair": True},
        [{"question": text, "passages": TEXTS} for text in TEXTS],
        {"task": "ranking"},
    ),
    "vectors": Case({"kind": "embedding"}, SINGLE, {"task": "embedding"}),
    "masks": Case(
        {"kind": "pretraining"},
        [{"text": t} for t in ("a [MASK] film", "[MASK] so [MASK]", "dull", "")],
        None,
    ),
}


@contextlib.contextmanager
def serving(built: Any) -> Iterator[int]:
    """Serves an application in a thread; yields its port."""
    import uvicorn

    listener = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(built, log_config=None, access_log=False)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, args=([listener],))
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        server.should_exit = True
        thread.join()


@pytest.fixture(scope="session")
def run_of(made_once, randomize) -> Callable[[str], Path]:
    """A function from the name of a case to its run."""

    def fill(directory: Path, name: str) -> None:
        case = CASES[name]
        settings = {"task": "text", "max_seq_length": 16, **(case.settings or {})}
        make.make_run(
            directory / name,
            VOCABULARY,
            settings=finetuning.FinetuningConfig(**settings)
            if case.settings is not None
            else None,
            change=lambda network: randomize(network, stddev=0.4),
            **case.task,
        )

    return lambda name: (
        made_once.directory(f"serve_{name}", functools.partial(fill, name=name)) / name
    )


@pytest.fixture(scope="session")
def answerer_of(run_of) -> Callable[[str], Any]:
    """A function from the name of a case to the model in memory."""
    pytest.importorskip("fastapi")
    from bert_keras.serve import answering

    @functools.cache
    def load(name: str) -> Any:
        return answering.Answerer(make.served(run_of(name)))

    return load


def client_for(built: Any) -> Any:
    """A client of an application."""
    from starlette import testclient

    return testclient.TestClient(
        built, base_url="http://127.0.0.1", raise_server_exceptions=False
    )


@pytest.fixture
def client_of(answerer_of) -> Callable[[str], Any]:
    """A function from the name of a case to a client of its server."""
    pytest.importorskip("fastapi")
    from bert_keras.serve import app

    return lambda name: client_for(app.build(answerer_of(name), name, host="127.0.0.1"))


LINES = (
    "😀 The film <img src=x> is Great .",
    "the plot is so awful",
    "日日 a scene is lovely",
    "<b>so</b> dull and weak",
    LONG,
)


@pytest.fixture(scope="session")
def index_dir(made_once, run_of) -> Path:
    """An index of `LINES`, a file with accents in its name, and a document."""
    pytest.importorskip("faiss")
    from bert_keras.search import building

    def fill(directory: Path) -> None:
        (directory / "lines.txt").write_text("\n".join(LINES))
        (directory / "<i>é.txt").write_text("a film so weak\n")
        paths = [str(path) for path in sorted(directory.glob("*.txt"))]
        document = {"id": "1", "source": "s", "title": "TCP/IP"}
        document["paragraphs"] = [["a film so dull"]]
        conftest.write_documents(directory / "corpus", [document])
        paths.append(str(directory / "corpus"))
        building.build(run_of("vectors"), paths, directory / "own")

    return made_once.directory("served_index", fill) / "own"


@pytest.fixture(scope="session")
def indexes(index_dir, run_of) -> dict[str | None, Any]:
    """The index without a reranker, and with one, by its name."""
    from bert_keras.search import searching

    open_index = searching.SearchIndex
    ranker = run_of("ranking")
    return {None: open_index(index_dir), "R": open_index(index_dir, reranker=ranker)}


@pytest.fixture
def search_client(indexes) -> Callable[..., Any]:
    """A function from the name of a reranker to a client of the index's server."""
    pytest.importorskip("fastapi")
    from bert_keras.serve import app

    def connect(reranker: str | None = None) -> Any:
        options = {"host": "127.0.0.1", "reranker": reranker}
        return client_for(app.build_search(indexes[reranker], "own", **options))

    return connect
