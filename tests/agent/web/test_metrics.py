"""The agent's metrics: a golden text, Prometheus' own linter, and the series that a node may have."""

import os
import re
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse

from laggard import __version__
from laggard.agent.prober.loop import ProbeRound
from laggard.agent.web.routes import Daemon, Router, agent_metrics
from laggard.catalogue.exposition import exposition, metric_family
from laggard.catalogue.metrics import METRICS
from laggard.kit.words import visible
from laggard.model import Finding, Fix, ProbeResult, RankEnd, Report, Severity, Verdict
from laggard.wire.ranks import BeatRow, CollectiveTotal, GroupProgress, RankRow, RanksDocument, RejectedFiles

Start = Callable[..., Any]
GOLDEN = Path(__file__).with_name("metrics.txt")
PROMTOOL = shutil.which("promtool")
HOSTILE = 'a"b\\c\nd{}'
MAX_SERIES = 500


def probe(name: str, verdict: Verdict = Verdict.OK) -> ProbeResult:
    return ProbeResult(name, verdict, "", 0.25)


def a_round(probes: Sequence[ProbeResult] = (), findings: Sequence[Finding] = ()) -> ProbeRound:
    return ProbeRound(Report(Verdict.OK, "n0", 0.5, tuple(probes), tuple(findings), {}), 1_800_000_000.0, True)


def a_finding(code: str, device: str) -> Finding:
    return Finding(code, Severity.WARNING, device, "is ill", {}, Fix("Cure it."), f"docs/findings/{code}.md")


def a_rank(rank: int, pairs: int = 2, **changes: Any) -> RankRow:
    totals = tuple(CollectiveTotal("all_reduce", f"role{number}", 4, 0.5, 1 << 20) for number in range(pairs))
    row = RankRow(
        "j1", rank, rank, 8, "n0", "GPU-1", 0, 1000, 4711, "", "running", 10, 10.0, 6.5,
        (1.0, 2.0, 3.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.5),
        1_800_000_000.5, totals, None, None, 3,
    )  # fmt: skip
    return structs.replace(row, **changes)


def document(*rows: RankRow, ignored: tuple[RejectedFiles, ...] = ()) -> RanksDocument:
    return RanksDocument("n0", "boot", 1.0, rows, ignored)


def series(text: str) -> dict[tuple[str, ...], float]:
    found = {}
    for family in parse(text):
        for sample in family.samples:
            key = (sample.name, *(f"{name}={value}" for name, value in sorted(sample.labels.items())))
            assert key not in found, key
            found[key] = sample.value
    return found


def promtool(text: str) -> None:
    if PROMTOOL is None:
        pytest.skip("PROMTOOL IS NOT INSTALLED: the exposition was not checked by Prometheus itself")
    checked = subprocess.run([PROMTOOL, "check", "metrics"], input=text, capture_output=True, text=True, timeout=300)
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, "", "")


def test_golden(start_agent: Start, start_rank: Start) -> None:
    """The metrics of two real ranks from a real agent. The probes' metrics depend on this machine and are left out.
    UPDATE_GOLDEN=1 in the environment updates the file."""
    running, dead = start_rank(rank=0, gpu="GPU-1"), start_rank(rank=1, local_rank=1, attempt=1)
    running.do("step", "step", "step")
    dead.do("step")
    dead.kill()
    (running.path.parent / "junk.rank").write_bytes(b"")
    agent = start_agent()
    reply = agent.request("/metrics")
    assert reply.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
    promtool(reply.text)
    shown = re.sub(r"^laggard_(probe|finding|agent_probe)[^\n]*[{ ][^\n]*\n", "", reply.text, flags=re.MULTILINE)
    shown = re.sub(r"(_timestamp_seconds{.*}) \S+", r"\1 TIME", shown).replace(__version__, "VERSION")
    shown = shown.replace(f'user="{os.geteuid()}"', 'user="0"')
    shown = re.sub(r"^(process_\w+) \S+", r"\1 VALUE", shown, flags=re.MULTILINE)
    if os.environ.get("UPDATE_GOLDEN"):
        GOLDEN.write_text(shown)
    assert shown == GOLDEN.read_text()


def test_the_metrics_of_probes() -> None:
    probes = [probe("limits"), probe("clock", Verdict.FAIL)]
    findings = [a_finding("CLOCK_SKEW", HOSTILE), a_finding("CLOCK_SKEW", HOSTILE), a_finding("DISK_FULL", "/")]
    body, _ = agent_metrics(document(), a_round(probes, findings), "")
    promtool(body.decode())
    found = series(body.decode())
    assert found["laggard_probe_verdict", "probe=clock", "verdict=fail"] == 1
    assert ("laggard_probe_verdict", "probe=clock", "verdict=ok") not in found
    assert found["laggard_probe_duration_seconds", "probe=limits"] == 0.25
    assert found["laggard_probe_last_run_timestamp_seconds", "probe=limits"] == 1_800_000_000
    assert found["laggard_finding", "code=CLOCK_SKEW", f"device={visible(HOSTILE)}", "severity=warning"] == 1
    assert len([key for key in found if key[0] == "laggard_finding"]) == 2


def test_openmetrics_on_request() -> None:
    rows = document(a_rank(0, job_id=HOSTILE))
    body, content_type = agent_metrics(rows, a_round(), "application/openmetrics-text;version=1.0.0,text/plain;q=0.5")
    assert content_type.startswith("application/openmetrics-text; version=1.0.0")
    families = {family.name: family for family in parse_openmetrics(body.decode())}
    (sample,) = families["laggard_rank_steps"].samples
    assert (sample.name, sample.labels["job_id"], sample.value) == (
        "laggard_rank_steps_total",
        visible(HOSTILE),
        10,
    )


