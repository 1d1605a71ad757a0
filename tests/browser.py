"""A headless Chromium, driven over the pipe that it offers (DevTools protocol): no port, no driver, no package.

Which one: ``OFFSETMGR_BROWSER``, or the first of `NAMES` on the path. `scripts/browser` installs one where there is
none.
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
PATIENCE: Final = 60
"""Seconds that an answer may take before the test fails."""
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
    """The browser's path. Raises `AssertionError` where there is none: these tests are asked for, never skipped."""
    named = os.environ.get("OFFSETMGR_BROWSER")
    found = named or next(filter(None, map(shutil.which, NAMES)), None)
    assert found, f"no browser: none of {', '.join(NAMES)} is there; scripts/browser installs one"
    return found


class Browser:
    """One process of it, with a profile of its own under ``directory``; ended with the ``with``."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._calls = 0
        self._unread = b""
        self._events: deque[dict[str, Any]] = deque()

    def __enter__(self) -> Browser:
        theirs_in, self._out = os.pipe()
        self._in, theirs_out = os.pipe()
        # It speaks on its descriptors 3 and 4, whatever ours are called; bash puts them there.
        command = [find(), *_FLAGS, f"--user-data-dir={self._directory / 'profile'}", "about:blank"]
        renamed = f'exec "$@" 3<&{theirs_in} 4>&{theirs_out}'
        with (self._directory / "browser.log").open("wb") as log:
            self._process = subprocess.Popen(
                ["bash", "-c", renamed, "bash", *command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=(theirs_in, theirs_out),
            )
        os.close(theirs_in)
        os.close(theirs_out)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        os.close(self._out)  # it ends when nobody speaks to it any more
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._in)

    def open(self, page: Path, *, width: int, height: int = 900, dark: bool = False) -> View:
        """Shows a file in a window of so many pixels, and gives it once it is loaded."""
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
        """One request and its answer; events that come meanwhile are kept."""
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
        """The next event, of those kept first."""
        return self._events.popleft() if self._events else self.message()

    def message(self) -> dict[str, Any]:
        deadline = time.monotonic() + PATIENCE
        while b"\0" not in self._unread:
            ready, _, _ = select.select([self._in], [], [], max(0.0, deadline - time.monotonic()))
            read = os.read(self._in, 1 << 16) if ready else b""
            assert read, f"the browser says no more: {(self._directory / 'browser.log').read_text()[-2000:]}"
            self._unread += read
        line, _, self._unread = self._unread.partition(b"\0")
        found: dict[str, Any] = json.loads(line)
        return found


class View:
    """A page in a window of ``width`` pixels. ``requests``: the addresses that it has asked for, its own the first."""

    def __init__(self, browser: Browser, session: str, width: int) -> None:
        self._browser = browser
        self._session = session
        self.width = width
        self.requests: list[str] = []

    def call(self, method: str, parameters: Mapping[str, Any] | None = None) -> Any:
        return self._browser.call(method, parameters, self._session)

    def await_event(self, name: str) -> None:
        """Reads events up to this one."""
        while True:
            event = self._browser.event()
            if event.get("sessionId") != self._session:
                continue
            if event["method"] == "Network.requestWillBeSent":
                self.requests.append(event["params"]["request"]["url"])
            if event["method"] == name:
                return

    def ask(self, script: str) -> Any:
        """What an expression of JavaScript gives in the page, as JSON."""
        answer = self.call("Runtime.evaluate", {"expression": script, "returnByValue": True})
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def picture(self, path: Path) -> None:
        """The whole page as a PNG, from its top to its end."""
        shot = self.call("Page.captureScreenshot", {"captureBeyondViewport": True, "format": "png"})
        path.write_bytes(base64.b64decode(shot["data"]))
