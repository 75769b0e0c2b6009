"""The processes, as the agent sees them, that NCCL RAS names on this node. A pid is taken only where the process is one
of the user who listens: in a container with pids of its own it may be anybody's."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from laggard.agent.ranks.process_info import read_process_info

_SLURM_JOB: Final = re.compile(r"/job_(\d{1,12})(?:/|$)")
_MAX_PIDS: Final = 256


class Processes:
    """Remembers which pids were the user's processes, so that one that is gone can be told from one never seen."""

    def __init__(self, proc: str = "/proc") -> None:
        self._proc = proc
        self._seen: frozenset[tuple[int, int]] = frozenset()
        self._job_names: dict[tuple[int, int], str] = {}

    def look(self, owner: int, pids: Iterable[int]) -> dict[int, str]:
        """Returns running, stopped or gone for each of `pids` that is, or was, a process of `owner`."""
        states, seen = {}, set()
        for pid in sorted(pid for pid in set(pids) if pid > 0)[:_MAX_PIDS]:
            info = read_process_info(pid, self._proc)
            if info and owner in info.uids:
                states[pid] = "stopped" if info.stopped else "running"
                self._remember_job(owner, pid, info.cgroup)
            elif (owner, pid) in self._seen:
                states[pid] = "gone"
            if pid in states:
                seen.add((owner, pid))
        self._seen = frozenset(seen | {key for key in self._seen if key[0] != owner or key[1] in states})
        self._job_names = {key: name for key, name in self._job_names.items() if key in self._seen}
        return states

    def job_name(self, owner: int, pids: Iterable[int]) -> str | None:
        """Returns the SLURM job that the cgroup of one of `pids` names; None where none does."""
        return next((self._job_names[owner, pid] for pid in sorted(pids) if (owner, pid) in self._job_names), None)

    def _remember_job(self, owner: int, pid: int, cgroup: str) -> None:
        found = _SLURM_JOB.search(cgroup)
        if found:
            self._job_names[owner, pid] = found[1]
