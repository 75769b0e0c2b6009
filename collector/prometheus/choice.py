"""The job that is asked about, and what a few of its ranks tell first: the scrape interval, how fresh samples are.
And its nodes' findings in the store."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from msgspec import structs

from laggard.collector.jobs.snapshot import unknown_location
from laggard.collector.node_findings import NO_GPUS, failing_note, node_findings
from laggard.collector.prometheus import queries
from laggard.collector.prometheus.client import Labels, Prometheus, Series
from laggard.collector.prometheus.counters import INTERVALS, Floats, machine, rank_numbers
from laggard.kit.errors import UsageError
from laggard.kit.words import printable_line
from laggard.locate.job_timings import NodeFindings
from laggard.model import Finding, Fix, JobKey, Location, Note, Severity, Verdict
from laggard.wire.nodes import NodeFinding, NodeRow

_CRITICAL = ("severity=", Severity.CRITICAL.value)
_CODE = re.compile(r"[A-Z][A-Z0-9_]{0,63}")
_MAX_DEVICE = 256


class _Stored(NamedTuple):
    cluster: str
    machine: str
    finding: Finding


def findings_of(
    prometheus: Prometheus, cluster: str | None, instances: Mapping[str, str], moment: float
) -> dict[str, NodeFindings]:
    """The findings of these nodes at that moment, by node. `instances`: what was scraped on each, by node."""
    machines = {node: machine(instance) for node, instance in instances.items() if instance}
    if not machines:
        return {}
    some = ("instance=~", f"({'|'.join(map(re.escape, sorted(set(machines.values()))))})(:[0-9]+)?")
    by_machine: dict[str, list[Finding]] = {}
    for each in _stored(prometheus, cluster, moment, some):
        by_machine.setdefault(each.machine, []).append(each.finding)
    return {node: node_findings(by_machine.get(name, ()), NO_GPUS) for node, name in machines.items()}


def failing_nodes(
    prometheus: Prometheus, cluster: str | None, moment: float | None, among: frozenset[str] | None = None
) -> Note | None:
    """The note on nodes with critical findings; None where there is none. `among`: the machines that count, None: all
    that report to this store."""
    found = [it for it in _stored(prometheus, cluster, moment, _CRITICAL) if among is None or it.machine in among]
    if not found:
        return None
    several = len({each.cluster for each in found}) > 1
    names = {(it.cluster, it.machine): f"{it.machine} ({it.cluster})" if several else it.machine for it in found}
    reported = _machines(prometheus, cluster, moment) if among is None else [("", name) for name in among]
    rows = [_row(name, "fail") for name in names.values()]
    rows += [_row(str(number), "ok") for number in range(len(reported) - len(rows))]
    told = [NodeFinding(names[it.cluster, it.machine], "", it.finding) for it in found]
    return failing_note(rows, told)


def _stored(
    prometheus: Prometheus, cluster: str | None, moment: float | None, matcher: tuple[str, str]
) -> Iterator[_Stored]:
    for labels in _series(prometheus, queries.selector(queries.FINDING, None, matcher, *_of(cluster)), moment):
        try:
            severity = Severity(labels.severity)
        except ValueError:
            continue  # no metric of laggard's
        if _CODE.fullmatch(labels.code) and labels.instance and len(labels.device) <= _MAX_DEVICE:
            finding = Finding(labels.code, severity, labels.device, "", {}, Fix(""), "")
            yield _Stored(labels.cluster, machine(labels.instance), finding)


def _machines(prometheus: Prometheus, cluster: str | None, moment: float | None) -> list[tuple[str, str]]:
    """The machines of which agents report their probes, each once."""
    query = f"group by (cluster, instance) ({queries.selector(queries.PROBED, None, *_of(cluster))})"
    found = ((labels.cluster, machine(labels.instance)) for labels in _series(prometheus, query, moment))
    return list(dict.fromkeys(found))


def _series(prometheus: Prometheus, query: str, moment: float | None) -> Iterable[Labels]:
    if moment is not None:
        return prometheus.labels_at(query, moment)
    return prometheus.at(query, None).labels


def _of(cluster: str | None) -> list[tuple[str, str]]:
    return [] if cluster is None else [("cluster=", cluster)]


def _row(name: str, verdict: str) -> NodeRow:
    return NodeRow(name, name or None, "up", "", None, verdict, (), ())


STALE_SECONDS = 60.0
STALE_INTERVALS = 3
"""The number of scrape intervals after which a sample says nothing about now, if it is older than STALE_SECONDS as
well."""

MAX_WIDER = 3
"""The most times that moments are farther apart than scrapes and steps ask for, where scrapes come late: on a busy
machine those of each second do. laggard's choice."""

