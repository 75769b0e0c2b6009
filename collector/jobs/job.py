"""One job as the collector holds it: the newest row about each of its ranks, and their last steps."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from laggard.collector.jobs.held_stacks import HeldStacks
from laggard.collector.jobs.kept_layout import KeptLayout
from laggard.collector.jobs.key import JobKey as JobKey
from laggard.collector.jobs.step_window import StepWindow
from laggard.locate.job_timings import FIRST_STEPS, WARM_UP_STEPS, WINDOW_STEPS, JobTimings, live_timings
from laggard.locate.live_collectives import with_collectives
from laggard.locate.node_findings import NodeFindings
from laggard.locate.step_tables import FIRST_PHASE, STEP, STEP_COLUMNS, Table, distinct_steps
from laggard.stacks.sampled import Sampled
from laggard.wire.collectives import RankCollectives
from laggard.wire.ranks import RankRow

CONTESTED_ANSWERS: Final = 2
"""The number of answers about a rank in a row, none by a second machine among them, after which it is believed again:
rounds take as long as they take."""

COLLECTIVES_SECONDS: Final = 30.0
"""The time for which single collectives count; the agents are asked for them every ten seconds."""


@dataclasses.dataclass
class RankWindow:
    """The newest row about one rank, and the rank's last steps.
    `source` is the URL of the agent that reports the rank; `asked_at` and `updated_at` are when it was last asked, and
    when its answer was there (monotonic seconds). `reporter`: the node and boot id of that agent. `rival`: the node of
    another machine that reported the rank as running, too; `contested`: how many answers have to come without that."""

    source: str
    newest: RankRow
    updated_at: float
    asked_at: float
    window: StepWindow = dataclasses.field(default_factory=StepWindow)
    reporter: tuple[str, str] = ("", "")
    rival: str = ""
    contested: int = 0

    @property
    def table(self) -> Table:
        """The rank's last steps, ascending. Later steps change another table."""
        return self.window.table


class Run(NamedTuple):
    """The facts that all ranks of one run of a job have in common. An elastic restart raises the attempt."""

    attempt: int
    world_size: int


