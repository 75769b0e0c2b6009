"""Where the steps end in a process whose updates are made by DeepSpeed engines: one as a rule, two or more where an
actor and a critic, or a generator and its opponent, are trained together."""

from __future__ import annotations

from laggard.trainer_hooks.record.recorder import Recorder
from laggard.trainer_hooks.steps.step_boundary import StepClock


class EngineSteps:
    """Each engine is counted by the optimizer's steps that it takes."""

    def __init__(self, recorder: Recorder) -> None:
        self._clock = StepClock()
        self._recorder = recorder
        self._engines = 0

    def add(self) -> int:
        """One engine more. Returns its number, 1 and up, the same on every rank."""
        self._engines += 1
        return self._engines

    def updated(self, engine: int, global_steps: int) -> None:
        """Engine number `engine` has taken its optimizer's step. One alone numbers the steps, also after a checkpoint
        was loaded. Several have a count each: their steps are those of the one that leads, numbered on from here."""
        if self._clock.update(engine, worked=True):
            self._recorder.end_step(global_steps if self._engines == 1 else self._recorder.step + 1)
