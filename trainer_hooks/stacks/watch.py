"""Takes the stacks of this rank when somebody asks, when its training stands still, and when an exception ends it.

Nobody asks: one look at a file's time each second, on the writer thread, and nothing else.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from types import TracebackType
from typing import Final, NamedTuple

from laggard.rankfile import Lane
from laggard.rankfile.layout import WORD_CURRENT, WORD_ISSUED, WORD_PROGRESS, WORD_STEP_CELLS
from laggard.stacks.ask import FILE, MIN_SECONDS_BETWEEN, read_ask
from laggard.stacks.kernel_side import NotThere, read_kernel_side, text_of_side
from laggard.stacks.sampled import (
    ASKED,
    FAILED,
    STALLED,
    Counted,
    Frame,
    Sampled,
    Thread,
    kind_of,
    shortened,
    text_of,
    write,
)
from laggard.trainer_hooks.record.event_log import PeriodicThread, uneven
from laggard.trainer_hooks.stacks.fault_file import Children, FaultFile
from laggard.trainer_hooks.stacks.sampler import HOOKS, MAX_WALK, Sampler

MAX_CPU_SHARE: Final = 0.01
"""The most of one core that sampling takes. Where a sample is dear, as with thousands of threads, there are fewer."""

_GRACE_SECONDS: Final = 0.01  # of CPU, that the first samples may take


class Samples(NamedTuple):
    """The stacks that were seen. `at`: Unix time of the beginning; `seconds`: for how long it was looked."""

    at: float
    seconds: float
    threads: tuple[Thread, ...]


class _Round(NamedTuple):
    sampler: Sampler
    children: Children | None
    samples: int
    until: float
    began: float
    at: float
    done: Callable[[Samples], None]


class Sampling(PeriodicThread):
    """Samples in rounds, one at a time. `new_sampler` and `new_children` are called for each."""

    def __init__(self, new_sampler: Callable[[], Sampler], new_children: Callable[[], Children | None]) -> None:
        super().__init__(self._take)
        self._new_sampler = new_sampler
        self._new_children = new_children
        self._round: _Round | None = None
        self._taken = 0
        self._interval = 1.0

    @property
    def is_busy(self) -> bool:
        return self._round is not None

    def begin(self, samples: int, seconds: float, done: Callable[[Samples], None]) -> None:
        """Takes so many samples in so many seconds, and calls done(...) on its thread; not where no thread can be
        had."""
        self.stop()
        now = time.monotonic()
        self._taken, self._interval = 0, seconds / samples
        self._round = _Round(self._new_sampler(), self._new_children(), samples, now + seconds, now, time.time(), done)
        try:
            self.start()
        except RuntimeError:
            self._round = None

    def rest(self) -> None:
        """Ends the thread where its round is over. For the thread that began it."""
        if self._thread is not None and not self.is_busy:
            self.stop()

    def finish(self) -> None:
        """Ends the thread, and the round with what there is. For the thread that began it."""
        self.stop()
        self._end()

    def _take(self) -> None:
        it = self._round
        if it is None:
            return
        with contextlib.suppress(Exception):  # no stack is worth a fault in the training's process
            elapsed = time.monotonic() - it.began
            if it.sampler.cpu_seconds <= MAX_CPU_SHARE * elapsed + _GRACE_SECONDS:
                waits = it.sampler.take()
                if waits and it.children is not None:  # a signal to a worker is not for nothing
                    it.children.take()
        self._taken += 1
        if self._taken >= it.samples or time.monotonic() >= it.until:
            self._end()

    def _act_last(self) -> None:
        """Nothing: stop() comes before a fork, too."""

    def _end(self) -> None:
        it, self._round = self._round, None
        if it is not None:
            with contextlib.suppress(Exception):
                children = it.children.threads() if it.children is not None else ()
                if it.sampler.threads():  # else it ended before its first sample
                    it.done(Samples(it.at, time.monotonic() - it.began, (*it.sampler.threads(), *children)))

    def _interval_seconds(self) -> float:
        """Never in step with the training's steps."""
        return self._interval * uneven()


