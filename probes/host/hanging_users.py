"""Users whose processes make those wait who read them: they are left out for a while, and cost nobody else."""

from __future__ import annotations

import time
from _thread import allocate_lock  # threading takes a millisecond of the gate's start
from collections.abc import Callable, Iterable
from typing import Final

from laggard.probes.host.users_file import read_credentials
from laggard.sub_uids import ACCOUNTS

SKIPPED_SECONDS: Final = 600.0
_MAX_USERS: Final = 1024


class HangingUsers:
    """To be used from threads. Of root, whose processes are the system's, single processes are left out."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = allocate_lock()
        self._until: dict[tuple[str, int], float] = {}
        self.stops = 0
        """The number of times that one of them made a reader wait."""

    def blame(self, pid: int) -> None:
        """The process `pid` has made a reader wait."""
        uid = _user(pid)
        key = ("user", uid) if uid else ("process", pid)
        with self._lock:
            self.stops += 1
            if len(self._until) >= _MAX_USERS:
                self._until.clear()
            self._until[key] = self._clock() + SKIPPED_SECONDS
        whom = f"the processes of user {uid} are" if uid else "it is"
        import logging  # only here: it takes some milliseconds of the gate's start

        logging.getLogger("laggard.probes").warning(
            "process %d does not let itself be read: %s left out for %d minutes", pid, whom, 10
        )

    def without(self, pids: Iterable[str]) -> tuple[list[str], int]:
        """Those of the process ids that may be read, and how many are left out."""
        pids, now = list(pids), self._clock()
        with self._lock:
            self._until = {key: until for key, until in self._until.items() if until > now}
            hanging = frozenset(self._until)
        if not hanging:
            return pids, 0
        kept = [
            pid for pid in pids if ("process", int(pid)) not in hanging and ("user", _user(int(pid))) not in hanging
        ]
        return kept, len(pids) - len(kept)


def _user(pid: int) -> int:
    """The account that runs the process; 0 where it has ended."""
    try:
        return ACCOUNTS.account_of(read_credentials(str(pid)).uid)
    except OSError:
        return 0


HANGING: Final = HangingUsers()
"""Of this process."""
