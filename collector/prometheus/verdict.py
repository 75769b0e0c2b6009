"""The verdict on a job by PromQL alone: few queries about all of its ranks, at three moments; those that stand out, and
others, at ten. They become a job's timings, and the verdict is that on any job. Where it names somebody, or the job
stands still, it is drawn once more with the phases, the places and the findings that the store has."""

from __future__ import annotations

import dataclasses
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from msgspec import structs

from laggard.collector.jobs.snapshot import unknown_location
from laggard.collector.prometheus import choice
from laggard.collector.prometheus.client import Prometheus
from laggard.collector.prometheus.counters import (
    INTERVALS,
    MAX_UNSCREENED_RANKS,
    Counters,
    Mask,
    Moments,
    as_timings,
    durations_lack,
    intervals,
    lacking,
    part_of,
    screened,
    silent_note,
)
from laggard.collector.prometheus.counters import Known as KnownRanks
from laggard.collector.prometheus.queries import Reading, small_number
from laggard.kit.constants import PHASES
from laggard.kit.words import ranks_text, seconds_text
from laggard.locate.positions import REPLICAS, canonical_role
from laggard.locate.verdict import locate
from laggard.model import MAX_NAMED_RANKS, JobKey, Location, Note, Window

MAX_APART = 600.0
"""The most seconds between two moments: for longer steps there is no verdict."""

SILENT_SECONDS = 10.0
"""The least seconds over which signs of life have to stand still: a rank gives one a second."""

COARSE_INTERVALS = 2
"""The number of intervals of COARSE_LENGTH_RATIO times the length in which all ranks are screened."""

COARSE_LENGTH_RATIO = 4

_COARSE_PLACES = tuple(range(INTERVALS - COARSE_INTERVALS * COARSE_LENGTH_RATIO, INTERVALS + 1, COARSE_LENGTH_RATIO))
"""Where these moments are among those of a close look."""

CONCURRENT_QUERIES = 3
"""The number of queries that are under way at once."""

_NO_COUNTERS = (
    "the job has samples, and its counters have no value at any of the moments asked for: the store hides what is new"
    " (VictoriaMetrics' -search.latencyOffset), or has lost it"
)

_WORLD_UNKNOWN = "how many ranks the job has is not known: its laggard_rank_info is not in the store"

POSITIONS_UNKNOWN_FACTOR = 0.5
"""The factor of the confidence where ranks do different work by design, and which does which is not known here."""


def locate_by_counters(prometheus: Prometheus, job: str | None, at: float | None) -> Location:
    """The verdict on the job of that key or name, by default the one that got on last, at a moment (Unix seconds; None:
    now). Raises UsageError where Prometheus does not answer, or the name is that of several users' jobs."""
    found = choice.choose_job(prometheus, job, at)
    if isinstance(found, Location):
        return choice.with_what_is_left_out(prometheus, found)
    return locate_known(prometheus, found)


def locate_known(prometheus: Prometheus, known: choice.Known) -> Location:
    """The verdict on a job that Prometheus has samples of, at its moment by the server's clock. Raises UsageError."""
    with ThreadPoolExecutor(CONCURRENT_QUERIES) as pool:
        return _Question(Reading(prometheus, pool, known.job, known.now), known.ahead).answer()


