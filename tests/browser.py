"""Headless Chromium for tests of pages, driven through chromedriver's HTTP (WebDriver).

Debian has both programs: `apt install chromium chromium-driver`.
"""

import base64
import contextlib
import json
import shutil
import subprocess
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest


class Page:
    """A page that is open in the browser."""

    def __init__(self, session: str) -> None:
        self._session = session

    def run(self, script: str, *arguments: Any) -> Any:
        """Runs JavaScript in the page; returns the value of its `return`."""
        body = {"script": script, "args": arguments}
        return call("POST", f"{self._session}/execute/sync", body)

    def press(self, *keys: str) -> None:
        """Presses keys one by one; `\\ue004` is Tab and `\\ue007` Enter."""
        actions = [{"type": t, "value": k} for k in keys for t in ("keyDown", "keyUp")]
        body = {"actions": [{"type": "key", "id": "keys", "actions": actions}]}
        call("POST", f"{self._session}/actions", body)

    def picture(self) -> bytes:
        """Returns a PNG of the window."""
        return base64.b64decode(call("GET", f"{self._session}/screenshot"))

    def messages(self) -> list[str]:
        """Returns errors and warnings of the page's console so far."""
        logs = call("POST", f"{self._session}/se/log", {"type": "browser"})
        return [log["message"] for log in logs]


def call(method: str, url: str, body: Any = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(url, data, headers, method=method)
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)["value"]


@contextlib.contextmanager
def opened(
    address: str, *, width: int = 1200, height: int = 900, is_dark: bool = False
) -> Iterator[Page]:
    """Opens an address, with a viewport of `width` and `height`; skips the test where
    Chromium or its driver is missing."""
    programs = [shutil.which(name) for name in ("chromium", "chromedriver")]
    if None in programs:
        pytest.skip("needs chromium and chromedriver")
    options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
    if is_dark:
        options.append("--blink-settings=preferredColorScheme=0")
    # The window itself cannot be as narrow as a telephone.
    metrics = {"deviceMetrics": {"width": width, "height": height, "pixelRatio": 1}}
    chrome = {"binary": programs[0], "args": options, "mobileEmulation": metrics}
    wishes = {"goog:chromeOptions": chrome, "goog:loggingPrefs": {"browser": "ALL"}}
    with subprocess.Popen(
        [str(programs[1]), "--port=0"], stdout=subprocess.PIPE, text=True
    ) as driver:
        try:
            assert driver.stdout is not None
            started = (line for line in driver.stdout if "successfully" in line)
            port = next(started).rsplit(" ", 1)[1].strip(".\n")
            sessions = f"http://127.0.0.1:{port}/session"
            body = {"capabilities": {"alwaysMatch": wishes}}
            session = f"{sessions}/{call('POST', sessions, body)['sessionId']}"
            call("POST", f"{session}/url", {"url": address})
            yield Page(session)
            call("DELETE", session)
        finally:
            driver.terminate()
