"""Decides from the verdicts, round after round, which incidents begin, go on and end, and divides a job's time among
them. No clock, no file.

A verdict flickers: one round names a rank, the next does not, a third names its machine. So an incident is opened when
its culprit was named in two rounds (a rank that died: in one), goes on wherever a culprit of its kind is named at its
place, and ends when verdicts that could tell have left it out for `quiet_seconds`. A verdict `unknown` ends nothing.
"""

from __future__ import annotations

import dataclasses
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Sequence
from typing import Final, NamedTuple

from msgspec import structs

from laggard.collector.incidents.identity import Ends, same_place
from laggard.collector.incidents.incident import Incident, Moment, Run, bounded, family
from laggard.collector.jobs.snapshot import STOPPING, shares
from laggard.locate.describe import culprit_text
from laggard.model import Culprit, JobKey

_WITH_JOB: Final = ("job_ended", "ended_while_down", "job_gone")
"""The reasons of incidents that ended since their job did."""

OPENING_ROUNDS = 2
REWRITE_SECONDS = 60.0
"""The largest age of what is stored of an open incident: its evidence changes a little in every round."""

MAX_CULPRITS = 32
"""The most culprits of one job at a time."""

MAX_OPEN = 4096
MAX_OPEN_OF_OWNER = 1024

MAX_REMEMBERED_JOBS = 4096
"""The most jobs that have ended of which it is known which culprits had incidents."""


class Moved(NamedTuple):
    """The jobs that others watch from now on; the incidents of those that this collector takes over, open or closed of
    late."""

    released: frozenset[JobKey] = frozenset()
    incidents: tuple[Incident, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.released or self.incidents)


class Observation(NamedTuple):
    """One job in one round. `conclusive`: whether a culprit that is not named is none. `slowdown_ratio`: the
    verdict's, None where it has none. `told`: whether somebody tells of the job, so that the verdict is about now.
    `run`: None where it is not known."""

    key: JobKey
    running: bool
    conclusive: bool
    culprits: tuple[Culprit, ...]
    progressed_at: float
    world_size: int = 0
    slowdown_ratio: float | None = None
    told: bool = True
    run: Run | None = None


@dataclasses.dataclass
class _Open:
    """An open incident. `quiet`: for how many seconds verdicts have left it out. `absent_since`: since when nobody
    reports its job. `inherited`: whether it is a former collector's, and its job has not been seen since."""

    incident: Incident
    observed_at: float
    stored_at: float = float("-inf")
    quiet: float = 0.0
    absent_since: float | None = None
    inherited: bool = False


@dataclasses.dataclass
class _Candidate:
    """A culprit that has been named in too few rounds for an incident. `lost_seconds`: what it took before the rounds
    that named it again."""

    culprit: Culprit
    first: Moment
    last: float
    rounds: int = 1
    lost_seconds: float = 0.0


