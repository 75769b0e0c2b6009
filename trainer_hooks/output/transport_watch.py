"""Reports now and then which transports this rank's NCCL uses. The heartbeat calls it on its thread; never raises."""

from __future__ import annotations

import json
import logging
import os
from typing import Final

from laggard.kit.environment import rank_dir
from laggard.rankfile.fact_names import TRANSPORT
from laggard.rankfile.layout import log_directory
from laggard.trainer_hooks.record.ending import FACTS, Facts

log = logging.getLogger("laggard")

_BEATS_PER_CHECK: Final = 15
_MAX_EMPTY_CHECKS: Final = 8  # in a row, after which a process is taken not to use NCCL


class TransportWatch:
    """Watches the NCCL of one process: prepare() before the script runs, beat() at every beat, close() at the end."""

    def __init__(self, facts: Facts = FACTS) -> None:
        self._facts = facts
        self._log: object = None
        self.is_prepared = False
        self._beats = 0
        self._empty_checks = 0

    def prepare(self) -> None:
        """Has NCCL write a log for laggard alone, unless the user has it log already. The log is in memory, in this
        user's rank directory, as long as the process runs."""
        self.is_prepared = True
        try:
            from laggard.nccl.private_log import prepare_log

            self._log = prepare_log(os.environ, log_directory(rank_dir(os.environ)))
        except Exception as error:
            reason = getattr(error, "strerror", None) or error
            log.warning("laggard: no log of NCCL: %s: %s", type(error).__name__, reason)

    def beat(self) -> None:
        """Sets the fact TRANSPORT at every 15th beat. Gives up on a process that loads no NCCL, and after an error."""
        self._beats += 1
        if self._empty_checks >= _MAX_EMPTY_CHECKS or self._beats % _BEATS_PER_CHECK != 1:
            return
        try:
            self._check()
        except Exception:
            self._empty_checks = _MAX_EMPTY_CHECKS

    def _check(self) -> None:
        from laggard.nccl.private_log import PrivateLog, observe

        private = self._log if isinstance(self._log, PrivateLog) else None
        transport = observe(private, os.environ)
        if transport.version_source == "library" or transport.process.connections:
            self._empty_checks = 0
            self._facts.set(TRANSPORT, json.loads(transport.to_json()))
        else:
            self._empty_checks += 1

    def close(self) -> None:
        """Removes the private log."""
        remove = getattr(self._log, "remove", None)
        if remove is not None:
            remove()


WATCH: Final = TransportWatch()
"""The watch of this process."""
