"""The requests to the Kubernetes API server that the controller makes: list nodes, patch them, tell of it. One is an
HTTP request over httpx, bounded in time and size."""

from __future__ import annotations

import json
import logging
import os
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple
from urllib.parse import quote, urlencode

import httpx
import msgspec

from laggard.kit.address import without_login
from laggard.kit.errors import UsageError
from laggard.kit.tls import tls_failure
from laggard.kit.words import printable_line
from laggard.kubernetes.node import ApiNode, Node, Patch

MAX_BYTES: Final = 64 << 20
"""The most bytes of an answer. Five hundred nodes with their images take some megabytes."""

_WHY_CHARACTERS: Final = 300

Tls = ssl.SSLContext | Callable[[], ssl.SSLContext]


class Answer(NamedTuple):
    """`status` is 0 where there is no answer; `why` then says what went wrong, and else what a refusal says. `closed`:
    the other side closed the connection and said nothing, as one does that was to speak TLS."""

    status: int
    body: bytes
    why: str = ""
    closed: bool = False


class Exchange:
    """`tls`: the certificates that servers' are checked against, and the own one; None: the system's. A function is
    asked before each request, so that files that were replaced hold at once; while it raises UsageError what it said
    before holds."""

    def __init__(self, timeout_seconds: float, tls: Tls | None = None) -> None:
        self._timeout_seconds = timeout_seconds
        self._newest = tls if callable(tls) else None
        self._context = tls() if callable(tls) else tls or ssl.create_default_context()
        self._client = self._connect()

    def close(self) -> None:
        self._client.close()

    def _connect(self) -> httpx.Client:
        # A proxy from the environment is for the outside world.
        return httpx.Client(
            timeout=self._timeout_seconds, verify=self._context, trust_env=False, follow_redirects=False
        )

    def _renew(self) -> None:
        """Takes up certificates that were replaced."""
        if self._newest is None:
            return
        try:
            context = self._newest()
        except UsageError as error:
            log.error("the former certificates stay in use: %s", error)
            return
        if context is not self._context:
            self._client.close()
            self._context = context
            self._client = self._connect()

    def send(self, method: str, url: str, headers: Mapping[str, str] | None = None, body: Any = None) -> Answer:
        """Never raises for what the other side does: httpx's timeout is for each read, the whole answer has one too."""
        self._renew()
        deadline = time.monotonic() + self._timeout_seconds
        content = None if body is None else json.dumps(body).encode()
        received = bytearray()
        try:
            with self._client.stream(method, url, headers=dict(headers or {}), content=content) as response:
                for part in response.iter_bytes():
                    received += part
                    if len(received) > MAX_BYTES:
                        return Answer(0, b"", f"an answer of more than {MAX_BYTES} bytes")
                    if time.monotonic() > deadline:
                        return Answer(0, b"", f"no complete answer within {self._timeout_seconds:g} s")
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            closed = isinstance(error, (httpx.RemoteProtocolError, httpx.ReadError)) and not tls_failure(error)
            why = "it closed the connection" if closed else _no_answer(error)
            return Answer(0, b"", printable_line(why, _WHY_CHARACTERS), closed)
        why = "" if response.is_success else f"HTTP {response.status_code}: {_reason(bytes(received))}"
        return Answer(response.status_code, bytes(received), printable_line(why, _WHY_CHARACTERS))


def _no_answer(error: Exception) -> str:
    if failure := tls_failure(error):
        return failure
    if isinstance(error, httpx.ConnectTimeout) and "handshake" in str(error):
        return "it says nothing to a TLS handshake: write http:// if it speaks plain HTTP"
    return str(error) or type(error).__name__


def _reason(body: bytes) -> str:
    """The message of a Kubernetes Status, or the error that a daemon of laggard's says; else the beginning of the
    body."""
    try:
        said = json.loads(body)
        message = said["message"] if "message" in said else said["error"]
    except (ValueError, TypeError, KeyError, RecursionError):
        message = body[:_WHY_CHARACTERS].decode(errors="replace")
    return str(message)[: 4 * _WHY_CHARACTERS]  # to make millions of characters printable takes a gigabyte


log = logging.getLogger("laggard.kubernetes")

_PAGE: Final = 500
_STRATEGIC: Final = "application/strategic-merge-patch+json"
_JSON: Final = "application/json"
_MERGE: Final = "application/merge-patch+json"
_DONE: Final = (200, 201)
_NOT_THERE, _CONFLICT = 404, 409


