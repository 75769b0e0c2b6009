"""The requests to the Kubernetes API server that the controller makes: list nodes, patch them, tell of it."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Final, NamedTuple
from urllib.parse import quote, urlencode

import msgspec

from laggard.address import without_login
from laggard.errors import UsageError
from laggard.kubernetes.exchange import Answer, Exchange
from laggard.kubernetes.node import ApiNode, Node, Patch

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
