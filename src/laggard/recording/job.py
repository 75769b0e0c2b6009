"""Collects the parts of a recording and turns them into timings. Knows neither files nor lines."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from laggard.constants import OPS, PHASES
from laggard.locate.collectives import ProcessGroup
from laggard.locate.inferred_positions import inferred_indices
from laggard.locate.job_timings import (
    FIRST_STEPS,
    WARM_UP_STEPS,
    JobTimings,
    LastBeat,
    RankState,
    window_length,
)
from laggard.locate.node_findings import NodeFindings
from laggard.locate.own_threads import OwnThreads, own_threads
from laggard.locate.positions import Membership, Place, alone_in_stage, canonical_role, position_classes
from laggard.model import RankEnd
from laggard.rankfile.fact_names import OWN_THREADS, SCRIPT, STARTED, UNSEEN_WAITS
from laggard.recording.columns import Columns
from laggard.recording.records import (
    BeatLine,
    EndLine,
    FindingsLine,
    Head,
    LeftLine,
    RankLine,
    SawLine,
    StateLine,
    ThreadsLine,
    decode_as,
)
from laggard.recording.seen_by_others import LastSeen, seen_by_others
from laggard.recording.steps import RankSteps
from laggard.recording.tables import Tables, merge_parts
from laggard.recording.writers import UNKNOWN_WRITER, Writer
from laggard.text.words import counted, printable_line, ranks_text
from laggard.wire.ranks import BeatRow, InFlight, LaneProgress

NEXT_BEAT_SECONDS = 1.0
"""The time after its last step at which a rank that lives and finishes no other says for the first time where it
stands."""

CLOCK_SECONDS = 0.05
"""The largest difference of a rank's clocks, unless they are set in between."""

_MAX_SAW = 4096
"""The most lines of one part about other ranks: a rank sees at most 64, each of which is stopped and goes on a few
times."""
_MAX_CHARACTERS = 120  # of a script's name


@dataclasses.dataclass
class RecordedPart:
    """A file of a recording, or what stands in it between one first line and the next: records of one job. `ends`:
    whether each rank that ended has an end record; `beats`: whether each that finished no step for a while says where
    it stood."""

    path: str
    job_id: str | None
    ends: bool
    beats: bool
    columns: Columns
    writer: Writer = UNKNOWN_WRITER
    living: set[int] = dataclasses.field(default_factory=set)
    lines: dict[int, RankLine] = dataclasses.field(default_factory=dict)
    states: dict[int, StateLine] = dataclasses.field(default_factory=dict)
    found: dict[str, NodeFindings] = dataclasses.field(default_factory=dict)
    end_lines: dict[int, EndLine] = dataclasses.field(default_factory=dict)
    beat_lines: dict[int, BeatLine] = dataclasses.field(default_factory=dict)
    threads: dict[int, OwnThreads | None] = dataclasses.field(default_factory=dict)
    left: dict[int, float] = dataclasses.field(default_factory=dict)  # by rank: when it left torch.distributed
    departed: set[int] = dataclasses.field(default_factory=set)  # and recorded nothing after that
    saw: list[SawLine] = dataclasses.field(default_factory=list)
    contradictory: set[int] = dataclasses.field(default_factory=set)  # ranks that are said to be on two nodes

    def add(self, kind: str, line: bytes) -> None:
        """Adds a record that is not timed; one of an unknown kind is passed over. Raises INVALID."""
        if kind == "rank":
            self._add_rank(decode_as(line, RankLine))
        elif kind == "state":
            state: StateLine = decode_as(line, StateLine)
            self.states[state.rank] = state
        elif kind == "threads":
            threads: ThreadsLine = decode_as(line, ThreadsLine)
            self.threads[threads.rank] = own_threads({OWN_THREADS: threads.own_threads})
        elif kind == "end":
            end: EndLine = decode_as(line, EndLine)
            self.end_lines[end.rank] = end
        elif kind == "saw" and len(self.saw) < _MAX_SAW:
            self.saw.append(decode_as(line, SawLine))
        elif kind == "left":
            left: LeftLine = decode_as(line, LeftLine)
            self.left[left.rank] = left.at_unix
        elif kind == "beat":
            beat: BeatLine = decode_as(line, BeatLine)
            self.beat_lines[beat.rank] = beat
        elif kind == "findings":
            findings: FindingsLine = decode_as(line, FindingsLine)
            self.found[findings.node] = NodeFindings(findings.codes, findings.of_gpus, findings.gpus)

    def _add_rank(self, line: RankLine) -> None:
        before = self.lines.get(line.rank)
        if before is not None:
            if before.node and line.node and before.node != line.node:
                self.contradictory.add(line.rank)
            for name in ("node", "gpu", "attempt", "world_size", "unix_minus_clock"):
                setattr(line, name, getattr(before, name) if getattr(line, name) is None else getattr(line, name))
            line.position = {**(before.position or {}), **(line.position or {})}
            line.groups = {**(before.groups or {}), **(line.groups or {})}
            line.facts = {**(before.facts or {}), **(line.facts or {})}
        self.lines[line.rank] = line

    @property
    def attempt(self) -> int:
        return max((line.attempt or 0 for line in self.lines.values()), default=0)

    @property
    def ranks(self) -> set[int]:
        return {*self.columns.ranks(), *self.lines, *self.states, *self.end_lines}

    @property
    def without_end(self) -> set[int]:
        """The ranks that have no end, where the part has one of each that ended."""
        return self.ranks - self.end_lines.keys() - self.departed if self.ends else set()

    @property
    def killed(self) -> set[int]:
        """Those of them that are not known to run."""
        return self.without_end - self.living

    def last_record_at(self, tables: Tables, rank: int) -> float | None:
        """The time at which the rank wrote its last record, by its clock, in Unix time."""
        about, beat, ended = self.lines.get(rank), self.beat_lines.get(rank), tables.last_end(rank)
        if about is None or about.unix_minus_clock is None or ended is None:
            return None
        quiet = beat.quiet_seconds if beat is not None and beat.last_step == tables.last_step(rank) else 0.0
        return ended + quiet + about.unix_minus_clock


