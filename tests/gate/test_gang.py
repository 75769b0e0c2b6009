"""`laggard healthcheck --active --gang`: real nodes, which are processes here, and what each of them is told."""

import contextlib
import signal
import socket
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import psutil
import pytest
from support.ports import free_port
from support.ring_nodes import Node, ring_nodes
from support.waiting import wait_for

from laggard.cli import main

Start = Callable[..., list[Node]]
LONG = 240.0
GANG = ("--active", "--gang", "--only", "disks", "--no-agent")


@pytest.fixture
def start() -> Iterator[Start]:
    nodes: list[Node] = []

    def run(
        numbers: Sequence[int], count: int, *words: str, port: int = 0, second: int = 0, each: Sequence[str] = ()
    ) -> list[Node]:
        port = port or free_port()
        meet = f"127.0.0.1:{port}" + (f",127.0.0.1:{second}" if second else "")
        for number in numbers:
            own = each if number == numbers[-1] else ()
            nodes.append(start_node(number, count, meet, "healthcheck", *GANG, *words, *own))
        return nodes

    with ring_nodes() as start_node:
        yield run


def outputs(nodes: list[Node]) -> list[str]:
    return [node.communicate(timeout=LONG)[0] for node in nodes]


def ranks_of(node: Node) -> list[psutil.Process]:
    """The processes of the node's ranks, which the gang's process starts."""
    return [rank for gang in psutil.Process(node.pid).children() for rank in gang.children()]


def has_pairs(node: Node) -> bool:
    """Whether a rank of the node listens for another one, or has a connection to it, and to nobody else."""
    with contextlib.suppress(psutil.Error):
        return any(rank.net_connections("tcp") for rank in ranks_of(node))
    return False


@pytest.mark.wall_clock("2026-11-29, in `make test-all`: node 0 ended the ring, since a rank did not answer in 10 s")
@pytest.mark.slow
@pytest.mark.parametrize("has_token", [True, False])
def test_who_is_killed_in_the_middle_fails_and_who_never_comes_is_named(
    start: Start, tmp_path: Path, has_token: bool
) -> None:
    """Node 3 of four never comes; a rank of node 2 is killed while the others measure. Without a token anybody could
    have said so, and no node is rejected."""
    token = tmp_path / "token"
    token.write_text("secret")
    token.chmod(0o600)
    own = ("--token-file", str(token)) if has_token else ()
    nodes = start((0, 1, 2), 4, "--join-seconds", "25", "--gate", "enforce", "--collector", "none", *own)
    wait_for(lambda: has_pairs(nodes[2]), lambda: "the gang did not begin")
    ranks_of(nodes[2])[0].send_signal(signal.SIGKILL)
    said = outputs(nodes)
    assert [node.returncode for node in nodes] == [0, 0, int(has_token)], said
    for text in said[:2]:
        assert "gang: node 3 did not come\n" in text and "gang: RING_FAILED node 2 (n2) " in text
        assert text.splitlines()[-1].startswith("gate: pass")
    if has_token:
        assert said[2].startswith("laggard: RING_FAILED node 2 (n2)") and said[2].endswith("gate: reject\n")
    else:
        assert "gate: pass" in said[2] and "without a token" in said[2]


@pytest.mark.wall_clock("2026-11-25, on busy cores: GPU_SLOW of a node at 63 % of the median")
@pytest.mark.slow
def test_the_others_name_node_0_where_it_never_comes_and_pass(start: Start) -> None:
    """Node 1 leads in its place, at the address that all know beforehand."""
    nodes = start((1, 2, 3), 4, "--join-seconds", "20", "--gate", "enforce", "--collector", "none", second=free_port())
    said = outputs(nodes)
    assert [node.returncode for node in nodes] == [0, 0, 0], said
    for text in said:
        assert "gang: node 0 did not come\n" in text and "did not come" not in text.replace("node 0 did", "")
        assert text.splitlines()[-1].startswith("gate: pass")


@pytest.mark.slow
def test_a_busy_port_and_a_node_0_that_is_not_there_are_told(start: Start) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        (node,) = start((0,), 2, port=port)
        (text,) = outputs([node])
        assert node.returncode == 2 and f"gang: port {port} is in use on this machine" in text
    _, other = start((1,), 2, "--join-seconds", "1")
    assert "gang: node 0 was not reached at 127.0.0.1:" in other.communicate(timeout=LONG)[0]
    assert other.returncode == 2


@pytest.mark.slow
def test_nobody_waits_beyond_the_deadline(start: Start) -> None:
    """The coordinator would wait for an hour for node 1."""
    (node,) = start((0,), 2, "--join-seconds", "3600", "--deadline", "15")
    assert node.returncode is None and outputs([node])[0].startswith("laggard: unknown, gang: ")
    assert node.returncode == 2


def test_a_job_of_one_node_meets_nobody(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "1")
    assert main(["healthcheck", "--active", "--gang", "--only", "disks", "--no-agent", "-v"]) in (
        0,
        1,
    )  # this disk's fullness
    assert "probe gang     skipped" in capsys.readouterr().out
