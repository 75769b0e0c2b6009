"""Collects the parts of a recording and turns them into timings. Knows neither files nor lines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from laggard.kit.constants import PHASES
from laggard.kit.words import counted, printable_line, ranks_text
from laggard.locate.job_timings import (
    FIRST_STEPS,
    RECORDED_ROWS,
    RECORDED_STEPS,
    WARM_UP_STEPS,
    WINDOW_STEPS,
    JobTimings,
    hiding_libraries,
    window_length,
)
from laggard.locate.medians import distinct
from laggard.locate.positions import Positions, group_places, indices_shown_by
from laggard.rankfile.fact_names import SCRIPT, STARTED, UNSEEN_WAITS
from laggard.recording.facts import JobFacts
from laggard.recording.part import UNKNOWN_WRITER, RecordedPart, Writer
from laggard.recording.records import Columns, Head
from laggard.recording.tables import RankSteps, Tables, merge_parts
from laggard.stacks.sampled import Sampled
from laggard.wire.digest import merged_environment

CLOCK_SECONDS = 0.05
"""The largest difference of a rank's clocks, unless they are set in between."""

_MAX_CHARACTERS = 120  # of a script's name


class RecordedJob:
    """One job, built up part by part. `gaps` are lines that say what the recording lost or contradicts, in the order in
    which they were found. `owner`: the uid of the job's user, which only a collector's recording has. `stacks`: those
    of the job, once timings() was asked for. `beside`: stacks that lie beside the recording."""

    def __init__(self, beside: Sequence[Sampled] = ()) -> None:
        self._beside = beside
        self.gaps: list[str] = []
        self.owner: int | None = None
        self.stacks: tuple[Sampled, ...] = ()
        self.moved_at: dict[int, float] = {}
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
        self.stacks = tuple(sampled for part in parts for sampled in part.stacks)
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
        self.moved_at = {
            rank: at for part in parts for rank in part.lines if (at := part.last_step_at(tables, rank)) is not None
        }
        ambiguous = self._ambiguous_ranks(parts, tables)
        ranks = np.array(sorted({rank for part in parts for rank in part.ranks} - ambiguous), np.int64)
        rows = tables.rank_steps(ranks)
        self._tell(parts, tables, rows)
        return _timings(JobFacts.of(parts, tables, self._beside), ranks, rows, tables, list(self._group_names))

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
        self.gaps += _lost_gaps(parts)
        self.gaps += _killed_gaps(parts, tables)
        self.gaps += _stopped_gaps(parts, tables)
        for part in parts:
            self.gaps += _empty_gaps(part)
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


def _lost_gaps(parts: Sequence[RecordedPart]) -> Iterable[str]:
    lost = {rank: end.lost for part in parts for rank, end in part.end_lines.items() if end.lost}
    if len(lost) == 1:
        rank, count = next(iter(lost.items()))
        yield f"the recording of rank {rank} lacks {count} records that could not be written"
    elif lost:
        least, most = min(lost.values()), max(lost.values())
        each = f"{least} each" if least == most else f"{least} to {most} each"
        yield f"the recordings of {ranks_text(lost)} lack records that could not be written, {each}"


def _stopped_gaps(parts: Sequence[RecordedPart], tables: Tables) -> Iterable[str]:
    for part in parts:
        for rank, why in part.stopped.items():
            if rank not in part.end_lines:
                after = f"after step {tables.last_step(rank)}: {printable_line(why, _MAX_CHARACTERS)}"
                yield f"the recording of rank {rank} could not go on {after}; whether its process ended is not known"


def _killed_gaps(parts: Sequence[RecordedPart], tables: Tables) -> Iterable[str]:
    """The gaps of parts whose ranks have end records where they ended: their other ranks were killed. Those that are
    alike are told of together."""
    alike: dict[tuple[int | None, bool], set[int]] = {}
    for part in parts:
        for rank in part.killed if part.ends else ():
            alike.setdefault((tables.last_step(rank), part.writer.is_gone), set()).add(rank)
    for (last, is_gone), ranks in alike.items():
        one = len(ranks) == 1
        after = f"{'its' if one else 'their'} first step" if last is None else f"step {last}"
        was, runs = ("was", "runs") if one else ("were", "run")
        how = f"{was} killed, or {'left by os._exit' if is_gone else f'still {runs} and this machine cannot see it'}"
        lost = "lost" if is_gone else "not here"
        whose, has, what = (
            ("the recording", "has no end: its process", "it did")
            if one
            else ("the recordings", "have no end: their processes", "they did")
        )
        yield f"{whose} of {ranks_text(ranks)} {has} {how}, and what {what} after {after} is {lost}"