class RecordedJob:
    """One job, built up part by part. `gaps` are lines that say what the recording lost or contradicts, in the order in
    which they were found. `owner`: the uid of the job's user, which only a collector's recording has."""

    def __init__(self) -> None:
        self.gaps: list[str] = []
        self.owner: int | None = None
        self._parts: list[RecordedPart] = []
        self._group_names: dict[str, int] = {}

    def begin_part(self, path: str, head: Head, writer: Writer = UNKNOWN_WRITER) -> RecordedPart:
        columns = Columns(self._group_names)
        part = RecordedPart(path, head.job_id, bool(head.ends), bool(head.beats), columns, writer)
        self._parts.append(part)
        self.owner = head.owner if self.owner is None else self.owner
        return part

    def timings(self) -> JobTimings:
        """The newest steps of all that was added, as many as a collector would hold."""
        parts = self._parts_of_one_job()
        if any(part.end_lines for part in parts):  # heads may lack what they promise, as those of other writers
            for part in parts:
                part.ends = True
        tables = merge_parts([part.columns for part in parts])
        for part in parts:
            last_at = {rank: part.last_record_at(tables, rank) for rank in part.left}
            part.departed = {rank for rank, at in part.left.items() if (last_at[rank] or 0.0) <= at + CLOCK_SECONDS}
        is_over = any(part.end_lines or part.departed for part in parts)
        for part in parts:
            for rank in part.without_end:
                if part.writer.lives(None if is_over else part.last_record_at(tables, rank)):
                    part.living.add(rank)
        ambiguous = self._ambiguous_ranks(parts, tables)
        ranks = np.array(sorted({rank for part in parts for rank in part.ranks} - ambiguous), np.int64)
        rows = tables.rank_steps(ranks)
        self._tell(parts, tables, rows)
        return _timings(_JobFacts.of(parts, tables), ranks, rows, tables, list(self._group_names))

    def _parts_of_one_job(self) -> list[RecordedPart]:
        """The parts of the job that has the most records, and of its last attempt."""
        counts: Counter[str] = Counter()
        for part in self._parts:
            if part.job_id is not None:
                counts[part.job_id] += part.columns.count + 1
        job_id = max(counts, key=lambda name: counts[name], default=None)
        parts = self._keep(self._parts, lambda part: part.job_id in (None, job_id), "another job, {0.job_id}")
        attempt = max((part.attempt for part in parts), default=0)
        return self._keep(
            parts, lambda part: part.attempt == attempt or not part.lines, "attempt {0.attempt}, which is over"
        )

    def _keep(
        self, parts: Sequence[RecordedPart], keep: Callable[[RecordedPart], bool], what: str
    ) -> list[RecordedPart]:
        left_out = [part for part in parts if not keep(part)]
        for part in left_out[:4]:
            self.gaps.append(f"left out: {part.path}, which holds {what.format(part)}")
        if len(left_out) > 4:
            self.gaps.append(f"{len(left_out) - 4} more files are left out for the same reason")
        return [part for part in parts if keep(part)]

    def _ambiguous_ranks(self, parts: Sequence[RecordedPart], tables: Tables) -> set[int]:
        """Ranks whose number two processes have: what is recorded under it cannot be told apart."""
        nodes: dict[int, set[str]] = {}
        for part in parts:
            for rank, line in part.lines.items():
                nodes.setdefault(rank, set()).update([line.node] if line.node else [])
        ambiguous = {rank for rank, known in nodes.items() if len(known) > 1} | tables.contradicted
        for part in parts:
            ambiguous |= part.contradictory
        if ambiguous:
            text = "recorded twice with different times or nodes, as if two processes had the number: left out"
            self.gaps.append(f"{ranks_text(ambiguous)} {text}")
        return ambiguous

    def _tell(self, parts: Sequence[RecordedPart], tables: Tables, rows: Sequence[RankSteps]) -> None:
        """Adds to `gaps` what of `parts` was lost or cannot be used."""
        for part in parts:
            self.gaps += _lost_gaps(part, tables)
        living = {rank for part in parts for rank in part.living}
        if living:
            whose = "its process runs" if len(living) == 1 else "their processes run"
            verb = "has" if len(living) == 1 else "have"
            self.gaps.append(f"{ranks_text(living)} {verb} not ended, {whose}: this is what was recorded so far")
        if tables.repeated:
            self.gaps.append(f"{counted(tables.repeated, 'record')} there more than once, and counted once")
        if tables.set_back:
            text = "set back between two steps: what came later is put behind the step before"
            self.gaps.append(f"the clock of {ranks_text(set(tables.set_back))} was {text}")
        for reason, count in tables.rejected.items():
            self.gaps.append(f"{count} {reason}: left out")
        if not any(len(each.numbers) for each in rows):
            self.gaps.append("no record carries a step")
        elif any(each.sparse for each in rows):
            self.gaps.append("no step records: a step is taken to begin where the rank's previous one ended")