STALL_INTERVALS = 2
"""The number of the last intervals without a step after which a job stands still."""

MAX_AHEAD = 300.0
"""The most seconds between the server's clock and this machine's at which its `now` counts as now: as many as between
two that sign (docs/operate.md)."""

_UNKNOWN_INTERVAL = 15.0
_NAMED_JOBS = 8


class Few(NamedTuple):
    """The facts that the first hundred ranks tell: the scrape interval (None: there is one sample), the roles of their
    groups, and how long a step takes (0: nobody made one). `apart`: how many seconds moments have to be apart, so that
    there is a scrape and two steps between. `stands_still`: whether nobody made a step in the last STALL_INTERVALS of
    these."""

    interval: float | None
    ranks: tuple[int, ...]
    roles: frozenset[str]
    step: float
    apart: float
    stands_still: bool


class Known(NamedTuple):
    """A job that Prometheus has samples of. `progressed_at`: when a rank of it last got on, Unix time by its node's
    clock. `now`: the moment by the server's clock, and `ahead`: by how many seconds that is later than this machine's;
    0 where another moment was asked for."""

    job: queries.Job
    progressed_at: float
    now: float
    ahead: float = 0.0


def known_jobs(prometheus: Prometheus, wanted: queries.Job | None, at: float | None) -> list[Known]:
    """The jobs that have samples, the one that got on last first. Raises UsageError."""
    mine = [("cluster=", prometheus.cluster)] if prometheus.cluster else []
    query = f"max by (cluster, job_id, user) ({queries.selector(queries.LAST_PROGRESS, wanted, *mine)})"
    part = prometheus.at(query, at)
    found = [
        Known(
            queries.Job(labels.job_id, labels.user, labels.cluster),
            float(value),
            float(now),
            float(now) - time.time() if at is None else 0.0,
        )
        for labels, now, value in zip(part.labels, part.times, part.values, strict=True)
    ]
    return sorted(found, key=lambda each: -each.progressed_at)


def choose_job(prometheus: Prometheus, name: str | None, at: float | None) -> Known | Location:
    """The job of that key or name, by default the one that got on last; a verdict `unknown` where there is none. Raises
    UsageError where several users, or several clusters, have a job of that name."""
    key = JobKey.parse(name) if name else None
    wanted = queries.Job(key.job_id, str(key.owner)) if key else queries.Job(name) if name else None
    found = known_jobs(prometheus, wanted, at)
    if not found:
        return _with_failing_nodes(prometheus, _nothing(prometheus, name, wanted, at), at)
    users = list(dict.fromkeys((each.job.user, each.job.job_id) for each in found))
    if name and key is None and len(users) > 1:
        choices = ", ".join(f"{user}:{job_id}" for user, job_id in users[:_NAMED_JOBS])
        raise UsageError(f"{len(users)} users have a job named {name}; ask for one of them as UID:NAME: {choices}")
    if name and len(found) > 1:
        raise UsageError(f"{len(found)} clusters have a job {name}; choose with --cluster: {clusters_text(found)}")
    return found[0]


def clusters_text(found: Sequence[Known]) -> str:
    names = sorted(each.job.cluster or "(no label cluster)" for each in found)
    return ", ".join(printable_line(name, 64) for name in names[:_NAMED_JOBS])


def doubted(location: Location, note: Note, first: bool = True) -> Location:
    """The location with a note, the first or the last, that something which the judgement needs is not there: so
    nothing is `ok`."""
    verdict = Verdict.UNKNOWN if location.verdict is Verdict.OK else location.verdict
    notes = (note, *location.notes) if first else (*location.notes, note)
    return structs.replace(location, verdict=verdict, notes=notes)


def with_what_is_left_out(prometheus: Prometheus, location: Location) -> Location:
    """The location with what the store says to have left out: what is not whole is never `ok`."""
    if not prometheus.warnings:
        return location
    text = f"the answer is not whole, ranks may be missing: {prometheus.warnings[0]}"
    return doubted(location, Note("partial_answer", text))


def not_of_now(location: Location, ahead: float) -> Location:
    """The location with a note where the server's clock is too far `ahead` of this machine's, in seconds: then its now
    is not known to be now, and nothing is `ok`."""
    if abs(ahead) <= MAX_AHEAD:
        return location
    way = "ahead of" if ahead > 0 else "behind"
    text = f"Prometheus' clock is {_long(abs(ahead))} {way} this machine's: whether this is of now is not known"
    return doubted(location, Note("store_clock", text))


