"""`LAGGARD_EXPORT=:PORT`: serves this rank's metrics from the training process, for clusters without agents.

The server is read-only, has threads of its own and few clients at a time. Where it cannot start, the training goes on
without it.
"""

from __future__ import annotations

import atexit
import contextlib
import os
from http import HTTPStatus
from typing import Final

from laggard.environment import ENV_EXPORT
from laggard.errors import UsageError
from laggard.http.listen import bind, split_address, url_of
from laggard.http.message import HttpError, Request, Response
from laggard.http.security_headers import NO_PAGE
from laggard.http.server import Handler, Server
from laggard.trainer_hooks.output.exposition import CONTENT_TYPE, render_metrics
from laggard.trainer_hooks.output.identity import Identity
from laggard.trainer_hooks.record.recorder import Recorder

MAX_CLIENTS: Final = 4


def serve_metrics(address: str, identity: Identity, recorder: Recorder) -> str:
    """Serves until the process ends. `address`: HOST:PORT or :PORT, for local rank 0. Returns the URL. Raises
    UsageError where the address cannot be bound; RuntimeError where the process can have no further thread."""
    listener = bind(rank_address(address, identity.local_rank), ENV_EXPORT)

    def handle(request: Request) -> Response:
        if request.path != "/metrics":
            raise HttpError(HTTPStatus.NOT_FOUND, "nothing here; there is /metrics")
        if request.method not in ("GET", "HEAD"):
            raise HttpError(HTTPStatus.METHOD_NOT_ALLOWED, "only GET and HEAD: nothing can be changed here")
        return Response(HTTPStatus.OK, CONTENT_TYPE, render_metrics(identity, recorder).encode(), NO_PAGE)

    url = url_of(listener)
    server = Server(listener, _report_defects(handle), _error_response, MAX_CLIENTS)
    server.start()
    atexit.register(_stop_server_of, os.getpid(), server)
    os.register_at_fork(after_in_child=listener.close)  # else a worker that outlives the rank would keep the port
    return url


def rank_address(address: str, local_rank: int) -> str:
    """The address at which a local rank serves: its port is the given one plus the local rank. Port 0, for any free
    port, stays 0. Raises UsageError for an address that is none, or that leaves no port for this rank."""
    host, port = split_address(address)
    if port and port + local_rank > 65535:
        raise UsageError(f"{ENV_EXPORT}={address} leaves no port for local rank {local_rank}: choose a lower one")
    shown = f"[{host}]" if ":" in host else host
    return f"{shown}:{port + local_rank if port else 0}"


def _report_defects(handle: Handler) -> Handler:
    """`handle`, with a defect of laggard as an answer to the client, and no traceback in the job's output."""

    def guarded(request: Request) -> Response:
        try:
            return handle(request)
        except HttpError:
            raise
        except Exception as error:
            reason = f"a defect in laggard: {type(error).__name__}: {error}"
            raise HttpError(HTTPStatus.INTERNAL_SERVER_ERROR, reason) from None

    return guarded


def _error_response(error: HttpError) -> Response:
    return Response(error.status, "text/plain; charset=utf-8", f"{error}\n".encode(), NO_PAGE + error.headers)


def _stop_server_of(process: int, server: Server) -> None:
    if os.getpid() == process:  # not in a forked child: that would wake the parent's threads
        with contextlib.suppress(OSError):
            server.stop()
