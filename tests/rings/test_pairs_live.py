"""`laggard ring --pairs` and a cut cable, in network namespaces whose links have a rate: real processes and packets."""

import json
import subprocess
import sys
from collections.abc import Iterator

import pytest
from support.namespaces import Namespaces, can_make
from support.waiting import wait_for

from laggard.rings.link import SILENT_SECONDS

pytestmark = [
    pytest.mark.slow,
    pytest.mark.wall_clock("2026-11-25, at load 8 to 18: no node was named"),
    pytest.mark.skipif(not can_make(), reason="needs root and network namespaces"),
]
LONG = 400.0
Nodes = list[subprocess.Popen[str]]


@pytest.fixture
def spaces() -> Iterator[Namespaces]:
    with Namespaces(4, "200mbit") as made:
        yield made


def start(spaces: Namespaces, *words: str) -> Nodes:
    place = ("--rendezvous", f"{spaces.address(0)}:29400", "--nodes", str(spaces.count), "--device", "cpu")
    command = [
        sys.executable,
        "-m",
        "laggard",
        "ring",
        "--format",
        "json",
        "--deadline",
        "390",
        "--join-seconds",
        "200",
        *place,
        *words,
    ]
    return [
        spaces.start(
            node,
            [*command, "--node-rank", str(node)],
            {"LAGGARD_NODE": f"n{node}", "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        for node in range(spaces.count)
    ]


def outputs(nodes: Nodes) -> list[tuple[str, str]]:
    try:
        return [node.communicate(timeout=LONG) for node in nodes]
    finally:
        for node in nodes:
            node.kill()


def test_a_slow_node_is_named_with_its_share_of_the_usual_rate(spaces: Namespaces) -> None:
    spaces.shape(2, "2mbit")  # a second for a message: ten times as long as one is that waits for a busy machine's CPUs
    nodes = start(spaces, "--pairs", "--seconds", "300", "--pair-bytes", "256K")
    (text, _), *others = outputs(nodes)
    document = json.loads(text)
    assert [node.returncode for node in nodes] == [1] * 4, document
    assert document["pairs"]["slow_nodes"] == [2] and document["pairs"]["slow_links"] == []
    (found,) = [found for found in document["findings"] if found["code"] == "RING_SLOW"]
    assert (found["device"], found["severity"]) == ("node 2 (n2)", "critical")
    assert found["evidence"]["ratio"] < 0.5
    errors = [error for _, error in others]
    assert all(error.startswith("laggard: node 2 (n2) exchanges ") for error in errors), errors


def test_a_node_that_is_cut_off_is_named(spaces: Namespaces) -> None:
    """No connection is closed: only the silence tells."""
    nodes = start(spaces, "--seconds", "300", "--min-bytes", "64K")
    assert nodes[3].stdout is not None
    wait_for_traffic(spaces)
    spaces.cut(3)
    (text, _), *others = outputs(nodes)
    (found,) = json.loads(text)["findings"]
    assert (found["code"], found["device"]) == ("RING_FAILED", "node 3 (n3)")
    assert f"has been silent for {SILENT_SECONDS:g} s" in found["summary"]
    assert [node.returncode for node in nodes] == [1, 1, 1, 2], others
    assert "the coordinator, node 0" in others[2][1], others


def wait_for_traffic(spaces: Namespaces) -> None:
    """Waits until the ring exchanges data: more than all that is said before."""
    wait_for(lambda: spaces.sent_bytes(3) >= 4 << 20, lambda: "the ring did not begin")
