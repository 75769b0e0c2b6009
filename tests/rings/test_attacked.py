"""Rings whose ports somebody attacks: real processes, and an attacker who has everything but the token."""

import asyncio
import contextlib
import json
import os
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest
from support.ports import free_port
from support.ring_nodes import ring_nodes

from laggard.rings.authentication import Strangers
from laggard.rings.link import Addresses
from laggard.rings.messages import Connected, Join, Pair, Paired, Put, Want
from laggard.rings.worker_process import WorkerProcess

pytestmark = pytest.mark.slow

LONG = 240.0
ATTACKER = Path(__file__).with_name("ring_attacker.py")
Ring = Callable[..., dict[str, Any]]


@pytest.fixture
def ring(tmp_path: Path) -> Iterator[Ring]:
    """Runs three nodes in pairs with a token, and returns the document. `meet`: the port that each node is told."""
    token = tmp_path / "token"
    token.write_text("secret")
    token.chmod(0o600)

    def run(port: int, meet: Sequence[int] = (), attack: Callable[[list[int]], None] | None = None) -> dict[str, Any]:
        words = ("--token-file", str(token), "--device", "cpu", "--pairs", "--format", "json")
        bounds = ("--pair-bytes", "64K", "--seconds", "120", "--join-seconds", "120", "--deadline", str(LONG))
        places = [f"127.0.0.1:{own}" for own in meet or [port] * 3]
        nodes = [start_node(number, 3, place, "ring", *words, *bounds) for number, place in enumerate(places)]
        if attack is not None:
            attack([node.pid for node in nodes])
        outputs = [node.communicate(timeout=LONG + 60) for node in nodes]
        assert outputs[0][0], outputs
        document: dict[str, Any] = json.loads(outputs[0][0])
        return document

    with ring_nodes() as start_node:
        yield run


def accused_by_failure(document: dict[str, Any]) -> list[str]:
    """The findings of a calm ring on a busy machine may name a node that computes slowly, and no more."""
    return [found["summary"] for found in document["findings"] if found["code"] == "RING_FAILED"]


def is_calm(document: dict[str, Any]) -> bool:
    """Whether all three nodes measured all three links, each without an error."""
    pairs = document["pairs"]
    measured = [row["time_seconds"] is not None and not row["wrong"] for row in pairs["matrix"]] if pairs else []
    return measured == [True] * 3 and not accused_by_failure(document) and not document["left"]


def attacked(ring: Ring, how: str, out: Path) -> tuple[dict[str, Any], str]:
    """The ring's document, and what the attacker printed."""
    attackers: list[subprocess.Popen[bytes]] = []
    with out.open("w") as log:

        def attack(pids: list[int]) -> None:
            attackers.append(subprocess.Popen([sys.executable, str(ATTACKER), how, *map(str, pids)], stdout=log))

        try:
            document = ring(free_port(), attack=attack)
        finally:
            for attacker in attackers:
                attacker.kill()
                attacker.wait()
    return document, out.read_text()


def test_who_writes_to_every_port_of_a_ring_changes_nothing(ring: Ring, tmp_path: Path) -> None:
    """The attacker speaks the protocol of torch's store, and writes over all keys that one holds; to other ports it
    writes lines and bytes."""
    document, said = attacked(ring, "write", tmp_path / "attacker")
    assert "wrote to" in said, "the attacker found no port"
    assert is_calm(document), (document, said)
    assert "torch's store" not in said, said


def test_who_takes_a_rank_s_place_has_nobody_accused(ring: Ring, tmp_path: Path) -> None:
    """gloo has no password: who connects first with the right number is taken for the other rank. The exchange then
    fails, and says nothing about a node or a link."""
    document, said = attacked(ring, "take-places", tmp_path / "attacker")
    assert "took place" in said, "the attacker found no port"
    assert not accused_by_failure(document), (document, said)


class Between:
    """Passes on what a node and the coordinator say to each other, and alters one byte of the coordinator's once
    the ring runs."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.altered = False
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                node = self.listener.accept()[0]
                with contextlib.suppress(OSError):  # the coordinator does not listen yet
                    coordinator = socket.create_connection(("127.0.0.1", self._port))
                    threading.Thread(target=self._pass_on, args=(node, coordinator, False), daemon=True).start()
                    threading.Thread(target=self._pass_on, args=(coordinator, node, True), daemon=True).start()
                    continue
                node.close()

    def _pass_on(self, source: socket.socket, target: socket.socket, alters: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                if alters and not self.altered and b'"join"' in data:
                    self.altered = True
                    data = data.replace(b'"join"', b'"jo1n"')
                target.sendall(data)
        for each in (source, target):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)


def test_who_alters_what_the_coordinator_says_has_nobody_accused(ring: Ring) -> None:
    port = free_port()
    between = Between(port)
    document = ring(port, (port, between.listener.getsockname()[1], port))
    between.listener.close()
    assert between.altered
    assert not accused_by_failure(document), document
    assert any("n1" in text and "somebody is between" in text for text in document["left"]), document["left"]


async def failed_pair(attack: bool) -> tuple[tuple[str, ...], list[str]]:
    """Two real ranks, whose coordinator is this test: it has a stranger take both places before a rank learns of the
    other. Returns the strangers that the ranks tell of, and their errors."""
    workers = [WorkerProcess.start("cpu", 0, os.environ) for _ in range(2)]
    held, addresses, strangers = [], Addresses(), Strangers()
    try:
        for worker in workers:
            await worker.report()  # it is ready
        for rank, worker in enumerate(workers):
            worker.command(Join(rank, 2, "127.0.0.1"))
            await worker.report()
            worker.command(Pair("a", (0, 1), 1 << 10, 0.05, 5.0))

        async def serve(rank: int) -> str:
            while True:
                report = await workers[rank].report()
                if isinstance(report, Put):
                    if attack:
                        held.extend(take_places(workers[rank].pid))
                    told = addresses.put(report)
                    assert told is not None
                    for other in told[1]:
                        workers[other].command(told[0])
                elif isinstance(report, Want):
                    value = addresses.want(rank, report)
                    if value is not None:
                        workers[rank].command(value)
                elif isinstance(report, Connected):
                    strangers.note(rank, report)
                elif isinstance(report, Paired):
                    return report.error

        errors = list(await asyncio.gather(serve(0), serve(1)))
        return strangers.found((0, 1), errors), errors
    finally:
        for worker in workers:
            worker.kill()
        for connection in held:
            connection.close()


def take_places(pid: int) -> list[socket.socket]:
    """Poses to gloo as the other rank: it asks who connects for nothing but a small number."""
    held = []
    for each in psutil.Process(pid).net_connections("tcp"):
        if each.status == psutil.CONN_LISTEN:
            for number in range(4):
                held.append(socket.create_connection((each.laddr.ip, each.laddr.port)))
                held[-1].sendall(struct.pack("<q", number))
    return held


def test_ranks_tell_of_a_stranger_who_took_another_s_place() -> None:
    strangers, errors = asyncio.run(failed_pair(attack=True))
    assert any(errors) and strangers, (strangers, errors)


def test_ranks_tell_of_no_stranger_where_there_is_none() -> None:
    strangers, errors = asyncio.run(failed_pair(attack=False))
    assert (strangers, errors) == ((), ["", ""])
