"""Fake agents (real HTTP servers in threads, with any defect) and the real collector as a process."""

import contextlib
import itertools
import json
import signal
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from msgspec import structs

from laggard.agent.ranks.reader import pack
from laggard.collector.jobs.window import JobWindows, Refusal
from laggard.collector.scrape.validation import RanksAnswer
from laggard.kit.constants import PHASES
from laggard.model import Finding, Fix, ProbeResult, Report, Severity, Verdict
from laggard.wire import encode
from laggard.wire.ranks import RankRow, RanksDocument
from support.daemons import Daemon
from support.steps import StepRow, in_nanoseconds, step_table


def step_row(step: int, slow: float = 0.0, waited: float = 0.1, phase: int = 1) -> StepRow:
    """A step of 0.25 s, with `slow` more seconds in `phase` and so much less waiting."""
    phases = [0.01, 0.05, 0.08, 0.01, 0.0, 0.0, 0.0, 0.0, 0.0]
    phases[phase] += slow
    return StepRow(step, 100.0 + step * 0.25, 100.0 + step * 0.25 + 0.25, tuple(phases), max(0.0, waited - slow))


class MadeRank(RankRow, frozen=True, gc=False):
    """A row, and the rank's steps, which answer_of() and packed() put where they belong."""

    rows: tuple[StepRow, ...] = ()


def rank_row(rank: int, world_size: int = 4, rows: Sequence[StepRow] = (), **changes: Any) -> RankRow:
    values: dict[str, Any] = dict(
        job_id="job-1",
        rank=rank,
        local_rank=rank % 2,
        world_size=world_size,
        node=f"n{rank // 2}",
        gpu=None,
        attempt=0,
        owner=1000,
        pid=4000 + rank,
        cgroup="/job",
        state="running",
        steps=len(rows),
        step_seconds=0.25 * len(rows),
        own_seconds=0.15 * len(rows),
        phase_seconds=(0.0,) * len(PHASES),
        last_progress_timestamp_seconds=1000.0 + len(rows),
        collectives=(),
        in_flight=None,
        phase=None,
        lost=0,
    )
    return MadeRank(**{**values, **changes}, rows=tuple(rows)) if rows else RankRow(**{**values, **changes})


def ranks_document(node: str, ranks: Sequence[RankRow], **changes: Any) -> RanksDocument:
    values: dict[str, Any] = dict(node=node, boot_id="boot", next=0.0, ranks=tuple(ranks), ignored=())
    return RanksDocument(**{**values, **changes})


def answer_of(document: RanksDocument) -> RanksAnswer:
    """What a collector makes of it."""
    plain = [RankRow(*map(row.__getattribute__, RankRow.__struct_fields__)) for row in document.ranks]
    tables = tuple(step_table(getattr(row, "rows", ())) for row in document.ranks)
    return RanksAnswer(structs.replace(document, ranks=tuple(plain)), tables)


def packed(document: RanksDocument) -> RanksDocument:
    """The document as an agent sends it."""
    rows = [getattr(row, "rows", ()) for row in document.ranks]
    steps = pack([[*map(in_nanoseconds, its)] for its in rows]) if any(rows) else document.steps
    return structs.replace(answer_of(document).document, steps=steps)


def ingest(
    windows: JobWindows, source: str, document: RanksDocument, now: float, asked_at: float | None = None
) -> Counter[Refusal]:
    told = answer_of(document)
    return windows.ingest(source, told.document, told.steps, now, asked_at)


def going_on(document: RanksDocument) -> Callable[[float], RanksDocument]:
    """The document, whose ranks make four more steps like their last from answer to answer: what is slow is shown by
    other steps each time, as an incident asks for."""
    answers = itertools.count()

    def after(row: RankRow, more: int) -> RankRow:
        rows: Sequence[StepRow] = getattr(row, "rows", ())
        if not rows or row.state != "running":
            return row
        seconds = rows[-1].end - rows[-1].start
        moved = tuple(
            it._replace(step=it.step + more, start=it.start + more * seconds, end=it.end + more * seconds)
            for it in rows
        )
        progress = row.last_progress_timestamp_seconds
        assert progress is not None
        own = {"steps": row.steps + more, "last_progress_timestamp_seconds": progress + more * seconds}
        return structs.replace(row, rows=moved, **own)

    def answer(since: float) -> RanksDocument:
        more = 4 * next(answers)
        return structs.replace(document, ranks=tuple(after(row, more) for row in document.ranks))

    return answer


def report(node: str, codes: Sequence[str] = (), verdict: Verdict | None = None) -> Report:
    findings = tuple(
        Finding(code, Severity.CRITICAL, "gpu0", f"{code} on {node}", {}, Fix("replace it"), f"docs/findings/{code}.md")
        for code in codes
    )
    judged = verdict or (Verdict.FAIL if codes else Verdict.OK)
    return Report(judged, node, 0.1, (ProbeResult("gpu", judged, "", 0.1),), findings, {})