@dataclasses.dataclass
class Job:
    """The ranks of one run of a job. `agent` is the URL of the first to report it. `updated_at` is when an agent last
    reported it, `progressed_at` when an agent last reported a new step of it, and `ended_at` when a rank of it last
    ran, as far as that is known: of one that runs, when an agent last said so. All are in seconds on the collector's
    monotonic clock. `agents`: who reports ranks of it that run, and when each last did. `collectives`: the last of
    those ranks that were asked for them, at `collectives_at`. `first_phases`: by rank, as JobTimings has them."""

    run: Run
    agent: str
    updated_at: float
    progressed_at: float
    ended_at: float
    ranks: dict[int, RankWindow] = dataclasses.field(default_factory=dict)
    agents: dict[str, float] = dataclasses.field(default_factory=dict)
    collectives: Mapping[int, RankCollectives] = dataclasses.field(default_factory=dict)
    collectives_at: float = 0.0
    first_phases: dict[int, NDArray[np.float64]] = dataclasses.field(default_factory=dict)
    held_stacks: HeldStacks = dataclasses.field(default_factory=HeldStacks)
    layout: KeptLayout = dataclasses.field(default_factory=KeptLayout)

    @property
    def stacks(self) -> Mapping[int, Sampled]:
        """The newest stacks of those ranks that were asked for them."""
        return self.held_stacks.by_rank

    @property
    def running(self) -> bool:
        return any(rank.newest.state == "running" for rank in self.ranks.values())

    @property
    def contested(self) -> dict[int, RankWindow]:
        """The ranks that two machines report at once: one of them lies, and which of them nothing tells."""
        return {number: rank for number, rank in self.ranks.items() if rank.contested}

    @property
    def sources(self) -> set[str]:
        return {rank.source for rank in self.ranks.values()}

    @property
    def recency(self) -> tuple[bool, float, float]:
        """A sort key: the greater, the likelier this is the job that a reader wants to see."""
        last_progress = max((rank.newest.last_progress_timestamp_seconds for rank in self.ranks.values()), default=0.0)
        return self.running, self.progressed_at, last_progress

    @property
    def said(self) -> Mapping[str, Any]:
        """The facts that the rank with the lowest number says about itself, as in laggard.rankfile.fact_names."""
        return self.ranks[min(self.ranks)].newest.facts if self.ranks else {}

    def newest_rows(self, answering: Collection[str]) -> dict[int, RankRow]:
        """The newest row about each rank, without its steps. `answering`: the URLs of the agents that answer now; a
        rank whose agent does not is in state `unknown`."""
        return {
            number: rank.newest if rank.source in answering else structs.replace(rank.newest, state="unknown")
            for number, rank in self.ranks.items()
        }

    def asked_seconds_ago(self) -> dict[int, float]:
        """The seconds for which each rank's agent had not been asked when the last answer about the job was there."""
        return {number: max(0.0, self.updated_at - rank.asked_at) for number, rank in self.ranks.items()}

    def timings(self, job_id: str, answering: Collection[str], findings: Mapping[str, NodeFindings]) -> JobTimings:
        """The newest steps of the job: WINDOW_STEPS, or as many as are held of the rank with the most. A rank whose
        agent does not answer keeps its steps, but its state is unknown: an agent's silence does not prove a hang. Those
        that are contested are left out. `findings`: by node."""
        contested = self.contested
        tables = {number: rank.table for number, rank in self.ranks.items() if number not in contested}
        first = _first_step(list(tables.values()))
        tables = {number: _from_step(first, table) for number, table in tables.items()}
        rows = {number: row for number, row in self.newest_rows(answering).items() if number in tables}
        world_size = max((row.world_size for row in rows.values()), default=0)
        asked, layout = self.asked_seconds_ago(), self.layout.of(rows)
        timings = live_timings(job_id, world_size, tables, rows, findings, asked, layout)
        if timings.alone is not None and timings.alone.any():
            timings = dataclasses.replace(timings, first_phases=self._first_phases(timings.ranks, timings.alone))
        return with_collectives(timings, self.collectives, rows) if self.running and self.has_collectives else timings

    @property
    def has_collectives(self) -> bool:
        """Whether single collectives are known that count."""
        return bool(self.collectives) and self.updated_at - self.collectives_at <= COLLECTIVES_SECONDS

    def _first_phases(self, ranks: NDArray[np.int64], alone: NDArray[np.bool_]) -> NDArray[np.float64]:
        """The array that JobTimings has under that name. Each rank's first steps are kept once all of them are
        there."""
        found = np.full((FIRST_STEPS, len(ranks), STEP_COLUMNS - FIRST_PHASE), np.nan)
        for column in np.flatnonzero(alone).tolist():
            rank = int(ranks[column])
            kept = self.first_phases.get(rank)
            if kept is None:
                table = self.ranks[rank].table
                kept = table[table[:, STEP] >= WARM_UP_STEPS][:FIRST_STEPS, FIRST_PHASE:].copy()
                if len(kept) == FIRST_STEPS:
                    self.first_phases[rank] = kept
            found[: len(kept), column] = kept
        return found


def _first_step(tables: Sequence[NDArray[np.float64]]) -> int:
    """The first of the job's newest steps: WINDOW_STEPS of them, or as many as are held of the rank with the most."""
    numbers = distinct_steps(tables)
    length = max(WINDOW_STEPS, max(map(len, tables), default=0))
    return int(numbers[-length:][0]) if len(numbers) else 0


def _from_step(first: int, table: NDArray[np.float64]) -> NDArray[np.float64]:
    begins_later = not len(table) or table[0, STEP] >= first
    return table if begins_later else table[np.searchsorted(table[:, STEP], first) :]
