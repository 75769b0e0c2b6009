"""The agent's routes, asked as functions: which path answers what, who is refused, and what stands in each answer."""

import json
import os
import time
from collections.abc import Callable
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest
from support.rows import rows
from support.stack_documents import sampled
from support.steps import numbers

from laggard.agent.prober.loop import ProbeLoop, ProbeRound
from laggard.agent.ranks.reader import RankCache, RankFiles
from laggard.agent.web import page
from laggard.agent.web.page import headline, ranks_summary
from laggard.agent.web.routes import Router
from laggard.agent.web.stacks import StackService
from laggard.collector.scrape.validation import validate_collectives, validate_ranks, validate_ranks_answer
from laggard.kit.http_message import NO_PAGE, Request, Response
from laggard.kit.secret_files import TokenFile
from laggard.model import Finding, Fix, ProbeResult, Report, Severity, Verdict
from laggard.stacks.ask import read_ask
from laggard.stacks.sampled import encode
from laggard.wire.ranks import RanksDocument, RejectedFiles

Start = Callable[..., Any]
TOKEN = "correct horse battery staple"


@pytest.fixture
def loop() -> ProbeLoop:
    """Its thread is not started: the test says what a round found."""

    def no_probes() -> Report:
        raise AssertionError("no round runs here")

    return ProbeLoop(no_probes, "<b>n0", 30.0)


@pytest.fixture
def ask(rank_dir: Path, loop: ProbeLoop, tmp_path: Path) -> Callable[..., Response]:
    """Asks the routes of an agent that has a token for stacks."""
    ranks = RankFiles(str(rank_dir), "n0")
    cached = RankCache(ranks.read, 0.0)
    (tmp_path / "token").write_text(TOKEN)
    (tmp_path / "token").chmod(0o600)
    tokens = TokenFile(str(tmp_path / "token"), "stacks_token_file")
    router = Router("<b>n0", ranks, cached, loop, stacks=StackService.made(ranks, cached, tokens=tokens))

    def asked(target: str, method: str = "GET", authorization: str = "") -> Response:
        path, _, query = target.partition("?")
        return router.handle(Request(method, path, query, "", authorization))

    return asked


def error_of(response: Response) -> tuple[int, str]:
    return response.status.value, json.loads(response.body)["error"]


def a_round(age_seconds: float, complete: bool = True) -> ProbeRound:
    report = Report(Verdict.OK, "n0", 0.5, (ProbeResult("disks", Verdict.OK, "", 0.1),), (), {})
    return ProbeRound(report, time.time() - age_seconds, complete)


def test_before_the_first_round_it_is_healthy_and_not_ready_and_its_report_has_no_age(
    ask: Callable[..., Response], loop: ProbeLoop
) -> None:
    assert (ask("/-/healthy").status, ask("/-/healthy").body) == (HTTPStatus.OK, b"healthy\n")
    assert ask("/-/ready").status == HTTPStatus.SERVICE_UNAVAILABLE and b"first round" in ask("/-/ready").body
    report = ask("/api/v1/report")
    assert json.loads(report.body)["verdict"] == "unknown" and "Age" not in dict(report.headers)
    loop.latest, loop.ready = a_round(11.5), True
    assert ask("/-/ready").body == b"ready\n"
    assert dict(ask("/api/v1/report").headers)["Age"] == "12", "a gate goes by it, so it is never younger than it is"
    for no_age in (a_round(3.0, complete=False), a_round(-60.0)):  # a clock that was set back
        loop.latest = no_age
        assert "Age" not in dict(ask("/api/v1/report").headers)


@pytest.mark.parametrize("path", ["/", "/metrics", "/-/healthy", "/-/ready", "/api/v1/report", "/api/v1/ranks", "/no"])
def test_every_answer_has_the_headers_that_keep_a_browser_from_running_it(
    ask: Callable[..., Response], path: str
) -> None:
    assert set(ask(path).headers) >= set(page.HEADERS if path == "/" else NO_PAGE)


def test_what_is_not_there_or_would_change_something_is_refused(ask: Callable[..., Response]) -> None:
    for method in ("POST", "PUT", "DELETE", "NONSENSE"):
        refused = ask("/metrics", method)
        assert error_of(refused)[0] == 405 and dict(refused.headers)["Allow"] == "GET, HEAD"
    assert dict(ask("/api/v1/stacks/ask").headers)["Allow"] == "POST"
    for path in ("/nope", "//", "/metrics/", "/../etc/passwd", "/api/v1/ranks/x"):
        assert error_of(ask(path))[0] == 404 and "/api/v1/ranks" in error_of(ask(path))[1]
    for since in ("x", "", "-1", "nan", "inf", "1e400", "0x10", "1_0", "+1", "%D9%A3", "0&since=x"):
        status, text = error_of(ask(f"/api/v1/ranks?since={since}"))
        assert status == 400 and text.startswith("since has to be a number from 0"), since
    uid = "owner has to be a whole number from 0 to 4294967295: the uid of the job's owner"
    job = "job has to be a text of up to 300 characters: the job's id"
    ranks = "rank has to be a list of up to 16, each a whole number from 0 to 4294967295: the ranks"
    for query, refusal in {
        "": uid,
        "?owner=x&job=j1&rank=0": uid,
        "?owner=4294967296&job=j1&rank=0": uid,
        "?owner=0&rank=0": job,
        "?owner=0&job=j1": ranks,
        "?owner=0&job=j1&rank=1,2": ranks,
        "?owner=0&job=j1&rank=1&rank=<b>": ranks,
        "?owner=0" + "&rank=1" * 17: job,
        "?owner=0&job=j1" + "&rank=1" * 17: "a question has up to 18 parameters",
    }.items():
        assert error_of(ask(f"/api/v1/collectives{query}")) == (400, refusal), query


