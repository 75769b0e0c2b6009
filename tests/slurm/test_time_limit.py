"""One time limit over the whole gate, in a real SLURM: whatever is slow or hangs, the job starts when GATE_SECONDS are
over at the latest, and nothing drains its node later."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import pytest

from laggard.wire import encode
from laggard.wire.nodes import DrainsDocument

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

LIMIT_SECONDS = 4
FOR_EVER = 3600.0
FULL = "laggard: DISK_FULL / 99 % used"

CONF = """
export LAGGARD_TEST={folder}
SCONTROL={folder}/slow-scontrol
began=$EPOCHREALTIME
trap 'echo "$began $EPOCHREALTIME" >{folder}/took-$SLURMD_NODENAME' EXIT
"""
SCONTROL = """#!/bin/bash
sleep {seconds}
exec {scontrol} "$@"
"""


class Slow(NamedTuple):
    """How long, in seconds, the collector and scontrol take to answer. scontrol then does what it was asked for."""

    collector: float
    scontrol: float


@pytest.fixture
def slow_cluster(cluster: Any, slow: Slow) -> Iterator[Any]:
    """A node with a full disk, a probe that hangs there, and who is asked about it takes long. It has just booted."""
    folder = cluster.folder
    conf, usual = folder / "gate/gate.conf", (folder / "gate/gate.conf").read_text()
    conf.write_text(usual + CONF.format(folder=folder))
    scontrol = shutil.which("scontrol", path="/usr/bin:/usr/local/bin:/bin")
    (folder / "slow-scontrol").write_text(SCONTROL.format(seconds=slow.scontrol, scontrol=scontrol))
    (folder / "slow-scontrol").chmod(0o755)
    limits = cluster.set_machine("n1", "disk_full") / "proc/self/limits"
    limits.unlink()
    os.mkfifo(limits)  # nobody writes to it: its reader hangs
    with collector(slow.collector) as url:
        flags = "--only disks --only limits"
        cluster.configure(mode="enforce", seconds=str(LIMIT_SECONDS), collector=url, flags=flags, checked="")
        yield cluster
    conf.write_text(usual)


@contextlib.contextmanager
def collector(seconds: float) -> Iterator[str]:
    """Stands in for a collector that is slow, and lets n1 be drained."""
    stop = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            stop.wait(seconds)
            body = encode(DrainsDocument(True, "", 4, 4, 0, 1, 0.05, asker_fails=True))
            with contextlib.suppress(ConnectionError):
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        stop.set()
        server.shutdown()


def processes_of(folder: Path) -> list[str]:
    """Those that the gate of these tests started, and that still live."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get("LAGGARD_TEST") == str(folder) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(" ".join(process.cmdline()))
    return found


def prolog_seconds(folder: Path, node: str) -> float:
    began, ended = map(float, (folder / f"took-{node}").read_text().split())
    return ended - began


@pytest.mark.parametrize("slow", [Slow(FOR_EVER, FOR_EVER), Slow(0.8, 2.0)], ids=["all_hang", "all_answer_late"])
def test_what_is_not_decided_in_time_drains_nothing_later(slow_cluster: Any, slow: Slow) -> None:
    """Where all answer late, their times together are well over the limit. The job may then be rejected, in time; but
    where it was let in, nobody drains its node when it runs."""
    job = slow_cluster.srun("n1")
    was_let_in = (job.returncode, job.stdout) == (0, "n1\n")
    assert was_let_in or slow.scontrol < FOR_EVER, job.stderr
    took = prolog_seconds(slow_cluster.folder, "n1")
    assert took < LIMIT_SECONDS + 60, "the limit, and what a busy machine takes to start and end processes"
    until = time.monotonic() + 300
    while left := processes_of(slow_cluster.folder):
        assert time.monotonic() < until, left
        time.sleep(0.1)
    shown = slow_cluster.run("scontrol", "show", "node", "n1").stdout
    assert not (was_let_in and FULL in shown), shown
    assert slow_cluster.wait_settled("n1") == ("idle" if was_let_in else slow_cluster.state("n1"))


def test_who_answers_in_time_still_drains(cluster: Any) -> None:
    cluster.configure(mode="enforce", seconds="60", checked="")
    cluster.set_machine("n1", "disk_full")
    assert cluster.refuses("n1")
    assert cluster.wait_settled("n1").startswith(f"drained {FULL}")
    assert (cluster.folder / "settings/checked").read_text() == "checked\n"


@pytest.mark.parametrize(
    ("seconds", "complaint"),
    [
        ("15", "gate: set up, enforce: SLURM knows n1; no cap"),
        ("116", "PrologEpilogTimeout of slurm.conf is 120 s, after which SLURM kills the prolog and drains the node"),
        ("56", "SLURM kills HealthCheckProgram after 60 s: set it to 55 or less"),
    ],
)
def test_check_sh_compares_with_slurms_own_limits(cluster: Any, seconds: str, complaint: str) -> None:
    cluster.configure(mode="enforce", seconds=seconds)
    done: subprocess.CompletedProcess[str] = cluster.run(
        "env", "SLURMD_NODENAME=n1", str(cluster.folder / "gate/check.sh")
    )
    assert done.stderr == "" and complaint in done.stdout, done
    assert done.returncode == ("set up" not in complaint)
