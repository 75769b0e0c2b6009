"""Samples the stacks of this process's Python threads, from another thread of it: no ptrace, no stop, no signal.

sys._current_frames() is asked for with the GIL held, so what a sample costs the training is that one call. A frame's
locals and arguments are never looked at; what is kept of it is its code's name, its file and its line.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from types import CodeType, FrameType
from typing import Final

from laggard.rankfile import Lane
from laggard.rankfile.layout import LANE_SHIFT, WORD_CURRENT, WORD_ISSUED, WORD_PHASE
from laggard.stacks.sampled import MAX_NAME, MAX_THREADS, NO_FRAME, Counted, Frame, Thread, kind_of, shortened, text_of
from laggard.trainer_hooks.record import event_log as periodic_thread
from laggard.trainer_hooks.record.events import phase_name

MAX_WALK: Final = 1000
"""The most frames that are walked of one stack, from the innermost one on: a deep recursion costs no more."""

HOOKS: Final = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
"""The beginning of the paths of laggard's own frames in a training process."""

_OF_CHILDREN: Final = ("torch/utils/data/dataloader.py", "multiprocessing/pool.py")
_OTHERS_EVERY: Final = 10  # samples: how often the other threads are looked at beside the one that trains
_OWN: Final = "laggard"
_OWN_WORK: Final = periodic_thread.__file__
_GENERATOR, _COROUTINE, _ASYNC_GENERATOR = 0x20, 0x80, 0x200  # CPython's code flags, inspect.CO_*

_Walked = tuple[tuple[int, int], ...]  # id of the code, line; the innermost first
_NOWHERE: Final[_Walked] = ((0, 0),)  # no code has the id 0
_Where = tuple[int, int]  # phase, lane of the collective in flight or -1


class Sampler:
    """Counts equal stacks. `training_thread` returns the ident of the thread that trains, `words` the live words, and
    `lanes` the rank's lanes."""

    def __init__(
        self,
        training_thread: Callable[[], int],
        words: Callable[[], memoryview],
        lanes: Callable[[], Sequence[Lane]],
    ) -> None:
        self._training = training_thread
        self._words = words
        self._lanes = lanes
        self._counts: dict[int, Counter[tuple[_Where, _Walked]]] = {}
        self._codes: dict[int, CodeType] = {}
        self._taken = 0
        self.cpu_seconds = 0.0

    def take(self, all_threads: bool = False) -> bool:
        """Takes one sample, of all threads now and then or where asked to. Returns whether the training waits for child
        processes."""
        began = time.thread_time()
        training, own = self._training(), threading.get_ident()
        frames = sys._current_frames()
        main = threading.main_thread().ident
        if training not in frames and main in frames:
            training = main
        others = all_threads or self._taken % _OTHERS_EVERY == 0
        chosen = [training, *(each for each in frames if each not in (training, own))][: MAX_THREADS if others else 1]
        where = self._where()
        waits = False
        for ident in chosen:
            walked = self._walk(frames[ident]) if ident in frames else _NOWHERE
            counts = self._counts.setdefault(ident, Counter())
            if ident == training:
                waits = any(self._is_of_children(code) for code, _ in walked)
            if walked:  # else it is in laggard's own work
                counts[where if ident == training else (-1, -1), walked] += 1
        frames.clear()  # a frame keeps its locals alive
        self._taken += 1
        self.cpu_seconds += time.thread_time() - began
        return waits

    def threads(self) -> tuple[Thread, ...]:
        """The threads that were seen, the one that trains first; without laggard's own. Empty where that was not
        seen."""
        names = {thread.ident: thread.name for thread in threading.enumerate()}
        lanes = self._lanes()
        training = next(iter(self._counts), 0)
        if not self._counts.get(training):
            return ()
        return tuple(
            Thread(text_of(names.get(ident, "")), tuple(self._counted(counts, lanes)))
            for ident, counts in self._counts.items()
            if counts and (ident == training or not names.get(ident, "").startswith(_OWN))
        )

    def _counted(self, counts: Counter[tuple[_Where, _Walked]], lanes: Sequence[Lane]) -> list[Counted]:
        told = []
        for ((phase, lane), walked), count in counts.most_common():
            frames, left_out = shortened([self._frame(code, line) for code, line in walked])
            told.append(Counted(count, frames, phase_name(phase) or "", _operation(lane, lanes), left_out))
        return told

    def _where(self) -> _Where:
        """The phase, and the lane of the collective in flight. Both may change meanwhile: a sample is a sample."""
        try:
            words = self._words()
            return words[WORD_PHASE], words[WORD_CURRENT] >> LANE_SHIFT if words[WORD_ISSUED] else -1
        except ValueError:  # the rank file is closed
            return -1, -1

    def _walk(self, frame: FrameType | None) -> _Walked:
        walked: list[tuple[int, int]] = []
        codes = self._codes
        while frame is not None and len(walked) < MAX_WALK:
            code = frame.f_code
            if code.co_filename == _OWN_WORK:
                walked.clear()  # around a fork the training thread stops and starts laggard's threads
            elif not code.co_filename.startswith(HOOKS):  # they stand around whatever they time
                codes[id(code)] = code
                walked.append((id(code), frame.f_lineno or 0))
            frame = frame.f_back
        return tuple(walked)

    def _is_of_children(self, code_id: int) -> bool:
        return code_id in self._codes and self._codes[code_id].co_filename.endswith(_OF_CHILDREN)

    def _frame(self, code_id: int, line: int) -> Frame:
        if code_id not in self._codes:
            return NO_FRAME
        code = self._codes[code_id]
        name = getattr(code, "co_qualname", code.co_name)  # Python 3.11 and newer
        file = code.co_filename
        flags = code.co_flags
        kind = kind_of(file, bool(flags & _GENERATOR), bool(flags & (_COROUTINE | _ASYNC_GENERATOR)))
        return Frame(text_of(name)[:MAX_NAME], text_of(file), line or None, kind)


def _operation(lane: int, lanes: Sequence[Lane]) -> str:
    return lanes[lane].op if 0 <= lane < len(lanes) else ""
