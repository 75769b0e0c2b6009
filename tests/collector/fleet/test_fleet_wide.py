"""One cause on many nodes, and how many nodes are drained within an hour."""

from collections.abc import Iterable

import pytest

from laggard.collector.fleet import (
    FailingSince,
    drains_document,
    failing_since,
    fleet_wide_codes,
    for_that_alone,
    waiting_seconds,
)
from laggard.collector.jobs.snapshot import ClusterSnapshot
from laggard.model import Finding, Fix, Severity
from laggard.wire.nodes import NodeFinding, NodeRow

HOUR = 3600.0


def found(code: str, nodes: Iterable[int], severity: Severity = Severity.CRITICAL) -> list[NodeFinding]:
    finding = Finding(code, severity, "gpu0", "", {}, Fix(""), "")
    return [NodeFinding(f"http://n{it}:19400", f"n{it}", finding) for it in nodes]


def after(*rounds: tuple[float, list[NodeFinding]]) -> FailingSince:
    """A collector that had started long before, after these rounds."""
    since = failing_since(FailingSince(), [], 0.0)
    for now, findings in rounds:
        since = failing_since(since, findings, now)
    return since


@pytest.mark.parametrize(
    ("nodes", "answering", "is_one"),
    [(4, 10, False), (5, 10, True), (5, 100, True), (20, 2000, False), (21, 2000, True)],
)
def test_what_many_get_within_an_hour_is_one_thing(nodes: int, answering: int, is_one: bool) -> None:
    since = after((1000.0, found("ACS_ENABLED", range(nodes))))
    assert fleet_wide_codes(since, answering, 0.01, 1.0) == ({"ACS_ENABLED": nodes} if is_one else {})


def test_what_comes_one_by_one_is_many_faults_until_they_are_more_than_the_cap() -> None:
    rounds = [(1000.0 + HOUR * it, found("GPU_LOST", range(it + 1))) for it in range(6)]
    assert fleet_wide_codes(after(*rounds), 100, 0.01, 0.1) == {}
    assert fleet_wide_codes(after(*rounds), 100, 0.01, 0.05) == {"GPU_LOST": 6}


def test_it_stays_one_thing_while_it_lasts() -> None:
    findings = found("ACS_ENABLED", range(30))
    assert fleet_wide_codes(after((1000.0, findings), (1000.0 + 9 * HOUR, findings)), 1000, 0.01, 0.05) == {
        "ACS_ENABLED": 30
    }


def test_warnings_and_what_was_there_at_the_start_make_nothing_fleet_wide() -> None:
    assert fleet_wide_codes(after((1000.0, found("CLOCK_SKEW", range(50), Severity.WARNING))), 100, 0.01, 0.05) == {}
    at_start = failing_since(FailingSince(), found("GPU_LOST", range(20)), 0.0)
    assert fleet_wide_codes(at_start, 2000, 0.001, 0.05) == {}, "they may have failed for a month, one after the other"
    assert fleet_wide_codes(at_start, 100, 0.001, 0.05) == {"GPU_LOST": 20}


def test_four_are_drained_within_an_hour_the_first_ones_first() -> None:
    rounds = [(1000.0 + 60 * it, found("GPU_LOST", range(it + 1))) for it in range(6)]
    since = after(*rounds)
    assert waiting_seconds(since, (), 4, 1300.0) == {"n4": HOUR - 300, "n5": HOUR - 240}
    assert waiting_seconds(since, (), 4, 1000.0 + HOUR) == {"n5": 60.0}
    assert waiting_seconds(since, (), 4, 1060.0 + HOUR) == {}


def test_who_was_repaired_within_the_hour_still_counts() -> None:
    since = after((1000.0, found("GPU_LOST", range(4))), (1100.0, found("GPU_LOST", [7])))
    assert waiting_seconds(since, (), 4, 1100.0) == {"n7": HOUR - 100}
    later = failing_since(since, found("GPU_LOST", [7]), 1000.0 + HOUR)
    assert waiting_seconds(later, (), 4, 1000.0 + HOUR) == {}


def test_a_fault_of_its_own_is_not_hidden_by_what_all_have() -> None:
    since = after((1000.0, [*found("ACS_ENABLED", range(50)), *found("GPU_LOST", [3])]))
    codes = fleet_wide_codes(since, 100, 0.01, 0.05)
    alone = for_that_alone(since, codes)
    assert codes == {"ACS_ENABLED": 50} and "n3" not in alone and len(alone) == 49
    assert waiting_seconds(since, codes, 4, 1000.0) == {}
    rows = tuple(
        NodeRow(f"http://n{it}:19400", f"n{it}", "up", "", 0.0, "fail" if it < 50 else "ok", (), ())
        for it in range(100)
    )
    findings = (*found("ACS_ENABLED", range(50)), *found("GPU_LOST", [3]))
    snapshot = ClusterSnapshot(rows, findings=findings, rounds=1, fleet_wide=codes, failing_together=alone)
    own = drains_document(snapshot, 0.05, "n3")
    assert own.may_drain and own.asker_fails and own.failing == 0
    other = drains_document(snapshot, 0.05, "n4")
    assert not other.may_drain and other.asker_fails and other.reason.startswith("ACS_ENABLED is on 50 of 100 nodes: ")
    held = drains_document(ClusterSnapshot(rows[:3], rounds=1, waiting_seconds={"n1": 600.0}), 1.0, "n1")
    assert not held.may_drain and held.reason.endswith("this one may be in 10 min")
