"""A user's process that makes everybody wait who reads it: it costs the reader and the probes a moment, once."""

import contextlib
import json
import os
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from support.daemons import laggard
from support.hostile import held_memory, needs_fuse
from support.readers import OTHER, Reader, environ

from laggard.agent.idle_rings.ring import Arrivals, GpuWatch
from laggard.agent.ranks.reader import RankFiles
from laggard.agent.reader.server import MAX_CONNECTIONS, ReaderServer
from laggard.probes.host.apart import SKIPPED_SECONDS, HangingUsers, NoChild, Stopped, apart
from laggard.probes.host.reader import NoReader, ask
from laggard.probes.nccl.model.running_ranks import RankProcesses


@pytest.mark.slow
@needs_fuse
def test_it_takes_no_place_of_the_reader(tmp_path: Path) -> None:
    path = tmp_path / "live.sock"
    reader = Reader(path, "--allow-user", "root")
    try:
        with held_memory(tmp_path, NCCL_DEBUG="INFO") as pid:
            left_out = 0
            for _ in range(MAX_CONNECTIONS + 4):
                with contextlib.suppress(NoReader):  # a loaded machine: the client's two seconds were over
                    found = msgspec.json.decode(ask("rank_processes", environ(path)), type=RankProcesses)
                    left_out = found.hanging
            assert left_out, "it is told that processes are left out"
            with pytest.raises(NoReader, match="do not let themselves be read"):
                ask(f"job_variables {pid}", environ(path))
            assert b'"' in ask(f"kernel_side {OTHER} {pid}", environ(path)), "that takes no lock of its memory"
            assert json.loads(ask("clock", environ(path)))
    finally:
        reader.process.terminate()
        said = reader.process.communicate(timeout=300)[1]
    assert said.count("does not let itself be read: the processes of user 65533 are left out for 10 minutes") == 1, said


@pytest.mark.slow
@needs_fuse
def test_it_costs_a_gate_no_answer_about_the_others(tmp_path: Path) -> None:
    with held_memory(tmp_path, NCCL_DEBUG="INFO"):
        done = laggard("healthcheck", "--only", "nccl_env", "--format", "json")
        (probe,) = json.loads(done.stdout)["probes"]
        assert probe["verdict"] != "unknown", probe
        assert "whose processes do not let themselves be read were left out" in done.stdout


@pytest.mark.slow
@needs_fuse
def test_it_does_not_hold_an_idle_ring(tmp_path: Path) -> None:
    with held_memory(tmp_path, "slurmstepd"):
        node = Arrivals(RankFiles(str(tmp_path / "ranks"), "n0"), GpuWatch(lambda: None))
        found: list[str] = []
        thread = threading.Thread(target=lambda: found.append(node.look()), daemon=True)
        thread.start()
        thread.join(30)
        assert found, "the thread that watches waits for the user's process"


def test_work_that_stops_is_ended_and_named() -> None:
    def stops(note: Callable[[int], None]) -> bytes:
        note(17)
        note(42)
        threading.Event().wait(300)
        return b""

    with pytest.raises(Stopped) as stopped:
        apart(stops)
    assert stopped.value.item == 42
    assert apart(lambda note: b"x" * 300_000) == b"x" * 300_000


def test_work_that_is_busy_is_not_blamed() -> None:
    def works(note: Callable[[int], None]) -> bytes:
        note(1)
        end = time.monotonic() + 1.0
        while time.monotonic() < end:
            pass
        return b"done"

    assert apart(works) == b"done"


def test_work_that_fails_says_why() -> None:
    with pytest.raises(NoChild, match="ZeroDivisionError"):
        apart(lambda note: bytes(1 // 0))


def test_a_user_is_left_out_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("laggard.probes.host.apart._user", {7: 1001, 8: 1001, 9: 0, 10: 0}.__getitem__)
    users = HangingUsers(lambda: now[0])
    users.blame(7)
    users.blame(9)
    assert users.without(["7", "8", "9", "10"]) == (["10"], 3), "of root's processes that one alone"
    now[0] = SKIPPED_SECONDS + 1
    assert users.without(["7", "8", "9", "10"]) == (["7", "8", "9", "10"], 0)


def test_a_reader_whose_places_are_held_ends_itself(tmp_path: Path) -> None:
    stuck, going_on = threading.Event(), threading.Event()

    def hangs(question: str) -> bytes:
        going_on.wait(300)
        return b""

    path = tmp_path / "reader.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener, contextlib.ExitStack() as stack:
        listener.bind(str(path))
        listener.listen(64)
        server = ReaderServer(listener, frozenset({os.geteuid()}), hangs, stuck.set, 0.2)
        threading.Thread(target=server.serve, daemon=True).start()
        deadline = time.monotonic() + 60
        while not stuck.is_set() and time.monotonic() < deadline:
            client = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            client.connect(str(path))
            with contextlib.suppress(OSError):
                client.sendall(b"clock\n")
            time.sleep(0.02)
        assert stuck.is_set()
        going_on.set()
        listener.shutdown(socket.SHUT_RDWR)
