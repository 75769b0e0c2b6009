"""The gate takes a fresh report of the node's agent from a trusted listener; else it runs the probes itself."""

import contextlib
import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.fronts import served_by
from support.rows import rows
from support.waiting import wait_for

from laggard.cli import main
from laggard.gate import cached_report
from laggard.gate.cached_report import fetch_cached_report
from laggard.gate.memory import NodeMemory, change_memory
from laggard.kit.http_client import NoResponse, get
from laggard.model import Finding, Fix, ProbeResult, Report, Severity, Verdict
from laggard.probes.registry import PROBES
from laggard.wire import encode

NODE = os.uname().nodename
NAMES = [probe.name for probe in PROBES]


def report(node: str = NODE, names: list[str] = NAMES, verdict: Verdict = Verdict.OK) -> Report:
    found = Finding("DISK_FULL", Severity.CRITICAL, "/", "is full", {}, Fix("empty it"), "docs/findings/DISK_FULL.md")
    failed = verdict is Verdict.FAIL
    places = {"disks": (0,)} if failed else {}
    results = tuple(ProbeResult(name, verdict, "", 0.01, places.get(name, ())) for name in names)
    return Report(verdict, node, 0.1, results, (found,) if failed else (), {})


def from_an_older_agent(report: Report) -> bytes:
    """`report` without the fields of a probe that laggard.report/1 did not have at first."""
    document = json.loads(encode(report))
    for probe in document["probes"]:
        del probe["findings"], probe["unknown"]
    return json.dumps(document).encode()


Serve = Callable[..., int]


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that runs other tests too may take longer over an answer than the gate waits."""
    monkeypatch.setattr(cached_report, "ANSWER_SECONDS", 60.0)


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Starts an agent that gives the answer it is made with; returns its port."""
    with contextlib.ExitStack() as stack:
        over = threading.Event()

        def start(body: bytes, age: str | None = "12", status: int = 200, delay: float = 0.0) -> int:
            headers = [] if age is None else [("Age", age)]

            def reply(*_: object) -> tuple[Any, ...]:
                over.wait(delay)
                return status, body, *headers

            url = stack.enter_context(served_by(reply))
            stack.callback(over.set)
            return int(url.rpartition(":")[2])

        yield start


def ask(port: int) -> tuple[Report, float]:
    return fetch_cached_report(port, NODE, 90.0, NAMES)


def test_a_fresh_report_is_taken(serve: Serve) -> None:
    assert ask(serve(encode(report()))) == (report(), 12.0)


def test_an_older_agents_report_without_findings_is_taken(serve: Serve) -> None:
    assert ask(serve(from_an_older_agent(report()))) == (report(), 12.0)


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ({"body": encode(report()), "age": "91"}, "91 s old"),
        ({"body": encode(report()), "age": None}, "no complete report yet"),
        ({"body": encode(report()), "age": "-5"}, "no complete report yet"),
        ({"body": encode(report()), "age": "soon"}, "no complete report yet"),
        ({"body": encode(report(node="n7"))}, f"is of node n7, and this is {NODE}"),
        ({"body": encode(report(names=NAMES[1:]))}, f"does not run probe {NAMES[0]}"),
        ({"body": b"<html>"}, "is no report"),
        ({"body": b"{}"}, "is no report"),
        ({"body": encode(report()), "status": 500}, "HTTP 500"),
        ({"body": b"x" * (5 << 20)}, "more than"),
        ({"body": from_an_older_agent(report(verdict=Verdict.FAIL))}, "does not name each probe's findings"),
    ],
)
def test_any_other_answer_is_refused(serve: Serve, answer: dict[str, Any], why: str) -> None:
    with pytest.raises(NoResponse, match=re.escape(why)):
        ask(serve(**answer))


def test_a_slow_answer_is_not_waited_for(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cached_report, "ANSWER_SECONDS", 0.2)
    port = serve(encode(report()), delay=300.0)
    started = time.monotonic()
    with pytest.raises(NoResponse, match="no complete answer within 0.2 s"):
        ask(port)
    assert time.monotonic() - started < 150  # 0.2 s on an idle machine


def test_nobody_listens() -> None:
    with pytest.raises(NoResponse, match="nothing listens there"):
        ask(9)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be somebody else")
