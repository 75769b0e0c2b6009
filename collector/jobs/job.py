"""One job as the collector holds it: the newest row about each of its ranks, their last steps, their stacks and their
layout."""

from __future__ import annotations

import dataclasses
from bisect import bisect_right
from collections.abc import Collection, Iterable, Mapping, Sequence
from operator import lt
from typing import Any, Final, NamedTuple

import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from laggard.collector.jobs.live_collectives import NoiseHistory, with_collectives
from laggard.locate.job_timings import (
    END,
    FIRST_PHASE,
    FIRST_STEPS,
    MAX_WINDOW_STEPS,
    NO_STEPS,
    START,
    STEP,
    STEP_COLUMNS,
    WARM_UP_STEPS,
    WINDOW_SECONDS,
    WINDOW_STEPS,
    JobTimings,
    NodeFindings,
    Table,
    distinct_steps,
    live_timings,
)
from laggard.locate.positions import LiveLayout
from laggard.rankfile.fact_names import GROUPS
from laggard.stacks.sampled import Counted, Frame, Sampled, Thread
from laggard.wire import encode
from laggard.wire.ranks import RankCollectives, RankRow
from laggard.wire.stacks import MissingStacks

MAX_BYTES: Final = 64 << 20
"""The most bytes of the stacks of all jobs together."""

_FRAME_BYTES: Final = 250  # a tuple of four, two texts and their heads; measured with sys.getsizeof
_COUNTED_BYTES: Final = 200
_REFERENCE_BYTES: Final = 8
_MAX_FRAMES: Final = 1 << 16


class JobStacks(NamedTuple):
    """The stacks of one job, for those who read them. `missing`: why a rank has none; `ranks`: all of the job."""

    by_rank: Mapping[int, Sampled]
    missing: Mapping[int, MissingStacks]
    ranks: tuple[int, ...]


@dataclasses.dataclass
class HeldStacks:
    """`missing`: why a rank had none when it was last asked. `updated_at`: when the last ones came, in monotonic
    seconds. Equal frames of different ranks are held once: the ranks of a job run one script."""

    by_rank: Mapping[int, Sampled] = dataclasses.field(default_factory=dict)
    missing: Mapping[int, MissingStacks] = dataclasses.field(default_factory=dict)
    updated_at: float = 0.0
    bytes: int = 0
    _frames: dict[Frame, Frame] = dataclasses.field(default_factory=dict)

    def add(self, found: Mapping[int, Sampled], missing: Mapping[int, MissingStacks], now: float) -> None:
        """Takes them over where they are newer. Readers may read meanwhile: the mapping is replaced as a whole."""
        newer = {
            rank: self._shared(each)
            for rank, each in found.items()
            if rank not in self.by_rank or each.at >= self.by_rank[rank].at
        }
        self.by_rank = {**self.by_rank, **newer}
        kept = {rank: each for rank, each in self.missing.items() if rank not in found}
        self.missing = {**kept, **missing}
        self.updated_at = now
        used = {frame for each in self.by_rank.values() for frame in _frames_of(each)}
        self._frames = {frame: frame for frame in used}
        self.bytes = sum(_FRAME_BYTES + len(frame.file) + len(frame.function) for frame in used) + sum(
            map(_own_bytes, self.by_rank.values())
        )

    def kernel(self) -> dict[int, str]:
        """The places in the kernel of ranks without stacks, in words, where they are known."""
        return {rank: each.kernel for rank, each in self.missing.items() if each.kernel}

    def clear(self) -> None:
        self.by_rank, self.missing, self._frames, self.bytes = {}, {}, {}, 0

    def _shared(self, sampled: Sampled) -> Sampled:
        threads = (
            Thread(thread.name, tuple(self._shared_stack(each) for each in thread.stacks), thread.pid)
            for thread in sampled.threads
        )
        return sampled._replace(threads=tuple(threads))

    def _shared_stack(self, each: Counted) -> Counted:
        if len(self._frames) > _MAX_FRAMES:
            return each
        return each._replace(frames=tuple(self._frames.setdefault(frame, frame) for frame in each.frames))


def _frames_of(sampled: Sampled) -> set[Frame]:
    return {frame for thread in sampled.threads for each in thread.stacks for frame in each.frames}


def _own_bytes(sampled: Sampled) -> int:
    stacks = [each for thread in sampled.threads for each in thread.stacks]
    frames = sum(len(each.frames) for each in stacks)
    return _COUNTED_BYTES * (len(stacks) + len(sampled.threads) + 2) + _REFERENCE_BYTES * frames


class KeptLayout:
    """The layout of the ranks that were last asked about. Not thread-safe."""

    def __init__(self) -> None:
        self._told: Mapping[int, tuple[int, bytes]] | None = None
        self._layout: LiveLayout | None = None

    def of(self, rows: Mapping[int, RankRow]) -> LiveLayout:
        """The layout of the ranks with these rows: the one that is kept, where they tell what it was made of."""
        told = _told(rows)
        if self._layout is None or told is None or told != self._told:
            self._told, self._layout = told, LiveLayout(rows)
        return self._layout


