"""Rings whose ports somebody attacks: real processes, and an attacker who has everything but the token."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from support.ports import free_port

pytestmark = [pytest.mark.slow, pytest.mark.longest(60)]

LONG = 240.0
ATTACKER = Path(__file__).with_name("ring_attacker.py")
Ring = Callable[..., dict[str, Any]]


@pytest.fixture
def ring(tmp_path: Path) -> Iterator[Ring]:
    """Runs three nodes in pairs with a token, and returns the document. `meet`: the port that each node is told."""
    processes: list[subprocess.Popen[str]] = []
    token = tmp_path / "token"
    token.write_text("secret")
    token.chmod(0o600)

    def run(port: int, meet: Sequence[int] = (), attack: Callable[[list[int]], None] | None = None) -> dict[str, Any]:
        own = []
        for number in range(3):
            where = ("--rendezvous", f"127.0.0.1:{meet[number] if meet else port}", "--nodes", "3")
            words = (*where, "--node-rank", str(number), "--token-file", str(token), "--device", "cpu", "--pairs")
            bounds = ("--pair-bytes", "64K", "--seconds", "120", "--join-seconds", "120", "--deadline", str(LONG))
            own.append(
                subprocess.Popen(
                    [sys.executable, "-m", "laggard", "ring", *words, *bounds, "--format", "json"],
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                    env={**os.environ, "LAGGARD_NODE": f"n{number}", "OMP_NUM_THREADS": "1"},
                )
            )
        processes.extend(own)
        if attack is not None:
            attack([process.pid for process in own])
        outputs = [process.communicate(timeout=LONG + 60) for process in own]
        assert outputs[0][0], outputs
        document: dict[str, Any] = json.loads(outputs[0][0])
        return document

    yield run
    for process in processes:
        process.kill()
        process.communicate()


def accused_by_failure(document: dict[str, Any]) -> list[str]:
    """The findings of a calm ring on a busy machine may name a node that computes slowly, and no more."""
    return [found["summary"] for found in document["findings"] if found["code"] == "RING_FAILED"]


def is_calm(document: dict[str, Any]) -> bool:
    """Whether all three nodes measured all three links, each without an error."""
    pairs = document["pairs"]
    measured = [row["time_seconds"] is not None and not row["wrong"] for row in pairs["matrix"]] if pairs else []
    return measured == [True] * 3 and not accused_by_failure(document) and not document["left"]


def test_who_writes_to_every_port_of_a_ring_changes_nothing(ring: Ring, tmp_path: Path) -> None:
    """The attacker speaks the protocol of torch's store, and writes over all keys that one holds; to other ports it
    writes lines and bytes."""
    out, said = tmp_path / "attacker", ""
    with out.open("w") as log:
        attacker: subprocess.Popen[bytes] | None = None

        def attack(pids: list[int]) -> None:
            nonlocal attacker
            attacker = subprocess.Popen([sys.executable, str(ATTACKER), *map(str, pids)], stdout=log)

        document = ring(free_port(), attack=attack)
        assert attacker is not None
        attacker.kill()
        attacker.wait()
    said = out.read_text()
    assert "wrote to" in said, "the attacker found no port"
    assert is_calm(document), (document, said)
    assert "torch's store" not in said, said
