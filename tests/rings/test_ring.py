"""`laggard ring` as its users run it: real nodes, which are processes here, and real faults among them."""

import contextlib
import functools
import json
import signal
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from support.ports import free_port
from support.ring_nodes import Node, ring_nodes, workers_of
from support.waiting import wait_for

from laggard.rings.worker.group import abort_nccl

LONG = 240.0


@pytest.fixture
def start() -> Iterator[Callable[..., list[Node]]]:
    def run(count: int, *words: str, each: Sequence[Sequence[str]] = ()) -> list[Node]:
        meet = f"127.0.0.1:{free_port()}"
        own = each or [()] * count
        return [start_node(at, count, meet, "ring", "--device", "cpu", *words, *own[at]) for at in range(count)]

    with ring_nodes() as start_node:
        yield run


def is_connected(worker: psutil.Process) -> bool:
    """A worker has no connections but those to other workers."""
    return any(each.status == psutil.CONN_ESTABLISHED for each in worker.net_connections("tcp"))


def exchanges_data(node: Node) -> bool:
    """Whether a worker of the node has connections to another worker: the ring has begun."""
    with contextlib.suppress(psutil.Error):
        return any(map(is_connected, workers_of(node)))
    return False


@pytest.mark.spine
def test_a_sweep_of_two_nodes(start: Callable[..., list[Node]], tmp_path: Path) -> None:
    """Every result is right and has its bandwidth, and node 0 alone writes the document. So small messages end by
    their thousand repeats, and the seconds are for a busy machine alone."""
    token = tmp_path / "token"
    token.write_text("secret\n")
    words = ("--op", "all_reduce,reduce_scatter,all_gather", "--max-bytes", "64K", "--factor", "8", "--seconds", "120")
    nodes = start(2, *words, "--format", "json", "--token-file", str(token))
    outputs = [node.communicate(timeout=LONG) for node in nodes]
    assert [node.returncode for node in nodes] == [0, 0], outputs
    assert outputs[1] == ("", "") and outputs[0][1] == ""
    document = json.loads(outputs[0][0])
    assert (document["schema"], document["verdict"], document["world_size"]) == ("laggard.ring/1", "ok", 2)
    assert document["transport"]["backend"] == "gloo"
    assert [node["node"] for node in document["nodes"]] == ["n0", "n1"]
    results = document["results"]
    assert [(row["op"], row["size_bytes"]) for row in results] == [
        (op, size) for op in ("all_reduce", "reduce_scatter", "all_gather") for size in (1024, 8192, 65536)
    ]
    for row in results:
        assert row["wrong"] == 0
        assert 0 < row["min_seconds"] <= row["p50_seconds"] <= row["p99_seconds"] <= row["max_seconds"]
        assert row["algbw_bytes_per_second"] == pytest.approx(row["size_bytes"] / row["time_seconds"])
        factor = 1.0 if row["op"] == "all_reduce" else 0.5
        assert row["busbw_bytes_per_second"] == pytest.approx(factor * row["algbw_bytes_per_second"])


@pytest.mark.slow
def test_sizes_for_which_no_time_is_left_are_not_measured(start: Callable[..., list[Node]]) -> None:
    """A tenth of a second is over before the last of a gigabyte is reduced, on any machine: the rest is unknown, and
    not waited for."""
    (node,) = start(1, "--local-ranks", "2", "--seconds", "0.1", "--max-bytes", "1G", "--format", "json")
    out, error = node.communicate(timeout=LONG)
    document = json.loads(out)
    sizes = [row["size_bytes"] for row in document["results"]]
    planned = [1024 * 4**power for power in range(11)]
    assert (node.returncode, document["verdict"]) == (2, "unknown"), (document, error)
    assert 0 < len(sizes) < len(planned) and sizes == planned[: len(sizes)]
    assert f"{len(planned) - len(sizes)} of {len(planned)} sizes were not measured" in document["unknown"]


@pytest.mark.slow
def test_a_rank_that_is_killed_is_named_by_all_and_nothing_stays(start: Callable[..., list[Node]]) -> None:
    nodes = start(2, "--seconds", "300", "--min-bytes", "64K", "--format", "json")
    wait_for(lambda: all(map(exchanges_data, nodes)), lambda: "the ring did not begin")
    workers = [worker for node in nodes for worker in workers_of(node)]
    workers_of(nodes[1])[0].send_signal(signal.SIGKILL)
    (text, _), (_, error) = (node.communicate(timeout=LONG) for node in nodes)
    document = json.loads(text)
    (found,) = document["findings"]
    assert document["verdict"] == "fail"
    assert (found["code"], found["device"]) == ("RING_FAILED", "node 1 (n1)")
    assert "rank 1: its process was ended by SIGKILL" in found["summary"]
    assert [node.returncode for node in nodes] == [1, 1]
    assert "node 1 (n1) ended the ring" in error and error.count("\n") == 1
    assert not any(worker.is_running() for worker in workers)


@pytest.mark.slow
def test_workers_end_with_a_supervisor_that_is_killed(start: Callable[..., list[Node]]) -> None:
    nodes = start(2, "--seconds", "300", "--min-bytes", "64K", "--format", "json")
    wait_for(lambda: all(map(exchanges_data, nodes)), lambda: "the ring did not begin")
    workers = [worker for node in nodes for worker in workers_of(node)]
    nodes[0].kill()
    _, error = nodes[1].communicate(timeout=LONG)
    assert nodes[1].returncode == 2
    assert error.startswith("laggard: the coordinator, node 0 at 127.0.0.1") and error.count("\n") == 1
    wait_for(lambda: not any(map(is_alive, workers)), lambda: "a worker outlived its supervisor")


def is_alive(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.status() != psutil.STATUS_ZOMBIE
    return False


@pytest.mark.slow
def test_who_never_comes_and_who_is_refused_are_told(start: Callable[..., list[Node]], tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("another")
    each = ((), ("--token-file", str(token)), ("--seconds", "3"))
    nodes = start(3, "--join-seconds", "30", "--format", "json", each=each)
    outputs = [node.communicate(timeout=LONG) for node in nodes]
    assert [node.returncode for node in nodes] == [2, 64, 64], outputs
    document = json.loads(outputs[0][0])
    assert document["verdict"] == "unknown" and not document["findings"]
    assert document["unknown"].startswith("1 of 3 nodes came: nodes 1, 2 did not (")
    assert "another token" in outputs[1][1] and outputs[1][1].count("\n") == 1
    assert "the option seconds 3.0 in place of 20.0 of node 0" in outputs[2][1]


@pytest.mark.parametrize(("methods", "called"), [(("abort", "_shutdown"), "abort"), (("_shutdown",), "_shutdown")])
def test_nccls_group_of_every_torch_is_aborted(methods: tuple[str, ...], called: str) -> None:
    """ProcessGroupNCCL.abort() came with torch 2.6."""
    calls: list[str] = []
    abort_nccl(SimpleNamespace(**{name: functools.partial(calls.append, name) for name in methods}))
    assert calls == [called]
