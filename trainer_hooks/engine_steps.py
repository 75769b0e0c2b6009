"""Where the steps end in a process whose updates are made by DeepSpeed engines: one as a rule, two or more where an
actor and a critic, or a generator and its opponent, are trained together."""

from __future__ import annotations

from collections.abc import Callable

from laggard.trainer_hooks.steps import StepClock

EndStep = Callable[[int | None], None]


class EngineSteps:
    """`end_step` is called with the number of the step that begins; None: the one after this."""

    def __init__(self, end_step: EndStep) -> None:
        self._clock = StepClock()
        self._end_step = end_step
        self._engines = 0

    def add(self) -> int:
        """One engine more. Returns its number, 1 and up, the same on every rank."""
        self._engines += 1
        return self._engines

    def updated(self, engine: int, global_steps: int) -> None:
        """Engine number `engine` has taken its optimizer's step. One alone numbers the steps, also after a checkpoint
        was loaded. Several have a count each: their steps are those of the one that leads, numbered on from here."""
        if self._clock.update(engine, worked=True):
            self._end_step(global_steps if self._engines == 1 else None)
