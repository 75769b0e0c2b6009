"""A sign of life from beside the training: what is written into the rank file, about once a second, of how far each
lane and each process group has come.

It uses no process group, takes no lock that the training takes, and stops where the interpreter does: with every thread
stopped (SIGSTOP) or kept from running (a call that holds the GIL) the beat grows old, which the reader sees.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from laggard.rankfile import BeatRecord, GroupState, RankFileWriter
from laggard.rankfile.layout import FLIGHT_RECORDER
from laggard.trainer_hooks.collectives.flight_recorder import ABSENT, Progress, look
from laggard.trainer_hooks.record.facts import Facts

_DEAR_NS: Final = 100_000  # what torch's answer may take with the GIL held, before it is asked for less often
_DEAR_IN_A_ROW: Final = 3  # the first answer of all often is, and one now and then
_SELDOM: Final = 10  # beats from one dear answer to the next

Lanes = Callable[[], tuple[tuple[int, int], ...]]
"""How many collectives of each lane were entered, and are done."""


class Heartbeat:
    """One rank's. Whoever calls beat() does so each `interval_seconds`."""

    def __init__(
        self,
        writer: RankFileWriter,
        lanes: Lanes,
        facts: Facts,
        interval_seconds: float,
        watch: Callable[[], None] = lambda: None,
    ) -> None:
        self._writer = writer
        self._lanes = lanes
        self._facts = facts
        self._watch = watch  # called at each beat: may set facts
        self._interval_ns = int(interval_seconds * 1e9)
        self._progress = Progress(ABSENT, ())
        self._dear = 0  # answers in a row that were
        self._rest = 0  # beats that torch is still left alone for
        self._moved: dict[str, GroupState] = {}  # each group as it was when it last moved

    def beat(self) -> None:
        """One sign of life."""
        now = time.perf_counter_ns()
        groups = self._groups(now)
        self._writer.write_beat(BeatRecord(now, self._interval_ns, self._progress.state, self._lanes(), groups))
        self._watch()
        news = self._facts.changed_json()
        if news is not None:
            self._writer.write_facts(news)

    def _groups(self, now: int) -> tuple[GroupState, ...]:
        self._ask_torch()
        marks = []
        for group in self._progress.groups:
            before = self._moved.get(group[0])
            marks.append(before if before and before[:4] == group else GroupState(*group, now))
        self._moved = {mark.name: mark for mark in marks}
        return tuple(marks)

    def _ask_torch(self) -> None:
        if self._rest:
            self._rest -= 1
            return
        began = time.thread_time_ns()  # of this thread alone: a busy machine does not make the answer dear
        self._progress = look()
        self._dear = self._dear + 1 if time.thread_time_ns() - began > _DEAR_NS else 0
        self._rest = _SELDOM if self._dear >= _DEAR_IN_A_ROW else 0
        self._facts.set("flight_recorder", FLIGHT_RECORDER[self._progress.state])
