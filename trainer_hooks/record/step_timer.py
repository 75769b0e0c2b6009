"""The times of one step: a row of segments without gaps, each a phase or the time between two phases.

A segment's own time is its length less the time blocked in collectives within it, so that step = own + waited.
Pure: times are given, in nanoseconds of CLOCK_MONOTONIC; whether they come from the host's clock or were measured on a
device makes no difference here.
"""

from __future__ import annotations

from typing import Final

from laggard.constants import PHASES
from laggard.trainer_hooks.record.records import Span, StepRecord

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
