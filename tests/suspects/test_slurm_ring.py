"""The measurement of a suspect as SLURM's job: which nodes it asks for, and what it says where it gets none. The
programs here stand in for SLURM's; tests/slurm has the real ones."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from laggard.model import Verdict
from laggard.rings.document import Ring
from laggard.suspects.confirm_command import _refuse
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
from laggard.suspects.scheduler import SchedulerAway
from laggard.wire import encode
from laggard.wire.nodes import NodeRow

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
