"""The ends of steps in a process whose updates are made by DeepSpeed engines: one as a rule, two or more where an actor
and a critic, or a generator and its opponent, are trained together."""

from __future__ import annotations

from laggard.trainer_hooks.record.recorder import Recorder
from laggard.trainer_hooks.steps.step_boundary import StepBoundary


class EngineSteps:
    """Ends the recorder's steps by the optimizer steps that the engines take."""

    def __init__(self, recorder: Recorder) -> None:
        self._boundary = StepBoundary()
        self._recorder = recorder
        self._engines = 0

    def add_engine(self) -> int:
        """Adds an engine. Returns its number, 1 and up, the same on every rank."""
        self._engines += 1
        self._boundary.add(self._engines)
        return self._engines

    def updated(self, engine: int, global_steps: int) -> None:
        """Engine number `engine` has taken its optimizer's step. An engine alone numbers the steps, also after a
        checkpoint was loaded. Several have a count each: the steps are those of the engine that leads, numbered on from
        here."""
        if self._boundary.update(engine, worked=True):
            self._recorder.end_step(global_steps if self._engines == 1 else self._recorder.step + 1)