class ApiError(Exception):
    """The API server refuses, or cannot be asked. The text is one line that says what to do where that is known."""


class Changed(ApiError):
    """The node was changed by somebody else, or is gone: the next round reads it anew."""


class _Continue(msgspec.Struct, frozen=True):
    next: str = msgspec.field(default="", name="continue")


class _NodeList(msgspec.Struct, frozen=True):
    items: tuple[ApiNode, ...] | None = None
    metadata: _Continue = _Continue()


class ApiServer:
    """`url`: where it is; empty: where the environment of a pod says. The token is read for every request, since the
    kubelet replaces it each hour. Raises UsageError where there is no URL."""

    def __init__(self, exchange: Exchange, url: str, token_file: str, environ: Mapping[str, str] = os.environ) -> None:
        self._exchange = exchange
        self._url = url.rstrip("/") or _own_cluster(environ)
        self._token_file = token_file

    def nodes(self) -> tuple[Node, ...]:
        """All nodes of the cluster. Raises ApiError."""
        return tuple(self._nodes())

    def patch_status(self, name: str, patch: Patch) -> None:
        """A strategic merge patch of the node's status. Raises ApiError."""
        self._send("PATCH", f"{_path(name)}/status", f"patch nodes/status of {name}", _STRATEGIC, patch)

    def patch(self, name: str, patch: Patch) -> None:
        """A JSON merge patch of the node. Raises ApiError."""
        self._send("PATCH", _path(name), f"patch node {name}", _MERGE, patch)

    def create_event(self, event: Patch) -> None:
        """A core/v1 Event in the namespace `default`. Raises ApiError."""
        name = event["involvedObject"]["name"]
        self._send("POST", "/api/v1/namespaces/default/events", f"create an event on {name}", _JSON, event)

    def _nodes(self) -> Iterator[Node]:
        following = ""
        while True:
            query = urlencode({"limit": _PAGE, **({"continue": following} if following else {})})
            answer = self._send("GET", f"/api/v1/nodes?{query}", "list nodes")
            try:
                page = msgspec.json.decode(answer.body, type=_NodeList)
            except (ValueError, RecursionError) as error:
                raise ApiError(
                    f"{without_login(self._url)} answers something else than a list of nodes: {error}"
                ) from None
            yield from (item.node() for item in page.items or ())
            following = page.metadata.next
            if not following:
                return

    def _send(self, method: str, path: str, what: str, content_type: str = "", body: Patch | None = None) -> Answer:
        headers = {"Authorization": f"Bearer {self._token()}", "Accept": "application/json"}
        if content_type:
            headers["Content-Type"] = content_type
        answer = self._exchange.send(method, f"{self._url}{path}", headers, body)
        if answer.status in _DONE:
            return answer
        if answer.status in (_NOT_THERE, _CONFLICT) and body is not None:
            raise Changed(f"cannot {what}: {answer.why}")
        hint = "; see the ClusterRole in deploy/helm/laggard/templates" if answer.status == 403 else ""
        raise ApiError(f"cannot {what} at {without_login(self._url)}: {answer.why}{hint}")

    def _token(self) -> str:
        try:
            with open(self._token_file, encoding="ascii") as file:
                token = file.read(1 << 16).strip()
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is no token"
            raise ApiError(f"cannot read the token {self._token_file}: {reason}; see token_file") from None
        if not token:
            raise ApiError(f"the token file {self._token_file} is empty; see token_file")
        return token


class Written(NamedTuple):
    """The outcome of a write: `done` says whether it was done; `failures` has one line where the API server refused it
    or cannot be asked, and none where somebody else changed the node meanwhile."""

    done: bool
    failures: tuple[str, ...] = ()


def attempt(write: Callable[[], None]) -> Written:
    """Writes, and logs what went wrong."""
    try:
        write()
    except Changed as error:
        log.info("%s; the next round tries again", error)
        return Written(False)
    except ApiError as error:
        log.error("%s", error)
        return Written(False, (str(error),))
    return Written(True)


def _path(name: str) -> str:
    return f"/api/v1/nodes/{quote(name, safe='')}"


def _own_cluster(environ: Mapping[str, str]) -> str:
    host, port = environ.get("KUBERNETES_SERVICE_HOST", ""), environ.get("KUBERNETES_SERVICE_PORT", "443")
    if not host:
        raise UsageError("this is no pod of Kubernetes: set api_server, token_file and ca_file in the file of --config")
    return f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
