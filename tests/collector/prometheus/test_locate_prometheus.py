"""`laggard locate --prometheus`: verdicts from a real Prometheus on jobs of each kind, and from servers that refuse."""

import re
import shutil
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support.fronts import served_by
from support.prometheus_series import Job, make_blocks, prometheus

from laggard.cli import main
from laggard.collector.prometheus import queries, verdict
from laggard.collector.prometheus.queries import quoted

RANKS = 64
HOSTILE = "a b{}|=~'[5m]"
JOBS = (
    Job(RANKS, slow=(37,), job_id="slow"),
    Job(RANKS, slow=(5,), phase="input", excess=0.03, job_id="input"),
    Job(RANKS, slow=tuple(range(16, 24)), phase="backward", excess=0.02, job_id="host"),
    Job(RANKS, slow=(9,), phase="other", excess=0.03, job_id="logging"),
    Job(RANKS, job_id="healthy", seed=3),
    Job(RANKS, slow=(2,), role="pp", job_id="pipeline"),
    Job(RANKS, hung=11, stalled_at=7, samples=25, job_id="hung"),
    Job(RANKS, hung=11, stalled_at=7, job_id="late"),
    Job(RANKS, gone=12, hung=12, stalled_at=7, job_id="dead"),
    Job(RANKS, stalled_at=7, job_id="all wait"),
    Job(8, job_id="twice", user=1000),
    Job(8, job_id="twice", user=1001, slow=(3,)),
    Job(8, slow=(1,), job_id=HOSTILE),
    # Its last samples are to come: whenever the test runs, there are some of the last minute.
    Job(8, slow=(6,), job_id="fresh", samples=25, interval=60.0, later=4200.0),
)
Locate = Callable[..., tuple[int, dict[str, Any]]]


class Served:
    """A real Prometheus whose last samples are an hour old."""

    def __init__(self, url: str, end: float) -> None:
        self.url, self.end = url, end


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    if not (shutil.which("prometheus") and shutil.which("promtool")):
        pytest.skip("NO PROMETHEUS: locate --prometheus is NOT tested against one; apt-get install prometheus")
    folder, end = tmp_path_factory.mktemp("prometheus"), round(time.time() - 3600.0)
    data = make_blocks(JOBS, end, folder)
    with prometheus(data) as url:
        yield Served(url, end)


def kinds(document: dict[str, Any]) -> list[str]:
    return [note["kind"] for note in document["notes"]]


@pytest.mark.slow  # a Prometheus and a collector
def test_a_collector_judges_the_jobs_of_a_prometheus(served: Served, start_collector: Any, tmp_path: Path) -> None:
    start = partial(start_collector, "--interval", "0.5", targets=[])
    database = f"{tmp_path}/incidents.sqlite"  # not this machine's, which other runs have filled
    collector = start(prometheus=served.url, prometheus_interval_seconds=1, incidents_database=database)

    def location() -> Any:
        return collector.get("/api/v1/location", job="1000:fresh").json()

    collector.wait_until(lambda: bool(location()["culprits"]))
    (culprit,) = location()["culprits"]
    assert (culprit["ranks"], culprit["node"], culprit["phase"]) == ([6], "n0", "forward")
    collector.wait_until(lambda: bool(collector.get("/api/v1/incidents", open=1).json()["incidents"]))
    assert collector.get("/api/v1/incidents").json()["incidents"][0]["what"] == "rank 6 on n0 is slow in forward"
    assert collector.get("/api/v1/ranks", job="1000:fresh").status_code == 200
    collector.stop()
    collector = start(prometheus="http://127.0.0.1:9")
    collector.wait_until(lambda: any("no Prometheus answers" in line for line in summary(collector)["fleet"]))


def summary(collector: Any) -> dict[str, Any]:
    document: dict[str, Any] = collector.get("/api/v1/summary").json()
    return document


