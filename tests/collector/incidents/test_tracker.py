"""When an incident begins, goes on and ends, by verdicts that flicker, jobs that end and collectors that start; and
whether two collectors saw the same one."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from laggard.collector.incidents.identity import merged_fault, merged_incident, same_fault, same_incident
from laggard.collector.incidents.incident import Fault, Incident, IncidentQuery
from laggard.collector.incidents.tracker import MAX_CULPRITS, MAX_OPEN_OF_OWNER, IncidentTracker, Moment, Observation
from laggard.model import Culprit, JobKey, Severity

JOB = JobKey(1000, "train")
QUIET = 300.0


def culprit(*ranks: int, kind: str = "slow_compute", **changes: Any) -> Culprit:
    values: dict[str, Any] = dict(node="n1", phase="forward", recoverable_ratio=0.2, advice="look there")
    return Culprit(kind, ranks, **{**values, **changes})


class Rounds:
    """A tracker that sees a round every five seconds. `stored` has the last version of each incident."""

    def __init__(self, tracker: IncidentTracker | None = None, at: float = 1000.0) -> None:
        self.at = at
        self.tracker = tracker or IncidentTracker(QUIET, self.moment)
        self.stored: dict[int, Incident] = {}

    @property
    def moment(self) -> Moment:
        return Moment(1.7e9 + self.at, self.at)

    def see(self, *culprits: Culprit, rounds: int = 1, **changes: Any) -> Rounds:
        values: dict[str, Any] = dict(key=JOB, running=True, conclusive=True, progressed_at=1.7e9 + self.at)
        return self.see_all(Observation(culprits=culprits, **{**values, **changes}), rounds=rounds)

    def see_all(self, *observations: Observation, rounds: int = 1) -> Rounds:
        for _ in range(rounds):
            self.at += 5.0
            self.stored |= {it.id: it for it in self.tracker.observe(observations, self.moment)}
        return self

    @property
    def incidents(self) -> list[Incident]:
        return list(self.stored.values())


def test_a_verdict_that_flickers_is_one_incident() -> None:
    rounds = Rounds()
    for _ in range(10):
        rounds.see(culprit(2)).see(rounds=3).see(culprit(2, phase="backward")).see(conclusive=False)
    (one,) = rounds.tracker.open
    assert one.opened_as.phase == "forward" and one.culprit.phase == "backward" and one.gaps == 9
    rounds.see(rounds=61)
    assert rounds.tracker.open == ()
    (told,) = rounds.incidents
    assert told.closed_because == "recovered" and told.closed_at == told.seen_at
    assert told.what == "rank 2 on n1 is slow in backward"


def test_a_rank_that_is_slow_for_another_reason_goes_on_with_its_incident_and_accuses_a_node_only_meanwhile() -> None:
    rounds = Rounds()
    for kind in ("slow_compute", "slow_host", "slow_input", "uneven_work", "busy_threads"):
        node = None if kind in ("uneven_work", "busy_threads") else "n1"
        (one,) = rounds.see(culprit(2, kind=kind, node=node), rounds=3).tracker.open
        assert (one.culprit.kind, one.culprit.machines, one.opened_as.kind) == (
            kind,
            (node,) * bool(node),
            "slow_compute",
        )
        assert IncidentQuery(None, node="n1").matches(one) == bool(node)
        assert ("n1" in one.what) == bool(node)
    assert len(rounds.incidents) == 1


def test_what_is_named_once_is_no_incident() -> None:
    rounds = Rounds().see(culprit(2)).see(rounds=100).see(culprit(2)).see(rounds=100)
    assert rounds.incidents == []
    assert len(rounds.see(culprit(3, kind="dead")).incidents) == 1, "who died is dead after one round"


def test_no_verdict_ends_nothing() -> None:
    rounds = Rounds().see(culprit(2), rounds=2).see(rounds=50).see(conclusive=False, rounds=500)
    assert len(rounds.tracker.open) == 1


def test_an_incident_has_all_findings_and_its_greatest_cost() -> None:
    rounds = Rounds().see(culprit(2, findings=("GPU_THROTTLED",), recoverable_ratio=0.5), rounds=2)
    rounds.see(culprit(2, findings=("PCIE_LINK_DEGRADED",), evidence=("e" * 5000,) * 99))
    (one,) = rounds.tracker.open
    assert one.findings == ("GPU_THROTTLED", "PCIE_LINK_DEGRADED") and one.most_recoverable_ratio == 0.5
    assert one.opened_as.findings == ("GPU_THROTTLED",)
    assert sum(map(len, one.culprit.evidence)) <= 16 * 400, "what an agent reports is bounded"


def test_ranks_that_turn_out_to_be_their_machine_become_part_of_its_incident() -> None:
    rounds = Rounds().see(culprit(4), culprit(5), rounds=2).see(culprit(4, 5, 6, 7, kind="slow_host"), rounds=2)
    (one,) = rounds.tracker.open
    assert one.culprit.ranks == (4, 5, 6, 7) and one.opened_as.ranks == (4,)
    (other,) = (it for it in rounds.incidents if it.id != one.id)
    assert (other.closed_because, other.part_of) == ("superseded", one.id)


def test_a_slow_rank_that_hangs_is_another_incident() -> None:
    rounds = Rounds().see(culprit(2), rounds=2).see(culprit(2, kind="hung"), rounds=3)
    (one,) = rounds.tracker.open
    assert one.culprit.kind == "hung" and {it.closed_because for it in rounds.incidents} == {None, "superseded"}


def test_links_are_told_apart_by_their_ends() -> None:
    link = ({"node": "n1", "device": "mlx5_0"}, {"node": "n2", "device": "mlx5_0"})
    other = ({"node": "n1", "device": "mlx5_1"}, {"node": "n2", "device": "mlx5_1"})
    rounds = Rounds().see(*(culprit(kind="slow_link", link=each, node=None) for each in (link, other)), rounds=3)
    assert [it.culprit.link for it in rounds.tracker.open] == [link, other]


def test_the_end_of_a_job_ends_its_incidents_once() -> None:
    rounds = Rounds().see(culprit(2), rounds=3)
    ended = 1.7e9 + rounds.at
    rounds.see(culprit(2), culprit(3), running=False, progressed_at=ended, rounds=50)
    assert rounds.tracker.open == ()
    assert [(it.culprit.ranks, it.closed_because) for it in rounds.incidents] == [
        ((2,), "job_ended"),
        ((3,), "job_ended"),
    ]
    rounds.see(culprit(2), rounds=2)  # the next run of that name
    assert len(rounds.tracker.open) == 1


def test_a_job_that_nobody_reports_any_more() -> None:
    rounds = Rounds().see(culprit(2), rounds=3).see_all(rounds=59)
    assert len(rounds.tracker.open) == 1
    rounds.see_all(rounds=3)
    assert [it.closed_because for it in rounds.incidents] == ["job_gone"]


def test_a_job_of_which_nobody_tells_that_it_runs_is_named_as_it_was_and_not_seen_again() -> None:
    """Its last verdict is drawn again and again: a machine is lost whose ranks ran, or the rank files are gone."""
    rounds = Rounds().see(culprit(2), rounds=4)
    (was,) = rounds.tracker.open
    lost = dict(rounds.tracker.lost)
    (held,) = rounds.see(culprit(2, findings=("GPU_XID",)), told=False, rounds=100).tracker.open
    assert (held.id, held.seen_at, held.lost_gpu_hours) == (was.id, was.seen_at, was.lost_gpu_hours)
    assert held.findings == ("GPU_XID",) and rounds.tracker.lost == lost, "what is known later stands in it"
    rounds.see(told=False, rounds=100)
    assert len(rounds.tracker.open) == 1, "nor is it over"
    (again,) = rounds.see(culprit(2)).tracker.open
    assert again.seen_at == rounds.moment.wall
    rounds.see(culprit(2), told=False, rounds=10).see_all(rounds=62)
    (gone,) = rounds.incidents
    assert (gone.closed_because, gone.closed_at) == ("job_gone", again.seen_at)


def test_who_died_is_told_also_where_another_machine_is_lost() -> None:
    rounds = Rounds().see(culprit(2), rounds=3).see(culprit(3, kind="dead"), told=False)
    assert [it.culprit.kind for it in rounds.tracker.open] == ["slow_compute", "dead"]


def test_a_collector_that_starts_again_goes_on() -> None:
    before = Rounds().see(culprit(2), rounds=3)
    (was,) = before.tracker.open
    after = Rounds(IncidentTracker(QUIET, before.moment, before.tracker.open), before.at)
    after.see(rounds=2).see(culprit(2))
    (one,) = after.tracker.open
    assert (one.id, one.opened_at, one.gaps) == (was.id, was.opened_at, 1)


def test_a_job_that_ended_while_the_collector_was_down() -> None:
    before = Rounds().see(culprit(2), rounds=3)
    (was,) = before.tracker.open
    at = before.at + 1000.0
    reported = Rounds(IncidentTracker(QUIET, Moment(1.7e9 + at, 3.0), [was]), at)
    reported.see(culprit(2), running=False, progressed_at=1.7e9 + before.at + 60, rounds=3)
    (told,) = reported.incidents
    assert told.closed_because == "ended_while_down" and told.closed_at == 1.7e9 + before.at + 60
    again = IncidentTracker(QUIET, reported.moment)
    again.remember([told])
    third = Rounds(again, reported.at).see(culprit(2), running=False, progressed_at=told.progressed_at, rounds=5)
    assert third.incidents == [], "a second start opens nothing about the job that has ended"
    forgotten = Rounds(IncidentTracker(QUIET, reported.moment, [was]), at).see_all(rounds=70)
    (told,) = forgotten.incidents
    assert (told.closed_because, told.closed_at) == ("ended_while_down", was.seen_at)


def test_what_it_took_is_its_share_of_every_rank() -> None:
    (one,) = Rounds().see(culprit(2), rounds=73, world_size=8).tracker.open
    assert one.lost_gpu_hours == pytest.approx(0.2 * 8 * 0.1), "a fifth of six minutes"


@given(st.data())
@settings(deadline=None, max_examples=60)
def test_verdicts_give_no_second_of_a_job_away_twice(data: st.DataObject) -> None:
    rounds = Rounds()
    began = rounds.at
    for _ in range(data.draw(st.integers(2, 20))):
        rounds.at += data.draw(st.sampled_from((0.0, 25.0, 395.0)))
        kinds = st.sampled_from(("slow_compute", "hung"))
        named = data.draw(st.lists(st.tuples(st.integers(0, 5), kinds, st.floats(0, 1)), max_size=5))
        culprits = (culprit(rank, kind=kind, node=f"n{rank}", recoverable_ratio=share) for rank, kind, share in named)
        rounds.see(*culprits, world_size=8, slowdown_ratio=data.draw(st.none() | st.floats(1, 9)))
    every = {it.id: it for it in (*rounds.incidents, *rounds.tracker.open)}
    hours = sum(it.lost_gpu_hours for it in every.values())
    assert hours <= 8 * (rounds.at - began) / 3600 + 1e-9
    assert sum(rounds.tracker.lost.values()) == pytest.approx(3600 * hours)


def test_jobs_of_one_name_are_told_apart_by_their_users() -> None:
    others = (Observation(JobKey(owner, "train"), True, True, (culprit(2),), 0.0) for owner in (1000, 1001))
    rounds = Rounds().see_all(*others, rounds=2)
    assert sorted(it.owner for it in rounds.tracker.open) == [1000, 1001]
    assert len({it.id for it in rounds.tracker.open}) == 2


def test_a_user_who_floods_leaves_room_for_others() -> None:
    many = [culprit(rank) for rank in range(2 * MAX_CULPRITS)]
    flood = [Observation(JobKey(666, f"job{n}"), True, True, tuple(many), 0.0) for n in range(50)]
    rounds = Rounds().see_all(*flood, rounds=2)
    assert len(rounds.tracker.open) == MAX_OPEN_OF_OWNER and rounds.tracker.refused > 0
    rounds.see_all(*flood, Observation(JOB, True, True, (culprit(2),), 0.0), rounds=2)
    assert JOB in {it.key for it in rounds.tracker.open}


WALL = 1.79e9


def incident(number: int = 1, ranks: tuple[int, ...] = (2,), at: float = 0.0, **changes: Any) -> Incident:
    culprit = Culprit("slow_compute", ranks, node="n1", phase="forward", advice="look there")
    values: dict[str, Any] = dict(what="slow", opened_at=WALL + at, seen_at=WALL + at + 10, lost_gpu_hours=1.0)
    return Incident(number, 1000, "train", opened_as=culprit, culprit=culprit, **{**values, **changes})


def fault(number: int = 1, **changes: Any) -> Fault:
    values: dict[str, Any] = dict(opened_at=WALL, seen_at=WALL + 10)
    it = Fault(number, "n1", "GPU-a", "GPU_XID", "GPU 0", Severity.WARNING, "there", "gpu_xid", **values)
    return structs.replace(it, **changes)


@pytest.mark.parametrize(
    ("other", "is_same"),
    [
        (incident(2, ranks=(2, 3), at=7), True),  # its machine, by ranks in common
        (incident(2, ranks=(3,)), False),
        (incident(2, at=300.0), False),  # after the first was over
        (incident(2, at=38.0), True),  # within the slack of two collectors' rounds
        (structs.replace(incident(2), owner=7), False),
        (structs.replace(incident(2), job_id="other"), False),
    ],
)
def test_incidents_at_one_place_and_time_are_one(other: Incident, is_same: bool) -> None:
    assert same_incident(incident(closed_at=WALL + 10), other) is is_same
    assert same_incident(other, incident(closed_at=WALL + 10)) is is_same


def test_an_incident_that_moved_is_found_by_where_it_began() -> None:
    moved = structs.replace(incident(), culprit=incident(ranks=(5,)).culprit)
    assert same_incident(moved, incident(2, ranks=(2,))) and same_incident(moved, incident(2, ranks=(5,)))


def test_what_both_know_is_kept() -> None:
    early = incident(1, at=0, findings=("A",), gaps=2, lost_gpu_hours=4.0, most_recoverable_ratio=0.5)
    late = incident(9, ranks=(2, 3), at=6, findings=("B",), lost_gpu_hours=3.0)
    for one, other, number in ((early, late, 1), (late, early, 9)):
        both = merged_incident(one, other)
        assert (both.id, both.opened_at, both.seen_at) == (number, early.opened_at, late.seen_at)
        assert both.culprit == late.culprit and both.opened_as == early.opened_as
        assert set(both.findings) == {"A", "B"} and both.gaps == 2
        assert (both.lost_gpu_hours, both.most_recoverable_ratio) == (4.0, 0.5), "both counted the same seconds"


def test_what_one_has_closed_goes_on_where_another_saw_it_later() -> None:
    closed = incident(closed_at=WALL + 10, closed_because="job_gone")
    assert merged_incident(closed, incident(seen_at=WALL + 60)).closed_at is None
    assert merged_incident(incident(seen_at=WALL + 60), closed).closed_because is None
    ended = merged_incident(incident(seen_at=WALL + 9), closed)
    assert (ended.closed_at, ended.closed_because) == (WALL + 10, "job_gone")
    later = incident(closed_at=WALL + 20, closed_because="recovered")
    assert merged_incident(closed, later).closed_because == merged_incident(later, closed).closed_because == "recovered"


def test_merging_again_changes_nothing() -> None:
    both = merged_incident(incident(1), incident(2, at=6, closed_at=WALL + 20, closed_because="recovered"))
    assert merged_incident(both, both) == both
    assert merged_fault(fault(), fault()) == fault()


def test_a_finding_of_a_machine_is_one_fault_under_any_name() -> None:
    assert same_fault(fault(), fault(2, node="n7", opened_at=WALL + 5))
    assert same_fault(fault(machine=""), fault(2)) and not same_fault(fault(), fault(2, machine="GPU-z"))
    assert not same_fault(fault(), fault(2, detail="79")) and not same_fault(fault(), fault(2, device="GPU 1"))
    both = merged_fault(fault(), fault(2, severity=Severity.CRITICAL, opened_at=WALL - 5))
    assert (both.id, both.severity, both.opened_at) == (1, Severity.CRITICAL, WALL - 5)
