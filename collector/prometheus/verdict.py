"""The verdict on a job by PromQL alone: few queries about all of its ranks, at three moments; those that stand out, and
others, at ten; the phases of suspects; then the suspects' agents, where they can be reached."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from msgspec import structs

from laggard.collector.jobs.snapshot import unknown_location
from laggard.collector.prometheus.choice import (
    STALL_INTERVALS,
    Few,
    Known,
    choose_job,
    doubted,
    failing_nodes,
    few_ranks,
    findings_of,
    not_of_now,
    with_what_is_left_out,
)
from laggard.collector.prometheus.client import Labels, Prometheus
from laggard.collector.prometheus.counters import (
    FIRST_INTERVAL,
    INTERVALS,
    Counters,
    Floats,
    Intervals,
    Mask,
    Moments,
    as_timings,
    durations_lack,
    intervals,
    lacking,
    part_of,
    typical_steps,
)
from laggard.collector.prometheus.queries import Reading, small_number
from laggard.collector.prometheus.second_look import advised, less_sure, with_agents
from laggard.collector.prometheus.suspects import (
    MAX_UNSCREENED_RANKS,
    chosen,
    described,
    screened,
    silent_note,
    stalled_by,
)
from laggard.kit.words import ranks_text, seconds_text
from laggard.locate.medians import last_axis_median
from laggard.locate.positions import REPLICAS, canonical_role
from laggard.locate.verdict import locate
from laggard.model import MAX_NAMED_RANKS, Culprit, JobKey, Location, Note, Verdict, Window

MAX_APART = 600.0
"""The most seconds between two moments: for longer steps there is no verdict."""

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
    found = choose_job(prometheus, job, at)
    if isinstance(found, Location):
        return with_what_is_left_out(prometheus, found)
    return locate_known(prometheus, found, live=at is None)


def locate_known(prometheus: Prometheus, known: Known, live: bool = True) -> Location:
    """The verdict on a job that Prometheus has samples of, at its moment by the server's clock; `live`: whether that is
    now. Raises UsageError."""
    with ThreadPoolExecutor(CONCURRENT_QUERIES) as pool:
        return _Question(Reading(prometheus, pool, known.job, known.now), live, known.ahead).answer()


@dataclasses.dataclass(frozen=True)
class _Question:
    """One job at one moment. `live`: whether the moment is now. `ahead`: the seconds by which the server's clock is
    ahead of this machine's."""

    reading: Reading
    live: bool
    ahead: float = 0.0

    def answer(self) -> Location:
        reading = self.reading
        few = few_ranks(reading.prometheus, reading.job, reading.now)
        if isinstance(few, str):
            return self._unknown("stale", few)
        if few.apart > MAX_APART:
            return self._unknown("too_few_steps", f"a step takes {seconds_text(few.step)}: too long for counters")
        world = max((small_number(it.world_size) for it in reading.who(few.ranks).values()), default=0)
        everyone, closely = self._everyone(few, world)
        if not len(everyone.ranks):
            return self._unknown("stale", _NO_COUNTERS)
        location = self._stalled(everyone, few) if few.stands_still else self._slow(everyone, closely, few, world)
        missing = _missing(everyone, few)
        if missing.any() and not any(note.kind == "silent_ranks" for note in location.notes):
            location = doubted(location, silent_note(everyone.ranks[missing], everyone.machines, missing), first=False)
        if not world:
            location = doubted(location, Note("partial", _WORLD_UNKNOWN), first=False)
        location = structs.replace(
            location,
            world_size=max(world, len(everyone.ranks)),
            ranks_seen=len(everyone.ranks),
            notes=(*location.notes, *self._failing(everyone), _coarse_note(few)),
        )
        return self._finished(location)

    def _everyone(self, few: Few, world: int) -> tuple[Counters, Counters | None]:
        """All ranks at a few moments, and at all of them; None: not asked for yet, since not all will be looked at
        closely."""
        if not 0 < world <= MAX_UNSCREENED_RANKS:
            coarse = Moments(self.reading.now, COARSE_LENGTH_RATIO * few.apart, COARSE_INTERVALS)
            return self.reading.counters(coarse, few.ranks), None
        found = self.reading.counters(Moments(self.reading.now, few.apart), few.ranks, outside_phases=True)
        seen: Mask = np.any(np.isfinite(found.steps[list(_COARSE_PLACES)]), axis=0)
        return part_of(found, _COARSE_PLACES, seen), part_of(found, range(INTERVALS + 1), seen)

    def _slow(self, everyone: Counters, closely: Counters | None, few: Few, world: int) -> Location:
        """The verdict on a job that goes on. `closely`: what is known of all of its ranks at each moment; None: nothing
        yet."""
        moments = Moments(self.reading.now, few.apart)
        unseen = max(0, world - len(everyone.ranks))
        counters = closely or self.reading.counters(moments, few.ranks, screened(everyone))
        if not len(counters.ranks):
            return self._unknown("stale", _NO_COUNTERS)
        found = intervals(counters)
        timings = as_timings(self.reading.job.job_id, counters, found, len(counters.ranks) + unseen)
        location = locate(timings)
        notes = [note for note in location.notes if note.kind not in ("rank_zero", "partial")]
        if unseen:
            notes.insert(0, Note("partial", f"{len(everyone.ranks)} of {world} ranks are seen"))
        culprits = location.culprits
        if culprits:
            culprits, more = self._described(culprits, counters, moments, few)
            notes += more
        culprits = tuple(_in_real_steps(culprit, counters.steps) for culprit in culprits)
        location = structs.replace(location, culprits=culprits, notes=tuple(notes), window=_window(counters, found))
        lacks = _lacks(everyone, counters)
        return doubted(location, lacks, first=False) if lacks else location

    def _described(
        self, culprits: Sequence[Culprit], counters: Counters, moments: Moments, few: Few
    ) -> tuple[tuple[Culprit, ...], list[Note]]:
        """The culprits with their phases, and with what their agents add."""
        suspects, peers = chosen(culprits, counters.ranks)
        detail = self.reading.detail((*suspects, *peers), moments)
        culprits = [described(culprit, detail, peers) for culprit in culprits]
        unlike = sorted({role for role in map(canonical_role, few.roles) if role and role != REPLICAS})
        notes = []
        if unlike:
            culprits = [less_sure(culprit, POSITIONS_UNKNOWN_FACTOR) for culprit in culprits]
            text = "ranks may differ by design, having groups of kind {}: who does what is not in Prometheus"
            notes.append(Note("positions_unknown", text.format(", ".join(unlike))))
        looked_at, asked = self._second_look(culprits, peers)
        return looked_at, [*notes, *asked]

    def _stalled(self, everyone: Counters, few: Few) -> Location:
        """The verdict on a job that stands still."""
        found = stalled_by(self.reading.states(everyone, few.apart), STALL_INTERVALS * few.apart)
        peers = chosen(found.culprits, everyone.ranks)[1]
        culprits, notes = self._second_look(found.culprits, peers)
        verdict = Verdict.FAIL if culprits else Verdict.UNKNOWN
        job_id, all_notes = self.reading.job.job_id, (*found.notes, *notes)
        return Location(verdict, job_id, 0, 0, Window(), None, culprits, all_notes)

    def _second_look(
        self, culprits: Sequence[Culprit], peers: Sequence[int]
    ) -> tuple[tuple[Culprit, ...], tuple[Note, ...]]:
        """The culprits under the names of their machines, with what the agents add. About the past nobody is asked."""
        known = self.reading.who([*(rank for culprit in culprits for rank in culprit.ranks[:8]), *peers])
        named = [_named(culprit, known) for culprit in culprits]
        if not named:
            return (), ()
        where = {labels.hostname: labels.instance for labels in known.values() if labels.hostname}
        cluster = self.reading.job.cluster
        stored = findings_of(self.reading.prometheus, cluster, where, self.reading.now)
        if not self.live:
            return advised(named, stored), ()
        return with_agents(named, self._key, known, stored, sure_of_place=not cluster)

    def _failing(self, everyone: Counters) -> tuple[Note, ...]:
        """The machines of the job that fail their health checks."""
        machines = frozenset(name for name in everyone.machines if name)
        note = failing_nodes(self.reading.prometheus, self.reading.job.cluster, self.reading.now, machines)
        return () if note is None else (note,)

    @property
    def _key(self) -> JobKey:
        user = self.reading.job.user
        return JobKey(int(user) if user.isdecimal() else -1, self.reading.job.job_id)

    def _finished(self, location: Location) -> Location:
        """The location with its job's user, and with what Prometheus says to have left out."""
        owner = self._key.owner if self._key.owner >= 0 else None
        location = with_what_is_left_out(self.reading.prometheus, structs.replace(location, owner=owner))
        return not_of_now(location, self.ahead)

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