def _lost_gaps(part: RecordedPart, tables: Tables) -> Iterable[str]:
    """The gaps of a part whose ranks have end records where they ended: its other ranks were killed."""
    for rank, end in part.end_lines.items():
        if end.lost:
            yield f"the recording of rank {rank} lacks {end.lost} records that could not be written"
    if not part.ends:
        return
    for rank in sorted(part.killed):
        last = tables.last_step(rank)
        after = "its first step" if last is None else f"step {last}"
        gone = "was killed, or left by os._exit"
        how = gone if part.writer.is_gone else "was killed, or still runs and this machine cannot see it"
        lost = "lost" if part.writer.is_gone else "not here"
        yield f"the recording of rank {rank} has no end: its process {how}, and what it did after {after} is {lost}"
    if not part.ranks and part.writer.lives(None):
        yield f"{part.path} holds no record yet: its process has not finished a step"
    elif not part.ranks:
        how = "was killed" if part.writer.is_gone else "was killed, or copied,"
        yield f"{part.path} holds no record: its process {how} before its first step was over"


@dataclasses.dataclass(frozen=True)
class _JobFacts:
    """The facts of a job by its lines that are not timed."""

    job_id: str | None
    lines: dict[int, RankLine]
    states: dict[int, StateLine]
    found: dict[str, NodeFindings]
    died: dict[int, tuple[InFlight | None, RankEnd | None]]  # by rank: the collective that it was in, and its end
    left: dict[int, RankEnd]  # by rank, of those that ended with status 0
    came_to: dict[int, BeatRow]  # by rank, of those that ended: how many collectives of each lane they had entered
    last_beats: dict[int, LastBeat]  # by rank, of those that have no end
    threads: dict[int, OwnThreads | None]  # by rank
    living: dict[int, bool]  # by rank, of those whose process runs: whether it is stopped
    doubted: set[int]  # of those that died, the ranks that may run where this machine cannot see it
    seen: dict[int, LastSeen]  # of those that are gone, by rank: how another of their machine saw them last
    alive_at: dict[int, float]  # by rank, of those that told of others: when they did so last, Unix time

    @classmethod
    def of(cls, parts: Sequence[RecordedPart], tables: Tables) -> _JobFacts:
        job_id = next((part.job_id for part in parts if part.job_id is not None), None)
        facts = cls(job_id, {}, {}, {}, {}, {}, {}, {}, {}, {}, set(), {}, {})
        is_over = any(part.end_lines or part.departed for part in parts)
        seen = seen_by_others(line for part in parts for line in part.saw)
        for part in parts:
            ends: dict[int, RankEnd | None] = dict.fromkeys(part.killed)
            ends |= {rank: _end_of(part, tables, rank) for rank, line in part.end_lines.items() if line.exit_code}
            names = tuple(part.columns.group_names)
            facts.died.update((rank, (_unfinished(tables, rank, names), end)) for rank, end in ends.items())
            for rank in part.killed & seen.keys():
                last = seen[rank].last(part.last_record_at(tables, rank))
                facts.died[rank] = last.in_flight or facts.died[rank][0], last.end
                facts.seen[rank] = last
            facts.left.update(
                (rank, _end_of(part, tables, rank)) for rank, line in part.end_lines.items() if not line.exit_code
            )
            facts.came_to.update((rank, _came_to(part, tables, rank)) for rank in part.end_lines)
            facts.last_beats.update((rank, _last_beat(part, tables, rank)) for rank in part.without_end if part.beats)
            for line in part.saw:
                facts.alive_at[line.rank] = max(line.at_unix, facts.alive_at.get(line.rank, 0.0))
            facts.living.update(dict.fromkeys(part.living, part.writer.is_stopped))
            facts.doubted.update(() if is_over or part.writer.is_gone else part.killed)
            facts.lines.update(part.lines)
            facts.states.update(part.states)
            facts.found.update(part.found)
            facts.threads.update({rank: own_threads(line.facts or {}) for rank, line in part.lines.items()})
            facts.threads.update(part.threads)
        return facts

    def world_size(self, ranks: NDArray[np.int64]) -> int:
        size = int(ranks[-1]) + 1 if len(ranks) else 0
        for line in self.lines.values():
            members = (max(group.ranks, default=-1) + 1 for group in (line.groups or {}).values() if group.ranks)
            size = max(size, line.world_size or 0, *members)
        return size

    def place(self, rank: int, inferred: Mapping[str, int]) -> Place:
        line = self.lines.get(rank)
        if line is None:
            return Place({}, (), inferred)
        groups = [
            Membership(role, tuple(group.ranks))
            for group in (line.groups or {}).values()
            if group.ranks and (role := canonical_role(group.role or ""))
        ]
        return Place(line.position or {}, groups, inferred)

    def groups(self, names: Sequence[str]) -> tuple[ProcessGroup, ...]:
        """The groups of those names, as any rank declares them."""
        declared = {name: group for line in self.lines.values() for name, group in (line.groups or {}).items()}
        found = ((name, declared.get(name)) for name in names)
        return tuple(
            ProcessGroup(name, (group.role or "") if group else "", tuple((group.ranks or ()) if group else ()))
            for name, group in found
        )

    def state(self, rank: int, last_step: int | None) -> RankState:
        """The rank's state when the recording was made; `finished` where the recording does not say."""
        line = self.states.get(rank)
        if line is None and rank in self.living:
            return RankState("running", last_step, None, None, self.living[rank])
        if line is None and rank in self.died:
            in_flight, end = self.died[rank]
            seen = self.seen.get(rank)
            return RankState(
                "died",
                last_step,
                seen.phase if seen else None,
                in_flight,
                stopped=seen is not None and seen.stopped,
                beat=self.came_to.get(rank),
                end=end,
                doubted=rank in self.doubted and not (seen and seen.end),
                alive_at=self.alive_at.get(rank),
            )
        if line is None:
            return RankState("finished", last_step, None, None, beat=self.came_to.get(rank), end=self.left.get(rank))
        asked = line.asked_seconds_ago or 0.0
        return RankState(
            line.state,
            last_step,
            line.phase,
            line.in_flight,
            line.stopped is True,
            line.beat,
            asked,
            line.ended,
            line.cpu_wait,
        )


