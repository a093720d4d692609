"""Chromium without a window, by its driver's plain HTTP protocol: W3C WebDriver."""

import base64
import contextlib
import json
import re
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest


class Browser:
    """A page of a session of chromedriver."""

    def __init__(self, address: str):
        self._address = address

    def call(self, path: str, value: Any = None, *, method: str | None = None) -> Any:
        data = None if value is None else json.dumps(value).encode()
        request = urllib.request.Request(f"{self._address}{path}", data, method=method)
        with urllib.request.urlopen(request, timeout=60) as response:
            return json.load(response)["value"]

    def run(self, script: str, *arguments: Any) -> Any:
        body = {"script": script, "args": list(arguments)}
        return self.call("/execute/sync", body)

    def look(self, *, width: int, scheme: str = "light") -> None:
        """Sets the width of the window, in pixels, and the scheme of colours."""
        self.call("/window/rect", {"width": width, "height": 1000})
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        parameters = {"cmd": "Emulation.setEmulatedMedia"}
        parameters["params"] = {"features": features}
        self.call("/goog/cdp/execute", parameters)

    def open(self, url: str) -> None:
        self.call("/url", {"url": url})

    def type(self, selector: str, text: str) -> None:
        """Types as a keyboard does."""
        by = {"using": "css selector", "value": selector}
        [element] = self.call("/element", by).values()
        self.call(f"/element/{element}/clear", {})
        self.call(f"/element/{element}/value", {"text": text})

    def wait(self, script: str, *, seconds: float = 20) -> Any:
        """Waits for a script that returns something true."""
        end = time.monotonic() + seconds
        while not (value := self.run(script)):
            page = "return document.body.innerText"
            assert time.monotonic() < end, f"{script}\n{self.run(page)}"
            time.sleep(0.05)
        return value

    def picture(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(self.call("/screenshot")))


@contextlib.contextmanager
def start() -> Iterator[Browser]:
    """Yields a browser; skips where Chromium or its driver is absent."""
    driver, chromium = shutil.which("chromedriver"), shutil.which("chromium")
    if not driver or not chromium:
        pytest.skip("needs Debian's chromium and chromium-driver")
    command, pipe = [driver, "--port=0"], subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, text=True) as process:
        try:
            lines = iter(process.stdout.readline, "")
            said = next(line for line in lines if "successfully on port" in line)
            address = f"http://127.0.0.1:{re.findall('[0-9]+', said)[0]}/session"
            flags = ["--headless=new", "--no-sandbox", "--disable-dev-shm-usage"]
            wishes = {"goog:chromeOptions": {"args": flags, "binary": chromium}}
            body = {"capabilities": {"alwaysMatch": wishes}}
            session = Browser(address).call("", body)["sessionId"]
            browser = Browser(f"{address}/{session}")
            try:
                yield browser
            finally:
                browser.call("", method="DELETE")
        finally:
            process.terminate()
