"""The simulated fleet of bench/fleet.py: it is the same each time, its agents answer as agents do, and its truth is
what laggard finds where it is told all."""

import dataclasses
import time
from collections import Counter
from typing import Any

import msgspec
import pytest
from simulated_fleet import plan as planning
from simulated_fleet.agents import address, is_cut_off
from simulated_fleet.answers import Answers, Now
from simulated_fleet.judge import FALSE, MISSED, RIGHT, UNKNOWN, judged
from simulated_fleet.plan import BAD, LARGEST_RANKS, RANKS, Plan, made

from laggard.collector.agent_state import AgentState
from laggard.collector.jobs.snapshot import ClusterSnapshot, build_snapshot
from laggard.collector.jobs.window import JobWindows
from laggard.collector.scrape.validation import validate_collectives, validate_ranks, validate_ranks_answer
from laggard.collector.targets import parse_target
from laggard.locate.verdict import locate
from laggard.model import JobKey
from laggard.wire import WireError

ZERO = 0.0


def _answers(plan: Plan) -> tuple[Answers, list[float]]:
    """The answers at a time that may be set."""
    now = [0.0]
    answers = Answers(plan, ZERO, {})
    answers.now = lambda: Now(now[0], 1.7e9 + now[0])  # type: ignore[method-assign]
    return answers, now


def test_the_same_seed_makes_the_same_fleet() -> None:
    first = made(4096, 500, 1)
    assert first == made(4096, 500, 1) != made(4096, 500, 2)
    assert len(first.jobs) == 501 and first.jobs[0].ranks == LARGEST_RANKS
    assert {job.fault for job in first.jobs} == {"", *planning.FAULTS}
    assert len(first.away) == 41 and set(first.bad.values()) == set(BAD) and not first.away & first.bad.keys()


@pytest.mark.parametrize(("nodes", "jobs"), [(24, 3), (1024, 121), (16_384, 501)])
def test_each_node_has_at_most_one_job(nodes: int, jobs: int) -> None:
    plan = made(nodes, 500, 1)
    taken = Counter(share.job.number for node in range(nodes) if (share := plan.share(node)))
    assert taken == {job.number: job.nodes for job in plan.jobs}
    assert nodes / 2 < sum(taken.values()) <= nodes and len(plan.jobs) == jobs
    assert len({address(node, 9400) for node in range(nodes)}) == nodes
    assert sum(is_cut_off(node, nodes) for node in range(nodes)) == nodes // 2


def _told(plan: Plan, at: float, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What laggard says of each job `at` that time, where all agents tell the truth, and did so at the begin."""
    answers, now = _answers(plan)
    windows = JobWindows()
    agents = [AgentState(parse_target(address(node, 9400))) for node in range(plan.nodes)]
    for now[0] in (1.0, at):
        monkeypatch.setattr(time, "time", lambda: 1.7e9 + now[0])
        for node, agent in enumerate(agents):
            found = validate_ranks_answer(answers.ranks(node, agent.since, later=node % 2 == 0))
            agent.update_ranks(found, windows, 1000 + now[0], 1000 + now[0])
    for job in plan.jobs:
        if job.fault == "slow_link":
            held = windows.jobs[JobKey(job.owner, job.name)]
            bodies = [
                (tuple(range(RANKS * place, RANKS * (place + 1))), job.first + place) for place in range(job.nodes)
            ]
            documents = [
                validate_collectives(answers.collectives(node, ranks), job.owner, job.name, ranks)
                for ranks, node in bodies
            ]
            held.collectives = {it.rank: it for document in documents for it in document.ranks}
            held.collectives_at = held.updated_at
    rows = tuple(agent.row(1000 + at) for agent in agents)
    jobs = build_snapshot(windows, ClusterSnapshot(nodes=rows), locate).jobs
    return {str(job.key): msgspec.to_builtins(job.location) for job in jobs}


def test_what_is_wrong_is_what_is_found_where_all_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "FAULTY_SHARE", 0.8)
    plan = dataclasses.replace(made(160, 16, 2), bad={}, away=frozenset())
    assert {job.fault for job in plan.jobs} == {"", *planning.FAULTS}
    found = judged(plan, _told(plan, 130.0, monkeypatch), 130.0)
    assert {each.outcome for each in found} == {RIGHT}, [each.said for each in found if each.outcome != RIGHT]


def test_who_is_named_falsely_counts_as_that() -> None:
    plan = made(40, 5, 1)
    job = plan.jobs[0]
    culprit = {"kind": "slow_compute", "ranks": [job.victim]}
    innocent = {"kind": "slow_compute", "ranks": [(job.victim + 1) % job.ranks]}

    def outcome(verdict: str, *culprits: dict[str, Any]) -> str:
        return judged(plan, {job.key: {"verdict": verdict, "culprits": culprits}}, 0.0)[0].outcome

    assert outcome("fail", culprit) == RIGHT
    assert outcome("fail", culprit, innocent) == outcome("fail", innocent) == FALSE
    assert outcome("fail", culprit | {"kind": "dead"}) == FALSE
    liar = {"kind": "slow_host", "ranks": [0], "node": f"n{next(node for node in plan.bad if plan.bad[node])}"}
    liars = dataclasses.replace(plan, bad={node: "claims" for node in plan.bad})
    found = judged(liars, {job.key: {"verdict": "fail", "culprits": [culprit, liar]}}, 0.0)[0]
    assert (found.outcome, found.liars) == (RIGHT, 1), "the machine of an agent that says that it is slow"
    assert (outcome("ok"), outcome("unknown")) == (MISSED, UNKNOWN)


def test_absurd_answers_are_refused_and_those_of_the_next_release_are_not() -> None:
    plan = made(16, 3, 1)
    answers, now = _answers(plan)
    now[0] = 50.0
    with pytest.raises(WireError, match=r"<= 1000000000000.0 - at `\$.ranks\[0\].step_seconds`"):
        validate_ranks(answers.absurd(0))
    assert b"of_the_next_release" in answers.ranks(0, 0.0, later=True)
    assert validate_ranks(answers.ranks(0, 0.0, later=True)) == validate_ranks(answers.ranks(0, 0.0, later=False))
