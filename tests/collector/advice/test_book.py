"""What a collector takes down of its advice, and how it is judged by the next run and by the same one, over restarts;
and who sees it."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs
from support.collectors import report
from support.stores import open_store
from support.timings import job

from laggard.cli import main
from laggard.collector.advice.book import AdviceBook
from laggard.collector.incidents.database import read_advice
from laggard.collector.incidents.history import HistorySettings, IncidentHistory
from laggard.collector.incidents.incident import Incident
from laggard.collector.incidents.kept_advice import AdviceQuery, RunAdvice
from laggard.collector.jobs.job import JobKey
from laggard.collector.jobs.own_past import Made
from laggard.collector.jobs.snapshot import ClusterSnapshot, JobSnapshot, unknown_location
from laggard.collector.settings import CollectorSettings
from laggard.collector.tenants.viewer import Viewer
from laggard.collector.web.advice_outcomes import AdviceOutcomes
from laggard.collector.web.api import Api
from laggard.collector.web.tenants import TenantIncidents, TenantSource
from laggard.locate.against.digest import Described, digest_of
from laggard.model import Culprit, Verdict
from laggard.recommend.outcome.values import AdviceDocument, RunOutcomes
from laggard.wire import decode
from laggard.wire.node_finding import NodeFinding
from laggard.wire.nodes import NodeRow

BEGAN = 1.79e9
VARIABLES = {"torch": "2.9", "TORCH_DISTRIBUTED_DEBUG": "DETAIL"}


@dataclasses.dataclass
class Run:
    """A run of 16 ranks on n0 and n1, of which n1 is slower by `slow` of a step."""

    name: str = "1"
    owner: int = 1000
    slow: float = 0.4
    began: float = BEGAN
    first_step: int = 2
    variables: dict[str, str] = dataclasses.field(default_factory=lambda: dict(VARIABLES))
    codes: tuple[str, ...] = ("GPU_THROTTLED",)
    culprit: bool = True

    @property
    def key(self) -> JobKey:
        return JobKey(self.owner, self.name)

    def snapshot(self) -> ClusterSnapshot:
        timings = job(ranks=16, steps=40, slow=[(range(8, 16), self.slow)], first_step=self.first_step)
        slow = Culprit("slow_host", tuple(range(8, 16)), "n1", recoverable_ratio=0.28, advice="Exchange n1.")
        location = structs.replace(
            unknown_location("", "", self.name),
            verdict=Verdict.FAIL,
            culprits=(slow,) if self.culprit else (),
            notes=(),
        )
        shown = JobSnapshot(
            self.key, True, timings, location, script="train.py", started_at=self.began,
            agents=frozenset(("http://n0", "http://n1")), environment=self.variables,
        )  # fmt: skip
        findings = tuple(NodeFinding("http://n1", "n1", it) for it in report("n1", self.codes).findings)
        rows = tuple(NodeRow(f"http://{node}", node, "up", "", 0.0, "ok", (), ()) for node in ("n0", "n1"))
        return ClusterSnapshot(nodes=rows, findings=findings, jobs=(shown,))

    def made(self) -> Made:
        timings = self.snapshot().jobs[0].timings
        digest = digest_of(timings, Described(self.variables, self.owner, "train.py", self.began))
        assert digest is not None
        return Made(self.key, digest, False)


def take(book: AdviceBook, run: Run, wall: float, incidents: tuple[Incident, ...] = ()) -> list[RunAdvice]:
    return book.take([run.made()], run.snapshot(), incidents, wall)


@pytest.fixture
def history(place: str) -> Iterator[IncidentHistory]:
    made = IncidentHistory(HistorySettings(place, 8 << 20, 1e9, 300.0))
    made.start()
    yield made
    made.close()


def book_of(history: IncidentHistory) -> AdviceBook:
    return AdviceBook(lambda query: history.advice(query, RunAdvice))


def keep(history: IncidentHistory, runs: list[RunAdvice]) -> None:
    history.keep_advice(runs)
    assert history.flush(60.0)


def told(history: IncidentHistory, name: str) -> dict[str, Any]:
    (run,) = history.advice(AdviceQuery(job_id=name), RunOutcomes)
    return {it.kind: it.outcome for it in run.advised}


VARIABLE = "launcher TORCH_DISTRIBUTED_DEBUG"


def test_the_next_run_tells_what_became_of_advice_and_what_it_gained(history: IncidentHistory) -> None:
    keep(history, take(book_of(history), Run(), BEGAN + 60))
    assert told(history, "1") == {"culprit slow_host": None, "finding GPU_THROTTLED": None, VARIABLE: None}
    later = Run("2", slow=0.0, began=BEGAN + 500, variables={"torch": "2.9"}, culprit=False)
    runs = take(book_of(history), later, BEGAN + 600)  # by the next collector
    assert [run.job_id for run in runs] == ["2", "1"], "the second has a finding, too"
    keep(history, runs)
    outcomes = told(history, "1")
    variable, finding = outcomes[VARIABLE], outcomes["finding GPU_THROTTLED"]
    assert (variable.done, variable.result, variable.started_at) == ("yes", "gained", BEGAN + 500)
    assert variable.ratio == pytest.approx(1.4, rel=0.1) and variable.as_promised is True
    assert (finding.done, finding.how) == ("no", "GPU_THROTTLED is still on n1")
    assert outcomes["culprit slow_host"].done == "unknown"
    third = take(book_of(history), dataclasses.replace(later, name="3", began=BEGAN + 900), BEGAN + 1000)
    assert [run.job_id for run in third] == ["3", "2"], "a run is judged by the next one alone"


@pytest.mark.parametrize(
    "changes",
    [{"owner": 1001}, {"began": BEGAN + 30}],
    ids=["another user's run", "a run that began before the advice was given"],
)
def test_other_runs_tell_nothing(history: IncidentHistory, changes: dict[str, Any]) -> None:
    keep(history, take(book_of(history), Run(), BEGAN + 60))
    values: dict[str, Any] = {"name": "2", "slow": 0.0, "began": BEGAN + 500, **changes}
    runs = take(book_of(history), Run(**values), BEGAN + 600)
    assert [run.job_id for run in runs] == ["2"]


def test_what_was_done_while_the_job_ran_is_judged_by_its_later_steps(history: IncidentHistory) -> None:
    book = book_of(history)
    keep(history, take(book, Run(), BEGAN + 60))
    keep(history, take(book, Run(slow=0.1, first_step=20, codes=(), culprit=False), BEGAN + 120))
    over = told(history, "1")["finding GPU_THROTTLED"]
    assert over.done == "unknown" and over.how.startswith("it was not advised any more"), "some steps are the same ones"
    keep(history, take(book, Run(slow=0.0, first_step=60, codes=(), culprit=False), BEGAN + 180))
    found = told(history, "1")["finding GPU_THROTTLED"]
    assert (found.done, found.result, found.how) == ("yes", "gained", "GPU_THROTTLED is gone from n1")
    keep(history, take(book, Run(slow=0.0, first_step=100, codes=(), culprit=False), BEGAN + 240))
    assert told(history, "1")["finding GPU_THROTTLED"] == found, "and stays so"
    keep(history, take(book_of(history), Run(slow=0.0, first_step=140, culprit=False, codes=()), BEGAN + 300))
    assert told(history, "1")["finding GPU_THROTTLED"] == found, "also for the next collector"


def test_advice_has_the_incident_it_belongs_to(history: IncidentHistory) -> None:
    slow = Run().snapshot().jobs[0].location.culprits[0]
    incident = Incident(7, 1000, "1", "n1 is slow", BEGAN, BEGAN, slow, slow)
    others = structs.replace(incident, id=8, owner=1001)
    (run,) = take(book_of(history), Run(), BEGAN + 60, (others, incident))
    assert [it.incident for it in run.advised if it.target == "culprit"] == [7]


def test_a_defect_in_one_job_costs_that_job(history: IncidentHistory, caplog: pytest.LogCaptureFixture) -> None:
    broken = Made(JobKey(1000, "1"), None, False)  # type: ignore[arg-type]
    runs = book_of(history).take([broken, Run().made()], Run().snapshot(), (), BEGAN)
    assert [run.job_id for run in runs] == ["1"] and "a defect in laggard" in caplog.text


def test_what_is_kept_is_bounded_and_who_floods_it_loses_their_own(place: str, history: IncidentHistory) -> None:
    (one,) = take(book_of(history), Run(), BEGAN + 60)
    history.close()
    database = open_store(place, 4 << 20, 1000.0)
    flood = [structs.replace(one, owner=1001, job_id=f"{n}", made_at=BEGAN + n) for n in range(60)]
    old = structs.replace(one, job_id="old", made_at=BEGAN - 5000)
    database.keep_advice([*flood, one, old], BEGAN)
    database.keep_advice([], BEGAN)
    database.close()
    kept = read_advice(place, AdviceQuery(limit=1000), RunOutcomes)
    assert len(kept) <= 21 and [it.job_id for it in kept if it.owner == 1000] == ["1"]


class Source:
    """A cluster with the runs of two users."""

    def __init__(self, history: IncidentHistory) -> None:
        self.incidents = history
        self.snapshot = Run().snapshot()


def answered(source: Any, query: str = "") -> AdviceDocument:
    from starlette.requests import Request

    scope = {"type": "http", "method": "GET", "query_string": query.encode(), "headers": []}
    response = Api(source, CollectorSettings(incidents_database="")).advice(Request(scope))
    return decode(bytes(response.body), AdviceDocument)


def test_users_see_the_advice_for_their_own_runs_alone(history: IncidentHistory) -> None:
    keep(history, take(book_of(history), Run(), BEGAN + 60))
    keep(history, take(book_of(history), Run("9", owner=1001), BEGAN + 60))
    source = Source(history)
    assert {run.owner for run in answered(source).runs} == {1000, 1001}
    ada = TenantSource(source, Viewer(1000, "ada"))  # type: ignore[arg-type]
    for query in ("", "job=1001:9", "job=9", "limit=5"):
        found = answered(ada, query)
        assert {run.owner for run in found.runs} <= {1000} and found.history.reason == ""
        assert sum(kind.advised for kind in found.kinds) == 3, "and are told how often theirs was right"
    assert not answered(ada, "job=1001:9").runs
    empty = TenantIncidents(history, 1002).advice_document(AdviceQuery())
    assert not empty.runs and not empty.kinds


def test_what_is_taken_down_of_a_finding_is_what_its_owner_may_see(history: IncidentHistory) -> None:
    """A finding that no list shows to users stands for those that tell of others."""
    run = Run(codes=("GPU_THROTTLED",))
    snapshot = run.snapshot()
    (found,) = snapshot.findings
    private = structs.replace(found.finding, code="SOMETHING_PRIVATE", summary="bob's process 4177")
    snapshot = dataclasses.replace(snapshot, findings=(found, NodeFinding("http://n1", "n1", private)))
    (kept,) = book_of(history).take([run.made()], snapshot, (), BEGAN)
    assert "SOMETHING_PRIVATE" not in str(kept) and "4177" not in str(kept) and "GPU_THROTTLED" in str(kept)


def test_the_metric_is_bounded_and_read_once_a_minute(history: IncidentHistory) -> None:
    clock = [100.0]
    outcomes = AdviceOutcomes(lambda: clock[0])
    assert outcomes.look(history) == {}
    keep(history, take(book_of(history), Run(), BEGAN + 60))
    assert outcomes.look(history) == {}
    clock[0] += 61.0
    assert outcomes.look(history) == {("culprit", "waiting"): 1, ("finding", "waiting"): 1, ("launcher", "waiting"): 1}


def test_the_command_reads_the_file(
    place: str, tmp_path: Path, history: IncidentHistory, capfd: pytest.CaptureFixture[str]
) -> None:
    path = place
    assert main(["advice", "--database", path]) == 2
    assert capfd.readouterr().out == "No advice is known.\n"
    keep(history, take(book_of(history), Run(), BEGAN + 60))
    later = Run("2", slow=0.0, began=BEGAN + 500, variables={"torch": "2.9"}, culprit=False, codes=())
    keep(history, take(book_of(history), later, BEGAN + 600))
    assert main(["advice", "--database", path]) == 0
    text = capfd.readouterr().out
    assert "Job 1 (train.py) of user" in text
    assert "Remove TORCH_DISTRIBUTED_DEBUG=DETAIL: done" in text and "Repair GPU_THROTTLED on n1: done" in text
    assert "done together with" in text, "two things were done at once"
    assert main(["advice", "--database", path, "--job", "no-such", "--format", "json"]) == 0
    found = json.loads(capfd.readouterr().out)
    assert found["schema"] == "laggard.advice/1" and found["runs"] == [] and len(found["kinds"]) == 3
    assert main(["advice", "--database", str(tmp_path / "nothing")]) == 64