class FakeAgent:
    """An HTTP server that answers as an agent. `ranks` and `report` are values, bytes, or functions of `since` that
    return these."""

    def __init__(self, ranks: Any, report: Any = None, status: int = 200, delay: float = 0.0) -> None:
        self.ranks, self.report, self.status, self.delay = ranks, report, status, delay
        self.collectives: Any = None
        self.stacks: Callable[[str, dict[str, str], str], Any] | None = None
        """Gets the method and the query of a question for stacks, and its Authorization; the status where it returns a
        number."""
        self.requests: list[str] = []
        self.closed = threading.Event()
        agent = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True  # else each body waits 40 ms for the acknowledgement of its headers

            def do_POST(self) -> None:
                self.do_GET()

            def do_GET(self) -> None:
                agent.requests.append(self.path)
                if agent.stacks is not None and self.path.startswith("/api/v1/stacks"):
                    self.answer_stacks(agent.stacks)
                    return
                agent.closed.wait(agent.delay)
                if agent.closed.is_set():  # a connection that was kept alive dies with the agent
                    self.close_connection = True
                    return
                body = agent.answer(self.path)
                with contextlib.suppress(ConnectionError):
                    self.send_response(agent.status if body is not None else 404)
                    self.send_header("Content-Type", "application/json")
                    self.send_header("Content-Length", str(len(body or b"")))
                    self.end_headers()
                    self.wfile.write(body or b"")

            def answer_stacks(self, stacks: Callable[[str, dict[str, str], str], Any]) -> None:
                query = {name: values[-1] for name, values in parse_qs(urlsplit(self.path).query).items()}
                reply = stacks(self.command, query, self.headers.get("Authorization", ""))
                body = b"{}" if isinstance(reply, int) else reply if isinstance(reply, bytes) else encode(reply)
                self.send_response(reply if isinstance(reply, int) else 200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._server.server_address[1]}"

    @property
    def url(self) -> str:
        return f"http://{self.address}"

    def answer(self, path: str) -> bytes | None:
        parts = urlsplit(path)
        values = {"ranks": self.ranks, "report": self.report, "collectives": self.collectives}
        value = values.get(parts.path.removeprefix("/api/v1/"))
        if callable(value):
            value = value(float(parse_qs(parts.query).get("since", ["0"])[0]))
        if isinstance(value, RanksDocument):
            value = packed(value)
        return value if value is None or isinstance(value, bytes) else encode(value)

    def close(self) -> None:
        self.closed.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class CollectorProcess(Daemon):
    """`laggard collector` on a free port. `open_files`: the most that it may have."""

    def __init__(self, log: Path, arguments: Sequence[str], open_files: int | None = None) -> None:
        limit = [] if open_files is None else ["prlimit", f"--nofile={open_files}"]
        # A folder that is not there: no collector of a test knows another one's incidents, or this machine's.
        environ = {"LAGGARD_STATE_DIR": "/nonexistent"}
        super().__init__(log, ("collector", *arguments), environ, (*limit, sys.executable, "-m", "laggard"))
        self.client = httpx.Client(base_url=self.url, timeout=300, trust_env=False)

    def get(self, path: str, **parameters: Any) -> httpx.Response:
        return self.client.get(path, params=parameters)

    def wait_ready(self) -> None:
        self.wait_until(lambda: self.get("/-/ready").status_code == 200)

    def stop(self, number: int = signal.SIGTERM) -> int:
        self.client.close()
        return super().stop(number)


class Make:
    """The functions above, for tests: under pytest's importlib mode a conftest cannot be imported."""

    step_row = staticmethod(step_row)
    rank_row = staticmethod(rank_row)
    ranks_document = staticmethod(ranks_document)
    going_on = staticmethod(going_on)
    report = staticmethod(report)

    @staticmethod
    def packed_node(*words: Any, **named: Any) -> RanksDocument:
        """The same, as an agent sends it."""
        return packed(Make.node(*words, **named))

    @staticmethod
    def node(
        name: str, ranks: Sequence[int], slow: int | None = None, world_size: int = 4, steps: int = 60, **changes: Any
    ) -> Any:
        """The ranks document of a node after so many steps. `slow`: the rank that makes the others wait."""

        def rows(rank: int) -> list[StepRow]:
            more, waited = 0.1 if rank == slow else 0.0, 0.0 if slow is None else 0.1
            return [step_row(step, more, waited) for step in range(max(0, steps - 128), steps)]

        return ranks_document(name, [rank_row(r, world_size, rows(r), node=name, **changes) for r in ranks])

    @staticmethod
    def training(*words: Any, **named: Any) -> Callable[[float], RanksDocument]:
        """The ranks documents of such a node, whose ranks go on training."""
        return going_on(Make.node(*words, **named))


@pytest.fixture(scope="session")
def make() -> type[Make]:
    return Make


@pytest.fixture
def fake_agent() -> Iterator[Callable[..., FakeAgent]]:
    with contextlib.ExitStack() as stack:

        def make(*arguments: Any, **named: Any) -> FakeAgent:
            agent = FakeAgent(*arguments, **named)
            stack.callback(agent.close)
            return agent

        yield make


@pytest.fixture
def start_collector(tmp_path: Path) -> Iterator[Callable[..., CollectorProcess]]:
    started: list[CollectorProcess] = []

    def start(
        *arguments: str, watches: Sequence[FakeAgent | str] = (), open_files: int | None = None, **settings: object
    ) -> CollectorProcess:
        """`watches`: agents, or the addresses of some; `settings`: what stands in its file of settings."""
        words = [*arguments, *(word for it in watches for word in ("--target", getattr(it, "address", str(it))))]
        if settings:
            config = tmp_path / f"collector-{len(started)}.json"
            config.write_text(json.dumps(settings))
            words += ["--config", str(config)]
        started.append(CollectorProcess(tmp_path / f"collector-{len(started)}.log", words, open_files))
        return started[-1]

    yield start
    for collector in started:
        collector.client.close()
        if collector.process.returncode is None:
            collector.stop()


@pytest.fixture
def watching(start_collector: Callable[..., CollectorProcess]) -> Callable[..., CollectorProcess]:
    """Starts a collector that asks these agents twice a second, and waits until it is ready."""

    def start(*agents: FakeAgent | str, **settings: object) -> CollectorProcess:
        collector = start_collector("--interval", "0.5", watches=agents, **settings)
        collector.wait_ready()
        return collector

    return start
