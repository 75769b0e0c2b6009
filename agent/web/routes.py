"""The agent's HTTP routes. All of them only read, but one: with the token it asks ranks for their stacks."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from http import HTTPStatus
from itertools import islice
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import structs
from prometheus_client import Metric

from laggard import __version__
from laggard.agent.idle_rings.state import OUTCOMES, IdleRingsState, StateFolder
from laggard.agent.jobs import JobTransports, hook_blind_findings
from laggard.agent.prober.loop import ProbeLoop, ProbeRound
from laggard.agent.ranks.directory import round_robin
from laggard.agent.ranks.reader import RankCache, RankFiles
from laggard.agent.ras.asker import RasAsker
from laggard.agent.traffic.watch import TrafficWatch
from laggard.agent.web import page
from laggard.agent.web.stacks import Collectives, Ranks, StackService
from laggard.catalogue import rank_metrics
from laggard.catalogue.exposition import daemon_families, exposition, metric_family
from laggard.kit.http_message import NO_PAGE, HttpError, Request, Response
from laggard.kit.http_server import Handler
from laggard.kit.words import printable_line
from laggard.model import MAX_FINDINGS, Finding, Report, Severity
from laggard.wire import encode
from laggard.wire.query import WrongQuestion, read_question
from laggard.wire.ranks import RankRow, RanksDocument, RasSource

ENDED_SECONDS: Final = 3600.0
"""The time for which the metrics tell of a rank that ended. Its file stays until its user's next job on this node,
perhaps for weeks: of every user who ever came, each rank would be some thirty series in all that time."""


Told = Mapping[tuple[str, str], tuple[str, str]]


class Daemon(NamedTuple):
    """The facts that the agent knows of itself: how long its last complete round of probes took, in seconds (None:
    there was none), and how many connections it has turned away. `told`: by code and device of the critical findings,
    action and summary as each was found first: its figures change, and would begin a series each time."""

    round_seconds: float | None = None
    turned_away: int = 0
    told: Told = {}


_NEW: Final = Daemon()


def agent_metrics(ranks: RanksDocument, latest: ProbeRound, accept: str, daemon: Daemon = _NEW) -> tuple[bytes, str]:
    """Returns the body and its content type, in the format that the Accept header asks for."""
    return exposition((*_families(ranks, latest), *_daemon_families(daemon)), accept)


def _families(ranks: RanksDocument, latest: ProbeRound) -> Iterator[Metric]:
    rejected = Counter({it.reason: it.count for it in ranks.ignored})
    yield metric_family(rank_metrics.BUILD_INFO.name, [((__version__,), 1)])
    yield metric_family("laggard_rank_files_ignored", [((reason,), n) for reason, n in rejected.items() if n])
    yield from _probe_families(latest, ranks.findings)
    yield from _ring_families(StateFolder().read())
    for described, samples in rank_metrics.families(
        [_rank_stats(row) for row in ranks.ranks if _is_told(row, ranks.now)]
    ):
        yield metric_family(described.name, samples)


def _daemon_families(daemon: Daemon) -> Iterator[Metric]:
    took = [] if daemon.round_seconds is None else [((), daemon.round_seconds)]
    yield metric_family("laggard_agent_probe_round_seconds", took)
    yield metric_family("laggard_finding_info", [((*key, *words), 1.0) for key, words in daemon.told.items()])
    yield from daemon_families(daemon.turned_away)


def _probe_families(latest: ProbeRound, job_findings: Iterable[Finding]) -> Iterator[Metric]:
    probes, findings = latest.report.probes, (*latest.report.findings, *job_findings)
    verdicts = [((it.name, it.verdict.value), 1.0) for it in probes]  # the others have no series: probes are many
    unique = {(it.code, it.severity.value, it.device): 1.0 for it in findings}
    yield metric_family("laggard_probe_verdict", verdicts)
    yield metric_family("laggard_probe_duration_seconds", [((it.name,), it.elapsed_seconds) for it in probes])
    yield metric_family("laggard_probe_last_run_timestamp_seconds", [((it.name,), latest.finished_at) for it in probes])
    yield metric_family("laggard_finding", unique.items())


def _ring_families(state: IdleRingsState) -> Iterator[Metric]:
    """The metrics of `laggard agent --idle-rings`; none where it has not run."""
    yield metric_family(
        "laggard_idle_rings_total", [((name,), state.rings.get(name, 0)) for name in OUTCOMES] if state.rings else []
    )
    for name, value in (
        ("laggard_idle_ring_last_end_timestamp_seconds", state.ended_at),
        ("laggard_idle_ring_abort_seconds", state.abort_seconds),
    ):
        yield metric_family(name, [] if value is None else [((), value)])


def _is_told(row: RankRow, now: float | None) -> bool:
    """Whether the rank runs, or ended a short while before `now`."""
    if row.state == "running" or now is None:
        return True
    signs = (row.last_progress_timestamp_seconds, row.last_beat_timestamp_seconds or 0.0)
    return now - (row.end.at_seconds if row.end else max(signs)) < ENDED_SECONDS


def _standing_seconds(row: RankRow) -> float:
    """For how long a collective that no hook saw begin, as DDP's own, has stood: by the Flight Recorder's numbers."""
    beat = row.beat if row.state == "running" else None
    stood = max((it.seconds for it in beat.groups if it.enqueued > it.completed), default=0.0) if beat else 0.0
    return stood + (beat.groups_age_seconds or 0.0) if beat and stood > beat.interval_seconds else 0.0


def _rank_stats(row: RankRow) -> rank_metrics.RankStats:
    return rank_metrics.RankStats(
        job_id=row.job_id,
        owner=row.owner,
        rank=row.rank,
        node=row.node,
        local_rank=row.local_rank,
        gpu=row.gpu,
        world_size=row.world_size,
        attempt=row.attempt,
        up=row.state == "running",
        steps=row.steps,
        step_seconds=row.step_seconds,
        own_seconds=row.own_seconds,
        phase_seconds=row.phase_seconds,
        last_progress=row.last_progress_timestamp_seconds,
        last_beat=row.last_beat_timestamp_seconds,
        in_flight_seconds=row.in_flight.seconds if row.in_flight else _standing_seconds(row),
        collectives=row.collectives,
        lost=row.lost,
    )


log = logging.getLogger("laggard.agent")

_SUMMARY_CHARACTERS: Final = 200

_RAS_OFF: Final = RasSource("off", "switched off: ras_interval_seconds is 0")


class ErrorBody(msgspec.Struct, frozen=True):
    """The body of every response that refuses a request."""

    error: str


class Router:
    """Hands each request to the handler of its path. The API reads `ranks` for every request; the page and the metrics
    take `cached_ranks`. `turned_away`: how many connections were so far; `judged`: makes of the probes' report the
    one that is shown."""

    def __init__(
        self,
        node: str,
        ranks: RankFiles,
        cached_ranks: RankCache,
        probe_loop: ProbeLoop,
        ras: RasAsker | None = None,
        traffic: TrafficWatch | None = None,
        turned_away: Callable[[], int] = lambda: 0,
        stacks: StackService | None = None,
        judged: Callable[[Report], Report] = lambda report: report,
    ) -> None:
        self._node = node
        self._ranks = ranks
        self._cached_ranks = cached_ranks
        self._probe_loop = probe_loop
        self._judged = judged
        self._ras = ras
        self._traffic = traffic
        self._turned_away = turned_away
        self._transports = JobTransports()
        self._told: Told = {}
        self._one_document = threading.Lock()  # of all steps at a time: one of 64 full rings takes 30 MB
        self._handlers: Mapping[str, Handler] = {
            "/": self._page,
            "/metrics": self._metrics,
            "/-/healthy": self._healthy,
            "/-/ready": self._ready,
            "/api/v1/report": self._report,
            "/api/v1/ranks": self._ranks_document,
            "/api/v1/collectives": self._collectives,
            "/api/v1/stacks": lambda request: _json(HTTPStatus.OK, self._stacks.document(request)),
        }
        self._posts: Mapping[str, Handler] = {
            "/api/v1/stacks/ask": lambda request: _json(HTTPStatus.OK, self._stacks.ask(request))
        }
        self._stacks = stacks or StackService.made(ranks, cached_ranks)

    def handle(self, request: Request) -> Response:
        try:
            return self._handler(request)(request)
        except HttpError as error:
            return error_response(error)
        except WrongQuestion as error:
            return _error(HTTPStatus.BAD_REQUEST, str(error))
        except Exception:
            log.exception("a defect in laggard, while answering %s", request.path)
            text = "a defect in laggard: the agent's log has the traceback"
            return _error(HTTPStatus.INTERNAL_SERVER_ERROR, text)

    def _handler(self, request: Request) -> Handler:
        posted = self._posts.get(request.path)
        if posted is not None:
            if request.method != "POST":
                raise HttpError(HTTPStatus.METHOD_NOT_ALLOWED, "POST alone", (("Allow", "POST"),))
            return posted
        handler = self._handlers.get(request.path)
        if handler is None:
            raise HttpError(
                HTTPStatus.NOT_FOUND, f"nothing here; there is {', '.join((*self._handlers, *self._posts))}"
            )
        if request.method not in ("GET", "HEAD"):
            raise HttpError(HTTPStatus.METHOD_NOT_ALLOWED, "only GET and HEAD: nothing can be changed here")
        return handler

    def _page(self, _: Request) -> Response:
        html = page.render(self._node, self._cached_ranks.get(), self._latest().report, __version__)
        return Response(HTTPStatus.OK, "text/html; charset=utf-8", html.encode(), page.HEADERS)

    def _metrics(self, request: Request) -> Response:
        latest, ranks = self._latest(), self._with_findings(self._cached_ranks.get())
        daemon = Daemon(self._probe_loop.round_seconds, self._turned_away(), self._tell(latest.report))
        body, content_type = agent_metrics(ranks, latest, request.accept, daemon)
        return _response(HTTPStatus.OK, content_type, body)

    def _healthy(self, _: Request) -> Response:
        seconds = self._ranks.hanging_seconds()
        if not seconds:
            return _text(HTTPStatus.OK, "healthy")
        text = f"the scan of {self._ranks.directory} has hung for {seconds:.0f} s: a file system there does not answer"
        return _text(HTTPStatus.SERVICE_UNAVAILABLE, text)

    def _ready(self, _: Request) -> Response:
        if self._probe_loop.ready:
            return _text(HTTPStatus.OK, "ready")
        reason = self._probe_loop.latest.report.probes[0].reason
        return _text(HTTPStatus.SERVICE_UNAVAILABLE, f"not ready: {reason}")

    def _report(self, _: Request) -> Response:
        latest = self._latest()
        response = _json(HTTPStatus.OK, latest.report)
        age = time.time() - latest.finished_at
        if not latest.complete or age < 0:  # a gate takes no report without an age in place of its own probes
            return response
        return response._replace(headers=(*response.headers, ("Age", str(math.ceil(age)))))

    def _ranks_document(self, request: Request) -> Response:
        asked = read_question(Ranks, request.query)
        with self._one_document:
            ranks = self._with_findings(self._ranks.read(asked.since))
            return _json(HTTPStatus.OK, structs.replace(ranks, ras=self._ras.source() if self._ras else _RAS_OFF))

    def _collectives(self, request: Request) -> Response:
        asked = read_question(Collectives, request.query)
        return _json(HTTPStatus.OK, self._ranks.collectives(asked.owner, asked.job, frozenset(asked.rank)))

    def _tell(self, report: Report) -> Told:
        """Keeps what is said of the critical findings while they last."""
        critical = [it for it in report.findings if it.severity is Severity.CRITICAL]
        words = {(it.code, it.device): (it.action, printable_line(it.summary, _SUMMARY_CHARACTERS)) for it in critical}
        self._told = {key: self._told.get(key, new) for key, new in words.items()}
        return self._told

    def _latest(self) -> ProbeRound:
        latest = self._probe_loop.latest
        return latest._replace(report=self._judged(latest.report))

    def _with_findings(self, ranks: RanksDocument) -> RanksDocument:
        """Returns `ranks` with the findings about their jobs."""
        transports = self._transports.findings(ranks.ranks, self._probe_loop.latest.report)
        told = {(found.code, found.device) for found in transports}  # by NCCL itself, with the cause
        seen = self._traffic.findings if self._traffic else ()
        carried = tuple(found for found in seen if (found.code, found.device) not in told)
        findings = _in_turn(transports + carried + hook_blind_findings(ranks.ranks))
        traffic = self._traffic.traffic if self._traffic else ()
        return structs.replace(ranks, findings=findings, traffic=traffic) if findings or traffic else ranks


def _in_turn(findings: tuple[Finding, ...]) -> tuple[Finding, ...]:
    """The findings that a collector takes, from the jobs' owners in turn: one user's jobs can have any number."""
    if len(findings) <= MAX_FINDINGS:
        return findings
    return tuple(islice(round_robin(findings, lambda found: found.evidence.get("owner")), MAX_FINDINGS))


def error_response(error: HttpError) -> Response:
    return _error(error.status, str(error), error.headers)


def _json(status: HTTPStatus, document: Any) -> Response:
    return _response(status, "application/json", encode(document))


def _error(status: HTTPStatus, text: str, headers: tuple[tuple[str, str], ...] = ()) -> Response:
    response = _json(status, ErrorBody(text))
    return response._replace(headers=response.headers + headers)


def _text(status: HTTPStatus, text: str) -> Response:
    return _response(status, "text/plain; charset=utf-8", f"{text}\n".encode())


def _response(status: HTTPStatus, content_type: str, body: bytes) -> Response:
    return Response(status, content_type, body, NO_PAGE)
