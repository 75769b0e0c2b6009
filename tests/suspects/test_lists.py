"""Lists of nodes for sbatch, for a hostfile and for a pod: the words of each, and what may not stand in them."""

from __future__ import annotations

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from laggard.rings.membership import expand_hosts
from laggard.suspects.exclude_command import cap_text, choose, explained, node_affinity, without
from laggard.suspects.scheduler import KnownNames, hostlist
from laggard.wire.exclusion import Exclusion, ExclusionsDocument, LeftIn

NOW = 1.79e9


def entry(node: str, until: float | None = None) -> Exclusion:
    return Exclusion(node, "finding", f"DISK_FULL / on {node}", NOW - 60, until, ("DISK_FULL",))


def document(*nodes: str, cap: int = 9, left_in: tuple[LeftIn, ...] = ()) -> ExclusionsDocument:
    return ExclusionsDocument(tuple(map(entry, nodes)), cap, 20, 20, 3600.0, NOW, left_in=left_in)


@pytest.mark.parametrize(
    ("names", "text"),
    [
        ((), ""),
        (("n7",), "n7"),
        (("n3", "n1", "n2", "n7"), "n[1-3,7]"),
        (("n10", "n9", "n8"), "n[8-10]"),
        (("n08", "n09", "n10", "n11"), "n[08-11]"),
        (("n1", "n01"), "n1,n01"),
        (("gpu-b2", "gpu-a1", "login"), "gpu-a1,gpu-b2,login"),
        (("n1.cluster", "n2.cluster"), "n1.cluster,n2.cluster"),
        (("n1-ib0", "n1-ib1"), "n1-ib[0-1]"),
        (("n1", "n1"), "n1"),
    ],
)
def test_the_list_is_as_slurm_writes_it(names: tuple[str, ...], text: str) -> None:
    assert hostlist(names) == text


NAMES = st.lists(st.from_regex(r"[a-c]{1,2}-?[0-9]{0,3}", fullmatch=True), min_size=1, max_size=12, unique=True)


@given(NAMES)
def test_what_is_written_is_read_again(names: list[str]) -> None:
    assert sorted(expand_hosts(hostlist(names))) == sorted(names)


def test_names_that_the_scheduler_does_not_know_take_no_place_within_the_cap() -> None:
    chosen = choose(document("gone", "n1.cluster", "n2", "n3", cap=2), KnownNames(["n1", "n2", "n3"]))
    assert (chosen.names, chosen.not_known) == (("n1", "n2"), ("gone",))
    assert [it.node for it in chosen.over_cap] == ["n3"]
    text = cap_text(chosen, document("gone", "n1.cluster", "n2", "n3", cap=2))
    assert text == "3 of 20 nodes are suspect, and at most 2 may be left out at once (max_drain_ratio): n3 stay in"


def test_a_name_that_a_shell_would_read_is_in_no_list() -> None:
    for name in ("$(reboot)", "n1;id", "n 1", "-x", "n1,n2", "n[1-9]", "*", ""):
        chosen = choose(document(name, "n5"), None)
        assert (chosen.names, chosen.not_known) == (("n5",), (name,))


def test_a_short_name_that_two_nodes_have_is_neither() -> None:
    known = KnownNames(["n1.east", "n1.west", "n2.east"])
    assert known.find("n1") is None and known.find("n1.east") == "n1.east" and known.find("n2") == "n2.east"


def test_it_is_explained_with_its_times() -> None:
    told = document("n1", left_in=(LeftIn("n4", "which end of the link is at fault is not known"),))
    lines = list(explained(choose(told, None), told))
    assert lines[0] == "1 node to leave out."
    assert lines[1].startswith("n1: DISK_FULL / on n1; since 2026-") and lines[1].endswith("as long as its checks fail")
    assert lines[2] == "n4 stays in: which end of the link is at fault is not known"


HOSTFILE = """# the cluster
n1 slots=8
n2.cluster slots=8  # rack 4

n3:4
#n2 slots=8
"""


def test_a_hostfile_keeps_slots_comments_and_the_others() -> None:
    filtered = without(HOSTFILE, ["n2", "n9"])
    assert filtered.text == HOSTFILE.replace("n2.cluster slots=8  # rack 4\n", "")
    assert (filtered.left, filtered.excluded) == (2, ("n2.cluster",))
    assert without(HOSTFILE, []).text == HOSTFILE
    assert without("n1 slots=8\r\nn2 slots=8", ["n1"]).text == "n2 slots=8"


def test_the_affinity_names_one_node_in_each_requirement() -> None:
    read = yaml.safe_load(node_affinity(["n1", "true"]))
    (term,) = read["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert term["matchFields"] == [
        {"key": "metadata.name", "operator": "NotIn", "values": ["n1"]},
        {"key": "metadata.name", "operator": "NotIn", "values": ["true"]},
    ]
    assert node_affinity([]) == ""
