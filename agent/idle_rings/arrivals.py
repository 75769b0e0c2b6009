"""The signs that a job has come to this node: a step of SLURM's, a rank that laggard's hooks watch, or a process on a
GPU. They are looked for ten times a second while a ring runs, so each look is short."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Collection
from typing import Final, NamedTuple

from laggard.agent.ranks.reader import RankFiles
from laggard.probes.gpu.busy import BusyThresholds
from laggard.probes.gpu.model.services import is_service_by
from laggard.probes.nvml.processes import GpuProcesses, NvmlUnreadable
from laggard.processes.stat import read_stat

_STEP: Final = "slurmstepd"
_YOUNG_SECONDS: Final = 5.0
"""The time for which a process may still become another one, by execve()."""
_GPU_PAUSE_SECONDS: Final = 0.1
_GPU_PATIENCE_SECONDS: Final = 5.0


class _Seen(NamedTuple):
    name: str
    since: float


class Arrivals:
    """`own_session`: the session whose processes are the ring's own; None: no ring runs."""

    def __init__(self, rank_files: RankFiles, gpus: GpuWatch, proc: str = "/proc") -> None:
        self._rank_files, self._gpus, self._proc = rank_files, gpus, proc
        self._seen: dict[int, _Seen] = {}

    def look(self, own_session: int | None = None) -> str:
        """Returns what has come, in a few words; empty: the node is idle."""
        return self._step() or self._rank() or self._gpus.stranger(own_session)

    def _step(self) -> str:
        now, seen = time.monotonic(), {}
        for entry in os.listdir(self._proc):
            if entry.isdecimal():
                pid = int(entry)
                known = self._seen.get(pid)
                if known is None or now - known.since < _YOUNG_SECONDS:
                    known = _Seen(process_name(pid, self._proc), now if known is None else known.since)
                seen[pid] = known
        self._seen = seen
        steps = [pid for pid, each in seen.items() if each.name == _STEP and self._is_jobs(pid)]
        return f"a job of SLURM (process {steps[0]}, {_STEP})" if steps else ""

    def _is_jobs(self, pid: int) -> bool:
        """Whether root runs it, and it is no keeper: with cgroup v2 `slurmstepd infinity` holds the cgroup that all
        steps are in. A user's process of that name is not looked at: its memory, which holds its command, may be made
        so that nobody's read of it returns."""
        if not is_service_by(_reader(self._proc), pid, (_STEP,)):
            return False
        with contextlib.suppress(OSError), open(f"{self._proc}/{pid}/cmdline", "rb") as file:
            return not file.read(256).rstrip(b"\0").endswith(b"\0infinity")
        return False  # it has ended

    def _rank(self) -> str:
        running = [row for row in self._rank_files.read().ranks if row.state == "running"]
        return f"rank {running[0].rank} of job {running[0].job_id[:80]}" if running else ""


class GpuWatch:
    """Looks at the GPUs' processes on a thread of its own, since a call into a driver that hangs never returns."""

    def __init__(self, find: Callable[[], Collection[int] | None], ignore: Collection[str] = BusyThresholds().ignore):
        """`find` returns the ids of all processes on GPUs; None: there are no GPUs. Raises NvmlUnreadable."""
        self._find, self._ignore = find, frozenset(ignore)
        self._pids: frozenset[int] = frozenset()
        self._failure = ""
        self._looked_at = time.monotonic()
        self._has_gpus = True
        self._first_look = threading.Event()
        threading.Thread(target=self._run, name="gpus", daemon=True).start()

    def stranger(self, own_session: int | None) -> str:
        """Returns which process, of none of the ring's and no service, is on a GPU; or why that cannot be told."""
        if not self._first_look.wait(_GPU_PATIENCE_SECONDS) or (
            self._has_gpus and time.monotonic() - self._looked_at > _GPU_PATIENCE_SECONDS
        ):
            return "NVML does not answer, so that a job would not be seen"
        if self._failure:
            return self._failure
        for pid in self._pids:
            if not is_service_by(_reader("/proc"), pid, self._ignore) and not _is_own(pid, own_session):
                name = process_name(pid)
                return f"process {pid}{f' ({name})' if name else ''} on a GPU"
        return ""

    def _run(self) -> None:
        while True:
            try:
                pids = self._find()
                self._pids, self._failure = frozenset(pids or ()), ""
            except NvmlUnreadable as error:
                pids, self._failure = (), f"{error}, so that a job would not be seen"
            self._looked_at, self._has_gpus = time.monotonic(), pids is not None
            self._first_look.set()
            if pids is None:
                return
            time.sleep(_GPU_PAUSE_SECONDS)


def make_arrivals(rank_dir: str, node: str) -> Arrivals:
    return Arrivals(RankFiles(rank_dir, node), GpuWatch(GpuProcesses().pids))


def hidden_processes(proc: str = "/proc") -> bool:
    """Whether other users' processes are hidden from this one (mount option hidepid): a job would not be seen."""
    return not os.path.exists(f"{proc}/1/comm") or not os.access(f"{proc}/1/comm", os.R_OK)


def process_name(pid: int, proc: str = "/proc") -> str:
    """The first 15 characters; empty where the process has ended."""
    with contextlib.suppress(OSError), open(f"{proc}/{pid}/comm", "rb") as file:
        return file.read(64).strip().decode(errors="replace")
    return ""


def _reader(proc: str) -> Callable[[str], str]:
    """Reads files of processes; empty text where that is not possible. No file is read that a process can hold up."""

    def read(path: str) -> str:
        with contextlib.suppress(OSError), open(proc + path.removeprefix("/proc"), "rb") as file:
            return file.read(16_384).decode(errors="replace")
        return ""

    return read


def _is_own(pid: int, session: int | None) -> bool:
    return session is not None and session_of(pid) == session


def session_of(pid: int, proc: str = "/proc") -> int:
    """0 where the process has ended."""
    stat = read_stat(pid, proc)
    return stat.session if stat else 0


def processes_of_session(session: int, proc: str = "/proc") -> list[int]:
    """The processes that live; one that has ended, and whose parent has not yet asked how, is none."""
    each = ((int(pid), read_stat(pid, proc)) for pid in os.listdir(proc) if pid.isdecimal())
    return [pid for pid, stat in each if stat and stat.session == session and not stat.has_ended]
