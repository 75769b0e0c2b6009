"""The input of localisation: one job's ranks and steps as arrays, from a live window or from a recording. Pure."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import groupby
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple, TypeVar

import msgspec
import numpy as np
from msgspec import Meta, Struct
from numpy.typing import NDArray

from laggard.kit.constants import PHASES
from laggard.kit.words import printable_line
from laggard.locate.collectives import Collectives
from laggard.locate.medians import Floats as Floats
from laggard.locate.medians import as_slice, distinct
from laggard.locate.positions import GroupPlaces, LiveLayout
from laggard.model import RankEnd
from laggard.rankfile import fact_names
from laggard.wire.ranks import BeatRow, CpuWait, InFlight, RankRow

if TYPE_CHECKING:
    from laggard.locate.collectives import DeviceQueues

MAX_KEPT: Final = 4096
"""The most digests of one rank that are compared, the newest, beside its first."""

_Step = Annotated[int, Meta(ge=0, lt=1 << 31)]
_Span = Annotated[float, Meta(ge=0, lt=1e9)]
HEXADECIMAL: Final = "[0-9a-fA-F]{16}"
_Digest = tuple[_Step, Annotated[str, Meta(pattern=f"^{HEXADECIMAL}$", max_length=16)]]


class RankDigests(NamedTuple):
    """The digests of one rank, by step, ascending; the first is the first that it computed. `every`: a digest is
    computed after each step whose number this divides. `skipped`: why none is, a key of DIGEST_SKIPPED_REASONS."""

    every: int
    by_step: Mapping[int, int]
    skipped: str = ""


class _ToldDigests(Struct):
    """The fact DIGESTS."""

    every: Annotated[int, Meta(gt=0, lt=1 << 31)]
    first: _Digest
    last: Annotated[tuple[_Digest, ...], Meta(max_length=MAX_KEPT)] = ()


def digests(facts: Mapping[str, Any]) -> RankDigests | None:
    """The digests that a rank's facts tell of; None where they tell of none, or what cannot be."""
    reason = facts.get(fact_names.DIGEST_SKIPPED)
    if isinstance(reason, str) and reason in fact_names.DIGEST_SKIPPED_REASONS:
        return RankDigests(1, {}, reason)
    told = _told(facts.get(fact_names.DIGESTS), _ToldDigests)
    return collected(told.every, ((step, int(text, 16)) for step, text in (told.first, *told.last))) if told else None


def collected(every: int, pairs: Iterable[tuple[int, int]]) -> RankDigests | None:
    """The digests of (step, value), in any order: the first and the newest of them; None where there is none."""
    found = dict(sorted(pairs))
    steps = [*found][:1] + [*found][1:][-MAX_KEPT:]
    return RankDigests(every, {step: found[step] for step in steps}) if steps else None


_Kind = TypeVar("_Kind")


def _told(value: object, kind: type[_Kind]) -> _Kind | None:
    """What a rank tells in a fact; None where it is of another kind or out of bounds."""
    try:
        return msgspec.convert(value, kind)
    except (msgspec.ValidationError, RecursionError):
        return None


UNLISTED: Final = ""
"""The stand-in for the UUID of a GPU that the machine's driver does not list, as one that fell off the bus."""

UNNAMED: Final = "?"
"""The stand-in for the UUID of a GPU whose name does not say which it is."""


class Place(enum.Enum):
    """The place of a finding, seen from a rank."""

    OWN = "of its GPU, or of something near it"
    MACHINE = "of the whole machine"
    UNKNOWN = "of a GPU, and nobody can say whether it is the rank's"
    ELSEWHERE = "of another GPU"


