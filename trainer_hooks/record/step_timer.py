"""The times of one step: a row of segments without gaps, each a phase or the time between two phases.

A segment's own time is its length less the time blocked in collectives within it, so that step = own + waited.
Pure: times are given, in nanoseconds of CLOCK_MONOTONIC; whether they come from the host's clock or were measured on a
device makes no difference here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, Protocol

from laggard.kit.constants import PHASES
from laggard.trainer_hooks.record.events import LaneLog, Launch, Span, StepRecord

INPUT, FORWARD, BACKWARD, OPTIMIZER, BETWEEN_STEPS, EVALUATION, CHECKPOINT, LOGGING, OTHER = range(len(PHASES))
NO_PHASE: Final = -1
_SPAN_LIMIT: Final = 4096  # of a step; one that never ends must not fill the memory


class StepTimer:
    """The step that is under way. `begun` is False until the first phase: what came before belongs to no step.
    `engine_gaps`: an engine, and not the script, fills the time between two phases of a step."""

    def __init__(self, engine_gaps: bool = False) -> None:
        self.begun = False
        self.engine_gaps = engine_gaps
        self.begin(0, 0)

    def begin(self, now: int, step: int) -> None:
        """A new step starts at `now`."""
        self.step = step
        self.segment_began = now
        self._start = now
        self._own = [0] * len(PHASES)
        self._waited = 0
        self._segment_waited = 0
        self._spans: list[Span] = []
        self._phase = self._left = NO_PHASE
        self._micro = -1
        self._work = 0
        self._backward_seen = self._forward_seen = False

    def enter(self, now: int, phase: int, work: int) -> None:
        """`phase` begins, which ends the time between it and the phase before. `work`: as Recorder.enter."""
        self._close_segment(now, self._phase_of_gap(phase))
        self._phase = phase
        if phase == FORWARD:
            self._micro += 1
            self._work += work
            self._forward_seen = True
        elif phase == BACKWARD:
            self._backward_seen, self._forward_seen = True, False

    def leave(self, now: int) -> None:
        """The phase entered last ends."""
        self._close_segment(now, self._phase)
        self._left, self._phase = self._phase, NO_PHASE

    def waited(self, nanoseconds: int) -> None:
        """The rank was blocked in a collective for so long, in the segment that is under way."""
        self._segment_waited += nanoseconds

    def close(self) -> StepRecord:
        """The step as it stands; its end is that of the phase left last."""
        end = self.segment_began
        return StepRecord(self.step, self._start, end, tuple(self._own), self._waited, tuple(self._spans), self._work)

    def _phase_of_gap(self, following: int) -> int:
        """The phase that the time between two phases counts for, judged by the phase that follows."""
        if following in (FORWARD, INPUT):
            return OTHER if self.engine_gaps else BETWEEN_STEPS
        if following > OPTIMIZER:  # evaluation and the like
            return following if following == self._left else BETWEEN_STEPS if self._micro < 0 else OTHER
        if following == BACKWARD and not self._forward_seen:
            return FORWARD  # a forward pass that no hook sees: a compiled model's
        if following == OPTIMIZER and not self._backward_seen:
            return BACKWARD  # loss.backward() in place of engine.backward(loss)
        return OTHER

    def _close_segment(self, now: int, phase: int) -> None:
        length = now - self.segment_began
        waited = self._segment_waited
        if waited:
            self._segment_waited = 0
            waited = min(waited, length)  # a device's times are rounded
            self._waited += waited
        self._own[phase] += length - waited
        if phase != OTHER and length > 0 and len(self._spans) < _SPAN_LIMIT:
            self._spans.append(Span(phase, self.segment_began, now, self._micro if self._micro > 0 else 0))
        self.segment_began = now


class DeviceTimer(Protocol):
    """Times phases, steps and collectives of the training thread by marks in a device's streams, and logs them once the
    device has come past the marks. Nothing here waits for the device. A mark is None where none could be had."""

    def enter(self, now: int, phase: int, work: int) -> None:
        """The training thread enters `phase`, at `now` on the host's clock. `work`: as Recorder.enter."""

    def leave(self) -> None:
        """The training thread leaves the phase."""

    def end_step(self, finished: int, next_step: int) -> None:
        """The step `finished` ends with the phase left last."""

    def call(
        self,
        original: Callable[..., Any],
        group: Any,
        args: Sequence[Any],
        named: dict[str, Any],
        launch: tuple[int, LaneLog, int],
        sized: Any,
        size_of: Callable[[Any], int],
    ) -> Any:
        """Returns original(group, ...), called once, between marks. `launch`: word, lane log, issued. `sized`: the
        argument that has the operation's size; None where the operation moves no data."""

    def wait(self, work: object, original: Callable[..., Any], *args: Any) -> Any:
        """Returns original(work, ...), the caller's own wait, called once, between marks."""

    def synchronize(self, work: object, original: Callable[..., Any]) -> Any:
        """Returns original(work), Work.synchronize(), called once, between marks where it waits for a collective."""

    def begin_batch(self, now: int) -> None:
        """Does as PendingWork.begin_batch."""

    def end_batch(self, key: int | None) -> None:
        """Does as PendingWork.end_batch; logs what is over."""

    def carries(self, tensors: Any, group: Any) -> bool:
        """Whether a collective on `tensors` (one, lists of them, or None: it moves no data) in `group` runs there."""

    def mark(self) -> Any:
        """A mark at the end of the present stream."""

    def release(self, *marks: Any) -> None:
        """These marks are needed no more."""

    def take(self, since: int, logs: set[int], before: Any) -> tuple[list[Launch], Any]:
        """Takes as PendingWork.take does, for a caller that waits for the collectives in C++. Also returns `before`, or
        the mark of the last arrival that came after it in its stream."""

    def log_native(self, launches: Sequence[Launch], before: Any, after: Any, waits: bool = True) -> None:
        """Logs collectives that C++ made and waited for: their stream was ready for them at `before`, and stood still
        until `after`; for them where `waits`. The marks are the caller's no more."""

    def log_ended(self, launches: Sequence[Launch], ended: int) -> None:
        """Logs collectives of which nothing is known but that they are over, for the host, at `ended`."""

    def time_native_wait(self, original: Callable[..., Any], *args: Any) -> Any:
        """Returns original(...), called once, between marks: the present stream waits for a collective that C++ made
        and that log_ended() will log."""

    def recent_launches(self) -> Iterable[tuple[int, int, int]]:
        """Word, launch on the host's clock and bytes of the last collectives."""

    def poll(self) -> None:
        """Logs what the device has come past by now. Never blocks."""

    def close(self) -> None:
        """The training is over: what the device has not come to by now was never seen to end."""

    def abandon(self) -> None:
        """Asks the device nothing from here on: this process is a forked child, in which it does not answer."""

    def facts(self) -> dict[str, Any]:
        """The facts to report of the device's clock, by name."""