def _empty_gaps(part: RecordedPart) -> Iterable[str]:
    if not part.ends:
        return
    if not part.ranks and part.writer.lives(None):
        yield f"{part.path} holds no step yet: its process has not finished one"
    elif not part.ranks:
        how = "was killed" if part.writer.is_gone else "was killed, or copied,"
        yield f"{part.path} holds no step: its process {how} before its first was over"


def _last_step(rows: RankSteps, said: int | None, died: bool) -> int | None:
    """The last step that a rank finished: by its records, or by what it said of itself where the last were lost. Of one
    that died, and has no step records, nothing says that it finished the step of its last record."""
    if not len(rows.numbers):
        return None
    last = int(rows.numbers[-1]) - int(died and rows.sparse)
    return last if said is None else max(last, said)


class _StepTable(NamedTuple):
    """The steps [S] that are judged, and what JobTimings has of each of them and of R ranks."""

    numbers: NDArray[np.int64]
    seconds: NDArray[np.float64]
    waited: NDArray[np.float64]
    starts: NDArray[np.float64]
    phases: NDArray[np.float64]
    work: NDArray[np.float64]


def _by_step(rows: Sequence[RankSteps]) -> _StepTable:
    known = [each.numbers for each in rows]
    least = min(RECORDED_STEPS, max(WINDOW_STEPS, RECORDED_ROWS // max(1, len(rows))))
    length = max((window_length(each.seconds, least) for each in rows), default=1)
    numbers = distinct(np.concatenate(known))[-length:] if known else np.zeros(0, np.int64)
    shape = len(numbers), len(rows)
    seconds, waited, starts, work = (np.full(shape, np.nan) for _ in range(4))
    phases = np.full((*shape, len(PHASES)), np.nan)
    for column, each in enumerate(rows):
        kept = each.numbers >= numbers[0] if len(numbers) else np.zeros(0, np.bool_)
        place = np.searchsorted(numbers, each.numbers[kept])
        seconds[place, column], starts[place, column] = each.seconds[kept], each.starts[kept]
        waited[place, column], work[place, column] = each.waited[kept], each.work[kept]
        phases[place, column] = each.phases[kept]
    return _StepTable(numbers, seconds, waited, starts, phases, work)


def _timings(
    facts: JobFacts, ranks: NDArray[np.int64], rows: Sequence[RankSteps], tables: Tables, group_names: Sequence[str]
) -> JobTimings:
    table = _by_step(rows)
    lines = [facts.lines.get(int(rank)) for rank in ranks]
    listed = [int(rank) for rank in ranks]
    last_steps = (
        _last_step(each, facts.said_steps.get(rank), rank in facts.died)
        for rank, each in zip(listed, rows, strict=True)
    )
    told = [line.facts for line in lines if line and line.facts]
    collectives = tables.collectives_of(ranks, facts.groups(group_names))
    shown = indices_shown_by(collectives, ranks)
    positions = Positions.of([facts.indices(rank, shown.get(rank, {})) for rank in listed])
    world_size = facts.world_size(ranks)
    return JobTimings(
        job_id=facts.job_id,
        world_size=world_size,
        steps=table.numbers,
        ranks=ranks,
        nodes=tuple(line.node if line else None for line in lines),
        gpus=tuple(line.gpu if line else None for line in lines),
        step_seconds=table.seconds,
        phase_seconds=table.phases,
        waited_seconds=table.waited,
        work=table.work,
        states=tuple(facts.state(rank, last) for rank, last in zip(listed, last_steps, strict=True)),
        findings_by_node=facts.found,
        group_places=group_places(listed, world_size, facts.members()),
        first_phases=_first_phases(rows, positions.alone),
        waits_recorded=tables.waits_recorded,
        collectives=collectives,
        step_starts=table.starts,
        own_threads=tuple(map(facts.threads.get, listed)),
        digests=tuple(map(facts.digests.get, listed)),
        **positions._asdict(),
        live=bool(facts.states),
        last_beats=tuple(facts.last_beats.get(rank) for rank in listed) if facts.last_beats else (),
        script=next(filter(None, (_text(facts.get(SCRIPT)) for facts in told)), None),
        started_at=min(filter(None, (_moment(facts.get(STARTED)) for facts in told)), default=None),
        unseen_waits=tuple(
            rank for rank, line in zip(listed, lines, strict=True) if line and (line.facts or {}).get(UNSEEN_WAITS)
        ),
        hidden_by=tuple(sorted({name for line in lines if line for name in hiding_libraries(line.facts or {})})),
        environment=merged_environment(facts.environments.values()),
    )


def _first_phases(rows: Sequence[RankSteps], alone: NDArray[np.bool_] | None) -> NDArray[np.float64] | None:
    """The array that JobTimings has under that name; None where no rank is alone."""
    if alone is None or not alone.any():
        return None
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
