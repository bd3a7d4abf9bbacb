"""A headless Chromium, driven through its remote interface over a pair of pipes.

https://chromedevtools.github.io/devtools-protocol/
"""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

from baselib.interpreter import python

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--remote-debugging-pipe",
)
SECONDS = 60.0  # for an answer

# The browser reads descriptor 3 and writes descriptor 4. The first copies lie above both.
START = """
import fcntl, os, sys
ends = [fcntl.fcntl(int(end), fcntl.F_DUPFD, 10) for end in sys.argv[1:3]]
for end, wanted in zip(ends, (3, 4)):
    os.dup2(end, wanted)
os.execv(sys.argv[3], sys.argv[3:])
"""


def find() -> str | None:
    """The browser's program, None if there is none."""
    return next((path for path in map(shutil.which, NAMES) if path), None)


class Browser:
    """One page of a browser of its own.

    Attributes
    ----------
    said : list[str]
        Errors that the page reported.
    """

    def __init__(self, program: str, folder: Path) -> None:
        """Start `program` with its profile in `folder`, which must be empty."""
        (read, self._to), (self._from, write) = os.pipe(), os.pipe()
        flags = [*FLAGS, f"--user-data-dir={folder}", "about:blank"]
        self._log = open(folder / "log", "wb")  # noqa: SIM115 - closed with the browser
        self._process = subprocess.Popen(
            python("-c", START, str(read), str(write), program, *flags),
            pass_fds=(read, write),
            stdout=self._log,
            stderr=self._log,
        )
        os.close(read)
        os.close(write)
        self._rest, self._count, self._events, self.said = b"", 0, [], []
        self._session: str | None = None
        target = self.do("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.do("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.do(f"{domain}.enable")

    def do(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send a command and wait for its answer."""
        self._count += 1
        message = {"id": self._count, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while (answer := self._next()).get("id") != self._count:
            pass
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']['message']}")
        return answer["result"]

    def open(self, url: str, width: int, height: int, *, dark: bool = False) -> None:
        """Show a page in a window of so many pixels."""
        self.resize(width, height)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.do("Emulation.setEmulatedMedia", features=[scheme])
        self._events.clear()
        self.do("Page.navigate", url=url)
        while "Page.loadEventFired" not in self._events:
            self._next()

    def resize(self, width: int, height: int) -> None:
        """Give the window so many pixels; a narrow one is a phone's."""
        self.do(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression."""
        answer = self.do("Runtime.evaluate", expression=expression, returnByValue=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(answer["exceptionDetails"]["exception"]["description"])
        return answer["result"].get("value")

    def click(self, selector: str) -> None:
        """Press and release the mouse in the middle of an element, brought into view."""
        self.evaluate(f"document.querySelector({selector!r}).scrollIntoView({{block: 'center', inline: 'center'}})")
        box = self.evaluate(f"document.querySelector({selector!r}).getBoundingClientRect().toJSON()")
        place = {"x": box["x"] + box["width"] / 2, "y": box["y"] + box["height"] / 2}
        for kind in ("mousePressed", "mouseReleased"):
            self.do("Input.dispatchMouseEvent", type=kind, button="left", clickCount=1, **place)

    def press(self, key: str, code: int, text: str) -> None:
        """Press and release a key."""
        names = {"key": key, "code": key, "windowsVirtualKeyCode": code}
        self.do("Input.dispatchKeyEvent", type="keyDown", text=text, **names)
        self.do("Input.dispatchKeyEvent", type="keyUp", **names)

    def screenshot(self, *, whole: bool = False) -> bytes:
        """What is shown, or the whole page, as PNG."""
        return base64.b64decode(self.do("Page.captureScreenshot", captureBeyondViewport=whole)["data"])

    def close(self) -> None:
        """End the browser."""
        os.close(self._to)  # which ends it
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._from)
        self._log.close()

    def _next(self) -> dict[str, Any]:
        """The next message; events and errors are noted."""
        deadline = time.monotonic() + SECONDS
        while b"\0" not in self._rest:
            if not select.select([self._from], [], [], max(0.0, deadline - time.monotonic()))[0]:
                raise TimeoutError("The browser does not answer")
            if not (more := os.read(self._from, 1 << 16)):
                raise RuntimeError("The browser has ended")
            self._rest += more
        text, _, self._rest = self._rest.partition(b"\0")
        message = json.loads(text)
        method, parameters = message.get("method"), message.get("params", {})
        self._events.append(method)
        if method == "Runtime.exceptionThrown":
            self.said.append(parameters["exceptionDetails"].get("text", ""))
        elif method == "Runtime.consoleAPICalled" and parameters["type"] in ("error", "warning", "assert"):
            self.said.append(str(parameters["args"]))
        elif method == "Log.entryAdded" and parameters["entry"]["level"] in ("error", "warning"):
            self.said.append(parameters["entry"]["text"])
        return message
