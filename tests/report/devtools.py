# SPDX-License-Identifier: Apache-2.0
"""A headless Chromium and a client for its DevTools protocol, on the standard library."""

import base64
import json
import os
import shutil
import socket
import struct
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--remote-debugging-port=0",
    "--window-size=1400,1000",
)
WAIT = 60.0


def find() -> str | None:
    """Path of a Chromium on this machine, or None."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Page:
    """One page: commands out, answers and events in."""

    def __init__(self, url: str) -> None:
        host, path = url.removeprefix("ws://").split("/", 1)
        name, port = host.split(":")
        self._socket = socket.create_connection((name, int(port)), timeout=WAIT)
        key = base64.b64encode(os.urandom(16)).decode()
        lines = (
            f"GET /{path} HTTP/1.1",
            f"Host: {host}",
            "Upgrade: websocket",
            "Connection: Upgrade",
            f"Sec-WebSocket-Key: {key}",
            "Sec-WebSocket-Version: 13",
        )
        self._socket.sendall(("\r\n".join(lines) + "\r\n\r\n").encode())
        self._stream = self._socket.makefile("rb")
        assert b"101" in self._stream.readline()
        while self._stream.readline().strip():
            pass
        self._count = 0
        self.events: list[dict] = []

    def command(self, method: str, **parameters) -> dict:
        """Send one command and return its result; events that come first are kept."""
        self._count += 1
        self._send({"id": self._count, "method": method, "params": parameters})
        while (message := self._receive()).get("id") != self._count:
            self.events.append(message)
        assert "error" not in message, message
        return message["result"]

    def wait_for(self, method: str) -> None:
        """Read until an event of that name has come."""
        while not any(event.get("method") == method for event in self.events):
            self.events.append(self._receive())

    def evaluate(self, expression: str):
        """Value of a JavaScript expression in the page."""
        answer = self.command("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def close(self) -> None:
        """Close the connection."""
        self._stream.close()
        self._socket.close()

    def _send(self, message: dict) -> None:
        data = json.dumps(message).encode()
        length = len(data)
        head = bytes([0x81])
        head += bytes([0x80 | length]) if length < 126 else struct.pack(">BH", 0xFE, length)
        mask = os.urandom(4)
        self._socket.sendall(head + mask + bytes(b ^ mask[i % 4] for i, b in enumerate(data)))

    def _receive(self) -> dict:
        data, final = b"", False
        while not final:
            first, second = self._stream.read(2)
            length = second & 0x7F
            if length >= 126:
                size = 2 if length == 126 else 8
                length = int.from_bytes(self._stream.read(size), "big")
            data += self._stream.read(length)
            final = bool(first & 0x80)
        return json.loads(data)


@contextmanager
def page(binary: str, profile: Path) -> Iterator[Page]:
    """Start a browser with a fresh profile, yield its page, end the browser."""
    process = subprocess.Popen(
        [binary, *FLAGS, f"--user-data-dir={profile}", "about:blank"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        opened = Page(_page_url(profile / "DevToolsActivePort", process))
        yield opened
        opened.close()
    finally:
        process.terminate()
        process.wait(timeout=WAIT)


def _page_url(port_file: Path, process: subprocess.Popen) -> str:
    deadline = time.monotonic() + WAIT
    while time.monotonic() < deadline and process.poll() is None:
        text = port_file.read_text() if port_file.exists() else ""
        if "\n" in text:
            port = text.splitlines()[0]
            with urllib.request.urlopen(
                f"http://127.0.0.1:{port}/json/list", timeout=WAIT
            ) as reply:
                pages = [target for target in json.load(reply) if target["type"] == "page"]
            if pages:
                return pages[0]["webSocketDebuggerUrl"]
        time.sleep(0.1)
    raise TimeoutError(f"the browser did not open a page (exit status {process.poll()})")