def test_a_defect_is_told_without_its_traceback(
    ask: Callable[..., Response], loop: ProbeLoop, caplog: pytest.LogCaptureFixture
) -> None:
    del loop.latest
    assert error_of(ask("/api/v1/report")) == (500, "a defect in laggard: the agent's log has the traceback")
    assert "AttributeError" in caplog.text and ask("/-/healthy").status == HTTPStatus.OK


def test_ranks_and_their_collectives_are_told_as_the_collector_takes_them(
    ask: Callable[..., Response], start_rank: Start
) -> None:
    rank = start_rank(rank=2)
    rank.do("step", "collectives")
    document, (steps,) = validate_ranks_answer(ask("/api/v1/ranks?since=0").body)
    (row,) = document.ranks
    assert (row.rank, row.state, numbers(steps)) == (2, "running", [0])
    shown = ask("/").body
    assert b"<h1>&lt;b&gt;n0" in shown and b"<b>n0" not in shown and b"1 rank of 1 job run here" in shown
    asked = f"/api/v1/collectives?owner={row.owner}&job={row.job_id}&rank=2&rank=3"
    (found,) = validate_collectives(ask(asked).body, row.owner, row.job_id, (2, 3)).ranks
    assert [(it.lane, it.seq, it.size) for it in found.rows] == [(0, seq, 1 << 20) for seq in range(10)]
    assert json.loads(ask(asked.replace("owner=", "owner=9")).body)["ranks"] == [], "another user's job"
    rank.kill()
    assert validate_ranks(ask("/api/v1/ranks").body).ranks[0].state == "died"
    assert json.loads(ask(asked).body)["ranks"] == [], "it no longer runs"


def test_stacks_are_for_who_has_the_token_and_a_job_is_asked_now_and_then(
    ask: Callable[..., Response], start_rank: Start, rank_dir: Path
) -> None:
    rank = start_rank(rank=0)
    job = f"owner={os.geteuid()}&job=j1"
    for authorization in ("", "Bearer another", f"Basic {TOKEN}", f"Bearer {TOKEN}x"):
        refused = ask(f"/api/v1/stacks?{job}", authorization=authorization)
        assert error_of(refused)[0] == 401 and dict(refused.headers)["WWW-Authenticate"] == "Bearer"
        assert error_of(ask(f"/api/v1/stacks/ask?{job}", "POST", authorization))[0] == 401
    bearer = f"bearer {TOKEN}"
    assert ask(f"/api/v1/stacks?{job}", authorization=bearer).status == HTTPStatus.OK
    assert error_of(ask("/api/v1/stacks/ask?owner=9&job=j1", "POST", bearer))[0] == 404
    assert error_of(ask(f"/api/v1/stacks/ask?{job}&seconds=1e9", "POST", bearer))[0] == 400
    assert not (rank_dir / ".ask").exists()
    granted = ask(f"/api/v1/stacks/ask?{job}&ranks=0,9&samples=7&seconds=1.5", "POST", bearer)
    assert granted.status == HTTPStatus.OK, granted.body
    asked = json.loads(granted.body)
    assert asked["ranks"] == [0] and [it["rank"] for it in asked["missing"]] == [9]
    written = read_ask(str(rank_dir / ".ask"), frozenset({0, os.geteuid()}))
    assert written is not None and [written.ident] == asked["idents"]
    assert (written.job_id, written.ranks, written.samples, written.seconds) == ("j1", {0}, 7, 1.5)
    again = ask(f"/api/v1/stacks/ask?{job}", "POST", bearer)
    assert error_of(again)[0] == 429 and int(dict(again.headers)["Retry-After"]) == 10
    pid = int(rank.path.name.partition("-")[0])
    rank.path.with_suffix(".stacks").write_bytes(encode(sampled(0, 0.5, pid=pid, ask=written.ident)))
    (found,) = json.loads(ask(f"/api/v1/stacks?{job}", authorization=bearer).body)["ranks"]
    assert (found["rank"], found["ask"], found["frames"][0][0]) == (0, written.ident, "tokenize")
    assert all(b"tokenize" not in ask(path).body for path in ("/metrics", "/api/v1/ranks", "/"))
    unharmed = json.loads(ask("/api/v1/stacks?owner=0&job=../../etc", authorization=bearer).body)
    assert unharmed["ranks"] == [] and unharmed["missing"] == []


def report(verdict: Verdict, *findings: Finding) -> Report:
    probes = (ProbeResult("clock", verdict, "no clock", 0.1), ProbeResult("disks", Verdict.OK, "", 0.1))
    return Report(verdict, "n0", 0.1, probes, findings, {})


def finding(severity: Severity, code: str = "DISK_FULL") -> Finding:
    return Finding(code, severity, "/", "is full", {}, Fix("Empty it."), "docs/findings/DISK_FULL.md")


@rows("agent/headlines")
def test_the_headline(verdict: str, found: tuple[tuple[str, ...], ...], expected: str) -> None:
    findings = [finding(Severity(severity), *code) for severity, *code in found]
    assert headline("n0", report(Verdict(verdict), *findings)) == expected


def test_the_summary_of_the_ranks() -> None:
    assert ranks_summary(RanksDocument("n0", "", 0.0, (), ())) == "No rank trains here."
    rejected = (RejectedFiles("truncated", 2, "x.rank"),)
    assert (
        ranks_summary(RanksDocument("n0", "", 0.0, (), rejected)) == "0 ranks of 0 jobs run here, 2 rank files ignored."
    )