class IncidentTracker:
    """The open incidents. Not thread-safe: one round follows the other."""

    def __init__(self, quiet_seconds: float, moment: Moment, open_before: Iterable[Incident] = ()) -> None:
        self._quiet_seconds = quiet_seconds
        self._open: dict[JobKey, list[_Open]] = {}
        self._candidates: dict[JobKey, list[_Candidate]] = {}
        self._looked_at: dict[JobKey, float] = {}  # monotonic
        self._over: dict[JobKey, list[Incident]] = {}
        self._ended: dict[JobKey, list[Incident]] = {}  # what ended with its job, until that runs again
        self._ends = Ends()
        self._last_id = 0
        self.opened: Counter[str] = Counter()  # by the kind that was named first
        self.lost: defaultdict[str, float] = defaultdict(float)  # GPU-seconds, by kind
        self.refused = 0
        self.inherit(open_before, moment)

    def remember(self, closed: Iterable[Incident]) -> None:
        """Takes incidents of a former collector whose jobs may still be reported as ended: they do not begin again."""
        for incident in closed:
            self._note_over(incident)

    def inherit(self, incidents: Iterable[Incident], moment: Moment) -> None:
        """Takes over what is open of jobs that another collector has watched until now."""
        for incident in incidents:
            self._open.setdefault(incident.key, []).append(_Open(incident, moment.monotonic, inherited=True))
            self._last_id = max(self._last_id, incident.id)

    def take_over(self, new: Sequence[Incident], told: Iterable[Incident], moment: Moment) -> None:
        """Goes on with incidents of jobs that another collector has watched until now. `told`: also what it wrote last
        of those that were taken over before."""
        self.inherit((it for it in new if it.closed_at is None), moment)
        for it in told:
            self._learn(it)
        closed = [it for it in new if it.closed_at is not None]
        self.remember(closed)
        self.remember_ends(closed)

    def _learn(self, incident: Incident) -> None:
        for each in self._open.get(incident.key, ()):
            was = each.incident
            if was.id == incident.id and was.seen_at < incident.seen_at:
                lost = max(was.lost_gpu_hours, incident.lost_gpu_hours)
                each.incident = structs.replace(was, seen_at=incident.seen_at, lost_gpu_hours=lost)

    def known(self, key: JobKey) -> list[Incident]:
        """The incidents of the job that are open, and those that are over, as far as they are remembered."""
        return [*(each.incident for each in self._open.get(key, ())), *self._over.get(key, ())]

    def release(self, keys: Collection[JobKey]) -> list[Incident]:
        """Forgets jobs that another collector watches from now on. Returns what was open of them."""
        left = [each.incident for key in keys for each in self._open.pop(key, ())]
        for key in keys:
            self._candidates.pop(key, None)
            self._over.pop(key, None)
            self._ended.pop(key, None)
        return left

    def remember_ends(self, closed: Iterable[Incident]) -> None:
        """Takes incidents of the last week: what is there again has come back."""
        for incident in closed:
            self._note_ends(incident)

    @property
    def open(self) -> tuple[Incident, ...]:
        return tuple(each.incident for of_job in self._open.values() for each in of_job)

    def observe(self, observations: Sequence[Observation], moment: Moment) -> list[Incident]:
        """Takes one round in. Returns the incidents that are to be stored anew."""
        changed: list[Incident] = []
        for observation in observations:
            changed += self._observe_job(observation, moment)
        seen = {observation.key for observation in observations}
        for key in [key for key in self._open if key not in seen]:
            changed += self._job_is_absent(key, moment)
        for key in [key for key in self._candidates if key not in seen]:
            del self._candidates[key]
        self._looked_at = dict.fromkeys(seen, moment.monotonic)
        return changed

    def _observe_job(self, seen: Observation, moment: Moment) -> list[Incident]:
        if seen.running:
            self._ended.pop(seen.key, None)
        of_job = self._open.get(seen.key, [])
        over = [each for each in of_job if _is_of_earlier_attempt(each.incident, seen)]
        of_job = [each for each in of_job if each not in over]
        culprits = [bounded(culprit) for culprit in seen.culprits[:MAX_CULPRITS]]
        pairs, new = _paired(of_job, culprits)
        taken = dict(zip(map(id, culprits), shares(culprits, seen.slowdown_ratio), strict=True))
        changed = []
        for each in of_job:
            each.absent_since = None
            was, culprit = each.incident, pairs.get(id(each))
            if culprit is not None:
                self._named_again(each, culprit, seen, moment, taken[id(culprit)])
            elif whole := _whole(each.incident, of_job, pairs):
                each.incident = _closed(was, moment.wall, "superseded", whole.incident.id)
            else:
                if seen.conclusive and seen.told:
                    each.quiet += moment.monotonic - each.observed_at
                if each.quiet >= self._quiet_seconds:
                    each.incident = _closed(was, was.seen_at, "recovered")
            each.observed_at = moment.monotonic
        for culprit in new:
            if opened := self._open_if_due(culprit, seen, moment, taken[id(culprit)]):
                of_job.append(opened)
        if not seen.running:
            self._end_job(of_job, seen, moment)
        for each in over:
            each.incident = _closed(each.incident, each.incident.seen_at, "job_ended")
        of_job += over
        for each in of_job:
            if each.incident.closed_at is not None or moment.monotonic - each.stored_at >= REWRITE_SECONDS:
                each.stored_at = moment.monotonic
                changed.append(each.incident)
            each.inherited = False
        self._keep(seen.key, of_job)
        return changed

    def _named_again(self, each: _Open, culprit: Culprit, seen: Observation, moment: Moment, share: float) -> None:
        """Where nobody tells of the job any more, the verdict is about what it was, and what it says now has not been
        seen since."""
        was = each.incident
        counts = seen.told and seen.running
        lost = share * (moment.monotonic - each.observed_at) * seen.world_size if counts else 0.0
        if _gist(was.culprit) != _gist(culprit):
            each.stored_at = float("-inf")
        ratios = [ratio for ratio in (was.most_recoverable_ratio, culprit.recoverable_ratio) if ratio is not None]
        each.incident = structs.replace(
            was,
            what=culprit_text(culprit),
            seen_at=moment.wall if seen.told else was.seen_at,
            culprit=culprit,
            findings=tuple(dict.fromkeys((*was.findings, *culprit.findings)))[:64],
            most_recoverable_ratio=max(ratios, default=None),
            gaps=was.gaps + (each.quiet > 0),
            progressed_at=seen.progressed_at,
            lost_gpu_hours=was.lost_gpu_hours + lost / 3600,
        )
        if seen.told:
            self.lost[culprit.kind] += lost
            each.quiet = 0.0

    def _open_if_due(self, culprit: Culprit, seen: Observation, moment: Moment, share: float) -> _Open | None:
        if not seen.running and self._was_told(culprit, seen):
            return None
        candidates = self._candidates.setdefault(seen.key, [])
        candidates[:] = [each for each in candidates if moment.monotonic - each.last <= self._quiet_seconds]
        found = next((each for each in candidates if same_place(each.culprit, culprit)), None)
        if found is None:
            found = _Candidate(culprit, moment, moment.monotonic)
            candidates.append(found)
            del candidates[: -2 * MAX_CULPRITS]
        elif found.last < moment.monotonic:
            found.rounds, found.last = found.rounds + 1, moment.monotonic
            since = self._looked_at.get(seen.key, moment.monotonic)
            found.lost_seconds += share * (moment.monotonic - since) if seen.running else 0.0
        if found.rounds < OPENING_ROUNDS and culprit.kind != "dead":
            return None
        candidates.remove(found)
        if not self._has_room(seen.key):
            self.refused += 1
            return None
        self.opened[found.culprit.kind] += 1
        lost = found.lost_seconds * seen.world_size
        self.lost[culprit.kind] += lost
        return _Open(self._incident(culprit, found, seen, moment, lost / 3600), moment.monotonic)

    def _incident(
        self, culprit: Culprit, found: _Candidate, seen: Observation, moment: Moment, lost_gpu_hours: float
    ) -> Incident:
        self._last_id = max(self._last_id + 1, int(found.first.wall * 1000))
        returned = self._ends.before(_place(culprit), found.first.wall) if _has_place(culprit) else None
        return Incident(
            id=self._last_id,
            owner=seen.key.owner,
            job_id=seen.key.job_id,
            what=culprit_text(culprit),
            opened_at=found.first.wall,
            seen_at=moment.wall,
            opened_as=found.culprit,
            culprit=culprit,
            findings=culprit.findings,
            most_recoverable_ratio=culprit.recoverable_ratio,
            progressed_at=seen.progressed_at,
            lost_gpu_hours=lost_gpu_hours,
            returned=returned,
            run=seen.run,
        )

    def _has_room(self, key: JobKey) -> bool:
        if len(self._open.get(key, ())) >= 2 * MAX_CULPRITS:
            return False
        owners = Counter({key: len(of_job) for key, of_job in self._open.items()})
        of_owner = sum(count for other, count in owners.items() if other.owner == key.owner)
        return owners.total() < MAX_OPEN and of_owner < MAX_OPEN_OF_OWNER

    def _end_job(self, of_job: Iterable[_Open], seen: Observation, moment: Moment) -> None:
        for each in of_job:
            was = each.incident
            if was.closed_at is None:
                at = max(was.opened_at, min(moment.wall, seen.progressed_at)) if each.inherited else moment.wall
                ended = _closed(was, at, "ended_while_down" if each.inherited else "job_ended")
                each.incident = structs.replace(ended, progressed_at=seen.progressed_at)

    def _job_is_absent(self, key: JobKey, moment: Moment) -> list[Incident]:
        """Closes what is open of a job that nobody has reported for quiet_seconds: after a start of the collector its
        agents may need a while."""
        of_job = self._open[key]
        for each in of_job:
            since = each.absent_since = each.absent_since or moment.monotonic
            if moment.monotonic - since >= self._quiet_seconds:
                reason = "ended_while_down" if each.inherited else "job_gone"
                each.incident = _closed(each.incident, each.incident.seen_at, reason)
        self._keep(key, of_job)
        return [each.incident for each in of_job if each.incident.closed_at is not None]

    def _keep(self, key: JobKey, of_job: list[_Open]) -> None:
        for each in of_job:
            if each.incident.closed_at is not None:
                self._note_over(each.incident)
                self._note_ends(each.incident)
        left = [each for each in of_job if each.incident.closed_at is None]
        if left:
            self._open[key] = left
        else:
            self._open.pop(key, None)

    def _note_over(self, incident: Incident) -> None:
        of_job = [it for it in self._over.pop(incident.key, ()) if it.id != incident.id]
        self._over[incident.key] = [*of_job, incident][-2 * MAX_CULPRITS :]
        if incident.closed_because in _WITH_JOB:
            self._ended[incident.key] = [*self._ended.pop(incident.key, ()), incident][-2 * MAX_CULPRITS :]
        for known in (self._over, self._ended):
            while len(known) > MAX_REMEMBERED_JOBS:
                del known[next(iter(known))]

    def _note_ends(self, incident: Incident) -> None:
        if incident.closed_at is not None and incident.closed_because != "superseded" and _has_place(incident.culprit):
            self._ends.note(_place(incident.culprit), incident.closed_at)

    def _was_told(self, culprit: Culprit, seen: Observation) -> bool:
        """Whether an incident was about this run of a job that has ended, and ended with it. Where runs are not known,
        a job that has not run since is the one that it was."""
        told = (each for each in self._ended.get(seen.key, ()) if None in (each.run, seen.run) or each.run == seen.run)
        return any(same_place(each.culprit, culprit) for each in told)


