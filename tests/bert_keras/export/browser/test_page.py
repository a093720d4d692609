"""The page of an export in a headless Chromium: typing, reading, looking."""

import contextlib
import functools
import http.server
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import browser

pytestmark = pytest.mark.slow

LIBRARY = (
    "@huggingface/transformers/dist/transformers.min.js",
    "onnxruntime-web/dist/ort-wasm-simd-threaded.mjs",
    "onnxruntime-web/dist/ort-wasm-simd-threaded.wasm",
)
"""What `npm run library` copies."""


@contextlib.contextmanager
def served(directory: Path) -> Iterator[str]:
    """Serves the files of a directory as `python -m http.server` does."""

    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_) -> None:
            pass

    handler = functools.partial(Handler, directory=str(directory))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


STATE = "document.getElementById('state').textContent"
ANSWER = "document.getElementById('answer').innerText"
# What is typed into the last text, and what the page then shows somewhere. \ue007 is
# the key for a new line.
CASES = {
    "classes": ("the cat sat", "%"),
    "pairs": ("a dog", "%"),
    "several_labels": ("the cat sat", "%"),
    "rating": ("a dog", "Score"),
    "names": ("zzz cat", "zzz"),
    "spans": ("the cat sat on a dog", "the cat sat on a dog"),
    "words": ("a [MASK] cat", "%"),
    "ranking": ("a dog\ue007the cat", "2. "),
    "vectors": ("a dog\ue007the cat", "a dog"),
    "encoder": ("a dog\ue007the cat", "the cat"),
}


@pytest.mark.parametrize("name", CASES)
def test_a_typed_text_is_answered(name, exported, node_modules, tmp_path):
    typed, expected = CASES[name]
    directory = tmp_path / name
    shutil.copytree(exported(name)[1], directory)
    (directory / "library").mkdir()
    for file in LIBRARY:
        shutil.copy(node_modules / file, directory / "library")
    is_wide = name == "classes"
    size = {"width": 1200 if is_wide else 400, "is_dark": not is_wide}
    with served(directory) as url, browser.opened(url, **size) as page:
        page.wait(f"return {STATE}.startsWith('Answer')")
        assert page.run("return document.title") == "run"
        before = page.run(f"return {ANSWER}")
        last = "document.querySelector('textarea:last-of-type')"
        page.run(f"{last}.focus(); {last}.select()")
        page.press(*typed)
        page.wait(f"return {ANSWER} != {before!r}")
        page.wait(f"return {ANSWER}.includes({expected!r})")
        (tmp_path / f"{name}.png").write_bytes(page.picture())
        width = page.run("return document.documentElement.scrollWidth")
        assert width <= size["width"]
        # Nothing came from elsewhere, and nothing was complained of.
        resources = "performance.getEntriesByType('resource').map((x) => x.name)"
        loaded = page.run(f"return {resources}")
        assert len(loaded) > 5 and all(x.startswith(url) for x in loaded)
        assert page.messages() == []


def test_a_page_that_cannot_work_says_what_to_do(exported):
    """Without the library, and from a disk."""
    directory = exported("classes")[1]
    with served(directory) as url, browser.opened(url) as page:
        page.wait(f"return {STATE}.includes('npm run library')")
    with browser.opened((directory / "index.html").as_uri()) as page:
        page.wait(f"return {STATE}.includes('python -m http.server')")