def _told(rows: Mapping[int, RankRow]) -> dict[int, tuple[int, bytes]] | None:
    """All that LiveLayout reads of the rows; None where that cannot be told. As text, since to Python 1 and true are
    equal, and so are groups in another order."""
    try:
        return {rank: (row.world_size, encode(row.facts.get(GROUPS))) for rank, row in rows.items()}
    except RecursionError:  # facts may be nested as deeply as could just be read
        return None


class StepWindow:
    """A rank's last steps, ascending: WINDOW_STEPS of them, and of shorter steps those of the last WINDOW_SECONDS.
    `table` has them; a later one takes its place, and none ever changes."""

    __slots__ = ("_first", "_last", "_last_end", "table")

    def __init__(self) -> None:
        self.table: Table = NO_STEPS
        # The numbers of the first and the last step, and when the last ended: a number of an array takes 0.1 µs.
        self._first = self._last = -1
        self._last_end = 0.0

    def add(self, steps: Table, most: int = MAX_WINDOW_STEPS) -> bool:
        """Adds those of the steps that are new, and keeps the last of all, `most` of them at most; a repeated step
        changes nothing. Returns whether the rank got any further."""
        last_before = self._last
        known = self._known(steps[:, STEP].tolist())
        if known is None:
            merged = _merged(self.table, steps)
            if len(merged) > len(self.table):
                self._hold(merged, _excess(merged, NO_STEPS, most))
        elif known < len(steps):
            self._append(steps[known:] if known else steps, most)
        return self._last > last_before

    def restarted(self, steps: Table) -> bool:
        """Whether `steps` are numbered anew, later in time: the same job name, another run."""
        last, ended = self._last, self._last_end
        if last < 0 or not len(steps):
            return False
        numbers = steps[:, STEP].tolist()
        if all(map(lt, numbers, numbers[1:])):  # then the first of them alone can be numbers that there were already
            steps = steps[: bisect_right(numbers, last)]
        return any([number <= last and start > ended for number, start in steps[:, : START + 1].tolist()])

    def _known(self, numbers: Sequence[float]) -> int | None:
        """How many of the first of these steps are held, where all others come later; None where it is not so simple:
        they are in no order, or there are gaps that they may fill."""
        if not all(map(lt, numbers, numbers[1:])):
            return None
        known = bisect_right(numbers, self._last)
        if known and (numbers[0] < self._first or self._last - self._first >= len(self.table)):
            return None
        return known

    def _append(self, new: Table, most: int) -> None:
        """Holds `new`, which come after all that are held, too."""
        excess = _excess(self.table, new, most)
        if excess < len(self.table):
            self._keep(np.concatenate((self.table[excess:], new)))
        else:
            self._keep(new[excess - len(self.table) :].copy())

    def _hold(self, table: Table, excess: int) -> None:
        """Holds the steps of `table` but for the first, as many as `excess`."""
        self._keep(table[excess:].copy() if excess else table)

    def _keep(self, table: Table) -> None:
        self.table = table
        self._first, self._last = int(table.item(0, STEP)), int(table.item(-1, STEP))
        self._last_end = table.item(-1, END)


def _merged(held: Table, steps: Table) -> Table:
    """The steps of both, ascending; of those with one number the one that is held, or else the first."""
    together = np.concatenate((held, steps))
    return together[np.unique(together[:, STEP], return_index=True)[1]]


def _excess(held: Table, new: Table, most: int) -> int:
    """The number of the first steps of `held`, with `new` behind them, that are not kept."""
    count = len(held) + len(new)
    if count <= WINDOW_STEPS:
        return 0
    least, certain = max(0, count - most), count - WINDOW_STEPS
    if certain > len(held):
        held = np.concatenate((held, new))
    recent = held[least:certain, START] >= (new if len(new) else held).item(-1, END) - WINDOW_SECONDS
    first = int(recent.argmax()) if len(recent) else 0
    return least + first if len(recent) and recent[first] else certain


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
    noise: NoiseHistory = dataclasses.field(default_factory=NoiseHistory)

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

    def by_agent(self, ranks: Iterable[int], answering: Collection[str] | None = None) -> dict[str, tuple[int, ...]]:
        """Those of these ranks that the job has, by the URL of the agent that reports them: of the agents `answering`;
        None: of all."""
        found: dict[str, tuple[int, ...]] = {}
        for number in ranks:
            rank = self.ranks.get(number)
            if rank is not None and (answering is None or rank.source in answering):
                found[rank.source] = (*found.get(rank.source, ()), number)
        return found

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
        timings = dataclasses.replace(timings, earlier_noise=self.noise.blocks)
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