def _missing(everyone: Counters, few: Few) -> Mask:
    """[R]: the ranks without a sample now, or of which none has come since the moment before, while the others of their
    job made steps: their Prometheus writes late, and the store repeats what it had last. A rank that never made one is
    no such."""
    made = intervals(everyone).made[-1]
    stand = ~np.isfinite(made) & (everyone.steps[-1] > 0) & bool(np.isfinite(made).any()) & (not few.stands_still)
    missing: Mask = ~np.isfinite(everyone.steps[-1]) | stand
    return missing


def _named(culprit: Culprit, known: dict[int, Labels]) -> Culprit:
    """The culprit with the name of its machine, in place of an address, and its GPU."""
    who = known.get(culprit.ranks[0], Labels()) if culprit.ranks else Labels()
    gpu = who.gpu or None if len(culprit.ranks) == 1 else None
    return structs.replace(culprit, node=who.hostname or culprit.node, gpu=gpu)


def _window(counters: Counters, found: Intervals) -> Window:
    """The steps from the first moment to the last, and how long they took."""
    if not np.isfinite(counters.steps).any():
        return Window()
    first, last = int(np.nanmin(counters.steps)), int(np.nanmax(counters.steps))
    made = last_axis_median(found.made)
    made[np.isnan(made)] = typical_steps(found)
    return Window(first, max(first, last - 1), round(float(np.nansum(found.step * made)), 3))


def _coarse_note(few: Few) -> Note:
    text = (
        f"by Prometheus' counters, {INTERVALS} averages of {few.apart:.0f} s each: single collectives are not in them,"
        " so that no link is judged and less is certain"
    )
    return Note("coarse", text)


def _in_real_steps(culprit: Culprit, steps: Floats) -> Culprit:
    """The culprit with the job's own number of the step since which it is slow, in place of the interval's."""
    if culprit.since_step is None or not culprit.kind.startswith("slow"):
        return culprit
    at = steps[max(0, min(culprit.since_step - FIRST_INTERVAL, len(steps) - 1))]
    known = at[np.isfinite(at)]
    return structs.replace(culprit, since_step=int(np.median(known)) if known.size else None)
