"""One job as the collector holds it: the newest row about each of its ranks, and their last steps."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection, Iterable, Mapping
from itertools import islice
from typing import Final, NamedTuple

from msgspec import structs

from laggard.collector.locate.job_timings import (
    MOST_WINDOW_STEPS,
    WINDOW_SECONDS,
    WINDOW_STEPS,
    JobTimings,
    timings_from_rows,
)
from laggard.wire.ranks import RankRow, StepRow

_UID: Final = re.compile(r"[0-9]{1,10}")


class JobKey(NamedTuple):
    """A job's name is unique for its owner only: two users may both call their job `test`."""

    owner: int
    job_id: str

    def __str__(self) -> str:
        return f"{self.owner}:{self.job_id}"

    @classmethod
    def parse(cls, text: str) -> JobKey | None:
        """The key that `text` is, as in `1000:train`. None where it is a job's name alone. A job whose own name has
        this form is found by its key alone, so that no job can pass for another user's."""
        owner, separator, name = text.partition(":")
        return cls(int(owner), name) if separator and name and _UID.fullmatch(owner) else None


@dataclasses.dataclass
class RankWindow:
    """The newest row about one rank, without its steps, and the rank's last steps by number, ascending: WINDOW_STEPS
    of them, and of shorter steps those of the last WINDOW_SECONDS.
    `source` is the URL of the agent that reports the rank; `asked_at` and `updated_at` are when it was last asked, and
    when its answer was there (monotonic seconds)."""

    source: str
    newest: RankRow
    updated_at: float
    asked_at: float
    steps: dict[int, StepRow] = dataclasses.field(default_factory=dict)

    def ingest(self, steps: Iterable[StepRow], most: int = MOST_WINDOW_STEPS) -> bool:
        """Adds the steps that are new, and keeps the last of all, `most` of them at most; a repeated step changes
        nothing. Returns whether the rank got any further."""
        new = {step.step: step for step in steps if step.step not in self.steps}
        if not new:
            return False
        last_before = next(reversed(self.steps), -1)
        merged = {**self.steps, **new}
        if min(new) < last_before or list(new) != sorted(new):
            merged = dict(sorted(merged.items()))
        excess = _excess(merged, most)
        self.steps = dict(islice(merged.items(), excess, None)) if excess > 0 else merged
        return next(reversed(self.steps)) > last_before

    def restarted(self, steps: Iterable[StepRow]) -> bool:
        """Whether `steps` are numbered anew, later in time: the same job name, another run."""
        if not self.steps:
            return False
        last = self.steps[next(reversed(self.steps))]
        return any(step.step <= last.step and step.start > last.end for step in steps)


def _excess(steps: dict[int, StepRow], most: int) -> int:
    """How many of the first of `steps`, ascending, are not kept."""
    count = len(steps)
    if count <= WINDOW_STEPS:
        return 0
    begin = steps[next(reversed(steps))].end - WINDOW_SECONDS
    old = 0
    for row in islice(steps.values(), count - WINDOW_STEPS):
        if old >= count - most and row.start >= begin:
            break
        old += 1
    return old


class Run(NamedTuple):
    """What all ranks of one run of a job have in common. An elastic restart raises the attempt."""

    attempt: int
    world_size: int


@dataclasses.dataclass
class Job:
    """The ranks of one run of a job. `agent` is the URL of the first to report it. `updated_at` is when an agent last
    reported it, `progressed_at` when an agent last reported a new step of it; both in seconds on the collector's
    monotonic clock. `agents`: who reports ranks of it that run, and when each last did."""

    run: Run
    agent: str
    updated_at: float
    progressed_at: float
    ranks: dict[int, RankWindow] = dataclasses.field(default_factory=dict)
    agents: dict[str, float] = dataclasses.field(default_factory=dict)

    @property
    def running(self) -> bool:
        return any(rank.newest.state == "running" for rank in self.ranks.values())

    @property
    def sources(self) -> set[str]:
        return {rank.source for rank in self.ranks.values()}

    @property
    def recency(self) -> tuple[bool, float, float]:
        """A sort key: the greater, the likelier this is the job that a reader wants to see."""
        last_progress = max((rank.newest.last_progress_timestamp_seconds for rank in self.ranks.values()), default=0.0)
        return self.running, self.progressed_at, last_progress

    def newest_rows(self, answering: Collection[str]) -> dict[int, RankRow]:
        """The newest row about each rank, without its steps. `answering`: the URLs of the agents that answer now; a
        rank whose agent does not is in state `unknown`."""
        return {
            number: rank.newest if rank.source in answering else structs.replace(rank.newest, state="unknown")
            for number, rank in self.ranks.items()
        }

    def asked_seconds_ago(self) -> dict[int, float]:
        """For how long each rank's agent had not been asked when the last answer about the job was there."""
        return {number: max(0.0, self.updated_at - rank.asked_at) for number, rank in self.ranks.items()}

    def timings(self, job_id: str, answering: Collection[str], findings: Mapping[str, tuple[str, ...]]) -> JobTimings:
        """The newest steps of the job: WINDOW_STEPS, or as many as are held of the rank with the most. A rank whose
        agent does not answer keeps its steps, but its state is unknown: an agent's silence does not prove a hang.
        `findings`: codes by node."""
        length = max(WINDOW_STEPS, *(len(rank.steps) for rank in self.ranks.values()), 0)
        newest = sorted(set().union(*(rank.steps for rank in self.ranks.values())))[-length:]
        first = newest[0] if newest else 0
        steps_by_rank = {number: _steps_from(first, rank.steps) for number, rank in self.ranks.items()}
        rows = self.newest_rows(answering)
        world_size = max((row.world_size for row in rows.values()), default=0)
        return timings_from_rows(job_id, world_size, steps_by_rank, rows, findings, self.asked_seconds_ago())


def _steps_from(first: int, steps: Mapping[int, StepRow]) -> list[StepRow]:
    """The steps from number `first` on, of `steps` in ascending order."""
    if not steps or next(iter(steps)) >= first:
        return list(steps.values())
    return [step for number, step in steps.items() if number >= first]
