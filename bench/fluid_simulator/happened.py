"""The happenings of a case, as values: a run, its truth, and how it stood still."""

import dataclasses

from fluid_simulator.run import Run
from fluid_simulator.truths import Truth


@dataclasses.dataclass(frozen=True)
class Standstill:
    """A job's stop, for the recording. `since`: seconds, when nothing moved any more; `ranks` that stopped, in
    `step`; `wait`: seconds until the launcher killed the job; `recorder`: whether torch's Flight Recorder was on;
    `by_exception`: the rank ended by an exception of its own."""

    family: str
    ranks: list[int]
    step: int
    since: float
    wait: float
    recorder: bool
    by_exception: bool


@dataclasses.dataclass(frozen=True)
class Happened:
    """`step_seconds`: of the job with nothing wrong."""

    run: Run
    truth: Truth
    step_seconds: float
    standstill: Standstill | None = None