def _end_of(part: RecordedPart, tables: Tables, rank: int) -> RankEnd:
    """The end of a rank, as its process noted it. Where the line has no time, as it may with status 0, the last
    record's counts."""
    line, about = part.end_lines[rank], part.lines.get(rank)
    at = (line.at_seconds or 0.0) + ((about.unix_minus_clock if about else None) or 0.0)
    if line.at_seconds is None:
        at = part.last_record_at(tables, rank) or 0.0
    exit_code, exception = line.exit_code or 0, (line.exception or "")[:256]
    return RankEnd(max(at, 0.0), 0.0, exit_code, "", exception, line.others_failed is True)


def _last_beat(part: RecordedPart, tables: Tables, rank: int) -> LastBeat:
    """The place where the rank stood when it last said so; where it finished a step later than that, or never said so,
    just after its last record."""
    line = part.beat_lines.get(rank)
    if line is not None and line.last_step == tables.last_step(rank):
        return LastBeat(line.quiet_seconds, line.phase, line.in_flight, line.beat)
    return LastBeat(0.0, None, None, _came_to(part, tables, rank))


def _came_to(part: RecordedPart, tables: Tables, rank: int) -> BeatRow:
    """A beat that tells how many collectives of each lane the rank had entered, by its records."""
    entered = tables.entered(rank)
    names = tuple(part.columns.group_names)
    lanes = (LaneProgress(OPS[op], names[group], count, count, peer) for (op, group, peer), count in entered.items())
    return BeatRow(0.0, NEXT_BEAT_SECONDS, "absent", tuple(lanes), ())


