"""What befalls a long-term store, in real engines that are filled from files, and in stand-ins of those that cannot be
had here: an hour is missing, samples come late, answers are cut into parts or moved, a clock is off."""

import io
import json
import re
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from support.engines import ENGINES, count, need
from support.fronts import asked_for, forwarded, served_by
from support.prometheus_series import Job, make_blocks, prometheus, write_openmetrics
from support.waiting import wait_for

from laggard.cli import main
from laggard.collector.prometheus import client

RANKS = 16
HOUR, MINUTE = 240, 4
"""In samples."""

JOBS = (
    Job(RANKS, slow=(5,), job_id="slow"),
    Job(RANKS, job_id="healthy", seed=3),
    # An hour is missing, and four minutes of samples, or one, came since.
    Job(RANKS, slow=(5,), job_id="hour, slow", samples=HOUR + 40, missing=(24, HOUR + 24)),
    Job(RANKS, job_id="hour, healthy", samples=HOUR + 28, missing=(24, HOUR + 24), seed=1),
    # A Prometheus writes late: of half of the ranks, or of all, the last two minutes have not come.
    Job(RANKS, job_id="half late", behind=(8, 8), samples=40, seed=2),
    Job(RANKS, job_id="all late", behind=(0, 8), samples=40, seed=2),
)
WITHHELD_FROM = (
    Job(RANKS, slow=(5,), phase="input", job_id="input"),
    Job(RANKS, slow=(5,), phase="other", excess=0.03, job_id="logging"),
    Job(RANKS, hung=5, stalled_at=7, job_id="hung"),
)
NEEDED = ("steps_total", "own_seconds_total", "input_seconds_total", 'phase_seconds_total{.*phase="other"')
"""The counters that the judgement of a job that goes on needs of each rank."""

Locate = Callable[..., tuple[int, dict[str, Any]]]


class Served(NamedTuple):
    url: str
    end: float


@pytest.fixture(scope="module", params=["Prometheus", "VictoriaMetrics"])
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """The last samples are an hour old."""
    name, folder, end = request.param, tmp_path_factory.mktemp("engine"), round(time.time() - 3600.0)
    need(name)
    if name == "Prometheus":
        with prometheus(make_blocks(JOBS, end, folder)) as url:
            yield Served(url, end)
        return
    with ENGINES[name](folder) as engine:
        body = _in_ms(end)
        url = f"{engine.write.removesuffix('write')}import/prometheus"
        with urllib.request.urlopen(url, body, 60) as answer:
            assert answer.status == 204
        samples, query = body.count(b"\n"), 'sum(count_over_time({job_id!=""}[4h]))'
        wait_for(lambda: count(engine, query) == samples, lambda: f"{count(engine, query):.0f} of {samples}")
        yield Served(engine.query, end)


def _in_ms(end: float) -> bytes:
    """The jobs' samples as VictoriaMetrics imports them: with milliseconds in place of seconds."""
    text = io.StringIO()
    write_openmetrics(JOBS, end, text)
    lines = (line.rpartition(" ") for line in text.getvalue().splitlines() if not line.startswith("#"))
    return "".join(f"{series} {round(float(moment) * 1000)}\n" for series, _, moment in lines).encode()


def kinds(document: dict[str, Any]) -> list[str]:
    return [note["kind"] for note in document["notes"]]


def words(served: Served, job: str, earlier: float = 0.0, url: str | None = None) -> list[str]:
    return ["--prometheus", url or served.url, "--at", str(served.end - earlier), "--job", job]


@pytest.mark.slow  # real servers
def test_a_store_with_holes_accuses_nobody_and_is_not_ok(served: Served, locate: Locate) -> None:
    status, document = locate(*words(served, "slow"))
    assert [it["ranks"] for it in document["culprits"]] == [[5]], document["notes"]
    assert locate(*words(served, "healthy"))[0] == 0
    assert [it["ranks"] for it in locate(*words(served, "hour, slow"))[1]["culprits"]] == [[5]], (
        "four minutes are enough"
    )
    for job, earlier in (("hour, healthy", 0.0), ("hour, healthy", 1800.0), ("hour, slow", 1800.0)):
        status, document = locate(*words(served, job, earlier))
        assert (status, document["verdict"], document["culprits"]) == (2, "unknown", []), (job, document)
    status, document = locate(*words(served, "all late"))
    assert (status, document["verdict"], kinds(document)) == (2, "unknown", ["stale"]), document
    assert "2 min old" in document["notes"][0]["text"]
    status, document = locate(*words(served, "half late"))
    assert (status, document["verdict"], document["culprits"]) == (2, "unknown", []), document


