"""A headless browser, driven over the DevTools protocol through a pair of pipes."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
SECONDS = 60.0


def browser_path() -> str | None:
    """The first browser of `NAMES` that is installed."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Page:
    """One tab. ``problems`` collects errors and warnings of its console, and exceptions."""

    def __init__(self, process: subprocess.Popen[bytes], reading: int, writing: int) -> None:
        self._process = process
        self._reading = reading
        self._writing = writing
        self._buffer = b""
        self._number = 0
        self._session: str | None = None
        self.problems: list[str] = []
        self.requests: list[str] = []
        self._loaded = False

    def attach(self) -> None:
        """Opens the tab."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def open(self, url: str, *, width: int, height: int = 900, dark: bool = False) -> None:
        """Loads a page in a window of that size; narrow ones as on a phone."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.problems.clear()
        self.requests.clear()
        self._loaded = False
        self.call("Page.navigate", url=url)
        stop = time.monotonic() + SECONDS
        while not self._loaded:
            self._take(self._next(stop))

    def evaluate(self, expression: str) -> Any:
        """The value of an expression in the page, awaited if it is a promise."""
        answer = self.call(
            "Runtime.evaluate",
            expression=expression,
            returnByValue=True,
            awaitPromise=True,
            userGesture=True,
        )
        if "exceptionDetails" in answer:
            raise RuntimeError(json.dumps(answer["exceptionDetails"]))
        return answer["result"].get("value")

    def until(self, condition: str) -> None:
        """Waits until an expression is true, though the page may load meanwhile."""
        stop = time.monotonic() + SECONDS
        while time.monotonic() < stop:
            with contextlib.suppress(RuntimeError):
                if self.evaluate(condition):
                    return
            time.sleep(0.05)
        raise TimeoutError(condition)

    def press(self, key: str, code: int) -> None:
        """Presses a key that enters no text."""
        for kind in ("rawKeyDown", "keyUp"):
            self.call(
                "Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code
            )

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """The answer to one command."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._writing, data) :]
        stop = time.monotonic() + SECONDS
        while (answer := self._next(stop)).get("id") != self._number:
            self._take(answer)
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']}")
        result: dict[str, Any] = answer["result"]
        return result

    def _take(self, event: dict[str, Any]) -> None:
        parameters = event.get("params", {})
        match event.get("method"):
            case "Page.loadEventFired":
                self._loaded = True
            case "Runtime.exceptionThrown":
                self.problems.append(json.dumps(parameters["exceptionDetails"]))
            case "Runtime.consoleAPICalled":
                self.problems.append(json.dumps(parameters["args"]))
            case "Log.entryAdded":
                self.problems.append(json.dumps(parameters["entry"]))
            case "Network.requestWillBeSent":
                self.requests.append(parameters["request"]["url"])

    def _next(self, stop: float) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            left = stop - time.monotonic()
            if left <= 0 or not select.select([self._reading], [], [], left)[0]:
                raise TimeoutError(f"the browser did not answer within {SECONDS} s")
            data = os.read(self._reading, 1 << 20)
            if not data:
                raise RuntimeError(f"the browser ended with {self._process.wait()}")
            self._buffer += data
        message, _, self._buffer = self._buffer.partition(b"\0")
        event: dict[str, Any] = json.loads(message)
        return event


@contextlib.contextmanager
def browse(path: str, profile: Path) -> Iterator[Page]:
    """A browser with a fresh profile in the folder ``profile``; it ends with the block."""
    to_browser, writing = _pipe()
    reading, from_browser = _pipe()
    # The protocol wants descriptors 3 and 4; the shell moves ours there and becomes the browser.
    script = f'exec "$@" 3<&{to_browser} 4>&{from_browser} {to_browser}<&- {from_browser}>&-'
    process = subprocess.Popen(
        [
            "/bin/bash",
            "-c",
            script,
            "browser",
            path,
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--disable-quic",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            "--hide-scrollbars",
            f"--user-data-dir={profile}",
            "--remote-debugging-pipe",
        ],
        pass_fds=(to_browser, from_browser),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(to_browser)
    os.close(from_browser)
    try:
        page = Page(process, reading, writing)
        page.attach()
        yield page
        with contextlib.suppress(RuntimeError, OSError):
            page._session = None
            page.call("Browser.close")
    finally:
        os.close(writing)
        os.close(reading)
        try:
            process.wait(10.0)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _pipe() -> tuple[int, int]:
    """A pipe whose descriptors are none of those that the shell moves it to."""
    ends = os.pipe()
    moved = (
        fcntl.fcntl(ends[0], fcntl.F_DUPFD_CLOEXEC, 10),
        fcntl.fcntl(ends[1], fcntl.F_DUPFD_CLOEXEC, 10),
    )
    for end in ends:
        os.close(end)
    return moved