@pytest.mark.parametrize("accept", ["", "*/*", ",,;;q=", "application/openmetrics-text;version=x.y;q=z;;;="])
def test_a_senseless_accept_header(accept: str) -> None:
    assert agent_metrics(document(), a_round(), accept)[1].startswith("text/plain; version=0.0.4")


def test_names_labels_and_limits() -> None:
    """A node with 8 ranks of every kind of collective, 16 probes and 20 findings."""
    rows = document(*(a_rank(rank, pairs=10) for rank in range(8)), ignored=(RejectedFiles("truncated", 2, "x.rank"),))
    findings = [a_finding("DISK_FULL", f"/mnt/{number}") for number in range(20)]
    body, _ = agent_metrics(
        rows, a_round([probe(f"probe{number}") for number in range(16)], findings), "", Daemon(2.5, 3)
    )
    promtool(body.decode())
    found = series(body.decode())
    assert len(found) <= MAX_SERIES
    assert found["laggard_agent_probe_round_seconds",] == 2.5 and found["laggard_connections_turned_away_total",] == 3
    assert found["process_resident_memory_bytes",] > 1e6
    labels = {metric.name: sorted(metric.labels) for metric in METRICS}
    for name, *pairs in found:
        assert [pair.partition("=")[0] for pair in pairs] == labels[name]
        assert ("job_id" in labels[name]) == name.startswith("laggard_rank_") or name == "laggard_rank_files_ignored"


@pytest.mark.parametrize("state", ["finished", "died"])
def test_a_rank_that_ended_is_told_of_for_an_hour(state: str) -> None:
    """Its file stays until its user starts a job on this node again, which may be never."""
    hung_for_hours = a_rank(1, last_progress_timestamp_seconds=1_799_900_000.0)
    ended = a_rank(0, state=state, last_beat_timestamp_seconds=1_800_000_002.0)
    died_late = a_rank(
        2, state=state, end=RankEnd(1_800_003_000.0, 0.1), last_progress_timestamp_seconds=1_799_900_000.0
    )

    def told(now: float | None) -> set[str]:
        ranks = structs.replace(document(hung_for_hours, ended, died_late), now=now)
        text = agent_metrics(ranks, a_round(), "")[0].decode()
        up = [key for key in series(text) if key[0] == "laggard_rank_up"]
        return {label.removeprefix("rank=") for key in up for label in key if label.startswith("rank=")}

    assert told(1_800_003_500.0) == {"0", "1", "2"}
    assert told(1_800_003_700.0) == {"1", "2"}
    assert told(1_800_007_000.0) == {"1"}
    assert told(None) == {"0", "1", "2"}, "an agent that tells no time"


def test_two_users_with_one_job_name() -> None:
    """Each has series of their own: the label `user` tells them apart."""
    ranks = [a_rank(0, job_id="77", owner=owner, steps=owner) for owner in (1, 2)]
    found = series(agent_metrics(document(*ranks), a_round(), "")[0].decode())
    for owner in (1, 2):
        assert found["laggard_rank_steps_total", "job_id=77", "rank=0", f"user={owner}"] == owner


def test_a_collective_of_torchs_own_that_stands_is_in_flight() -> None:
    """DDP's are made in C++, where no hook sees them begin: the Flight Recorder's numbers stand."""
    stands, passes = GroupProgress("0", 27, -1, 26, 61.0), GroupProgress("0", 27, -1, 26, 0.2)
    rows = [
        a_rank(rank, beat=BeatRow(1.0, 5.0, "on", (), (group,), 2.0)) for rank, group in enumerate((stands, passes))
    ]
    found = series(agent_metrics(document(*rows), a_round(), "")[0].decode())
    told = [found["laggard_rank_in_flight_seconds", "job_id=j1", f"rank={rank}", "user=1000"] for rank in (0, 1)]
    assert told == [63.0, 0.0]


def test_no_label_reaches_a_terminal_as_a_control_code() -> None:
    """People read /metrics with curl, and names come from other machines."""
    rows = [(("GPU_XID", "warning", f"\x1b[31mgpu\n\x9b{number}"), 1.0) for number in (1, 2)]
    body, _ = exposition([metric_family("laggard_finding", rows)], "")
    assert r'device="\\x1b[31mgpu\\n\\x9b1"' in body.decode()
    assert all(line.isprintable() for line in body.decode().split("\n"))
    assert body.decode().count("laggard_finding{") == 2


def test_what_a_critical_finding_says_stays_as_it_was_first() -> None:
    """Its figures change all the time, and each change would begin a series."""
    router = Router("n0", None, None, None)  # type: ignore[arg-type]
    finding = structs.replace(
        a_finding("DISK_FULL", "/"), severity=Severity.CRITICAL, action="OPERATOR", summary="99 %"
    )
    report = a_round(findings=[finding, a_finding("CLOCK_SKEW", "clock")]).report
    for summary in ("99 %", "98 %"):
        changed = structs.replace(report, findings=(structs.replace(finding, summary=summary), report.findings[1]))
        told = router._tell(changed)
        assert told == {("DISK_FULL", "/"): ("OPERATOR", "99 %")}
    text = agent_metrics(document(), a_round(), "", Daemon(told=told))[0].decode()
    assert 'laggard_finding_info{action="OPERATOR",code="DISK_FULL",device="/",summary="99 %"} 1.0' in text
    assert not router._tell(structs.replace(report, findings=()))
