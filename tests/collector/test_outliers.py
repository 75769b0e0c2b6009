"""Nodes that differ from their peers: by what most of them have, and by their values."""

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from laggard.collector import agent_state
from laggard.collector.agent_state import AgentState, compare_nodes
from laggard.collector.outliers import (
    COMPARED_FACTS,
    MANY_RATIO,
    MAX_NOTES,
    MIN_NODES,
    Consensus,
    compared_node,
    value_of,
)
from laggard.collector.outliers import consensus as consensus_of
from laggard.collector.targets import parse_target
from laggard.model import Report, Severity, Verdict


def _report(node: str, kernel: str) -> Report:
    identity = {"product": "HGX", "gpu_models": ["H100"], "kernel_release": kernel}
    return Report(Verdict.OK, node, 0.1, (), (), {"identity": identity})


def _agents(*kernels: str) -> list[AgentState]:
    return [
        AgentState(parse_target(f"n{number}"), state="up", node=f"n{number}", report=_report(f"n{number}", kernel))
        for number, kernel in enumerate(kernels)
    ]


def test_what_is_compared_is_read_again_where_it_changed_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reports come each minute, with other times and temperatures, and the same versions."""
    read: list[Any] = []
    monkeypatch.setattr(agent_state, "compared_node", lambda facts: read.append(facts) or compared_node(facts))
    agents = _agents("6.1", "6.1", "6.1", "5.15")
    compare_nodes(agents)
    for agent, kernel in zip(agents, ("6.1", "6.1", "6.1", "5.15"), strict=True):
        agent.report = _report(str(agent.node), kernel)
        agent.report.facts["thermal"] = {"celsius": 61.5}
    assert [found.node for found in compare_nodes(agents).findings] == ["n3"] and len(read) == 4
    for _ in range(2):
        nested: Any = 1
        for _ in range(5000):
            nested = [nested]
        agents[3].report = _report("n3", "5.15")
        agents[3].report.facts["inventory"] = {"rdma": nested}
        assert [found.node for found in compare_nodes(agents).findings] == ["n3"]
    assert len(read) == 6, "what cannot be compared with what was before is read"


def test_an_agent_that_falls_silent_or_goes_is_not_counted() -> None:
    agents = _agents("6.1", "6.1", "6.1", "5.15")
    compare_nodes(agents)
    agents[3].state = "down"
    assert not compare_nodes(agents).findings
    agents[3].state = "up"
    assert [found.node for found in compare_nodes(agents).findings] == ["n3"]
    assert not compare_nodes(agents[:3]).findings


KERNEL, OTHER = "5.15.0-113-generic", "5.15.0-118-generic"


def facts(kernel: Any = KERNEL, product: str | None = "DGX H100", **more: Any) -> dict[str, Any]:
    identity = {"product": product, "kernel_release": kernel, "gpu_models": ["NVIDIA H100 80GB HBM3"], **more}
    return {"identity": {name: value for name, value in identity.items() if value is not None}}


def fleet(count: int, **changes: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {f"n{number:03}": facts() for number in range(count)} | changes


def consensus(nodes: Mapping[str, Any]) -> Consensus:
    return consensus_of({node: compared_node(facts) for node, facts in nodes.items()})


def kinds(nodes: Mapping[str, Any]) -> list[str]:
    return [note.kind for note in consensus(nodes).notes]


def test_the_outlier_is_named_with_both_values() -> None:
    result = consensus(fleet(8, n003=facts(OTHER)))
    assert list(result.findings) == ["n003"] and result.notes == ()
    (finding,) = result.findings["n003"]
    assert (finding.code, finding.severity, finding.device) == ("FLEET_OUTLIER", Severity.WARNING, "kernel release")
    assert finding.evidence == {
        "value": OTHER,
        "majority_value": KERNEL,
        "nodes_with_majority": 7,
        "nodes_compared": 8,
        "hardware": "DGX H100 with NVIDIA H100 80GB HBM3",
    }
    assert finding.summary == f"is {OTHER}; 7 of 8 nodes of the same hardware have {KERNEL}"
    assert finding.fix.commands == ("uname -r",)


def test_equal_nodes_give_no_findings() -> None:
    assert consensus(fleet(8)) == ({}, ())
    assert consensus({}) == ({}, ())
    assert consensus({"a": {}, "b": {}}) == ({}, ())  # agents without facts: nothing to compare, and no note


def test_another_generation_of_machines_is_no_outlier() -> None:
    older = {f"a{i}": facts("4.18.0-553.el8", "DGXA100", gpu_models=["NVIDIA A100-SXM4-80GB"]) for i in range(3)}
    assert consensus(fleet(30) | older) == ({}, ())
    mixed = consensus(fleet(30) | {"a1": facts("4.18.0-553.el8", gpu_models=["NVIDIA A100-SXM4-80GB"])})
    assert mixed.findings == {}
    assert [(note.kind, note.node) for note in mixed.notes] == [("fleet_small", "a1")]
    assert "1 node of DGX H100 with NVIDIA A100-SXM4-80GB (a1): 3 are needed" in mixed.notes[0].text


def test_two_nodes_are_too_few_and_three_are_enough() -> None:
    assert consensus(fleet(1, n001=facts(OTHER))).findings == {} and kinds(fleet(2)) == ["fleet_small"]
    assert list(consensus(fleet(2, n002=facts(OTHER))).findings) == ["n002"]


def test_a_tie_is_called_a_tie() -> None:
    result = consensus(fleet(4, n000=facts(OTHER), n001=facts(OTHER)))
    assert result.findings == {}
    assert [note.kind for note in result.notes] == ["fleet_tie"]
    assert "kernel release: no majority among 4 nodes" in result.notes[0].text
    three = consensus({f"n{i}": facts(f"5.15.{i // 4}") for i in range(12)})  # four each: the most frequent is no norm
    assert three.findings == {} and [note.kind for note in three.notes] == ["fleet_tie"]


def test_a_rolling_update_is_one_note() -> None:
    def updated(count: int) -> dict[str, Any]:
        return fleet(100, **{f"n{number:03}": facts(OTHER) for number in range(count)})

    assert len(consensus(updated(25)).findings) == 25
    result = consensus(updated(26))
    assert result.findings == {} and [note.kind for note in result.notes] == ["fleet_changing"]
    assert "26 of 100 nodes" in result.notes[0].text and f"{KERNEL} on 74, {OTHER} on 26" in result.notes[0].text


def test_an_unknown_value_is_no_difference() -> None:
    unknown = fleet(8, n001=facts(None), n002=facts(""), n003=facts([]), n004=facts({"a": 1}))
    assert consensus(unknown) == ({}, ())
    result = consensus(fleet(8, n001=facts(None), n002=facts(OTHER)))
    assert result.findings["n002"][0].evidence["nodes_compared"] == 7
    nameless = {"identity": {"kernel_release": OTHER}}  # of unknown hardware: compared with no other
    assert consensus(fleet(8, n001=nameless)).findings == {} and kinds(fleet(8, n001=nameless)) == ["fleet_unknown"]


def test_values_of_devices_are_a_set() -> None:
    """Neither the addresses nor the order nor the number of devices matter; a value that no other node has does."""
    eight = facts(nccl_versions=["2.21.5", "2.18.3"])
    assert (
        consensus({f"n{i}": facts(nccl_versions=["2.18.3", "2.21.5"]) for i in range(4)} | {"x": eight}).findings == {}
    )
    odd = facts(nccl_versions=["2.18.3"])
    (finding,) = consensus({f"n{i}": eight for i in range(4)} | {"x": odd}).findings["x"]
    assert (finding.device, finding.evidence["majority_value"]) == ("NCCL version", "2.18.3, 2.21.5")


def test_a_count_is_compared_as_a_count() -> None:
    def node(count: int) -> dict[str, Any]:
        return facts() | {"inventory": {"rdma": {f"mlx5_{i}": {"firmware": "28.39"} for i in range(count)}}}

    (finding,) = consensus({f"n{i}": node(10) for i in range(4)} | {"x": node(9)}).findings["x"]
    assert (finding.device, finding.evidence["value"]) == ("NIC count", "9")


def test_a_list_that_is_one_value_may_be_empty() -> None:
    """Flow control that is off on one node must be found; null and `unknown` are not known values."""

    def node(*priorities: Any) -> dict[str, Any]:
        return facts() | {"roce_pfc": {"priorities": {f"eth{i}": value for i, value in enumerate(priorities)}}}

    same = {f"n{i}": node([3], [3]) for i in range(4)}
    (finding,) = consensus(same | {"x": node([], [])}).findings["x"]
    assert (finding.device, finding.evidence["value"], finding.evidence["majority_value"]) == (
        "PFC priorities",
        "none",
        "3",
    )
    assert consensus(same | {"x": node([], [3])}).findings["x"][0].evidence["value"] == "3, none"
    assert consensus(same | {"x": node(None, "unknown")}) == ({}, ())


def test_a_mapping_may_be_compared_by_its_keys() -> None:
    def node(**governors: int) -> dict[str, Any]:
        return facts() | {"governor": {"governors": governors}}

    same = {f"n{i}": node(performance=64 + i) for i in range(4)}
    (finding,) = consensus(same | {"x": node(performance=1, powersave=63)}).findings["x"]
    assert (finding.device, finding.evidence["value"]) == ("CPU governors", "performance, powersave")


def test_a_number_is_the_same_however_it_is_written() -> None:
    assert consensus(fleet(4, x=facts(gpu_count=8), y=facts(gpu_count=8.0), z=facts(gpu_count=8))).findings == {}


def test_notes_are_bounded_and_in_one_line() -> None:
    alone = {f"n{i}": facts(product=f"box\n{i}") for i in range(200)}
    notes = consensus(alone).notes
    assert len(notes) == MAX_NOTES and notes[-1].kind == "fleet_more"
    assert all("\n" not in note.text and len(note.text) < 1000 for note in notes)


def test_every_compared_fact_has_a_name_of_its_own() -> None:
    names = [fact.name for fact in COMPARED_FACTS]
    assert len(set(names)) == len(names)


# --- properties -------------------------------------------------------------------------------------------------------
scalars = st.none() | st.booleans() | st.integers(-3, 3) | st.floats(allow_nan=False) | st.text(max_size=4)
values = scalars | st.lists(scalars, max_size=3) | st.dictionaries(st.text(max_size=2), scalars, max_size=2)
IDENTITY = ("product", "gpu_models", "kernel_release", "bios_version", "nccl_versions", "gpu_count")

nodes_facts = st.dictionaries(
    st.sampled_from(("identity", "limits", "clock", "x")),
    st.dictionaries(st.sampled_from((*IDENTITY, "rdma_devices", "clock", "open_files")), values),
    max_size=3,
)

versions = st.sampled_from((None, KERNEL, OTHER, "6.8.0"))

small_fleets = st.dictionaries(
    st.integers(0, 40).map(lambda number: f"n{number:02}"),
    st.builds(facts, versions, st.sampled_from(("DGX H100", "DGXA100"))),
    max_size=40,
)


@settings(max_examples=50)
@given(st.dictionaries(st.text(max_size=5), nodes_facts, max_size=6))
def test_any_facts_give_findings_about_known_nodes(nodes: dict[str, Any]) -> None:
    result = consensus(nodes)
    assert set(result.findings) <= set(nodes) and len(result.notes) <= MAX_NOTES


@given(small_fleets, st.randoms())
def test_the_order_of_the_nodes_does_not_matter(nodes: dict[str, Any], random: Any) -> None:
    shuffled = list(nodes.items())
    random.shuffle(shuffled)
    assert consensus(dict(shuffled)) == consensus(nodes)


@given(small_fleets)
def test_the_majority_is_never_accused(nodes: dict[str, Any]) -> None:
    by_name = {fact.name: fact for fact in COMPARED_FACTS}
    for node, findings in consensus(nodes).findings.items():
        product = nodes[node]["identity"]["product"]
        for finding in findings:
            peers = [
                value_of(it, by_name[finding.device]) for it in nodes.values() if it["identity"]["product"] == product
            ]
            known = [value for value in peers if value is not None]
            mine = value_of(nodes[node], by_name[finding.device])
            assert mine is not None and len(known) >= MIN_NODES
            assert 2 * known.count(mine) < len(known)
            differing = sum(", ".join(value) != finding.evidence["majority_value"] for value in known)
            assert differing <= max(1, MANY_RATIO * len(known))


def having(memory: int = 2 << 40, mounts: tuple[str, ...] = ("/home", "/scratch"), processors: int = 224) -> Any:
    expected = {
        "memory": {"memory": memory},
        "processors": {"processors": processors},
        "mounts": dict.fromkeys(mounts, 2),
    }
    return facts() | {"expected": expected}


def of_nodes(count: int, **changes: Any) -> dict[str, Any]:
    return {f"n{number:03}": having() for number in range(count)} | changes


def test_the_only_node_that_lacks_what_most_have_is_critical() -> None:
    (memory,) = consensus(of_nodes(8, n003=having(memory=1 << 40))).findings["n003"]
    assert (memory.device, memory.severity) == ("memory", Severity.CRITICAL)
    (mount,) = consensus(of_nodes(8, n003=having(mounts=("/home",)))).findings["n003"]
    assert (mount.device, mount.severity) == ("mounts: /scratch", Severity.CRITICAL)
    (processors,) = consensus(of_nodes(8, n003=having(processors=112))).findings["n003"]
    assert (processors.device, processors.severity) == ("processors", Severity.CRITICAL)


def test_several_nodes_that_were_bought_with_less_are_warnings() -> None:
    bought = of_nodes(12, n003=having(memory=1 << 40), n004=having(memory=1 << 40))
    found = [it for findings in consensus(bought).findings.values() for it in findings]
    assert [(it.device, it.severity) for it in found] == [("memory", Severity.WARNING)] * 2


def test_more_than_others_have_is_nothing() -> None:
    more = having(memory=4 << 40, mounts=("/home", "/scratch", "/mine"), processors=256)
    assert consensus(of_nodes(8, n003=more)) == ({}, ())
    nearly = having(memory=int((2 << 40) * 0.985))
    assert consensus(of_nodes(8, n003=nearly)) == ({}, ()), "the kernel's own part differs"


def test_nobody_is_accused_where_most_nodes_lost_a_mount() -> None:
    lost = {f"n{number:03}": having(mounts=("/home",)) for number in range(6)}
    assert consensus(of_nodes(9, **lost)).findings == {}
    half = {f"n{number:03}": having(mounts=("/home",)) for number in range(4)}
    result = consensus(of_nodes(9, **half))
    assert result.findings == {} and "mounts: /scratch" in result.notes[0].text


def test_one_node_has_no_majority() -> None:
    assert consensus({"n0": having(mounts=())}).findings == {}
    assert consensus({"n0": having(), "n1": having(mounts=())}).findings == {}
