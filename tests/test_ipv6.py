"""Agent, collector and commands on a machine that has IPv6 alone: a network namespace without 127.0.0.1."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.daemons import Daemon
from support.waiting import wait_for

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
    started: list[Daemon] = []

    def start(*words: str) -> str:
        log, environ = tmp_path / f"{len(started)}.log", {"LAGGARD_STATE_DIR": str(tmp_path / "state")}
        started.append(Daemon(log, words, environ, (*within, sys.executable, "-m", "laggard")))
        return started[-1].url

    yield start
    for each in started:
        each.stop()


def test_all_of_it_works_without_ipv4(within: tuple[str, ...], daemon: Callable[..., str], tmp_path: Path) -> None:
    (tmp_path / "ranks").mkdir()
    agent = daemon("agent", "--web.listen-address", ":19400", "--node", "n0", "--rank-dir", str(tmp_path / "ranks"))
    assert agent == "http://[::]:19400", "every interface, as by default"
    collector = daemon("collector", "--web.listen-address", "[::1]:0", "--interval", "0.3", "--target", "[::1]:19400")
    assert collector.startswith("http://[::1]:")

    def laggard(*words: str) -> str:
        command = [*within, sys.executable, "-m", "laggard", *words, "--collector", collector]
        return subprocess.run(command, capture_output=True, text=True, timeout=SECONDS).stdout

    wait_for(lambda: "1 agent answers" in laggard("locate"), lambda: laggard("locate"))
    assert laggard("incidents").startswith("No incident is open.\n")
    gate = [*within, sys.executable, "-m", "laggard", "healthcheck", "--gate", "report-only", "--collector", collector]
    done = subprocess.run(gate, capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == 0 and "gate: pass" in done.stdout, done
