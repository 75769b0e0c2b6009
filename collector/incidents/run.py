"""A run of a job: one start of its processes, from the first step that was seen to the last. Values alone."""

from __future__ import annotations

from typing import NamedTuple

from msgspec import Struct

from laggard.collector.jobs.key import JobKey


class Run(Struct, frozen=True):
    """Moments are Unix seconds: `started_at` on a node's clock (0: the hooks do not say), the others on the
    collector's. `first_step` and `last_step`: those that were seen. `step_seconds`: what their steps took in all,
    without stalls and without what lies between collectors; of it `slow_seconds` were lost to culprits.
    `checkpoint_step`: the last step in which the script saved one, in its phase `checkpoint`, None where none was seen,
    and `checkpoint_at` when that was. `ended_at`: None while it runs."""

    owner: int
    job_id: str
    began_at: float
    seen_at: float
    started_at: float = 0.0
    script: str = ""
    world_size: int = 0
    first_step: int = -1
    last_step: int = -1
    progressed_at: float = 0.0
    step_seconds: float = 0.0
    slow_seconds: float = 0.0
    checkpoint_step: int | None = None
    checkpoint_at: float = 0.0
    ended_at: float | None = None

    @property
    def key(self) -> JobKey:
        return JobKey(self.owner, self.job_id)

    @property
    def steps(self) -> int:
        return max(0, self.last_step - self.first_step)


class RunSight(NamedTuple):
    """One job in one round. `last_step` -1: none. `typical_seconds`: how long a step takes without stalls, None: not
    known. `slow_share`: of it, what culprits take. `checkpoint_step`: the last of the window in which one was saved."""

    key: JobKey
    running: bool
    script: str
    started_at: float
    world_size: int
    last_step: int
    progressed_at: float
    typical_seconds: float | None = None
    slow_share: float = 0.0
    checkpoint_step: int | None = None
