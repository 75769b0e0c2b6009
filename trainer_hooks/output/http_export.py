"""`LAGGARD_EXPORT=:PORT`: this rank's metrics from within the training process, for clusters without agents.

Read-only, on threads of its own, for few clients at a time; where it cannot be had, the training goes on without it.
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
from laggard.trainer_hooks.output.exposition import CONTENT_TYPE, exposition
from laggard.trainer_hooks.output.identity import Identity
from laggard.trainer_hooks.record.recorder import Recorder

MOST_CLIENTS: Final = 4


def export(address: str, identity: Identity, recorder: Recorder) -> str:
    """Serves until the process ends; returns the URL. Raises UsageError where nobody can listen there."""
    listener = bind(of_rank(address, identity.local_rank), ENV_EXPORT)

    def handle(request: Request) -> Response:
        if request.path != "/metrics":
            raise HttpError(HTTPStatus.NOT_FOUND, "nothing here; there is /metrics")
        if request.method not in ("GET", "HEAD"):
            raise HttpError(HTTPStatus.METHOD_NOT_ALLOWED, "only GET and HEAD: nothing can be changed here")
        return Response(HTTPStatus.OK, CONTENT_TYPE, exposition(identity, recorder).encode(), NO_PAGE)

    url = url_of(listener)
    server = Server(listener, _guarded(handle), _error_response, MOST_CLIENTS)
    server.start()
    atexit.register(_stop_in, os.getpid(), server)
    os.register_at_fork(after_in_child=listener.close)  # or a worker that lives on would keep the port
    return url


def of_rank(address: str, local_rank: int) -> str:
    """The address of one of a node's ranks: its port is the one that was given and the local rank on top. Port 0, any
    free one, is every rank's. Raises UsageError."""
    host, port = split_address(address)
    if port and port + local_rank > 65535:
        raise UsageError(f"{ENV_EXPORT}={address} leaves no port for local rank {local_rank}: choose a lower one")
    shown = f"[{host}]" if ":" in host else host
    return f"{shown}:{port + local_rank if port else 0}"


def _guarded(handle: Handler) -> Handler:
    def guarded(request: Request) -> Response:
        try:
            return handle(request)
        except HttpError:
            raise
        except Exception as error:  # a defect of ours: for the client to see, and no traceback in the job's output
            reason = f"a defect in laggard: {type(error).__name__}: {error}"
            raise HttpError(HTTPStatus.INTERNAL_SERVER_ERROR, reason) from None

    return guarded


def _error_response(error: HttpError) -> Response:
    return Response(error.status, "text/plain; charset=utf-8", f"{error}\n".encode(), NO_PAGE)


def _stop_in(process: int, server: Server) -> None:
    if os.getpid() == process:  # not in a child: it would wake the parent's threads
        with contextlib.suppress(OSError):
            server.stop()
