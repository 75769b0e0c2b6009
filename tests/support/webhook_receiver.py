"""A receiver of webhooks in a process of its own, which does with each request what it is told: `python
webhook_receiver.py WHAT...`, the last of them for all that follow. Each request is a line of JSON on standard output.

WHAT: a status; `hang` (takes the request and says nothing), `close` (hangs up), `redirect` (to itself), `slow` (answers
204 after half a second, a byte at a time), `open` (answers 204 and keeps the connection), `later` (429, Retry-After 1),
`noise` (answers what is no HTTP).
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class _Handler(BaseHTTPRequestHandler):
    told: list[str] = []
    lock = threading.Lock()

    def do_GET(self) -> None:
        self.do_POST()

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
        with self.lock:
            what = self.told.pop(0) if len(self.told) > 1 else self.told[0]
            seen = {"method": self.command, "path": self.path, "what": what, "body": body.decode()}
            print(json.dumps({**seen, "headers": {k.lower(): v for k, v in self.headers.items()}}), flush=True)
        with contextlib.suppress(OSError):
            self.answer(what)

    def answer(self, what: str) -> None:
        if what == "hang":
            time.sleep(60)
        elif what == "close":
            self.connection.close()
        elif what == "noise":
            self.wfile.write(b"SSH-2.0-OpenSSH_9.2\r\n\r\n")
        elif what == "slow":
            for byte in b"HTTP/1.1 204 No Content\r\n\r\n":
                self.wfile.write(bytes([byte]))
                time.sleep(0.02)
        else:
            self.send_response({"redirect": 307, "later": 429, "open": 204}.get(what) or int(what))
            if what == "redirect":
                self.send_header("Location", "/elsewhere")
            if what == "later":
                self.send_header("Retry-After", "1")
            self.end_headers()
            if what == "open":
                self.wfile.flush()
                time.sleep(60)

    def log_message(self, format: str, *args: Any) -> None: ...


def main(port: int, told: Sequence[str]) -> None:
    _Handler.told = list(told)
    server = ThreadingHTTPServer(("127.0.0.1", port), _Handler)
    print(json.dumps({"port": server.server_address[1]}), flush=True)
    server.serve_forever()


class ReceiverProcess:
    """The receiver, started; `requests` are those that it has had."""

    def __init__(self, *told: str, port: int = 0) -> None:
        command = [sys.executable, os.path.abspath(__file__), str(port), *told]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.port: int = json.loads(self.process.stdout.readline())["port"]
        self.url = f"http://127.0.0.1:{self.port}/hooks/a-secret"
        self.requests: list[dict[str, Any]] = []
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for text in self.process.stdout:
            self._lines.put(text)

    def read(self) -> list[dict[str, Any]]:
        """All requests that have come."""
        with contextlib.suppress(queue.Empty):
            while True:
                self.requests.append(json.loads(self._lines.get_nowait()))
        return self.requests

    def wait_for(self, count: int, seconds: float = 60.0) -> list[dict[str, Any]]:
        """All requests, as soon as there are `count`."""
        deadline = time.monotonic() + seconds
        while len(self.requests) < count:
            try:
                self.requests.append(json.loads(self._lines.get(timeout=max(0.01, deadline - time.monotonic()))))
            except queue.Empty:
                raise AssertionError(f"{len(self.requests)} of {count} requests came: {self.requests}") from None
        return self.requests

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self._reader.join(10)
        assert self.process.stdout is not None
        self.process.stdout.close()


@contextlib.contextmanager
def receiver(*told: str, port: int = 0) -> Iterator[ReceiverProcess]:
    process = ReceiverProcess(*told, port=port)
    try:
        yield process
    finally:
        process.close()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
