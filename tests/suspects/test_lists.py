"""The next job's list of nodes, and the ring that measures a suspect under SLURM."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from support.paths import DATA
from support.rows import rows

from laggard.kit.address import expand_hosts
from laggard.model import Verdict
from laggard.rings.document import Ring
from laggard.suspects.confirm_command import _refuse
from laggard.suspects.exclude_command import cap_text, choose, explained, node_affinity, without
from laggard.suspects.measurement import (
    NotMeasured,
    RingJob,
    SlurmNode,
    choose_nodes,
    good_peers,
    jobs_on,
    measure,
    ring_in,
    slurm_nodes,
)
from laggard.suspects.scheduler import KnownNames, SchedulerAway, hostlist
from laggard.wire import encode
from laggard.wire.exclusion import Exclusion, ExclusionsDocument, LeftIn
from laggard.wire.nodes import NodeRow

NOW = 1.79e9


def entry(node: str, until: float | None = None) -> Exclusion:
    return Exclusion(node, "finding", f"DISK_FULL / on {node}", NOW - 60, until, ("DISK_FULL",))


def document(*nodes: str, cap: int = 9, left_in: tuple[LeftIn, ...] = ()) -> ExclusionsDocument:
    return ExclusionsDocument(tuple(map(entry, nodes)), cap, 20, 20, 3600.0, NOW, left_in=left_in)


@rows("suspects/lists")
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


HOSTFILE = (DATA / "slurm" / "hostfile").read_text()


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


Program = Callable[..., str]


@pytest.fixture
def program(tmp_path: Path) -> Program:
    def make(*lines: str, script: str = "") -> str:
        path = tmp_path / "program"
        path.write_text("#!/bin/sh\n" + (script or "cat <<'END'\n" + "\n".join(lines) + "\nEND\n"))
        path.chmod(0o755)
        return str(path)

    return make


def row(node: str, verdict: str = "ok", state: str = "up", age: float | None = None) -> NodeRow:
    return NodeRow(f"http://{node}:19400", node, state, "", 0.1, verdict, (), (), age)


def node(name: str, state: str = "idle", *partitions: str) -> SlurmNode:
    return SlurmNode(name, partitions or ("gpu",), state, "")


def test_peers_pass_their_checks_are_not_suspected_and_were_measured_last() -> None:
    rows = (
        *(row("n1"), row("n2", "fail"), row("n3", "unknown"), row("n4", state="down"), row("n5"), row("n10", age=60.0)),
        row("n9", age=9.0),
        row("n6"),
    )
    assert good_peers("n1", rows, {"n6"}) == ["n9", "n10", "n5"]


def test_nodes_are_read_with_all_their_partitions(program: Program) -> None:
    sinfo = program("node=n1|gpu*|idle|none", "slurm: a warning", "node=n1|long|idle|none", "node=n2|gpu*|drained|a|b")
    assert slurm_nodes(sinfo) == {
        "n1": SlurmNode("n1", ("gpu", "long"), "idle", ""),
        "n2": SlurmNode("n2", ("gpu",), "drained", "a|b"),
    }
    with pytest.raises(SchedulerAway, match="no slurmctld"):
        slurm_nodes(program(script="echo no slurmctld; exit 1"))
    with pytest.raises(SchedulerAway, match="no such file"):
        slurm_nodes("/nonexistent/sinfo")


def test_the_partition_is_the_one_with_the_most_free_peers() -> None:
    suspect = node("n3", "idle", "small", "large")
    nodes = {it.name: it for it in (suspect, node("n1", "idle", "large"), node("n2", "mixed", "large", "small"))}
    nodes |= {it.name: it for it in (node("n4", "idle", "large"), node("n5", "idle", "small"), node("n6", "idle", "x"))}
    peers = ["n2", "n6", "n4.cluster", "n5", "n1"]
    assert choose_nodes(suspect, peers, nodes, None, 3) == ("large", ("n4", "n1"))
    assert choose_nodes(suspect, peers, nodes, "small", 3) == ("small", ("n5",))
    assert choose_nodes(suspect, peers, nodes, None, 1) == ("small", ("n5",))


def test_what_holds_a_node_is_said(program: Program) -> None:
    squeue = program("job=4711|alice|3:20:00|train|big")
    assert jobs_on(squeue, "n3") == ["job 4711 of alice (train|big), 3:20:00 left"]
    with pytest.raises(NotMeasured, match=r"n3 is held by job 4711 of alice .*--wait TIME"):
        _refuse(node("n3", "mixed"), squeue, is_waited_for=False)
    _refuse(node("n3", "allocated"), squeue, is_waited_for=True)
    for state in ("drained", "down*", "draining"):
        with pytest.raises(NotMeasured, match="SLURM starts nothing on n3, which is"):
            _refuse(node("n3", state), squeue, is_waited_for=True)


def test_the_job_asks_for_whole_nodes_and_each_has_one_task(program: Program) -> None:
    job = RingJob("n3", ("n1", "n2"), "gpu", ("/opt/laggard",), 60.0, 120.0, 360.0, "/etc/token")
    words = job.command("srun")
    assert {"--exclusive", "--nodelist=n3,n1,n2", "--nodes=3", "--ntasks=3", "--immediate=60"} <= set(words)
    place = words.index("/opt/laggard")
    assert words[place + 1 : place + 5] == ["ring", "--pairs", "--suspect", "n3"]
    assert words[-2:] == ["--token-file", "/etc/token"]


def test_a_job_without_a_document_is_not_measured(program: Program) -> None:
    job = RingJob("n3", ("n1", "n2"), "gpu", ("laggard",), 60.0, 120.0, 360.0, None)
    with pytest.raises(NotMeasured, match="status 3: srun: error: no nodes"):
        measure(program(script="echo srun: error: no nodes >&2; exit 3"), job)
    ring = Ring(Verdict.OK, 3, {}, (), (), ())
    document = encode(ring).decode()
    found: Any = measure(program(f"a line of a prolog\n{document}"), job)
    assert found == ring
    assert ring_in(b"{}\n{not JSON\n") is None