class NodeFindings(NamedTuple):
    """`codes` are those of the machine's findings, each once. `of_gpus` has, by the codes that are of single GPUs,
    the UUIDs of these; a code that is not there is of the whole machine. `gpus` are the UUIDs of all GPUs that the
    machine's driver lists; empty: its agent does not tell."""

    codes: tuple[str, ...] = ()
    of_gpus: Mapping[str, tuple[str, ...]] = MappingProxyType({})
    gpus: tuple[str, ...] = ()

    def place(self, code: str, gpu: str | None) -> Place:
        """The place of the finding for a rank that trains on the GPU with the UUID `gpu`. Where the machine does not
        list that, nobody can say: it may be a part of any (MIG). A whole one that fell off the bus is the finding's."""
        if code not in self.of_gpus:
            return Place.MACHINE
        about = self.of_gpus[code]
        if gpu in self.gpus:
            return Place.OWN if gpu in about else Place.UNKNOWN if UNNAMED in about else Place.ELSEWHERE
        fell_off = bool(self.gpus) and UNLISTED in about and (gpu or "").startswith("GPU-")
        return Place.OWN if fell_off else Place.UNKNOWN

    def has_everywhere(self, code: str) -> bool:
        """Whether the whole machine or each of its GPUs has the finding."""
        return code in self.codes and set(self.gpus) <= set(self.of_gpus.get(code, self.gpus))

    def only(self, codes: tuple[str, ...]) -> NodeFindings:
        """Those of these codes."""
        kept = tuple(code for code in self.codes if code in codes)
        return NodeFindings(kept, {code: self.of_gpus[code] for code in kept if code in self.of_gpus}, self.gpus)


NOTHING: Final = NodeFindings()


_MAX_NAME: Final = 48
_MAX_NAMES: Final = 4


class OwnThreads(NamedTuple):
    """The Python threads beside the training: the share of the time for which they ran, all together, how much too late
    a sleeping one woke, on average (seconds), the names of the busiest, and the share of the run in which Python
    collected garbage."""

    busy: float
    late_seconds: float
    names: tuple[str, ...]
    collecting: float = 0.0


class _ToldThreads(Struct):
    """The fact OWN_THREADS."""

    seconds: Annotated[float, Meta(gt=0, lt=1e9)]
    busy_seconds: _Span
    late_seconds: _Span
    names: tuple[str, ...] = ()
    collecting_ratio: Annotated[float, Meta(ge=0, le=1)] = 0.0


def own_threads(facts: Mapping[str, Any]) -> OwnThreads | None:
    """The threads that a rank's facts tell of; None where they tell nothing, or what cannot be."""
    told = _told(facts.get(fact_names.OWN_THREADS), _ToldThreads)
    if told is None:
        return None
    names = tuple(printable_line(name, _MAX_NAME) for name in told.names[:_MAX_NAMES])
    return OwnThreads(
        told.busy_seconds / told.seconds, told.late_seconds, tuple(filter(None, names)), told.collecting_ratio
    )


STEP, START, END, WAITED, WORK, FIRST_PHASE = range(6)
"""The columns of a Table."""
STEP_COLUMNS = FIRST_PHASE + len(PHASES)

BLOCK_RANKS: Final = 64
"""The most ranks whose steps are put in place at once: more would not fit into a core's cache."""

Table = NDArray[np.float64]
"""The steps of one rank, an array [steps, STEP_COLUMNS], in seconds on its node's monotonic clock. After the columns
stand its own times by phase, in the order of constants.PHASES. A double holds every number of a step exactly."""

NO_STEPS: Final[Table] = np.empty((0, STEP_COLUMNS))


WINDOW_STEPS = 128
"""The number of a job's newest steps that are kept, whatever their length."""

RECORDED_STEPS = 512
"""The same of a recording, whose verdict is drawn once: what became slower long before its end stands beside what was
before. Fewer where they would be more than RECORDED_ROWS steps of ranks, and never fewer than WINDOW_STEPS."""

RECORDED_ROWS = 1 << 19

WINDOW_SECONDS = 20.0
"""The time whose steps are kept, where they are shorter: what slows a rank for a moment lasts seconds, and many short
steps within one moment are no better evidence than one."""

MAX_WINDOW_STEPS = 1365
"""The most steps that are kept: as many as a rank file holds."""