@pytest.fixture(scope="module")
def behind_a_front(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A real Prometheus for stand-ins to ask."""
    need("Prometheus")
    folder, end = tmp_path_factory.mktemp("behind"), round(time.time() - 3600.0)
    now = Job(8, slow=(6,), job_id="now", samples=150, interval=60.0, later=4200.0)
    with prometheus(make_blocks([*JOBS[:2], *WITHHELD_FROM, now], end, folder)) as url:
        yield Served(url, end)


@pytest.mark.slow  # a real server
def test_stand_ins_of_mimir_and_thanos(behind_a_front: Served, locate: Locate, tmp_path: Path) -> None:
    """Stand-ins, of what their documentation says: Mimir's path and header beside a login of a proxy; Thanos' query
    frontend, which moves start and end of a range to multiples of the step; a Thanos that does not take the replicas'
    label away."""
    real = behind_a_front

    def mimir(path: str, form: bytes, headers: Any) -> tuple[int, bytes]:
        if headers.get("X-Scope-OrgID") != "research":
            return 401, b"no org id"
        if headers.get("Authorization") != "Basic bWU6c2VjcmV0" or headers.get("Cache-Control") != "no-store":
            return 403, b""
        return (
            (200, forwarded(real.url, path.removeprefix("/prometheus"), form)) if "/prometheus/" in path else (404, b"")
        )

    def frontend(path: str, form: bytes, headers: Any) -> tuple[int, bytes]:
        asked = asked_for(form)
        if "step" not in asked:
            return 200, forwarded(real.url, path, form)
        step = float(asked["step"])
        moved = {name: str(float(asked[name]) // step * step) for name in ("start", "end")}
        return 200, forwarded(real.url, path, form, **moved)

    def replicas(path: str, form: bytes, headers: Any) -> tuple[int, bytes]:
        if " by (" in asked_for(form)["query"]:
            return 200, forwarded(real.url, path, form)
        body = json.loads(forwarded(real.url, path, form))
        twice = [
            {**each, "metric": {**each["metric"], "replica": name}} for each in body["data"]["result"] for name in "ab"
        ]
        body["data"]["result"] = twice
        return 200, json.dumps(body, separators=(",", ":")).encode()

    (tmp_path / "login").write_text("me:secret\n")
    (tmp_path / "headers").write_text("X-Scope-OrgID: research\n")
    secrets = ["--basic-auth-file", f"{tmp_path}/login", "--headers-file", f"{tmp_path}/headers"]
    with served_by(mimir) as url:
        for job, ranks in (("slow", [[5]]), ("healthy", [])):
            found = locate(*words(real, job, url=f"{url}/prometheus"), *secrets)[1]
            assert [it["ranks"] for it in found["culprits"]] == ranks
        assert main(["locate", *words(real, "slow", url=f"{url}/prometheus"), *secrets[:2]]) == 64
    for stand_in in (frontend, replicas):
        with served_by(stand_in) as url:
            for earlier in range(0, 15, 4):  # wherever a step begins
                status, document = locate(*words(real, "slow", earlier, url))
                assert [it["ranks"] for it in document["culprits"]] == [[5]], (stand_in, document)
                assert "silent_ranks" not in kinds(document), document
                assert locate(*words(real, "healthy", earlier, url))[0] == 0


@pytest.mark.slow  # a real server
def test_what_is_partial_is_never_ok(behind_a_front: Served, locate: Locate) -> None:
    """A stand-in of a cluster whose storage node is away: half of the ranks, and `isPartial`."""
    real = behind_a_front

    def half(path: str, form: bytes, headers: Any) -> tuple[int, bytes]:
        body = json.loads(forwarded(real.url, path, form))
        found = body["data"]["result"]
        body["data"]["result"] = [it for it in found if int(it["metric"].get("rank", 0)) < RANKS // 2]
        return 200, json.dumps({**body, "isPartial": True}, separators=(",", ":")).encode()

    with served_by(half) as url:
        status, document = locate(*words(real, "healthy", url=url))
        assert (status, document["verdict"], kinds(document)[0]) == (2, "unknown", "partial_answer"), document
        status, document = locate(*words(real, "slow", url=url))
        assert [it["ranks"] for it in document["culprits"]] == [[5]] and kinds(document)[0] == "partial_answer"
        assert "partial" in kinds(document), "8 of 16 ranks are seen"


class Withholding(NamedTuple):
    """A stand-in of a store that has just begun, or has lost a series: it has not the samples of these ranks of the
    metric, whose selector is `pattern`, from `since` to `until` (Unix seconds)."""

    url: str
    pattern: str
    ranks: frozenset[int]
    since: float = 0.0
    until: float = float("inf")

    def __call__(self, path: str, form: bytes, headers: Any) -> tuple[int, bytes]:
        body = json.loads(forwarded(self.url, path, form))
        if re.search(f"laggard_rank_{self.pattern}", asked_for(form)["query"]):
            body["data"]["result"] = [it for it in body["data"]["result"] if self._has(it)]
        return 200, json.dumps(body, separators=(",", ":")).encode()

    def _has(self, series: dict[str, Any]) -> bool:
        if int(series["metric"].get("rank", -1)) not in self.ranks:
            return True
        for name in {"value", "values"} & series.keys():
            samples = [series[name]] if name == "value" else series[name]
            left = [it for it in samples if not self.since <= float(it[0]) <= self.until]
            series[name] = left if name == "values" else left[:1] and left[0]
            return bool(left)
        return True


@pytest.mark.slow  # a real server
@pytest.mark.parametrize("pattern", NEEDED)
@pytest.mark.parametrize("ranks", [{5}, set(range(8)), {15}], ids=["the slow one", "its machine", "another"])
def test_a_series_that_is_not_there_makes_nobody_healthy_and_nobody_slow(
    behind_a_front: Served, locate: Locate, pattern: str, ranks: set[int]
) -> None:
    """The last two minutes of it, all but these, or all."""
    real, late = behind_a_front, behind_a_front.end - 31
    for since, until in ((late, float("inf")), (0.0, late), (0.0, float("inf"))):
        stand_in = Withholding(real.url, pattern, frozenset(ranks), since, until)
        with served_by(stand_in) as url:
            for job, slow in (("slow", [5]), ("input", [5]), ("logging", []), ("healthy", [])):
                document = locate(*words(real, job, url=url))[1]
                accused = [rank for it in document["culprits"] for rank in it["ranks"]]
                assert document["verdict"] != "ok" and accused in ([], slow), (job, since, until, document)
                if document["verdict"] == "unknown":
                    assert {"series_missing", "silent_ranks", "partial"} & set(kinds(document)), (job, document)


@pytest.mark.slow  # a real server
def test_what_is_not_there_of_all_is_said(behind_a_front: Served, locate: Locate) -> None:
    real, everybody = behind_a_front, frozenset(range(RANKS))
    for pattern, kind in (
        (NEEDED[-1], "series_missing"),
        ("step_seconds_total", "series_missing"),
        ("info", "partial"),
    ):
        with served_by(Withholding(real.url, pattern, everybody)) as url:
            status, document = locate(*words(real, "healthy", url=url))
        assert (status, document["verdict"]) == (2, "unknown") and kind in kinds(document), (pattern, document)


@pytest.mark.slow  # a real server
def test_a_rank_whose_collective_is_not_known_is_not_called_hung(behind_a_front: Served, locate: Locate) -> None:
    real = behind_a_front
    for pattern in ("in_flight_seconds", "last_progress_timestamp_seconds", "up"):
        for ranks in ({0}, {5}, set(range(8))):
            with served_by(Withholding(real.url, pattern, frozenset(ranks))) as url:
                document = locate(*words(real, "hung", url=url))[1]
            accused = [rank for it in document["culprits"] for rank in it["ranks"]]
            assert document["verdict"] != "ok" and accused in ([], [5]), (pattern, ranks, document)


@pytest.mark.slow  # a real server
@pytest.mark.parametrize(("hours", "way"), [(-1, "60 min behind"), (0.5, "30 min ahead of")])
def test_a_store_with_another_clock_says_so(behind_a_front: Served, locate: Locate, hours: float, way: str) -> None:
    """A stand-in: a querier whose `now` is another one."""
    real, asked = behind_a_front, []

    def elsewhen(path: str, form: bytes, headers: Any) -> tuple[int, bytes]:
        asked.append(path)
        moment = asked_for(form).get("time") or str(time.time() + hours * 3600)
        return 200, forwarded(real.url, path, form, **({} if path.endswith("query_range") else {"time": moment}))

    with served_by(elsewhen) as url:
        status, document = locate("--prometheus", url, "--job", "now")
    told = [note["text"] for note in document["notes"] if note["kind"] == "store_clock"]
    assert document["verdict"] != "ok" and len(told) == 1 and way in told[0], document


def test_a_server_is_there_where_it_answers_the_least_of_questions() -> None:
    said: list[str] = []
    free = threading.Event()

    def reply(path: str, form: bytes, headers: Any) -> tuple[int, bytes]:
        said.append(asked_for(form)["query"])
        if len(said) == 2:
            free.wait(30.0)  # it hangs
        return 200 if len(said) < 3 else 503, b"{}"

    with served_by(reply) as url:
        asked = client.Prometheus(url)
        assert asked.answers(30.0) and not asked.answers(0.2)
        free.set()
        assert not asked.answers(30.0) and said == ["vector(1)"] * 3
    assert not asked.answers(30.0), "nobody listens"


def test_a_server_that_is_late_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(client, "QUERY_SECONDS", 1.0)
    free = threading.Event()
    with served_by(lambda *_: (200 if free.wait(60.0) else 503, b"{}")) as url:
        assert main(["locate", "--prometheus", url]) == 2
        said = capsys.readouterr().err
        free.set()
    assert "did not answer within 1 s: it is overloaded, or far away" in said and said.count("\n") == 1


def test_an_answer_that_trickles_has_an_end(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each byte comes in time, the last one never."""
    monkeypatch.setattr(client, "ANSWER_SECONDS", 0.5)

    def slowly() -> Iterator[bytes]:
        while True:
            yield b" "
            time.sleep(0.05)

    with served_by(lambda *_: (200, b"")) as url:
        monkeypatch.setattr(client.httpx.Response, "iter_bytes", lambda self, size=None: slowly())
        assert main(["locate", "--prometheus", url]) == 2
    said = capsys.readouterr().err
    assert "the answer has not come to its end within" in said and said.count("\n") == 1
