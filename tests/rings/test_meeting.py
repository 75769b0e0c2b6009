"""Where the processes of a ring meet that torchrun started: the coordinator has one port, on all addresses."""

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from support.ports import free_port

pytestmark = pytest.mark.slow

LONG = 240.0
STARTS = 20
RING = (sys.executable, "-m", "laggard", "ring", "--device", "cpu")

Start = Callable[[int], psutil.Popen]


@pytest.fixture
def start_node_0() -> Iterator[Start]:
    """Starts node 0 as torchrun does; its ranks never get to torchrun's store, which is not there."""
    started: list[psutil.Popen] = []

    def start(seed: int) -> psutil.Popen:
        place = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "TORCHELASTIC_RUN_ID": "none"}
        address = {"MASTER_ADDR": "localhost", "MASTER_PORT": str(free_port()), "PYTHONHASHSEED": str(seed)}
        environ = {**os.environ, **place, **address}
        null = subprocess.DEVNULL
        started.append(psutil.Popen(RING, env=environ, stdout=null, stderr=null))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait(LONG)


def listening(process: psutil.Popen) -> list[tuple[str, int]]:
    """The addresses on which the coordinator listens, once it does."""
    until = time.monotonic() + LONG
    while True:
        assert process.poll() is None and time.monotonic() < until, "node 0 does not listen"
        with contextlib.suppress(psutil.AccessDenied):
            found = [each.laddr for each in process.net_connections("tcp") if each.status == psutil.CONN_LISTEN]
            if found:
                return [(each.ip, each.port) for each in found]
        time.sleep(0.02)


def answers(host: str, port: int) -> bool:
    """Whether a coordinator of a ring answers there."""
    with socket.create_connection((host, port), LONG) as connection, connection.makefile("rb") as lines:
        return bool(json.loads(lines.readline())["nonce"])


def addresses() -> list[str]:
    """The addresses of this machine to which `localhost` may lead."""
    found = ["127.0.0.1"]
    with contextlib.suppress(OSError), socket.create_server(("::1", 0), family=socket.AF_INET6):
        found.append("::1")
    return found


def test_the_port_that_is_published_is_the_coordinators_on_all_addresses(start_node_0: Start) -> None:
    """The order of a set differs from one start to the next, with the seed of Python's hashes: no port may depend on
    it."""
    for seed in range(STARTS):
        process = start_node_0(seed)
        ((_, port),) = listening(process)
        assert all(answers(host, port) for host in addresses()), f"start {seed}"
        process.kill()


def test_the_processes_of_one_machine_meet_where_no_other_reaches_them(
    start_node_0: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    ((host, port),) = listening(start_node_0(0))
    assert host == "127.0.0.1" and answers(host, port)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_ring_that_torchrun_starts_comes_to_its_end(seed: int, tmp_path: Path) -> None:
    torchrun = Path(sys.executable).with_name("torchrun")
    if not torchrun.exists():
        pytest.skip("needs torchrun")
    words = ("--nproc-per-node", "2", "--standalone", "--log-dir", str(tmp_path), "--no-python", *RING)
    environ = {**os.environ, "PYTHONHASHSEED": str(seed), "OMP_NUM_THREADS": "1"}
    sizes = ("--max-bytes", "4K", "--seconds", "120", "--join-seconds", "120", "--format", "json")
    done = subprocess.run((str(torchrun), *words, *sizes), env=environ, capture_output=True, text=True, timeout=LONG)
    document = json.loads(done.stdout)
    assert document["world_size"] == 2 and len(document["results"]) == 2, (document, done.stderr)