@pytest.mark.slow  # a Prometheus
def test_verdicts_from_a_real_prometheus(
    served: Served, locate: Locate, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def of(job: str) -> tuple[int, dict[str, Any]]:
        return locate("--prometheus", served.url, "--at", str(served.end), "--job-id", job)

    status, document = of("slow")
    (culprit,) = document["culprits"]
    assert (status, culprit["kind"], culprit["ranks"], culprit["node"]) == (1, "slow_compute", [37], "n4")
    assert culprit["phase"] == "forward" and culprit["confidence"] > 0.5 and culprit["advice"]
    assert culprit["evidence"][0].startswith("58.0 ms a step in forward, its peers 50.") and "coarse" in kinds(document)
    assert culprit["since_step"] > 1000 and document["owner"] == 1000 and document["world_size"] == RANKS
    assert document["window"]["seconds"] == pytest.approx(9 * 15.0, rel=0.1)
    status, document = of("input")
    assert [(it["kind"], it["ranks"]) for it in document["culprits"]] == [("slow_input", [5])]
    status, document = of("host")
    (culprit,) = document["culprits"]
    assert (culprit["kind"], culprit["node"], culprit["phase"]) == ("slow_host", "n2", "backward")
    status, document = of("healthy")
    assert (status, document["verdict"], document["culprits"]) == (0, "ok", []), document
    status, document = of("logging")  # time in no phase accuses nobody, and the others wait for it
    assert (status, document["verdict"], document["culprits"]) == (2, "unknown", []), document
    assert [note["ranks"] for note in document["notes"] if note["kind"] == "unnamed_time"] == [[9]], document
    status, document = of("pipeline")
    assert "positions_unknown" in kinds(document) and document["culprits"][0]["confidence"] < 0.5
    status, document = of("hung")
    (culprit,) = document["culprits"]
    assert (status, culprit["kind"], culprit["ranks"], culprit["node"]) == (1, "hung", [11], "n1")
    assert "others have waited for it for" in culprit["evidence"][-1] and len(culprit["victims"]) == 63
    status, document = of("late")  # as by an agent: a rank that lives may be saving a checkpoint, for three minutes
    assert (status, kinds(document)[0], document["notes"][0]["ranks"]) == (2, "not_arrived", [11])
    status, document = of("dead")
    assert [(it["kind"], it["ranks"]) for it in document["culprits"]] == [("dead", [12])]
    status, document = of("all wait")
    assert (status, document["verdict"], kinds(document)[0]) == (2, "unknown", "waiting")
    assert "nobody is known to be missing" in document["notes"][0]["text"]
    status, document = of("1001:twice")
    assert document["culprits"][0]["ranks"] == [3] and document["owner"] == 1001
    assert of(HOSTILE)[1]["culprits"][0]["ranks"] == [1]

    assert main(["locate", "--prometheus", served.url, "--at", str(served.end), "--job", "twice"]) == 64
    assert "2 users have a job named twice; ask for one of them as UID:NAME: 1000:twice" in capsys.readouterr().err
    status, document = of('none" or vector(1) or up{x="')
    assert (status, kinds(document)) == (2, ["no_series"]), "a name is a name, whatever is in it"
    status, document = locate("--prometheus", served.url, "--job", "slow")
    assert (status, kinds(document)) == (2, ["stale"])
    assert re.search(r" 6\d min old", document["notes"][0]["text"]), document["notes"]
    late = str(served.end + 150)
    status, document = locate("--prometheus", served.url, "--at", late, "--job", "slow")
    assert (status, kinds(document)) == (2, ["stale"]), "Prometheus shows old samples for five minutes"
    assert main(["locate", "--prometheus", served.url, "--at", str(served.end), "--job", "slow"]) == 1
    assert capsys.readouterr().out.startswith("Rank 37 on n4 is slow in forward: fixing it would save ")
    words = ("--at", str(served.end), "--job", "slow", "--html", str(tmp_path / "job.html"))
    assert locate("--prometheus", served.url, *words)[0] == 1
    page = (tmp_path / "job.html").read_text(encoding="utf-8")
    assert "<h1" in page and "Rank 37 on n4 is slow in forward" in page and f"From Prometheus at {served.url}" in page


@pytest.mark.slow  # a Prometheus
def test_one_look_at_a_small_job_says_what_two_say(
    served: Served, locate: Locate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a large job all ranks are looked at first, and then some closely; of a small one all, closely, at once."""

    def verdicts() -> list[tuple[int, dict[str, Any]]]:
        jobs = [f"{job.user}:{job.job_id}" for job in JOBS if job.job_id not in ("fresh", HOSTILE)]
        return [locate("--prometheus", served.url, "--at", str(served.end), "--job", job) for job in jobs]

    at_once = verdicts()
    monkeypatch.setattr(verdict, "MAX_UNSCREENED_RANKS", 0)
    assert verdicts() == at_once and {status for status, _ in at_once} == {0, 1, 2}


MANY = b'{"status":"error","errorType":"execution","error":"query processing would load too many samples into memory"}'


@pytest.mark.parametrize(
    ("status", "body", "words"),
    [
        (401, b"", "refuses (401): give --bearer-token-file FILE, or --basic-auth-file FILE"),
        (404, b"404 page not found", "has no API there (404): is a path missing behind the host"),
        (302, b"", "sends elsewhere (302), to a login perhaps"),
        (422, MANY, "--query.max-samples: query processing would load too many samples into memory"),
        (503, b"", "is overloaded or away (503)"),
        (500, b"\x1b[2J", "answers 500"),
        (200, b"<html>log in</html>", "not the JSON of Prometheus (a login page?)"),
        (200, b'{"status":"success","data":{"resultType":"vector","result":[{"metric":{', "cut off"),
    ],
)
def test_a_server_that_refuses_is_one_line(
    status: int, body: bytes, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with served_by(lambda *_: (status, body)) as url:
        assert main(["locate", "--prometheus", url]) == (2 if status == 200 else 64)
    said = capsys.readouterr().err
    assert said.startswith(f"laggard: Prometheus at {url}") and words in said and said.count("\n") == 1


def test_no_series_at_all(locate: Locate) -> None:
    with served_by(lambda *_: (200, b'{"status":"success","data":{"resultType":"vector","result":[]}}')) as url:
        status, document = locate("--prometheus", url)
    assert (status, kinds(document)) == (2, ["no_series"]) and "/api/v1/targets" in document["notes"][0]["text"]


def test_names_are_quoted() -> None:
    assert quoted('a"b\\c\n\0') == '"a\\"b\\\\c\\n\\x00"'


def test_a_query_names_so_many_ranks_at_most() -> None:
    ranks = range(100_000, 103_001)
    parts = queries.parts(ranks)
    assert [rank for part in parts for rank in part] == list(ranks) and len(parts) == 3
    longest = max(
        len(queries.selector(queries.STEPS, queries.Job("j" * 200, "1000", "c"), queries.among(it))) for it in parts
    )
    assert longest < 16_384, "VictoriaMetrics' -search.maxQueryLen"