@dataclasses.dataclass(frozen=True)
class _Question:
    """One job at one moment. `ahead`: the seconds by which the server's clock is ahead of this machine's."""

    reading: Reading
    ahead: float = 0.0

    def answer(self) -> Location:
        reading = self.reading
        few = choice.few_ranks(reading.prometheus, reading.job, reading.now)
        if isinstance(few, str):
            return self._unknown("stale", few)
        if few.apart > MAX_APART:
            return self._unknown("too_few_steps", f"a step takes {seconds_text(few.step)}: too long for counters")
        world = max((small_number(it.world_size) for it in reading.who(few.ranks).values()), default=0)
        everyone, closely = self._everyone(few, world)
        if not len(everyone.ranks):
            return self._unknown("stale", _NO_COUNTERS)
        location = self._standing(everyone, few, world) if few.stands_still else None
        location = location or self._going_on(everyone, closely, few, world)
        missing = _missing(everyone, few)
        if missing.any() and not any(note.kind == "silent_ranks" for note in location.notes):
            location = choice.doubted(
                location, silent_note(everyone.ranks[missing], everyone.machines, missing), first=False
            )
        if not world:
            location = choice.doubted(location, Note("partial", _WORLD_UNKNOWN), first=False)
        location = structs.replace(
            location,
            world_size=max(world, len(everyone.ranks)),
            ranks_seen=len(everyone.ranks),
            notes=(*location.notes, *self._failing(everyone), _coarse_note(few)),
        )
        return self._finished(location)

    def _everyone(self, few: choice.Few, world: int) -> tuple[Counters, Counters | None]:
        """All ranks at a few moments, and at all of them; None: not asked for yet, since not all will be looked at
        closely."""
        if not 0 < world <= MAX_UNSCREENED_RANKS:
            coarse = Moments(self.reading.now, COARSE_LENGTH_RATIO * few.apart, COARSE_INTERVALS)
            return self.reading.counters(coarse, few.ranks), None
        found = self.reading.counters(Moments(self.reading.now, few.apart), few.ranks, outside_phases=True)
        seen: Mask = np.any(np.isfinite(found.steps[list(_COARSE_PLACES)]), axis=0)
        return part_of(found, _COARSE_PLACES, seen), part_of(found, range(INTERVALS + 1), seen)

    def _going_on(self, everyone: Counters, closely: Counters | None, few: choice.Few, world: int) -> Location:
        """The verdict on a job that goes on. `closely`: what is known of all of its ranks at each moment; None: nothing
        yet."""
        moments = Moments(self.reading.now, few.apart)
        counters = closely or self.reading.counters(moments, few.ranks, screened(everyone))
        if not len(counters.ranks):
            return self._unknown("stale", _NO_COUNTERS)
        key, count = self.reading.job.job_id, len(counters.ranks) + max(0, world - len(everyone.ranks))
        location = locate(as_timings(key, counters, count))
        if location.culprits:
            location = _doubted_places(locate(as_timings(key, counters, count, self._known(counters, moments))), few)
        location = structs.replace(location, window=_window(counters, location.window))
        lacks = _lacks(everyone, counters)
        return choice.doubted(location, lacks, first=False) if lacks else location

    def _standing(self, everyone: Counters, few: choice.Few, world: int) -> Location:
        """The verdict on a job that stands still."""
        states = self.reading.states(everyone, max(few.apart, SILENT_SECONDS))
        seen = np.array([each.state != "unknown" for each in states])
        if not seen.any():  # whether they run is not known, as after Prometheus was away
            note = silent_note(everyone.ranks, everyone.machines, ~seen)
            return structs.replace(unknown_location(note.kind, note.text, self.reading.job.job_id), notes=(note,))
        if not any(each.state == "running" for each in states):
            return unknown_location("ended", "no process of the job runs any more", self.reading.job.job_id)
        known = self._known(everyone, None)
        count = max(world, len(everyone.ranks))
        location = locate(as_timings(self.reading.job.job_id, everyone, count, known, states))
        if seen.all():
            return location
        return choice.doubted(location, silent_note(everyone.ranks[~seen], everyone.machines, ~seen), first=False)

    def _known(self, counters: Counters, moments: Moments | None) -> KnownRanks:
        """What the store has of these ranks. `moments`: those of their phases; None: no step tells anything."""
        reading = self.reading
        who = reading.who(counters.ranks.tolist())
        where = {labels.hostname: labels.instance for labels in who.values() if labels.hostname}
        findings = choice.findings_of(reading.prometheus, reading.job.cluster, where, reading.now)
        shape = (len(counters.steps), len(counters.ranks), len(PHASES))
        phases = np.full(shape, np.nan) if moments is None else reading.phases(counters.ranks, moments)
        machines = dict(zip(counters.ranks.tolist(), counters.machines, strict=True))
        places = {rank: (it.hostname or machines[rank], it.gpu or None) for rank, it in who.items() if rank in machines}
        return KnownRanks(phases, places, findings)

    def _failing(self, everyone: Counters) -> tuple[Note, ...]:
        """The machines of the job that fail their health checks."""
        machines = frozenset(name for name in everyone.machines if name)
        note = choice.failing_nodes(self.reading.prometheus, self.reading.job.cluster, self.reading.now, machines)
        return () if note is None else (note,)

    @property
    def _key(self) -> JobKey:
        user = self.reading.job.user
        return JobKey(int(user) if user.isdecimal() else -1, self.reading.job.job_id)

    def _finished(self, location: Location) -> Location:
        """The location with its job's user, and with what Prometheus says to have left out."""
        owner = self._key.owner if self._key.owner >= 0 else None
        location = choice.with_what_is_left_out(self.reading.prometheus, structs.replace(location, owner=owner))
        return choice.not_of_now(location, self.ahead)

    def _unknown(self, kind: str, text: str) -> Location:
        return self._finished(unknown_location(kind, text, self.reading.job.job_id))