STALL_SECONDS: Final = 30.0
"""The time without any progress after which a rank takes its own stacks: before anybody calls it hung."""

_STALL_RATIO: Final = 3.0  # times the longest standstill so far
_AGAIN_RATIO: Final = 4.0  # a standstill that goes on is looked at again after so many times as long
_FIRST_WINDOW, _LAST_WINDOW = 5.0, 60.0  # seconds of a round that nobody asked for
_ALWAYS_RATE: Final = 10  # samples a second in these
_PUT_OFF_RATIO: Final = 6  # how often the timer of a held GIL is put off while a standstill would last


class About(NamedTuple):
    """The writer of stacks and its files: `path`, of its stacks. `ask_folders`: where an ask may stand; `trusted`:
    whose is believed."""

    job_id: str
    rank: int
    node: str
    path: str
    ask_folders: tuple[str, ...]
    trusted: frozenset[int]


class StackWatch:
    """The watch of one rank. Its owner calls beat() about once a second, from a thread that is not the training's.
    `stall_seconds`: the time without progress that counts as a standstill. `told` gets each document once it is
    written; `always`: it is also sampled, now and then, where nobody asks. `faults`: None where faulthandler has no
    file."""

    def __init__(
        self,
        about: About,
        training_thread: Callable[[], int],
        words: Callable[[], memoryview],
        lanes: Callable[[], Sequence[Lane]],
        faults: FaultFile | None = None,
        stall_seconds: float = STALL_SECONDS,
        told: Callable[[Sampled], None] = lambda _: None,
        always: bool = False,
    ) -> None:
        self._about = about
        self._sampled = partial(Sampled, about.job_id, about.rank, about.node, os.getpid())
        self._training = training_thread
        self._words = words
        self._lanes = lanes
        self._faults = faults
        self._stall_seconds = stall_seconds
        self._put_off_at = 0.0
        self._told = told
        self._seen: tuple[tuple[int, int], ...] | None = None  # time and inode of each ask's file, at the last look
        self._answered = ""
        self._free_at = 0.0
        self._asked = Sampling(self._sampler, self._children)
        self._always = Sampling(self._sampler, self._children) if always else None
        self._window = _FIRST_WINDOW
        for sampling in filter(None, (self._asked, self._always)):
            sampling.pause_around_forks()
        self._progress: object = None
        self._moved_at = time.monotonic()
        self._longest = 0.0
        self._due = stall_seconds
        self._lock = threading.Lock()  # of what is written
        self._failed = False
        self._pid = os.getpid()

    def beat(self) -> None:
        """Looks whether somebody asks, and whether the training moves."""
        now = time.monotonic()
        if self._faults is not None and now >= self._put_off_at:
            self._put_off_at = now + self._stall_seconds / _PUT_OFF_RATIO
            self._faults.put_off()
        self._asked.rest()
        self._look_for_ask()
        self._look_at_progress()
        if self._always is not None and not self._always.is_busy:
            self._always.begin(round(self._window * _ALWAYS_RATE), self._window, self._write_samples)
            self._window = min(2 * self._window, _LAST_WINDOW)

    def failed(self, error: BaseException) -> None:
        """The exception ends the training: its innermost frames are the last that is known. Never raises."""
        with contextlib.suppress(Exception):
            frames = _frames_of(error.__traceback__)
            if frames and not self._failed:
                self._failed = True
                kept, left_out = shortened(frames)
                stack = Counted(1, kept, left_out=left_out)
                self._write(self._sampled(FAILED, time.time(), 0.0, (Thread("MainThread", (stack,)),)))

    def close(self) -> None:
        """The process ends: what was written of one that ends in order is taken away."""
        if os.getpid() != self._pid:
            return
        self._asked.stop()
        if self._always is not None:
            self._always.finish()
        if self._faults is not None:
            self._faults.close()
        if not self._failed:
            with contextlib.suppress(OSError):
                os.unlink(self._about.path)

    def _look_for_ask(self) -> None:
        about = self._about
        seen = tuple(_time_and_inode(os.path.join(folder, FILE)) for folder in about.ask_folders)
        if seen == self._seen or self._asked.is_busy or time.monotonic() < self._free_at:
            return
        self._seen = seen
        for folder in about.ask_folders:
            ask = read_ask(folder, about.trusted)
            if ask and ask.ident != self._answered and ask.is_for(os.geteuid(), about.job_id, about.rank, time.time()):
                self._answered = ask.ident
                self._asked.begin(ask.samples, ask.seconds, partial(self._write_answer, ask.ident))
                return

    def _write_answer(self, ask: str, samples: Samples) -> None:
        self._free_at = time.monotonic() + MIN_SECONDS_BETWEEN
        self._write(self._sampled(ASKED, *samples, ask=ask))

    def _write_samples(self, samples: Samples) -> None:
        """Tells of a round that nobody asked for: into the recording alone."""
        self._told(self._sampled(ASKED, *samples))

    def _look_at_progress(self) -> None:
        now, progress = time.monotonic(), self._read_progress()
        if progress != self._progress:
            self._longest = max(self._longest, now - self._moved_at) if self._progress is not None else 0.0
            self._progress, self._moved_at = progress, now
            self._due = max(self._stall_seconds, _STALL_RATIO * self._longest)
            return
        quiet = now - self._moved_at
        if quiet >= self._due:
            self._due = quiet * _AGAIN_RATIO
            self.take_stalled(quiet)

    def take_stalled(self, quiet: float) -> None:
        """Takes one sample of all threads and children of a training that has stood still for `quiet` seconds."""
        sampler, children, at = self._sampler(), self._children(), time.time()
        sampler.take(all_threads=True)
        if children is not None:
            children.take_each()
        if threads := sampler.threads():
            whole = (*threads, *(children.threads() if children is not None else ()))
            self._write(self._sampled(STALLED, at, 0.0, whole, stalled_seconds=quiet)._replace(kernel=self._kernel()))

    def _kernel(self) -> str:
        """Where the training thread stands in the kernel, in words; empty: it is not told."""
        training = self._training()
        thread = next((it.native_id for it in threading.enumerate() if it.ident == training), None)
        try:
            return text_of_side(read_kernel_side(os.getpid(), thread or os.getpid()))
        except NotThere:
            return ""

    def _read_progress(self) -> tuple[int, ...]:
        try:
            words = self._words()
            return tuple(words[each] for each in (WORD_CURRENT, WORD_ISSUED, WORD_PROGRESS, WORD_STEP_CELLS))
        except ValueError:  # the rank file is closed
            return ()

    def _sampler(self) -> Sampler:
        return Sampler(self._training, self._words, self._lanes)

    def _children(self) -> Children | None:
        return Children(self._faults) if self._faults is not None else None

    def _write(self, sampled: Sampled) -> None:
        with self._lock:
            if sampled.why != FAILED and self._failed:
                return
            write(self._about.path, sampled)
            self._told(sampled)


def _frames_of(trace: TracebackType | None) -> list[Frame]:
    frames: list[Frame] = []
    while trace is not None and len(frames) < MAX_WALK:
        code = trace.tb_frame.f_code
        name, file = getattr(code, "co_qualname", code.co_name), code.co_filename
        if not file.startswith(HOOKS):
            frames.append(Frame(text_of(name), text_of(file), trace.tb_lineno, kind_of(file)))
        trace = trace.tb_next
    return frames[::-1]


def _time_and_inode(path: str) -> tuple[int, int]:
    try:
        about = os.stat(path, follow_symlinks=False)
    except OSError:
        return 0, 0
    return about.st_mtime_ns, about.st_ino
