"""Agent, collector and commands on a machine that has IPv6 alone: a network namespace without 127.0.0.1."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

SECONDS = 300.0
ALONE = "ip link set lo up && ip addr del 127.0.0.1/8 dev lo && echo ready && exec sleep 1200"


@pytest.fixture
def within() -> Iterator[tuple[str, ...]]:
    """The words of a command that starts another one in the namespace."""
    holder = subprocess.Popen(
        ["unshare", "-n", "sh", "-c", ALONE], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert holder.stdout and holder.stderr
    ready = holder.stdout.readline() == "ready\n"
    yield ("nsenter", f"--net=/proc/{holder.pid}/ns/net") if ready else ()
    holder.kill()
    holder.communicate()


@pytest.fixture
def daemon(within: tuple[str, ...], tmp_path: Path) -> Iterator[Callable[..., str]]:
    """Starts a daemon in the namespace, and returns the URL that it says."""
    if not within:
        pytest.skip("no network namespace can be made, as root on Linux can, or it has no IPv6")
    started: list[subprocess.Popen[bytes]] = []

    def start(*words: str) -> str:
        log = tmp_path / f"{words[0]}-{len(started)}.log"
        environ = {**os.environ, "LAGGARD_STATE_DIR": str(tmp_path / "state")}
        with log.open("w") as stderr:
            command = [*within, sys.executable, "-m", "laggard", *words]
            started.append(subprocess.Popen(command, stderr=stderr, env=environ))
        deadline = time.monotonic() + SECONDS
        while not (found := re.search(r"listening on (\S+)", log.read_text())):
            assert time.monotonic() < deadline and started[-1].poll() is None, log.read_text()
            time.sleep(0.05)
        return found[1]

    yield start
    for process in started:
        process.terminate()
        process.wait(SECONDS)


def test_all_of_it_works_without_ipv4(within: tuple[str, ...], daemon: Callable[..., str], tmp_path: Path) -> None:
    (tmp_path / "ranks").mkdir()
    agent = daemon("agent", "--web.listen-address", ":19400", "--node", "n0", "--rank-dir", str(tmp_path / "ranks"))
    assert agent == "http://[::]:19400", "every interface, as by default"
    collector = daemon("collector", "--web.listen-address", "[::1]:0", "--interval", "0.3", "--target", "[::1]:19400")
    assert collector.startswith("http://[::1]:")

    def laggard(*words: str) -> str:
        command = [*within, sys.executable, "-m", "laggard", *words, "--collector", collector]
        return subprocess.run(command, capture_output=True, text=True, timeout=SECONDS).stdout

    deadline = time.monotonic() + SECONDS
    while "1 agent answers" not in (said := laggard("locate")):
        assert time.monotonic() < deadline, said
    assert laggard("incidents").startswith("No incident is open.\n")
    gate = [*within, sys.executable, "-m", "laggard", "healthcheck", "--gate", "report-only", "--collector", collector]
    done = subprocess.run(gate, capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == 0 and "gate: pass" in done.stdout, done
