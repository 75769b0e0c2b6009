"""Ranks in a cgroup of version 2 with limits of memory and CPU, and what an agent tells of them. Runs in the virtual
machine, as root."""

import ctypes
import json
import os
import signal
import subprocess
import time
import urllib.request
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from laggard import cli
from laggard.rankfile.writer import RankFileWriter

ROOT = "/sys/fs/cgroup"
JOB = f"{ROOT}/job"
LIMITS = {"memory.max": str(48 << 20), "cpu.max": "20000 100000"}  # a fifth of a core
RANKS, ADDRESS = "/run/ranks", "127.0.0.1:9400"
PATIENCE_SECONDS = 120.0
CAP_SYS_ADMIN, CAP_SYSLOG = 21, 34


def ranks_in_a_cgroup() -> dict[str, Any]:
    """What the agent says of a rank that its quota holds back, then takes more memory than there is, of its sibling,
    which the launcher kills then, and of one that somebody kills there later. The agent may not read the kernel's log:
    it has the cgroup's own count."""
    _make_cgroup()
    subprocess.run(["mount", "--bind", "/dev/null", "/dev/kmsg"], check=True)
    agent = _start(_run_agent)
    try:
        _start_rank(0)
        seen = {"held back": _wait_for(0, lambda row: (row.get("cpu_wait") or {}).get("seconds", 0) >= 2)}
        _write(f"{JOB}/cpu.max", "max")
        _start_rank(2)
        seen["out of memory"] = _end_of(0, signal.SIGUSR1)
        seen["its sibling"] = _end_of(2, signal.SIGKILL)
        _start_rank(1)
        return {**seen, "killed": _end_of(1, signal.SIGKILL)}
    finally:
        os.kill(agent, signal.SIGKILL)
        os.waitpid(agent, 0)
        subprocess.run(["umount", "/dev/kmsg"], check=True)


_PIDS: dict[int, int] = {}


def _make_cgroup() -> None:
    subprocess.run(["mount", "-t", "cgroup2", "cgroup2", ROOT], check=True)
    _write(f"{ROOT}/cgroup.subtree_control", "+memory +cpu")
    os.mkdir(JOB)
    for name, value in LIMITS.items():
        _write(f"{JOB}/{name}", value)
    os.mkdir(RANKS)
    os.chmod(RANKS, 0o1777)


def drop(capabilities: Sequence[int]) -> None:
    """Takes them from the effective ones: capabilities(7), capset(2)."""
    libc = ctypes.CDLL(None, use_errno=True)
    header, sets = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
    assert libc.capget(header, sets) == 0
    for number in capabilities:
        sets[3 * (number // 32)] &= ~(1 << number % 32)
    assert libc.capset(header, sets) == 0


def _run_agent() -> None:
    drop([CAP_SYS_ADMIN, CAP_SYSLOG])
    with open("/run/agent.yaml", "w") as file:
        json.dump({"only": ["limits"]}, file)  # YAML too
    words = ["--rank-dir", RANKS, "--node", "vm", "--profile", "/run/agent.yaml"]
    cli.main(["agent", "--web.listen-address", ADDRESS, *words])


def _start_rank(number: int) -> None:
    """A rank that computes without a pause; the agent has seen it."""
    _PIDS[number] = _start(lambda: _run_rank(number))
    _wait_for(number, lambda row: row["state"] == "running")


def _end_of(number: int, sent: signal.Signals) -> dict[str, Any]:
    """Ends the rank by a signal, on SIGUSR1 it takes all memory. Returns the agent's row of it."""
    os.kill(_PIDS[number], sent)
    row = _wait_for(number, lambda row: row["state"] == "died" and (row.get("end") or {}).get("signal"))
    os.waitpid(_PIDS[number], 0)
    return row


def _run_rank(number: int) -> NoReturn:
    _write(f"{JOB}/cgroup.procs", "0")
    signal.signal(signal.SIGUSR1, _take_memory)
    clocks = {"wall_ns": time.time_ns(), "monotonic_ns": time.perf_counter_ns()}
    identity = {"job_id": "17", "rank": number, "local_rank": number, "world_size": 3, "node": "vm", "gpu": None}
    writer = RankFileWriter(RANKS, {**clocks, **identity, "attempt": 0})
    while writer.path:  # it holds the file, by which the agent knows that the rank lives
        pass


def _take_memory(number: int, frame: object) -> None:
    taken = []
    while True:
        taken.append(bytearray(b"x" * (1 << 20)))


def _start(run: Callable[[], object]) -> int:
    pid = os.fork()
    if pid == 0:
        try:
            run()
        finally:
            os._exit(70)
    return pid


def _wait_for(number: int, is_there: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    until, rows = time.monotonic() + PATIENCE_SECONDS, "no answer"
    while time.monotonic() < until:
        try:
            with urllib.request.urlopen(f"http://{ADDRESS}/api/v1/ranks", timeout=300) as answer:
                rows = json.load(answer)["ranks"]
        except OSError:
            time.sleep(0.2)
            continue
        for row in rows:
            if row["rank"] == number and is_there(row):
                return {name: row.get(name) for name in ("state", "end", "cpu_wait")}
        time.sleep(0.2)
    raise TimeoutError(f"rank {number}: {rows}")


def _write(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)
