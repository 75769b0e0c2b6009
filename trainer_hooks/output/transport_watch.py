"""Tells now and then how this rank's NCCL talks. Called by the heartbeat, on its thread; nothing here raises."""

from __future__ import annotations

import json
import logging
import os
from typing import Final

from laggard.environment import rank_dir
from laggard.rankfile.fact_names import TRANSPORT
from laggard.trainer_hooks.record.facts import FACTS, Facts

log = logging.getLogger("laggard")

_EVERY: Final = 15  # beats
_TRIES: Final = 8  # looks after which a process that has loaded no NCCL is taken not to use it


class TransportWatch:
    """One process's. `prepare` before the script runs; `beat` at every beat; `close` at the end."""

    def __init__(self, facts: Facts = FACTS) -> None:
        self._facts = facts
        self._log: object = None
        self._beats = 0
        self._silent = 0

    def prepare(self) -> None:
        """Has NCCL write a log for laggard alone, unless the user has it log already. It lies beside the rank files'
        folder, in memory, for the time that the process runs."""
        try:
            from laggard.nccl.observe import prepare_log

            self._log = prepare_log(os.environ, f"{rank_dir(os.environ)}.nccl")
        except Exception as error:
            log.warning("laggard: NCCL is not asked for its log: %s: %s", type(error).__name__, error)

    def beat(self) -> None:
        self._beats += 1
        if self._silent >= _TRIES or self._beats % _EVERY != 1:
            return
        try:
            self._look()
        except Exception:
            self._silent = _TRIES

    def _look(self) -> None:
        from laggard.nccl.observe import PrivateLog, observe

        private = self._log if isinstance(self._log, PrivateLog) else None
        transport = observe(private, os.environ)
        if transport.version_source == "library" or transport.process.connections:
            self._silent = 0
            self._facts.set(TRANSPORT, json.loads(transport.to_json()))
        else:
            self._silent += 1

    def close(self) -> None:
        remove = getattr(self._log, "remove", None)
        if remove is not None:
            remove()


WATCH: Final = TransportWatch()
"""This process's."""
