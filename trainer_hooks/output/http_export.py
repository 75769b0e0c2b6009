"""`LAGGARD_EXPORT=:PORT`: serves this rank's metrics from the training process, for clusters without agents.

The server is read-only, has threads of its own and few clients at a time. Where it cannot start, the training goes on
without it.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import time
from collections.abc import Iterable
from http import HTTPStatus
from typing import Final

from laggard import __version__
from laggard.catalogue.rank_metrics import BUILD_INFO, Metric, RankStats, Samples, families, sum_collectives
from laggard.kit.constants import PHASES
from laggard.kit.environment import ENV_EXPORT
from laggard.kit.errors import UsageError
from laggard.kit.http_message import NO_PAGE, HttpError, Request, Response, bind, split_address, url_of
from laggard.kit.http_server import Server
from laggard.rankfile.layout import WORD_ISSUED, WORD_PROGRESS
from laggard.trainer_hooks.output.recording_folder import Identity
from laggard.trainer_hooks.record.events import INPUT
from laggard.trainer_hooks.record.recorder import Recorder, clock

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_DRAIN_TIMEOUT_SECONDS = 0.5


def render_metrics(identity: Identity, recorder: Recorder) -> str:
    """The rank's metrics in the text format, version 0.0.4."""
    recorder.drain(_DRAIN_TIMEOUT_SECONDS)
    build = _family(BUILD_INFO, [((__version__,), 1.0)])
    return build + "".join(_family(metric, samples) for metric, samples in families([_stats(identity, recorder)]))


def _stats(identity: Identity, recorder: Recorder) -> RankStats:
    """The rank's present values. Another thread than the training's reads them, so one may be a moment older than
    another."""
    totals, words, now, wall = recorder.totals, recorder.live.words, clock(), time.time()
    issued, progress = words[WORD_ISSUED], words[WORD_PROGRESS]
    phases, lanes = totals.phases_ns, totals.lanes
    return RankStats(
        **identity._asdict(),
        owner=os.geteuid(),  # who owns the rank file, too
        up=True,
        steps=totals.steps,
        step_seconds=totals.step_ns / 1e9,
        own_seconds=(sum(phases) - phases[INPUT]) / 1e9,
        phase_seconds=[phases[place] / 1e9 for place in range(len(PHASES))],
        last_progress=wall - (now - progress) / 1e9 if progress else wall,
        last_beat=wall,
        in_flight_seconds=max(0, now - issued) / 1e9 if issued else 0.0,
        collectives=sum_collectives(
            ((lane.op, lane.role) for lane in recorder.lanes()[: len(lanes) // 3]),
            (lanes[place : place + 3] for place in range(0, len(lanes) // 3 * 3, 3)),
        ),
        lost=totals.lost + totals.errors,
    )


def _family(metric: Metric, samples: Samples) -> str:
    lines = [f"# HELP {metric.name} {_escaped(metric.help)}", f"# TYPE {metric.name} {metric.kind}"]
    lines += [f"{metric.name}{_labels(metric.labels, labels)} {float(value)!r}" for labels, value in samples]
    return "\n".join(lines) + "\n"


def _labels(names: Iterable[str], values: Iterable[str]) -> str:
    pairs = sorted(zip(names, values, strict=True))
    return "{" + ",".join(f'{name}="{_escaped(value, quoted=True)}"' for name, value in pairs) + "}"


def _escaped(text: str, quoted: bool = False) -> str:
    text = text.replace("\\", "\\\\").replace("\n", "\\n")
    return text.replace('"', '\\"') if quoted else text


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
        try:
            text = render_metrics(identity, recorder)
        except Exception as error:  # an answer to the client, and no traceback in the job's output
            reason = f"a defect in laggard: {type(error).__name__}: {error}"
            raise HttpError(HTTPStatus.INTERNAL_SERVER_ERROR, reason) from None
        return Response(HTTPStatus.OK, CONTENT_TYPE, text.encode(), NO_PAGE)

    url = url_of(listener)
    server = Server(listener, handle, _error_response, MAX_CLIENTS)
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


def _error_response(error: HttpError) -> Response:
    return Response(error.status, "text/plain; charset=utf-8", f"{error}\n".encode(), NO_PAGE + error.headers)


def _stop_server_of(process: int, server: Server) -> None:
    if os.getpid() == process:  # not in a forked child: that would wake the parent's threads
        with contextlib.suppress(OSError):
            server.stop()
