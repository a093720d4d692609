"""Headless Chromium for tests of pages, driven through chromedriver's HTTP (WebDriver).

Debian has both programs: `apt install chromium chromium-driver`.
"""

import base64
import contextlib
import json
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest


class Page:
    """The window of a browser."""

    def __init__(self, session: str) -> None:
        self._session = session

    def call(self, method: str, path: str, body: Any = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        address = f"{self._session}{path}"
        request = urllib.request.Request(address, data, headers, method=method)
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)["value"]

    def look(
        self, *, width: int = 1200, height: int = 900, is_dark: bool = False
    ) -> None:
        """Sets the size of the viewport, in pixels, and the scheme of colours."""
        # The window itself cannot be as narrow as a telephone.
        size = {"width": width, "height": height, "deviceScaleFactor": 1}
        scheme = {"name": "prefers-color-scheme", "value": ("light", "dark")[is_dark]}
        for name, values in (
            ("DeviceMetricsOverride", {**size, "mobile": False}),
            ("EmulatedMedia", {"features": [scheme]}),
        ):
            body = {"cmd": f"Emulation.set{name}", "params": values}
            self.call("POST", "/goog/cdp/execute", body)

    def open(self, address: str) -> None:
        self.call("POST", "/url", {"url": address})

    def run(self, script: str, *arguments: Any) -> Any:
        """Runs JavaScript in the page; returns the value of its `return`."""
        body = {"script": script, "args": arguments}
        return self.call("POST", "/execute/sync", body)

    def wait(self, script: str, *, seconds: float = 60) -> Any:
        """Waits for a script that returns something true."""
        end = time.monotonic() + seconds
        while not (value := self.run(script)):
            page = "return document.body.innerText"
            assert time.monotonic() < end, f"{script}\n{self.run(page)}"
            time.sleep(0.05)
        return value

    def type(self, selector: str, text: str) -> None:
        """Replaces the text of a field, as a keyboard does."""
        by = {"using": "css selector", "value": selector}
        [element] = self.call("POST", "/element", by).values()
        self.call("POST", f"/element/{element}/clear", {})
        self.call("POST", f"/element/{element}/value", {"text": text})

    def press(self, *keys: str) -> None:
        """Presses keys one by one; `\\ue004` is Tab and `\\ue007` Enter."""
        actions = [{"type": t, "value": k} for k in keys for t in ("keyDown", "keyUp")]
        body = {"actions": [{"type": "key", "id": "keys", "actions": actions}]}
        self.call("POST", "/actions", body)

    def picture(self) -> bytes:
        """Returns a PNG of the viewport."""
        return base64.b64decode(self.call("GET", "/screenshot"))

    def messages(self) -> list[str]:
        """Returns errors and warnings of the page's console so far."""
        logs = self.call("POST", "/se/log", {"type": "browser"})
        return [log["message"] for log in logs]


@contextlib.contextmanager
def started() -> Iterator[Page]:
    """Starts a browser; skips the test where Chromium or its driver is missing."""
    chromium, driver = (shutil.which(name) for name in ("chromium", "chromedriver"))
    if chromium is None or driver is None:
        pytest.skip("needs chromium and chromedriver")
    options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
    chrome = {"binary": chromium, "args": options}
    wishes = {"goog:chromeOptions": chrome, "goog:loggingPrefs": {"browser": "ALL"}}
    with subprocess.Popen(
        [driver, "--port=0"], stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            said = (line for line in process.stdout if "successfully" in line)
            port = next(said).rsplit(" ", 1)[1].strip(".\n")
            sessions = f"http://127.0.0.1:{port}/session"
            body = {"capabilities": {"alwaysMatch": wishes}}
            session = Page(sessions).call("POST", "", body)["sessionId"]
            page = Page(f"{sessions}/{session}")
            try:
                yield page
            finally:
                page.call("DELETE", "")
        finally:
            process.terminate()


@contextlib.contextmanager
def opened(address: str, **look: Any) -> Iterator[Page]:
    """Opens an address in a browser of its own; `look` as in `Page.look`."""
    with started() as page:
        page.look(**look)
        page.open(address)
        yield page