def _unfinished(tables: Tables, rank: int, group_names: Sequence[str]) -> InFlight | None:
    """The collective that the rank was in when its recording ended. For how long is not recorded."""
    found = tables.unfinished(rank)
    return InFlight(OPS[found.op], group_names[found.group], max(found.seq, 0) + 1, 0.0) if found else None


def _timings(
    facts: _JobFacts, ranks: NDArray[np.int64], rows: Sequence[RankSteps], tables: Tables, group_names: Sequence[str]
) -> JobTimings:
    known = [each.numbers for each in rows]
    length = max((window_length(each.seconds) for each in rows), default=1)
    numbers = np.unique(np.concatenate(known))[-length:] if known else np.zeros(0, np.int64)
    shape = len(numbers), len(ranks)
    seconds, waited, starts = np.full(shape, np.nan), np.full(shape, np.nan), np.full(shape, np.nan)
    phases, work = np.full((*shape, len(PHASES)), np.nan), np.full(shape, np.nan)
    for column, each in enumerate(rows):
        kept = each.numbers >= numbers[0] if len(numbers) else np.zeros(0, np.bool_)
        place = np.searchsorted(numbers, each.numbers[kept])
        seconds[place, column], starts[place, column] = each.seconds[kept], each.starts[kept]
        waited[place, column], work[place, column] = each.waited[kept], each.work[kept]
        phases[place, column] = each.phases[kept]
    lines = [facts.lines.get(int(rank)) for rank in ranks]
    last_steps = (int(each.numbers[-1]) if len(each.numbers) else None for each in rows)
    listed = [int(rank) for rank in ranks]
    told = [line.facts for line in lines if line and line.facts]
    collectives = tables.collectives_of(ranks, facts.groups(group_names))
    places = tuple(map(facts.place, listed, inferred_indices(collectives, ranks)))
    positions = position_classes(listed, places)
    alone = alone_in_stage(listed, places, positions)
    return JobTimings(
        job_id=facts.job_id,
        world_size=facts.world_size(ranks),
        steps=numbers,
        ranks=ranks,
        nodes=tuple(line.node if line else None for line in lines),
        gpus=tuple(line.gpu if line else None for line in lines),
        step_seconds=seconds,
        phase_seconds=phases,
        waited_seconds=waited,
        work=work,
        states=tuple(facts.state(rank, last) for rank, last in zip(listed, last_steps, strict=True)),
        findings_by_node=facts.found,
        positions=positions,
        alone=alone,
        first_phases=_first_phases(rows, alone) if alone.any() else None,
        waits_recorded=tables.waits_recorded,
        collectives=collectives,
        step_starts=starts,
        own_threads=tuple(map(facts.threads.get, listed)),
        live=bool(facts.states),
        last_beats=tuple(facts.last_beats.get(rank) for rank in listed) if facts.last_beats else (),
        script=next(filter(None, (_text(facts.get(SCRIPT)) for facts in told)), None),
        started_at=min(filter(None, (_moment(facts.get(STARTED)) for facts in told)), default=None),
        unseen_waits=tuple(
            rank for rank, line in zip(listed, lines, strict=True) if line and (line.facts or {}).get(UNSEEN_WAITS)
        ),
    )


def _first_phases(rows: Sequence[RankSteps], alone: NDArray[np.bool_]) -> NDArray[np.float64]:
    """The array that JobTimings has under that name."""
    found = np.full((FIRST_STEPS, len(rows), len(PHASES)), np.nan)
    for column in np.flatnonzero(alone).tolist():
        each = rows[column]
        kept = each.phases[each.numbers >= WARM_UP_STEPS][:FIRST_STEPS]
        found[: len(kept), column] = kept
    return found


def _text(value: object) -> str | None:
    """A name in a file, of a length that can be shown."""
    return printable_line(value, _MAX_CHARACTERS) or None if isinstance(value, str) else None


def _moment(value: object) -> float | None:
    """Unix seconds in a file, in the years that a calendar has."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return float(value) if is_number and 0 < value < 2e11 else None  # type: ignore[arg-type, operator]
