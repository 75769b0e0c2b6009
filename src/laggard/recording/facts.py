"""The facts of a job that its recording tells beside its times: where its ranks were, and how each ended, as others
saw it too."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from laggard.kit.constants import OPS, PHASES
from laggard.kit.majority import grouped
from laggard.kit.processes import GONE, STOPPED
from laggard.locate.collectives import ProcessGroup
from laggard.locate.job_timings import LastBeat, NodeFindings, OwnThreads, RankDigests, RankState, digests, own_threads
from laggard.locate.positions import Indices, Seat, own_indices
from laggard.model import RankEnd
from laggard.recording.part import RecordedPart
from laggard.recording.records import RankLine, SawLine, StateLine
from laggard.recording.tables import Tables
from laggard.stacks.sampled import TERMINATED, Sampled
from laggard.wire.ranks import BeatRow, CpuWait, InFlight, LaneProgress


class LastSeen(NamedTuple):
    """`end`: between which times it ended, None where nobody saw that. `stopped`: whether a signal or a debugger had
    stopped it, the last time that it was seen. `phase`, `in_flight`: where it stood then."""

    end: RankEnd | None
    stopped: bool
    phase: str | None
    in_flight: InFlight | None


class SeenRank(NamedTuple):
    """All that others saw of one rank, in the order of time."""

    lines: tuple[SawLine, ...]

    def last(self, recorded_at: float | None) -> LastSeen:
        """`recorded_at`: when the rank wrote its last record, Unix time."""
        gone = next((line for line in self.lines if line.state == GONE), None)
        living = [line for line in self.lines if line.state != GONE and not (gone and line.at_unix > gone.at_unix)]
        newest = gone or living[-1]
        end = None
        if gone is not None:
            alive = max([line.at_unix for line in living] + [0.0 if recorded_at is None else recorded_at])
            how = next((line for line in self.lines if line.signal or line.exit_code is not None), gone)
            end = RankEnd(max(gone.at_unix, 0.0), max(0.0, gone.at_unix - alive), how.exit_code, how.signal[:32])
        phase = newest.phase if newest.phase in PHASES else None
        return LastSeen(end, bool(living) and living[-1].state == STOPPED, phase, newest.in_flight)


def seen_by_others(lines: Iterable[SawLine]) -> dict[int, SeenRank]:
    """The observations by others, by rank."""
    in_order = sorted(lines, key=lambda line: line.at_unix)
    return {of: SeenRank(tuple(its)) for of, its in grouped(in_order, lambda line: line.of).items()}


NEXT_BEAT_SECONDS = 1.0
"""The time after its last step at which a rank that lives and finishes no other says for the first time where it
stands."""


@dataclasses.dataclass(frozen=True)
class JobFacts:
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
    cpu_waits: dict[int, CpuWait]  # by rank
    living: dict[int, bool]  # by rank, of those whose process runs: whether it is stopped
    doubted: set[int]  # of those that died, the ranks that may run where this machine cannot see it
    seen: dict[int, LastSeen]  # of those that are gone, by rank: how another of their machine saw them last
    environments: dict[int, Mapping[str, Any]]  # by rank: what surrounds it
    digests: dict[int, RankDigests | None]  # by rank
    said_steps: dict[int, int]  # by rank, of those that have no end: the last step that it said it had finished
    alive_at: dict[
        int, float
    ]  # by rank, of those that wrote where they stood or what they saw of others: when they did so last, Unix time

    @classmethod
    def of(cls, parts: Sequence[RecordedPart], tables: Tables, beside: Sequence[Sampled] = ()) -> JobFacts:
        """`beside`: stacks beside the recording. Those that SIGTERM made tell who was ended, as by a launcher."""
        job_id = next((part.job_id for part in parts if part.job_id is not None), None)
        terminated = [it for it in beside if it.why == TERMINATED and it.job_id == job_id]
        told_to_end = {it.rank: RankEnd(it.at, signal="SIGTERM") for it in terminated}
        facts = cls(job_id, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, set(), {}, {}, {}, {}, {})
        is_over = any(part.end_lines or part.departed for part in parts)
        seen = seen_by_others(line for part in parts for line in part.saw)
        for part in parts:
            ends = {rank: told_to_end.get(rank) for rank in part.killed}
            ends |= {rank: _end_of(part, tables, rank) for rank, line in part.end_lines.items() if line.exit_code}
            names = tuple(part.columns.group_names)
            facts.died.update((rank, (_unfinished(tables, rank, names), end)) for rank, end in ends.items())
            for rank in part.killed & seen.keys():
                last = seen[rank].last(part.last_record_at(tables, rank))
                own, end = facts.died[rank]
                facts.died[rank] = last.in_flight or own, last.end or end
                facts.seen[rank] = last
            facts.left.update(
                (rank, _end_of(part, tables, rank)) for rank, line in part.end_lines.items() if not line.exit_code
            )
            facts.came_to.update((rank, _came_to(part, tables, rank)) for rank in part.end_lines)
            facts.last_beats.update((rank, _last_beat(part, tables, rank)) for rank in part.without_end if part.beats)
            said = ((rank, part.beat_lines.get(rank)) for rank in part.without_end)
            facts.said_steps.update(
                (rank, beat.last_step) for rank, beat in said if beat and beat.last_step is not None
            )
            written = ((rank, part.last_record_at(tables, rank)) for rank in part.killed & part.beat_lines.keys())
            facts.alive_at.update((rank, at) for rank, at in written if at is not None)
            for line in part.saw:
                facts.alive_at[line.rank] = max(line.at_unix, facts.alive_at.get(line.rank, 0.0))
            facts.living.update(dict.fromkeys(part.living, part.writer.is_stopped))
            facts.doubted.update(() if is_over or part.writer.is_gone else part.killed)
            facts.lines.update(part.lines)
            facts.states.update(part.states)
            facts.found.update(part.found)
            facts.threads.update({rank: own_threads(line.facts or {}) for rank, line in part.lines.items()})
            facts.threads.update(part.threads)
            facts.cpu_waits.update(part.cpu_waits)
            facts.digests.update({rank: digests(line.facts or {}) for rank, line in part.lines.items()})
            facts.digests.update(part.rank_digests())
            facts.environments.update({rank: line.facts or {} for rank, line in part.lines.items()})
            facts.environments.update(part.environments)
        return facts

    def world_size(self, ranks: NDArray[np.int64]) -> int:
        size = int(ranks[-1]) + 1 if len(ranks) else 0
        for line in self.lines.values():
            members = (max(group.ranks, default=-1) + 1 for group in (line.groups or {}).values() if group.ranks)
            size = max(size, line.world_size or 0, *members)
        return size

    def indices(self, rank: int, shown: Indices) -> dict[str, int]:
        """`shown`: those that the rank's collectives show."""
        line = self.lines.get(rank)
        if line is None:
            return dict(shown)
        own = [(group.role or "", group.ranks) for group in (line.groups or {}).values() if group.ranks]
        seats = [Seat(role, len(members), members.index(rank)) for role, members in own if rank in members]
        return own_indices(seats, line.position or {}, shown)

    def members(self) -> set[tuple[str, tuple[int, ...]]]:
        """The role, as declared, and the members of each group that a rank declares."""
        declared = (group for line in self.lines.values() for group in (line.groups or {}).values())
        return {(group.role or "", tuple(group.ranks)) for group in declared if group.ranks}

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
        line, waited = self.states.get(rank), self.cpu_waits.get(rank)
        if line is None and rank in self.living:
            return RankState("running", last_step, None, None, self.living[rank], cpu_wait=waited)
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
                cpu_wait=waited,
                alive_at=self.alive_at.get(rank),
            )
        if line is None:
            came_to, end = self.came_to.get(rank), self.left.get(rank)
            return RankState("finished", last_step, None, None, beat=came_to, end=end, cpu_wait=waited)
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
            line.cpu_wait or waited,
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
    line, came_to = part.beat_lines.get(rank), _came_to(part, tables, rank)
    if line is not None and _is_last(line.last_step, tables.last_step(rank), line.beat, came_to):
        return LastBeat(line.quiet_seconds, line.phase, line.in_flight, line.beat)
    return LastBeat(0.0, None, None, came_to)


def _is_last(said: int | None, finished: int | None, beat: BeatRow, came_to: BeatRow) -> bool:
    """Whether the rank got no further than its `beat`, where `said` was its last step. Of a recording without step
    records the collectives tell."""
    if said is None:
        return finished is None
    if finished is not None:
        return said >= finished  # newer where the last steps' records were lost
    entered = {(lane.op, lane.group, lane.peer): lane.entered for lane in beat.lanes}
    return all(lane.entered <= entered.get((lane.op, lane.group, lane.peer), 0) for lane in came_to.lanes)


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
