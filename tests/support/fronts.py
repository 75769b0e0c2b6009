"""What stands in front of a Prometheus, or in its place: stand-ins of proxies and of engines that cannot be had."""

import contextlib
import threading
import urllib.request
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlencode


class served_by:
    """A server on the loopback that answers each GET and POST with what `reply` returns of its path, its body and its
    headers: a status, a body, and the headers of the answer, if there are any."""

    def __init__(self, reply: Callable[[str, bytes, Any], tuple[Any, ...]]) -> None:
        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                form = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                status, body, *headers = reply(self.path, form, self.headers)
                with contextlib.suppress(ConnectionError):
                    self.send_response(status)
                    for name, value in (("Content-Length", str(len(body))), *headers):
                        self.send_header(name, value)
                    self.end_headers()
                    self.wfile.write(body)

            do_GET = do_POST

            def log_message(self, format: str, *args: Any) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)

    def __enter__(self) -> str:
        self._thread.start()
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def forwarded(url: str, path: str, form: bytes, **changes: str) -> bytes:
    """The answer of the Prometheus at `url`. `changes`: parameters in place of those in the form."""
    asked = {**dict(parse_qsl(form.decode())), **changes}
    with urllib.request.urlopen(url + path, data=urlencode(asked).encode(), timeout=300) as answer:
        body: bytes = answer.read()
        return body


def asked_for(form: bytes) -> Mapping[str, str]:
    return dict(parse_qsl(form.decode()))
