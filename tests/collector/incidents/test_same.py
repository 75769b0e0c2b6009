"""Whether two collectors saw the same: places that overlap, clocks and rounds that differ, what one has closed."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import structs

from laggard.collector.incidents.identity import merged_fault, merged_incident, same_fault, same_incident
from laggard.collector.incidents.incident import Fault, Incident
from laggard.model import Culprit, Severity

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