def test_another_users_listener_is_not_trusted() -> None:
    """While no agent runs, any user can listen on its port and answer that all is well."""
    program = (
        "import os, socket, time\n"
        "os.setuid(65534)\n"
        "listener = socket.create_server(('127.0.0.1', 0))\n"
        "print(listener.getsockname()[1], flush=True)\n"
        "time.sleep(60)\n"
    )
    other = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    try:
        assert other.stdout
        with pytest.raises(NoResponse, match="user 65534 listens there"):
            ask(int(other.stdout.readline()))
    finally:
        other.kill()
        other.communicate()


def test_the_first_line_shows_that_the_report_is_the_agents(serve: Serve, capsys: pytest.CaptureFixture[str]) -> None:
    port = str(serve(encode(report())))
    words = ["healthcheck", "--profile", "prolog", "--agent-port", port]
    assert main([*words, "-v"]) == 0
    assert capsys.readouterr().out.splitlines()[0] == f"laggard: ok, {len(NAMES)} probes passed 12 s ago (the agent)"
    assert main([*words, "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["facts"]["gate"] == {"agent_report_age_seconds": 12.0}


def failed(probe: str) -> Report:
    """A report in which this probe, which runs on no machine without GPUs, found a disk full."""
    found = report(verdict=Verdict.FAIL).findings
    results = tuple(
        ProbeResult(name, Verdict.FAIL if name == probe else Verdict.OK, "", 0.01, (0,) if name == probe else ())
        for name in dict.fromkeys((*NAMES, probe))
    )
    return Report(Verdict.FAIL, NODE, 0.1, results, found, {})


@pytest.mark.parametrize("probe", ["gpu_ecc", "of_a_newer_agent"])
def test_what_is_critical_for_the_agent_is_looked_at_afresh(
    probe: str, serve: Serve, capsys: pytest.CaptureFixture[str]
) -> None:
    """A report of the agent lets jobs pass, and rejects none: the node may have been repaired since."""
    words = ["healthcheck", "--profile", "prolog", "--gate", "enforce", "--collector", "none"]
    assert main([*words, "--agent-port", str(serve(encode(failed(probe))))]) == 0
    first, *rest = capsys.readouterr().out.splitlines()
    assert first.startswith("laggard: ok, "), first
    assert rest == [
        "gate: DISK_FULL / of the agent's report of 12 s ago is not found now",
        "gate: pass, nothing critical",
    ]


@pytest.mark.parametrize(("drained_ago", "taken"), [(None, True), (5.0, False), (600.0, True)])
def test_a_report_from_before_a_resume_is_void(
    drained_ago: float | None,
    taken: bool,
    serve: Serve,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("LAGGARD_STATE_DIR", str(tmp_path))
    boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    at = None if drained_ago is None else time.time() - drained_ago
    change_memory("n1", boot_id, lambda memory: NodeMemory(resumed_at=at))
    words = ["healthcheck", "--profile", "prolog", "--gate", "enforce", "--collector", "none", "--slurm-node", "n1"]
    main([*words, "-v", "--agent-port", str(serve(encode(report())))])
    assert ("(the agent)" in capsys.readouterr().out) == taken


@rows("gate/more_than_the_agent")
def test_the_gate_runs_the_probes_where_it_asks_for_more(
    words: tuple[str, ...], serve: Serve, capsys: pytest.CaptureFixture[str]
) -> None:
    port = serve(encode(report()))
    main(["healthcheck", *words, "--agent-port", str(port), "--format", "json"])
    assert "agent_report_age_seconds" not in json.loads(capsys.readouterr().out)["facts"].get("gate", {})


@pytest.mark.slow
def test_a_real_agent() -> None:
    """A real agent has a report once its first round is complete."""
    command = [sys.executable, "-m", "laggard", "agent", "--web.listen-address", "127.0.0.1:0"]
    agent = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        assert agent.stderr
        found = re.search(r"http://127.0.0.1:(\d+)", agent.stderr.readline())
        assert found
        url = f"{found[0]}/api/v1/report"
        wait_for(lambda: "age" in get(url, 60.0).headers, lambda: "the agent completed no round")
        cached = fetch_cached_report(int(found[1]), NODE, 90.0, NAMES)
        assert cached.age_seconds < 90 and cached.report.node == NODE
    finally:
        agent.terminate()
        agent.communicate(timeout=300)
