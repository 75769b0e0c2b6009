"""The verdict on a job by PromQL alone: few queries about all of its ranks, some more about suspects, then the
suspects' agents, where they can be reached."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from laggard.collector.jobs.job import JobKey
from laggard.collector.jobs.snapshot import unknown_location
from laggard.collector.locate.explanation import explained
from laggard.collector.locate.job_timings import JobTimings
from laggard.collector.locate.positions import REPLICAS, canonical_role
from laggard.collector.locate.verdict import locate
from laggard.collector.prometheus import queries
from laggard.collector.prometheus.answer import Labels, Series
from laggard.collector.prometheus.choice import Few, choose_job, few_ranks
from laggard.collector.prometheus.client import Prometheus
from laggard.collector.prometheus.counters import (
    FIRST,
    INTERVALS,
    Counters,
    Floats,
    Intervals,
    Moments,
    Table,
    as_timings,
    differences,
    intervals,
    rank_numbers,
    table,
    typical_steps,
)
from laggard.collector.prometheus.second_look import less_sure, with_agents
from laggard.collector.prometheus.stall import Ranks, silent_note, stalled_by
from laggard.collector.prometheus.suspects import Detail, chosen, described, detail
from laggard.model import Culprit, Location, Note, Verdict, Window
from laggard.text.words import seconds_text

MAX_STEP = 600.0
"""Seconds of one interval at most: for longer steps there is no verdict."""

STALL_INTERVALS = 2
"""A job without a step in so many of the last intervals stands still; each is at least two steps long."""

AT_ONCE = 3
"""So many queries are under way at once."""

POSITIONS_UNKNOWN = 0.5
"""Of the confidence that is left where ranks do different work by design, and which does which is not known here."""


def locate_by_counters(prometheus: Prometheus, job: str | None, at: float | None) -> Location:
    """The verdict on the job of that key or name, by default the one that got on last, at a moment (Unix seconds; None:
    now). Raises UsageError where Prometheus does not answer, or the name is that of several users' jobs."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        found = choose_job(prometheus, job, at)
        if isinstance(found, Location):
            return found
        asked, now = found
        return _Question(prometheus, pool, asked, now, live=at is None).answer()