def window_length(durations: Floats, least: int = WINDOW_STEPS) -> int:
    """The number of the last steps that are kept. `durations` (seconds, nan where unknown) are their lengths, ascending
    by step: WINDOW_SECONDS of them, at least `least`, at most MAX_WINDOW_STEPS."""
    backwards = np.cumsum(np.nan_to_num(durations[: -MAX_WINDOW_STEPS - 1 : -1]))
    return max(least, int(np.searchsorted(backwards, WINDOW_SECONDS)) + 1)


class RankState(NamedTuple):
    """The state of a rank's process. `step` is the last step that it finished, None before the first. `stopped` is
    whether a signal or a debugger has stopped it. `beat` is its last sign of life. `asked_seconds_ago` is since when
    its agent was asked for all this, relative to the last answer about the job; ages and durations are as of then.
    `end` is how a rank that died did so, None where nothing is known of that.
    `cpu_wait` is how long its threads waited for a CPU of late. `doubted`: its recording has no end: it died, or runs
    where nobody can see that. `alive_at`: a time at which one without an end still lived, Unix seconds."""

    state: str  # running, finished, died, unknown
    step: int | None
    phase: str | None
    in_flight: InFlight | None
    stopped: bool = False
    beat: BeatRow | None = None
    asked_seconds_ago: float = 0.0
    end: RankEnd | None = None
    cpu_wait: CpuWait | None = None
    doubted: bool = False
    alive_at: float | None = None


class LastBeat(NamedTuple):
    """The last place that a recording tells of a rank without an end: it had finished no step for `quiet_seconds`, on
    its own clock. `beat` is as of then."""

    quiet_seconds: float
    phase: str | None
    in_flight: InFlight | None
    beat: BeatRow


