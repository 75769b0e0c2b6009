"""The machine that a name stands for, among as many as there are."""

from __future__ import annotations

from laggard.collector.incidents.identity import MAX_NAMES_OF_GPU, MachineNames
from laggard.collector.incidents.incident import NodeName, NodeSight


def _sight(node: str, *gpus: str) -> NodeSight:
    return NodeSight(node, frozenset(gpus), (), frozenset(), frozenset())


def test_a_machine_is_found_by_any_half_of_its_gpus_among_many() -> None:
    names = MachineNames(NodeName(f"n{n}", f"GPU-{n}-0", 1.0, 1.0, (f"GPU-{n}-0", f"GPU-{n}-1")) for n in range(2000))
    names.observe([_sight("new", "GPU-7-1", "GPU-z")], 2.0)
    assert names.machine("new") == "GPU-7-0"
    names.observe([_sight("other", "GPU-8-1", "GPU-x", "GPU-y")], 3.0)
    assert names.machine("other") == "GPU-8-0", "half of the fewer"
    names.observe([_sight("third", "GPU-9-1", "GPU-p", "GPU-q", "GPU-r")], 3.0)
    names.observe([_sight("n9", "GPU-9-0", "GPU-9-1", "GPU-s", "GPU-t")], 3.0)
    assert names.machine("n9") == "GPU-9-0", "it keeps its own"


def test_gpus_that_left_a_machine_name_it_no_more() -> None:
    names = MachineNames()
    names.observe([_sight("n1", "GPU-a", "GPU-b")], 1.0)
    names.observe([_sight("n1", "GPU-x", "GPU-y")], 2.0)
    names.observe([_sight("n2", "GPU-a", "GPU-b")], 3.0)
    assert (names.machine("n1"), names.machine("n2")) == ("GPU-x", "GPU-a")
    names.observe([_sight("n3", "GPU-y", "GPU-x")], 4.0)
    assert names.machine("n3") == "GPU-x"


def test_many_agents_that_tell_of_one_gpu_are_not_compared_each_with_each() -> None:
    names = MachineNames()
    names.observe([_sight(f"n{number}", "GPU-a") for number in range(20_000)], 1.0)
    assert {names.machine(f"n{number}") for number in range(20_000)} == {"GPU-a"}
    names.observe([_sight(f"n{number}", f"GPU-{number}") for number in range(20_000)], 2.0)
    names.observe([_sight("again", "GPU-a")], 3.0)
    assert names.machine("again") == "GPU-a" and MAX_NAMES_OF_GPU < 100


def test_of_several_names_the_one_that_was_seen_last_counts() -> None:
    names = MachineNames(
        [NodeName("n1", "GPU-old", 1.0, 5.0, ("GPU-a",)), NodeName("n2", "GPU-a", 1.0, 9.0, ("GPU-a",))]
    )
    names.observe([_sight("n3", "GPU-a")], 10.0)
    assert names.machine("n3") == "GPU-a"