@dataclasses.dataclass
class _Question:
    """One job at one moment. The queries about all ranks are under way together."""

    prometheus: Prometheus
    pool: ThreadPoolExecutor
    job: queries.Job
    now: float
    live: bool

    def answer(self) -> Location:
        few = few_ranks(self.prometheus, self.job, self.now)
        if isinstance(few, str):
            return self._unknown("stale", few)
        # Two steps at least, so that no interval is without one.
        scrapes = max(1, -(-2 * few.step // few.interval)) if few.interval else 1
        moments = Moments(self.now, (few.interval or 15.0) * scrapes)
        if moments.step > MAX_STEP:
            return self._unknown("too_few_steps", f"a step takes {seconds_text(few.step)}: too long for counters")
        infos = self.pool.submit(self._infos)
        counters = self._counters(moments, few)
        known, partial = infos.result(), self._partial_notes()
        nobody = Labels()
        nodes = tuple(known.get(rank, nobody).hostname or None for rank in counters.ranks.tolist())
        world = max(map(_number, {info.world_size for info in known.values()}), default=0)
        found = intervals(counters)
        timings = as_timings(self.job.job_id, counters, found, nodes, max(world, len(counters.ranks)))
        if not np.isfinite(found.made[-STALL_INTERVALS:]).any():
            location = self._stalled(timings, moments, known)
        else:
            location = self._slow(timings, counters, found, moments, few, known)
        return self._finished(location, partial)

    # What is asked about all ranks.

    def _counters(self, moments: Moments, few: Few) -> Counters:
        other = ("phase=", "other")
        asked = {
            "steps": queries.selector(queries.STEPS, self.job),
            "own": queries.selector(queries.OWN_SECONDS, self.job),
            "input": queries.selector(queries.INPUT_SECONDS, self.job),
            "other": queries.selector(queries.PHASE_SECONDS, self.job, other),
            "few": queries.selector(queries.STEP_SECONDS, self.job, queries.A_FEW),
        }
        tables = self._tables(asked, moments)
        count = max(each.count for each in tables.values())
        steps = tables["steps"].of(count)
        present = np.flatnonzero(np.isfinite(steps).any(axis=0))
        sampled = np.array([rank for rank in few.ranks if rank < count], np.int64)
        return Counters(
            ranks=present,
            steps=steps[:, present],
            own=tables["own"].of(count)[:, present],
            input=tables["input"].of(count)[:, present],
            other=tables["other"].of(count)[:, present],
            step_seconds=tables["few"].of(count)[:, sampled],
            few_steps=steps[:, sampled],
        )

    def _tables(self, asked: Mapping[str, str], moments: Moments) -> dict[str, Table]:
        def one(query: str) -> Table:
            start, end, step = moments.start, moments.end, moments.step
            return table(moments, self.prometheus.over_time(query, start, end, step))

        return dict(zip(asked, self.pool.map(one, asked.values()), strict=True))

    def _infos(self) -> dict[int, Labels]:
        """Who each rank is; of several attempts the last."""
        found: dict[int, Labels] = {}
        for part in self.prometheus.at(queries.selector(queries.INFO, self.job), self.now):
            for number, labels in zip(rank_numbers(part.labels).tolist(), part.labels, strict=True):
                before = found.get(number)
                if before is None or _number(labels.attempt) >= _number(before.attempt):
                    found[number] = labels
        return found

    def _partial_notes(self) -> tuple[Note, ...]:
        if not self.prometheus.warnings:
            return ()
        text = f"the answer is not whole, ranks may be missing: {self.prometheus.warnings[0]}"
        return (Note("partial_answer", text),)

    # A job that goes on.

    def _slow(
        self,
        timings: JobTimings,
        counters: Counters,
        found: Intervals,
        moments: Moments,
        few: Few,
        known: Mapping[int, Labels],
    ) -> Location:
        location = locate(timings)
        culprits = location.culprits
        notes = [note for note in location.notes if note.kind != "rank_zero"]
        if culprits:
            culprits = self._described(culprits, counters, moments, known)
            unlike = {role for role in map(canonical_role, few.roles) if role and role != REPLICAS}
            if unlike:
                culprits = tuple(less_sure(culprit, POSITIONS_UNKNOWN) for culprit in culprits)
                roles = ", ".join(sorted(unlike))
                text = f"ranks may differ by design, having groups of kind {roles}: who does what is not in Prometheus"
                notes.append(Note("positions_unknown", text))
            culprits, asked = self._second_look(culprits, timings, known)
            notes += asked
        missing = ~np.isfinite(counters.steps[-1])
        if missing.any():
            notes.append(silent_note(counters.ranks[missing], timings.nodes, missing))
        first, last = float(np.nanmin(counters.steps)), float(np.nanmax(counters.steps))
        made = np.nanmedian(found.made, axis=1) if np.isfinite(found.made).any(axis=1).all() else [typical_steps(found)]
        seconds = float(np.nansum(found.step * made))
        culprits = tuple(_in_real_steps(culprit, counters.steps) for culprit in culprits)
        notes.append(_coarse_note(moments))
        window = Window(int(first), int(last) - 1, round(seconds, 3))
        return structs.replace(location, culprits=culprits, notes=tuple(notes), window=window)

    def _described(
        self, culprits: Sequence[Culprit], counters: Counters, moments: Moments, known: Mapping[int, Labels]
    ) -> tuple[Culprit, ...]:
        suspects, peers = chosen(culprits, counters.ranks)
        found = self._detail((*suspects, *peers), moments)
        gpus = {rank: known[rank].gpu for rank in suspects if rank in known and known[rank].gpu}
        return tuple(described(culprit, found, peers, gpus) for culprit in culprits)

    def _detail(self, ranks: Sequence[int], moments: Moments) -> Detail:
        """Asks for the phases and the waits of these ranks."""
        place = {rank: at for at, rank in enumerate(ranks)}
        by_phase: dict[str, Table] = {}
        start, end, step = moments.start, moments.end, moments.step
        query = queries.of_ranks(queries.PHASE_SECONDS, self.job, ranks)
        for part in self.prometheus.over_time(query, start, end, step):
            for phase, some in _by_phase(part):
                by_phase.setdefault(phase, Table(moments)).add(some)
        collectives = f"sum by (rank) ({queries.of_ranks(queries.COLLECTIVE_SECONDS, self.job, ranks)})"
        asked = {"steps": queries.of_ranks(queries.STEPS, self.job, ranks), "collectives": collectives}
        tables = self._tables(asked, moments)
        count = max(ranks) + 1
        columns = np.array(list(place), np.int64)

        def of(found: Table) -> Floats:
            return found.of(max(count, found.count))[:, columns]

        made = differences(of(tables["steps"]))
        phases = {phase: of(found) for phase, found in by_phase.items()}
        return detail(ranks, np.where(made > 0, made, np.nan), phases, of(tables["collectives"]))

    # A job that stands still.

    def _stalled(self, timings: JobTimings, moments: Moments, known: Mapping[int, Labels]) -> Location:
        before = self.now - moments.step
        up = queries.selector(queries.UP, self.job)
        beats, progress = (queries.selector(name, self.job) for name in (queries.LAST_BEAT, queries.LAST_PROGRESS))
        asked = [(f"timestamp({up})", self.now), (up, self.now)]
        asked += [(queries.selector(queries.IN_FLIGHT, self.job), self.now)]
        asked += [(query, moment) for query in (beats, progress) for moment in (self.now, before)]
        values = list(self.pool.map(lambda each: self._values(each[0], each[1], timings.ranks), asked))
        stamps, runs, in_flight, beat, beat_before, got_on, got_on_before = values
        fresh = stamps > self.now - 2 * moments.step  # false where there is none
        ranks = Ranks(
            numbers=timings.ranks,
            nodes=timings.nodes,
            up=np.where(fresh, runs, np.nan),
            in_flight=in_flight,
            beat_moved=beat - beat_before,
            progress_moved=got_on - got_on_before,
            seconds=moments.step,
        )
        found = stalled_by(ranks, STALL_INTERVALS * moments.step)
        culprits, notes = self._second_look(found.culprits, timings, known)
        coarse = _coarse_note(moments)
        return Location(
            verdict=Verdict.FAIL if culprits else Verdict.UNKNOWN,
            job_id=self.job.job_id,
            world_size=timings.world_size,
            ranks_seen=len(timings.ranks),
            window=Window(),
            slowdown_ratio=None,
            culprits=tuple(culprits),
            notes=(*found.notes, *notes, coarse),
        )

    def _values(self, query: str, moment: float, ranks: NDArray[np.int64]) -> Floats:
        """[R]: an instant's values; nan where there is none."""
        held = np.full(int(ranks.max(initial=0)) + 1, np.nan)
        for part in self.prometheus.at(query, moment):
            numbers = rank_numbers(part.labels)
            right = (numbers >= 0) & (numbers < len(held))
            held[numbers[right]] = part.values[right]
        found: Floats = held[ranks]
        return found

    def _second_look(
        self, culprits: Sequence[Culprit], timings: JobTimings, known: Mapping[int, Labels]
    ) -> tuple[tuple[Culprit, ...], tuple[Note, ...]]:
        """What the agents add. About the past nobody is asked."""
        if not culprits or not self.live:
            return tuple(explained(culprit, timings) for culprit in culprits), ()
        return with_agents(culprits, timings, self._key, known)

    @property
    def _key(self) -> JobKey:
        return JobKey(int(self.job.user) if self.job.user.isdecimal() else -1, self.job.job_id)

    def _finished(self, location: Location, partial: tuple[Note, ...]) -> Location:
        verdict = location.verdict
        if partial and verdict is Verdict.OK:
            verdict = Verdict.UNKNOWN
        owner = self._key.owner if self._key.owner >= 0 else None
        return structs.replace(location, verdict=verdict, notes=(*partial, *location.notes), owner=owner)

    def _unknown(self, kind: str, text: str) -> Location:
        return self._finished(unknown_location(kind, text, self.job.job_id), self._partial_notes())


def _coarse_note(moments: Moments) -> Note:
    text = (
        f"by Prometheus' counters, {INTERVALS} averages of {moments.step:.0f} s each: single collectives are not in"
        " them, so that no link is judged and less is certain"
    )
    return Note("coarse", text)


def _in_real_steps(culprit: Culprit, steps: Floats) -> Culprit:
    """The culprit with the job's own number of the step since which it is slow, in place of the interval's."""
    if culprit.since_step is None or not culprit.kind.startswith("slow"):
        return culprit
    at = steps[max(0, min(culprit.since_step - FIRST, len(steps) - 1))]
    known = at[np.isfinite(at)]
    return structs.replace(culprit, since_step=int(np.median(known)) if known.size else None)


def _by_phase(part: Series) -> Iterable[tuple[str, Series]]:
    """The series of each phase."""
    names = np.array([labels.phase for labels in part.labels])
    of_sample = np.repeat(names, part.counts)
    for phase in sorted(set(names)):
        chosen_series = [labels for labels in part.labels if labels.phase == phase]
        counts = part.counts[names == phase]
        mine = of_sample == phase
        yield phase, Series(chosen_series, counts, part.times[mine], part.values[mine])


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 8 else 0
