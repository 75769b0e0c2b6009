"""What the user's code has around it: a server that answers at once, slowly or never, and a slow shared folder."""

from __future__ import annotations

import contextlib
import fcntl
import http.server
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

SLOW_SECONDS = 0.25
"""The slow server and the slow share take so long."""


class Server(http.server.ThreadingHTTPServer):
    """Answers at once, slowly, or never, as the path says."""

    daemon_threads = True
    block_on_close = False


class Answers(http.server.BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        time.sleep({"/slow": SLOW_SECONDS, "/never": 10_000}.get(self.path, 0))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        pass


@contextlib.contextmanager
def server() -> Iterator[str]:
    made = Server(("127.0.0.1", 0), Answers)
    threading.Thread(target=made.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{made.server_port}"
    finally:
        made.shutdown()
        made.server_close()


@contextlib.contextmanager
def slow_share(path: Path) -> Iterator[None]:
    """A file whose writers wait: a pipe of a page, of which a page is read now and then."""
    os.mkfifo(path)
    pipe = os.open(path, os.O_RDWR | os.O_NONBLOCK)
    fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, 4096)
    over = threading.Event()

    def read() -> None:
        while not over.wait(SLOW_SECONDS):
            with contextlib.suppress(BlockingIOError):
                os.read(pipe, 4096)

    reader = threading.Thread(target=read)
    reader.start()
    try:
        yield
    finally:
        over.set()
        reader.join()
        os.close(pipe)