def _lacks(everyone: Counters, looked_at: Counters) -> Note | None:
    """The note on ranks that the store has not all counters of."""
    ranks = np.union1d(*(each.ranks[lacking(each)] for each in (everyone, looked_at)))
    if ranks.size:
        text = f"some counters of {ranks_text(ranks.tolist())} are not in the store at each of the moments: not judged"
        return Note("series_missing", text, tuple(ranks[:MAX_NAMED_RANKS].tolist()))
    if durations_lack(looked_at):
        return Note("series_missing", "how long steps took is not in the store at each of the moments")
    return None


def _missing(everyone: Counters, few: choice.Few) -> Mask:
    """[R]: the ranks without a sample now, or of which none has come since the moment before, while the others of their
    job made steps: their Prometheus writes late, and the store repeats what it had last. A rank that never made one is
    no such."""
    made = intervals(everyone).made[-1]
    stand = ~np.isfinite(made) & (everyone.steps[-1] > 0) & bool(np.isfinite(made).any()) & (not few.stands_still)
    missing: Mask = ~np.isfinite(everyone.steps[-1]) | stand
    return missing


def _doubted_places(location: Location, few: choice.Few) -> Location:
    """The location with a note where ranks may do different work by design, and which does which is not known here."""
    unlike = sorted({role for role in map(canonical_role, few.roles) if role and role != REPLICAS})
    if not unlike or not location.culprits:
        return location
    text = f"ranks may differ by design, having groups of kind {', '.join(unlike)}: who does what is not in Prometheus"
    sure = [round(it.confidence * POSITIONS_UNKNOWN_FACTOR, 2) for it in location.culprits]
    culprits = tuple(structs.replace(it, confidence=each) for it, each in zip(location.culprits, sure, strict=True))
    return structs.replace(location, culprits=culprits, notes=(*location.notes, Note("positions_unknown", text)))


def _window(counters: Counters, found: Window) -> Window:
    """The steps from the first moment to the last, of which `found` has those between the moments."""
    if not np.isfinite(counters.steps).any():
        return found
    first, last = int(np.nanmin(counters.steps)), int(np.nanmax(counters.steps))
    return structs.replace(found, first_step=first, last_step=max(first, last - 1))


def _coarse_note(few: choice.Few) -> Note:
    text = (
        f"by Prometheus' counters, {INTERVALS} averages of {few.apart:.0f} s each: single collectives are not in them,"
        " so that no link is judged and less is certain"
    )
    return Note("coarse", text)
