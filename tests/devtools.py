"""A headless Chromium, controlled over its DevTools pipe; needs only the browser."""

from __future__ import annotations

import base64
import contextlib
import itertools
import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.browse import chromium

FLAGS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--disable-dev-shm-usage"),
    *("--no-first-run", "--disable-extensions", "--disable-background-networking", "--disable-component-update"),
    *("--proxy-server=direct://", "--remote-debugging-pipe"),
)
#: The browser reads from 3 and writes to 4.
_HAND_OVER = """
import fcntl, os, sys
read, write = (fcntl.fcntl(int(number), fcntl.F_DUPFD, 10) for number in sys.argv[1:3])
os.dup2(read, 3)
os.dup2(write, 4)
os.execv(sys.argv[3], sys.argv[3:])
"""
#: Seconds for what takes a moment; the machine may be busy.
PATIENCE = 60.0


def program() -> str:
    """Return the browser; where there is none, skip the test, or fail where GNSQ_REQUIRE_CHROMIUM is 1."""
    found = chromium()
    if found is None:
        (pytest.fail if os.environ.get("GNSQ_REQUIRE_CHROMIUM") == "1" else pytest.skip)(
            "NO CHROMIUM WAS FOUND: put it on PATH or name it in GNSQ_CHROMIUM"
        )
    return found


class Page:
    """One tab."""

    def __init__(self, browser: Browser, session: str) -> None:
        self._browser, self._session = browser, session
        for domain in ("Runtime", "Log", "Page"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> Any:
        return self._browser.call(method, self._session, **params)

    def open(self, url: str, *, width: int = 1280, dark: bool = False) -> None:
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=width < 600
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call("Page.navigate", url=url)

    def value(self, expression: str) -> Any:
        """Return what a JavaScript expression is, a promise's value included."""
        told = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in told, told
        return told["result"].get("value")

    def wait_for(self, expression: str, timeout: float = PATIENCE) -> Any:
        """Return the expression's value once it is true."""
        deadline = time.monotonic() + timeout
        while not (value := self.value(f"(() => {{ try {{ return {expression}; }} catch (e) {{ return null; }} }})()")):
            assert time.monotonic() < deadline, f"never true: {expression}; the page: {self.text()}"
            time.sleep(0.05)
        return value

    def text(self) -> str:
        """Return what can be read on the page."""
        return str(self.value("document.body ? document.body.innerText : ''"))

    def picture(self) -> bytes:
        """Return a PNG of the whole page."""
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        shot = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip)
        return base64.b64decode(shot["data"])

    def overflow(self) -> int:
        """Return by how many pixels the page is wider than the window."""
        return int(self.value("document.documentElement.scrollWidth - document.documentElement.clientWidth"))

    def complaints(self) -> list[str]:
        """Return what the console shows as an error, exceptions and refused scripts included."""
        self.value("1")  # so that earlier events have arrived
        return [text for session, text in self._browser.complaints if session == self._session]


class Browser:
    """The process, and the conversation with it: each call waits for its answer."""

    def __init__(self, folder: Path) -> None:
        ours, theirs = os.pipe(), os.pipe()
        command = [program(), *FLAGS, f"--user-data-dir={folder}", "about:blank"]
        self._process = subprocess.Popen(
            [sys.executable, "-c", _HAND_OVER, str(ours[0]), str(theirs[1]), *command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=(ours[0], theirs[1]),
            start_new_session=True,
        )
        os.close(ours[0])
        os.close(theirs[1])
        self._write, self._read = ours[1], theirs[0]
        self._buffer = b""
        self._numbers = itertools.count(1)
        self.complaints: list[tuple[str, str]] = []

    def page(self) -> Page:
        """Open a tab."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        return Page(self, self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"])

    def call(self, method: str, session: str | None = None, **params: Any) -> Any:
        number = next(self._numbers)
        told: dict[str, Any] = {"id": number, "method": method, "params": params}
        if session is not None:
            told["sessionId"] = session
        os.write(self._write, json.dumps(told).encode() + b"\0")
        deadline = time.monotonic() + PATIENCE
        while True:
            message = self._receive(deadline)
            if message.get("id") == number:
                assert "error" not in message, message
                return message["result"]
            self._note(message)

    def _receive(self, deadline: float) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._read], [], [], max(0.0, deadline - time.monotonic()))
            data = os.read(self._read, 1 << 16) if ready else b""
            assert data, "the browser does not answer"
            self._buffer += data
        text, self._buffer = self._buffer.split(b"\0", 1)
        message: dict[str, Any] = json.loads(text)
        return message

    def _note(self, message: dict[str, Any]) -> None:
        params, session = message.get("params", {}), message.get("sessionId", "")
        if message.get("method") == "Runtime.exceptionThrown":
            self.complaints.append((session, json.dumps(params["exceptionDetails"])))
        elif message.get("method") == "Log.entryAdded" and params["entry"]["level"] == "error":
            self.complaints.append((session, params["entry"]["text"]))
        elif message.get("method") == "Runtime.consoleAPICalled" and params["type"] == "error":
            self.complaints.append((session, json.dumps(params["args"])))

    def close(self) -> None:
        """End it."""
        os.close(self._write)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(5)
        self._process.kill()
        self._process.wait()
        os.close(self._read)


@contextlib.contextmanager
def browsing(folder: Path) -> Iterator[Browser]:
    """Start a browser, and end it."""
    browser = Browser(folder)
    try:
        yield browser
    finally:
        browser.close()