def _paired(of_job: Sequence[_Open], culprits: Sequence[Culprit]) -> tuple[dict[int, Culprit], list[Culprit]]:
    """The culprit that each incident goes on with, by the id() of `of_job`'s items, and the culprits without one."""
    pairs: dict[int, Culprit] = {}
    left = list(culprits)
    for same in (_same_ranks, same_place):
        for culprit in list(left):
            found = next((it for it in of_job if id(it) not in pairs and same(it.incident.culprit, culprit)), None)
            if found is not None:
                pairs[id(found)] = culprit
                left.remove(culprit)
    return pairs, left


def _same_ranks(one: Culprit, other: Culprit) -> bool:
    return same_place(one, other) and (one.ranks, one.node) == (other.ranks, other.node)


def _whole(incident: Incident, of_job: Sequence[_Open], pairs: dict[int, Culprit]) -> _Open | None:
    """The incident, named in this round, that holds all ranks of `incident`: its machine is named now, or it died."""
    ranks = set(incident.culprit.ranks)
    holding = (each for each in of_job if id(each) in pairs and ranks <= set(pairs[id(each)].ranks))
    return next(holding, None) if ranks else None


def _closed(incident: Incident, at: float, reason: str, part_of: int | None = None) -> Incident:
    """The incident as it ended; a clock that was set back lets nothing end before it began."""
    ended = max(incident.opened_at, at)
    return structs.replace(incident, closed_at=ended, closed_because=reason, part_of=part_of)


def _is_of_earlier_attempt(incident: Incident, seen: Observation) -> bool:
    """Whether it stopped a run of the job that was started anew since."""
    is_later = incident.run is not None and seen.run is not None and incident.run.attempt < seen.run.attempt
    return is_later and incident.culprit.kind in STOPPING


def _has_place(culprit: Culprit) -> bool:
    """Whether it is at a machine, to which it can come back; what is a job's own has none."""
    return bool(culprit.gpu or culprit.machines)


def _place(culprit: Culprit) -> tuple[object, ...]:
    """The place to which a fault comes back, in whatever job: its GPU, which it takes along to another machine, or its
    machines."""
    return (family(culprit), culprit.gpu) if culprit.gpu else (family(culprit), *sorted(culprit.machines))


def _gist(culprit: Culprit) -> tuple[object, ...]:
    """The parts that a reader would want to see at once when they change."""
    return culprit.kind, culprit.ranks, culprit.node, culprit.phase, culprit.findings, culprit.stopped
