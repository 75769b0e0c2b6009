"""Parts of reports that many nodes have alike are held once, and only those that are alike to the letter."""

from __future__ import annotations

from typing import Any

from msgspec import structs

from laggard.collector.scrape import agent_state as shared_reports
from laggard.collector.scrape.agent_state import SharedReports
from laggard.model import ProbeResult, Report, Verdict


def _report(node: str, seconds: float = 0.1, **facts: Any) -> Report:
    probe = ProbeResult("gpu_count", Verdict.OK, "8 GPUs", seconds, (), "")
    return Report(Verdict.OK, node, 1.0, (probe,), (), facts)


def test_alike_parts_of_two_nodes_are_one_object() -> None:
    shared = SharedReports()
    one, other = (shared.of(_report(node, seconds, acs={"a": [1, 2]})) for node, seconds in (("n0", 0.1), ("n1", 0.2)))
    assert one.facts["acs"] is other.facts["acs"] and one.probes[0] is other.probes[0]
    assert (one.node, other.node) == ("n0", "n1")
    plain = _report("n1", acs={"a": [1, 2]})
    assert other == structs.replace(plain, probes=(structs.replace(plain.probes[0], elapsed_seconds=0.0),))


def test_what_python_holds_for_equal_is_not_exchanged() -> None:
    shared = SharedReports()
    values: list[Any] = [1, True, 1.0, "1", [1], [True], {"a": 1}, {"a": True}, {"a": 1, "b": 2}, {"b": 2, "a": 1}]
    told = [shared.of(_report("n0", acs=value)).facts["acs"] for value in values]
    assert [repr(value) for value in told] == [repr(value) for value in values]
    assert shared.of(_report("n0", other={"a": 1})).facts["other"] == {"a": 1}


def test_facts_that_are_nested_too_deeply_stay_as_they_are() -> None:
    nested: Any = 1
    for _ in range(5000):
        nested = [nested]
    assert SharedReports().of(_report("n0", acs=nested)).facts["acs"] is nested


def test_agents_that_tell_something_else_each_time_fill_no_memory(monkeypatch: Any) -> None:
    monkeypatch.setattr(shared_reports, "MAX_PARTS", 10)
    shared = SharedReports()
    for number in range(1000):
        assert shared.of(_report("n0", acs=number)).facts["acs"] == number
    assert len(shared._parts) <= 10 + 3, "what came since it was full last, and one report more"
    large = "x" * (shared_reports.MAX_PART_BYTES + 1)
    one, other = (shared.of(_report("n0", acs=[large])).facts["acs"] for _ in range(2))
    assert one == other and one is not other