@dataclasses.dataclass(frozen=True)
class JobTimings:
    """One job over S steps and R ranks. Times are in seconds, and nan where a rank has no row for a step.

    No clock is compared with another rank's: every number is a duration on the rank's own clock.
    `phase_seconds` is own time: the time blocked in collectives is not in it but in `waited_seconds`, so that
    step_seconds = phase_seconds.sum(axis=2) + waited_seconds.
    """

    job_id: str | None
    world_size: int
    steps: NDArray[np.int64]  # [S]
    ranks: NDArray[np.int64]  # [R]
    nodes: tuple[str | None, ...]  # R
    gpus: tuple[str | None, ...]  # R
    step_seconds: Floats  # [S, R]
    phase_seconds: Floats  # [S, R, len(PHASES)]
    waited_seconds: Floats  # [S, R]
    states: tuple[RankState, ...]  # R
    findings_by_node: Mapping[str, NodeFindings]
    work: Floats | None = None
    """[S, R]: the elements of the model's inputs; 0 where they were not seen, None where nothing recorded tells."""
    positions: NDArray[np.int32] | None = None
    """[R]: the same number for ranks that do the same work (positions.py); None: all do."""
    stages: NDArray[np.int32] | None = None
    """[R]: the stage of each rank in its pipeline (positions.py); None: there is one."""
    alone: NDArray[np.bool_] | None = None
    """[R]: the ranks that have a stage of a pipeline to themselves (positions.py); None: none has."""
    first_phases: Floats | None = None
    """[FIRST_STEPS, R, len(PHASES)]: own time in the first steps after the warm-up, of the ranks that are `alone`; nan
    of others, None where no rank is, or where they are not known."""
    waits_recorded: bool = True
    """True where anything says when a rank waited. Where nothing does, work cannot be told from waiting."""
    collectives: Collectives | None = None
    """Each collective of each rank; None where the source has none, as a live job's rows."""
    step_starts: Floats | None = None
    """[S, R]: when each rank began each step, on the clock of its collectives; None of a live job."""
    live: bool = False
    """True where a collector watches, or watched, the job: then a verdict is drawn again and again."""
    earlier_noise: tuple[tuple[int, float, float], ...] = ()
    """Of a live job: how its ranks' noise lasted in windows that are over, as slow/noise.py has it (Blocks)."""
    unseen_waits: tuple[int, ...] = ()
    """The ranks that say that C++ waits for their collectives: waiting is part of their own time."""
    hidden_by: tuple[str, ...] = ()
    """The libraries that ranks use and whose kernels wait for other ranks: their waits are part of own time on GPUs."""
    last_beats: tuple[LastBeat | None, ...] = ()
    """R, None of ranks that ended; empty where nothing recorded says where those stood that have no end."""
    steps_recorded: bool = True
    """True where the source tells steps at all: a Flight Recorder's dump does not."""
    script: str | None = None
    """The name of the script that trained, by a recording; of a live job the rows have it."""
    started_at: float | None = None
    """The Unix time, in seconds, at which its first rank began, by a recording."""
    own_threads: tuple[OwnThreads | None, ...] = ()
    """R: how the threads beside each rank's training ran; empty where nothing tells."""
    own_code: Mapping[int, float] = dataclasses.field(default_factory=dict)
    """The share of its time by which a rank's stacks are more often in the script's own code, in no phase, than its
    peers' are; of ranks with time in no phase that others wait for (stacked.py)."""
    digests: tuple[RankDigests | None, ...] = ()
    """R: the digests of each rank's parameters; empty where nothing tells."""
    replicas: NDArray[np.int32] | None = None
    """[R]: the same number for ranks that hold the same parameters by their places; None: all do."""
    profiled: bool = False
    """True where a profiler recorded the job: a few steps, and often a few ranks by choice."""
    queues: DeviceQueues | None = None
    """What each device has yet to finish, by Flight Recorder dumps; None of other sources."""
    group_places: tuple[GroupPlaces, ...] = ()
    """The places of the ranks in groups of each kind that may divide work by them; empty where no groups are known."""
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Versions, variables and settings of the run, by a recording; empty where nothing tells."""
    steps_in_each: float = 1.0
    """The number of steps whose average each row is: of averages the steps are the first of each row."""

    @cached_property
    def column_of(self) -> Mapping[int, int]:
        """The column of each rank."""
        return {rank: column for column, rank in enumerate(self.ranks.tolist())}


class RankInfo(NamedTuple):
    """The place where a rank runs, and its state."""

    node: str | None
    gpu: str | None
    state: RankState


MAX_LIBRARIES = 16
MAX_LIBRARY = 64
"""The most characters of a library's name."""

WARM_UP_STEPS = 2
"""The number of steps at a job's beginning that are left out: allocation, compilation and the first input are not the
machine's speed."""

FIRST_STEPS = 16
"""The number of a job's first steps that are kept of the ranks whose work nobody else does."""


def build_timings(
    job_id: str | None,
    world_size: int,
    ranks: Mapping[int, RankInfo],
    steps_by_rank: Mapping[int, Table],
    findings_by_node: Mapping[str, NodeFindings],
) -> JobTimings:
    """The arrays of all steps that any rank finished, with a column for each of `ranks`. `steps_by_rank`: of
    each rank that has any, ascending."""
    numbers = sorted(ranks)
    infos = [ranks[rank] for rank in numbers]
    return JobTimings(
        job_id=job_id,
        world_size=world_size,
        ranks=np.array(numbers, dtype=np.int64),
        nodes=tuple(info.node for info in infos),
        gpus=tuple(info.gpu for info in infos),
        states=tuple(info.state for info in infos),
        findings_by_node=findings_by_node,
        **step_arrays([steps_by_rank.get(rank, NO_STEPS) for rank in numbers]),
    )


def hiding_libraries(facts: Mapping[str, object]) -> tuple[str, ...]:
    """The libraries of a rank's facts whose kernels wait for other ranks; none where that is not written as it is by
    the hooks."""
    names = _told(facts.get(fact_names.HIDDEN_WAITS), tuple[str, ...]) or ()
    return tuple(printable_line(name, MAX_LIBRARY) for name in names[:MAX_LIBRARIES])


