"""A headless Chromium, driven through its DevTools pipe, without a port, a driver or a package.

``OFFSETMGR_BROWSER`` names the program; the default is the first of `NAMES` on the path. `scripts/browser` installs one
if none is found.
"""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import time
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final

NAMES: Final = ("chromium-headless-shell", "chrome-headless-shell", "chromium", "google-chrome")
RESPONSE_TIMEOUT_S: Final = 60
"""The test fails if a response takes longer."""
_FLAGS: Final = (
    "--headless",
    "--no-sandbox",  # it shows only files that the tests wrote, and root may not use the sandbox
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--no-first-run",
    "--disable-background-networking",
    "--remote-debugging-pipe",
)


def find() -> str:
    """The browser's path. Raises `AssertionError` if there is none: the tests that need it are never skipped."""
    named = os.environ.get("OFFSETMGR_BROWSER")
    found = named or next(filter(None, map(shutil.which, NAMES)), None)
    assert found, f"no browser: {', '.join(NAMES)} were not found; scripts/browser installs one"
    return found


class Browser:
    """A context manager that runs one browser process with its own profile under ``directory``."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._calls = 0
        self._unread = b""
        self._events: deque[dict[str, Any]] = deque()

    def __enter__(self) -> Browser:
        browser_in, self._out = os.pipe()
        self._in, browser_out = os.pipe()
        # Chromium reads from descriptor 3 and writes to descriptor 4; bash redirects our pipes to them.
        command = [find(), *_FLAGS, f"--user-data-dir={self._directory / 'profile'}", "about:blank"]
        renamed = f'exec "$@" 3<&{browser_in} 4>&{browser_out}'
        with (self._directory / "browser.log").open("wb") as log:
            self._process = subprocess.Popen(
                ["bash", "-c", renamed, "bash", *command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=(browser_in, browser_out),
            )
        os.close(browser_in)
        os.close(browser_out)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        os.close(self._out)  # the browser exits when its input is closed
        try:
            self._process.wait(90)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._in)

    def open(self, page: Path, *, width: int, height: int = 900, dark: bool = False) -> View:
        """Opens a file in a window of this size in pixels, and returns the view once the page is loaded."""
        target = self.call("Target.createTarget", {"url": "about:blank"})["targetId"]
        session = self.call("Target.attachToTarget", {"targetId": target, "flatten": True})["sessionId"]
        view = View(self, session, width)
        view.call("Page.enable")
        view.call("Network.enable")
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        view.call("Emulation.setDeviceMetricsOverride", size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        view.call("Emulation.setEmulatedMedia", {"features": [scheme]})
        view.call("Page.navigate", {"url": page.absolute().as_uri()})
        view.await_event("Page.loadEventFired")
        return view

    def call(self, method: str, parameters: Mapping[str, Any] | None = None, session: str | None = None) -> Any:
        """Sends a request and returns its result. Events that arrive before it are queued."""
        self._calls += 1
        number = self._calls
        request: dict[str, Any] = {"id": number, "method": method, "params": dict(parameters or {})}
        if session is not None:
            request["sessionId"] = session
        os.write(self._out, json.dumps(request).encode() + b"\0")
        while (message := self.message()).get("id") != number:
            self._events.append(message)
        assert "error" not in message, f"{method}: {message['error']}"
        return message["result"]

    def event(self) -> dict[str, Any]:
        """The next event; queued ones come first."""
        return self._events.popleft() if self._events else self.message()

    def message(self) -> dict[str, Any]:
        deadline = time.monotonic() + RESPONSE_TIMEOUT_S
        while b"\0" not in self._unread:
            ready, _, _ = select.select([self._in], [], [], max(0.0, deadline - time.monotonic()))
            read = os.read(self._in, 1 << 16) if ready else b""
            assert read, f"no response from the browser: {(self._directory / 'browser.log').read_text()[-2000:]}"
            self._unread += read
        line, _, self._unread = self._unread.partition(b"\0")
        found: dict[str, Any] = json.loads(line)
        return found


class View:
    """A page in a window of ``width`` pixels. ``requests``: the URLs that it requested, beginning with its own."""

    def __init__(self, browser: Browser, session: str, width: int) -> None:
        self._browser = browser
        self._session = session
        self.width = width
        self.requests: list[str] = []

    def call(self, method: str, parameters: Mapping[str, Any] | None = None) -> Any:
        return self._browser.call(method, parameters, self._session)

    def await_event(self, name: str) -> None:
        """Reads events up to the one of this name, and records the page's requests."""
        while True:
            event = self._browser.event()
            if event.get("sessionId") != self._session:
                continue
            if event["method"] == "Network.requestWillBeSent":
                self.requests.append(event["params"]["request"]["url"])
            if event["method"] == name:
                return

    def evaluate(self, script: str) -> Any:
        """The value of a JavaScript expression in the page."""
        answer = self.call("Runtime.evaluate", {"expression": script, "returnByValue": True})
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def screenshot(self, path: Path) -> None:
        """Writes a PNG of the whole page."""
        captured = self.call("Page.captureScreenshot", {"captureBeyondViewport": True, "format": "png"})
        path.write_bytes(base64.b64decode(captured["data"]))