def _with_failing_nodes(prometheus: Prometheus, location: Location, at: float | None) -> Location:
    failing = failing_nodes(prometheus, prometheus.cluster or None, at)
    return location if failing is None else structs.replace(location, notes=(*location.notes, failing))


def _nothing(prometheus: Prometheus, name: str | None, wanted: queries.Job | None, at: float | None) -> Location:
    """The location where there is no job, with the reason: no series at all, or none that is fresh."""
    mine = [("cluster=", prometheus.cluster)] if prometheus.cluster else []
    first = queries.selector(queries.STEPS, wanted, ("rank=", "0"), *mine)
    query = f"time() - max(max_over_time(timestamp({first})[1d:5m]))"
    found = prometheus.at(query, at)
    ages = found.values.tolist()
    ahead = [float(now) - time.time() for now in found.times if at is None]
    of = f" of a job {name}" if name else ""
    of += f" in cluster {prometheus.cluster}" if prometheus.cluster else ""
    if ages:
        text = (
            f"the newest sample{of} is {_long(float(ages[0]))} old and says nothing about now; --at judges that moment"
        )
        return not_of_now(unknown_location("stale", text, name), max(ahead, default=0.0))
    text = (
        f"Prometheus at {prometheus.url} has no series laggard_rank_*{of} of the last day: have it scrape the agents"
        " (a collector's /api/v1/targets lists them for http_sd)"
    )
    return unknown_location("no_series", text, name)


def few_ranks(prometheus: Prometheus, job: queries.Job, now: float) -> Few | str:
    """The facts that the samples of the first ranks tell; a text on why nothing can be told, where they are too old."""
    of_steps, of_seconds = (
        prometheus.at(f"{queries.selector(metric, job, queries.FIRST_RANKS)}[10m]", now)
        for metric in (queries.STEPS, queries.STEP_SECONDS)
    )
    gaps = np.concatenate([np.diff(some) for some in _of_series(of_steps, of_steps.times)] or [np.zeros(0)])
    interval = float(np.median(gaps)) if len(gaps) else None
    newest = of_steps.times.max(initial=-np.inf)
    if now - newest > max(STALE_SECONDS, STALE_INTERVALS * (interval or 0.0)):
        age = f"{_long(now - newest)} old" if np.isfinite(newest) else "over ten minutes old"
        return f"the newest sample of the job is {age} and says nothing about now"
    made, seconds = _gained(of_steps), _gained(of_seconds)
    query = f"group by (group) ({queries.selector(queries.COLLECTIVES, job, queries.FIRST_RANKS)})"
    roles = frozenset(labels.group for labels in prometheus.at(query, now).labels)
    ranks = tuple(sorted({number for number in rank_numbers(of_steps.labels).tolist() if number >= 0}))
    step = seconds / made if made > 0 else 0.0
    apart = interval * max(1, -(-2 * step // interval)) if interval else _UNKNOWN_INTERVAL
    apart *= _wider(apart, _of_series(of_steps, of_steps.times), now)
    since = now - STALL_INTERVALS * apart - (interval or 0.0)
    stands_still = len(gaps) > 0 and not _gained(of_steps, since)
    return Few(interval, ranks, roles, step, apart, stands_still)


def _wider(apart: float, times: Sequence[Floats], now: float) -> int:
    """How many times `apart` moments have to be apart, so that between them there is a sample nearly always: a verdict
    takes one interval without. 1 where that is not so for any, as after the store was away, and where the newest
    sample of a series is stale: wider moments would hide it. `times`: those of each series' samples."""
    if any(now - some[-1] > max(STALE_SECONDS, STALE_INTERVALS * apart) for some in times if len(some)):
        return 1
    for wider in range(1, MAX_WIDER + 1):
        moments = now - wider * apart * np.arange(INTERVALS, -1, -1)
        filled = [np.count_nonzero(np.diff(np.searchsorted(some, moments, "right"))) for some in times]
        if filled and np.median(filled) >= INTERVALS - 1:
            return wider
    return 1


def _of_series(part: Series, of: Floats) -> list[Floats]:
    """Each series' part of the array `of`."""
    return np.split(of, np.cumsum(part.counts)[:-1])


def _gained(part: Series, since: float = 0.0) -> float:
    """The growth of the counters since then, all together."""
    pairs = zip(_of_series(part, part.values), _of_series(part, part.times), strict=True)
    return float(sum(np.clip(np.diff(some[when >= since]), 0, None).sum() for some, when in pairs))


def _long(seconds: float) -> str:
    if seconds >= 5400:
        return f"{seconds / 3600:.1f} h"
    return f"{seconds / 60:.0f} min" if seconds >= 90 else f"{seconds:.0f} s"