def live_timings(
    job_id: str,
    world_size: int,
    steps_by_rank: Mapping[int, Table],
    newest_rows: Mapping[int, RankRow],
    findings_by_node: Mapping[str, NodeFindings],
    asked_seconds_ago: Mapping[int, float],
    layout: LiveLayout | None = None,
) -> JobTimings:
    """The arrays of a live window: the steps of each rank, ascending, the newest row about each rank, and for
    how long its agent has not been asked. `layout`: of these rows, where it is known already."""
    ranks = {}
    for rank, row in newest_rows.items():
        steps = steps_by_rank.get(rank)
        last_step = int(steps[-1, STEP]) if steps is not None and len(steps) else None
        asked = asked_seconds_ago.get(rank, 0.0)
        state = RankState(
            row.state, last_step, row.phase, row.in_flight, row.stopped, row.beat, asked, row.end, row.cpu_wait
        )
        ranks[rank] = RankInfo(row.node, row.gpu, state)
    timings = build_timings(job_id, world_size, ranks, steps_by_rank, findings_by_node)
    facts = [newest_rows[rank].facts for rank in timings.ranks.tolist()]
    unseen = tuple(rank for rank in sorted(ranks) if newest_rows[rank].facts.get(fact_names.UNSEEN_WAITS) is True)
    layout = layout or LiveLayout(newest_rows)
    return dataclasses.replace(
        timings,
        live=True,
        group_places=layout.group_places,
        unseen_waits=unseen,
        hidden_by=tuple(sorted({name for each in facts for name in hiding_libraries(each)})),
        own_threads=tuple(map(own_threads, facts)),
        digests=tuple(map(digests, facts)),
        **layout.positions._asdict(),
    )


# The steps of one rank as a table, and of many ranks as arrays by step and rank.


def distinct_steps(tables: Sequence[Table]) -> NDArray[np.int64]:
    """The numbers of the steps in any of the tables, ascending. Each table is ascending by step."""
    one_of_each: dict[tuple[int, float, float] | int, Table] = {}
    for place, table in enumerate(tables):
        if len(table):
            first, last = table[0, STEP], table[-1, STEP]
            gapless = last - first == len(table) - 1  # then another of the same ends has the same steps
            one_of_each.setdefault((len(table), first, last) if gapless else place, table)
    return distinct(np.concatenate([NO_STEPS, *one_of_each.values()])[:, STEP].astype(np.int64))


def step_arrays(tables: Sequence[Table]) -> dict[str, Any]:
    """The steps of ranks with these tables, each ascending by step, as the fields of JobTimings."""
    steps = distinct_steps(tables)
    shape = (len(steps), len(tables))
    # Each phase is an array of its own in memory: phases are looked at one by one.
    phases = np.full((len(PHASES), *shape), np.nan).transpose(1, 2, 0)
    seconds, waited, work = np.full(shape, np.nan), np.full(shape, np.nan), np.full(shape, np.nan, np.float32)
    begin = 0
    for block in _blocks(tables):
        columns, begin = slice(begin, begin + len(block)), begin + len(block)
        rows = as_slice(np.searchsorted(steps, block[0, :, STEP]))
        by_step = block.transpose(1, 0, 2)
        seconds[rows, columns] = by_step[:, :, END] - by_step[:, :, START]
        phases[rows, columns] = by_step[:, :, FIRST_PHASE:]
        waited[rows, columns] = by_step[:, :, WAITED]
        work[rows, columns] = by_step[:, :, WORK]
    return {
        "steps": steps, "step_seconds": seconds, "phase_seconds": phases, "waited_seconds": waited, "work": work,
    }  # fmt: skip


def _blocks(tables: Sequence[Table]) -> Iterator[NDArray[np.float64]]:
    """The tables one after the other, those of neighbours with the same steps together: [ranks, steps, columns]."""
    for _, neighbours in groupby(tables, lambda table: table[:, STEP].tobytes()):
        several = list(neighbours)
        for first in range(0, len(several), BLOCK_RANKS):
            yield np.stack(several[first : first + BLOCK_RANKS])
