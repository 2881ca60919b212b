"""Chromium without a window, spoken to through a pipe: nothing but the standard library."""

import fcntl
import json
import os
import select
import shutil
import subprocess
import sys
import time
from collections import deque

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
OPTIONS = (
    "--headless",
    "--no-sandbox",  # root and containers have none, and the pages are our own
    "--disable-dev-shm-usage",
    "--use-angle=swiftshader",  # three dimensions without a graphics card
    "--enable-unsafe-swiftshader",
    "--ignore-gpu-blocklist",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-extensions",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)
# The browser reads commands from descriptor 3 and answers on 4, which a child cannot be given directly.
STARTER = """
import os, sys
os.dup2(int(sys.argv[1]), 3), os.dup2(int(sys.argv[2]), 4)
os.execv(sys.argv[3], sys.argv[3:])
"""


def find_chromium():
    """The browser's path, or None."""
    return next((path for path in map(shutil.which, NAMES) if path), None)


class BrowserError(Exception):
    """The browser refused a command, threw an exception or does not answer."""


class Chromium:
    """One browser with one page; what the page logs, throws and asks for is kept."""

    def __init__(self, folder, *, timeout=60.0):
        self.timeout, self._next, self._session, self._buffer = timeout, 0, None, b""
        self.problems, self.requests, self._events = [], [], deque(maxlen=10_000)
        theirs_in, self._writing = os.pipe()
        self._reading, theirs_out = os.pipe()
        # Descriptors above 4, so that the starter's copies do not hit each other.
        inherited = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 10) for fd in (theirs_in, theirs_out)]
        command = [find_chromium(), *OPTIONS, f"--user-data-dir={folder}", "about:blank"]
        self._process = subprocess.Popen(
            [sys.executable, "-S", "-c", STARTER, *map(str, inherited), *command],
            pass_fds=inherited,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for fd in (theirs_in, theirs_out, *inherited):
            os.close(fd)
        pages = self("Target.getTargets")["targetInfos"]
        target = next(page["targetId"] for page in pages if page["type"] == "page")
        self._session = self("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self(f"{domain}.enable")

    def __call__(self, method, **parameters):
        """Send a command and wait for its answer."""
        self._next += 1
        message = {"id": self._next, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._writing, json.dumps(message).encode() + b"\0")
        return self._until(lambda answer: answer.get("id") == message["id"], method)

    def open(self, path, *, width=1400, height=900, dark=False):
        """Load a file at a width, and wait until it is there."""
        self.problems.clear()
        self.requests.clear()
        self._events.clear()
        self.resize(width, height)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self("Emulation.setEmulatedMedia", features=[scheme])
        self("Page.navigate", url=path.as_uri())
        if not any(event["method"] == "Page.loadEventFired" for event in self._events):
            self._until(lambda event: event.get("method") == "Page.loadEventFired", "load")

    def resize(self, width, height=900):
        self("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def evaluate(self, expression):
        """The value of an expression in the page; promises are awaited."""
        answer = self("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise BrowserError(json.dumps(answer["exceptionDetails"], indent=1))
        return answer["result"].get("value")

    def close(self):
        try:
            self._session = None
            self("Browser.close")
        except (BrowserError, OSError):
            pass
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._writing)
        os.close(self._reading)

    def _until(self, wanted, what):
        deadline = time.monotonic() + self.timeout
        while True:
            message = self._receive(deadline, what)
            self._note(message)
            if wanted(message):
                if "error" in message:
                    raise BrowserError(f"{what}: {message['error']}")
                return message.get("result", {})

    def _receive(self, deadline, what):
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._reading], [], [], max(deadline - time.monotonic(), 0.0))
            chunk = os.read(self._reading, 1 << 20) if ready else b""
            if not chunk:
                raise BrowserError(f"No answer to {what}: the browser {'ended' if ready else 'is too slow'}.")
            self._buffer += chunk
        line, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(line)

    def _note(self, message):
        method, parameters = message.get("method"), message.get("params", {})
        if method is None:
            return
        self._events.append(message)
        if method == "Runtime.exceptionThrown":
            self.problems.append(json.dumps(parameters["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled" and parameters["type"] in ("error", "warning", "assert"):
            self.problems.append(json.dumps(parameters["args"]))
        elif method == "Log.entryAdded" and parameters["entry"]["level"] == "error":
            self.problems.append(json.dumps(parameters["entry"]))
        elif method == "Page.javascriptDialogOpening":
            self.problems.append(f"dialog: {parameters['message']}")
        elif method == "Network.requestWillBeSent":
            self.requests.append(parameters["request"]["url"])
