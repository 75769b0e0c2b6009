"""Tells slow links from slow machines in a job without GPUs: there the CPUs of its ranks move the data, and a rank
whose threads do not run makes each transfer long to which it is an end. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from laggard.locate.job_timings import JobTimings
from laggard.locate.links.later_links import SLOW_TRANSFERS
from laggard.locate.partial_verdict import PartialVerdict
from laggard.locate.slow.host_facts import as_slow_host, waits_for_a_cpu
from laggard.model import MAX_NAMED_RANKS, Culprit, Note
from laggard.text.words import ranks_text


class Told(NamedTuple):
    """The slow links that are left beside slow ranks: `hosts` stand in place of links."""

    hosts: tuple[Culprit, ...] = ()
    links: tuple[Culprit, ...] = ()


def without_moved_by_slow(timings: JobTimings, links: Sequence[Culprit], slow: Sequence[Culprit]) -> Told:
    """The links without those that the CPU of a slow rank explains, and the ranks whose threads wait for a CPU, each in
    place of a link. In a job with GPUs all links stay: its transfers need little of a CPU."""
    if not _is_moved_by_cpus(timings):
        return Told(links=tuple(links))
    known = {rank for culprit in slow for rank in culprit.ranks}
    kept, hosts = list[Culprit](), list[Culprit]()
    for link in links:
        ends = {*link.ranks, *link.victims}
        if len(ends) == 2 and known & ends:
            continue
        host = _host_of(timings, link)
        if host is None:
            kept.append(link)
        elif not known & set(host.ranks):
            known.update(host.ranks)
            hosts.append(host)
    return Told(tuple(hosts), tuple(kept))


def doubted_by_cpus(timings: JobTimings, later: PartialVerdict) -> PartialVerdict:
    """`later`, what became slower in the network, with a note in place of a link at an end of which threads wait for a
    CPU: they may do so since then."""
    if not later.culprits or not _is_moved_by_cpus(timings):
        return later
    hosts, links = without_moved_by_slow(timings, later.culprits, ())
    told = [(link, _waiting(timings, link)) for link in links]
    notes = (_note(link, ranks) for link, ranks in told if ranks)
    sure = (link for link, ranks in told if not ranks)
    return PartialVerdict((*hosts, *sure), (*later.notes, *notes))


def _is_moved_by_cpus(timings: JobTimings) -> bool:
    return not timings.profiled and not any(timings.gpus)


def _host_of(timings: JobTimings, link: Culprit) -> Culprit | None:
    """The rank at an end of all slow transfers of the link, where its threads wait for a CPU and those of no other such
    rank do; as a culprit."""
    found = [host for rank in _ends_of_all(link) if (host := as_slow_host(timings, rank, link)) is not None]
    return found[0] if len(found) == 1 else None


def _ends_of_all(link: Culprit) -> Iterator[int]:
    if len(link.ranks) <= 2:
        yield from link.ranks
    if len(link.ranks) == 1 and len(link.victims) == 1:
        yield from link.victims


def _waiting(timings: JobTimings, link: Culprit) -> tuple[int, ...]:
    ends = sorted({*link.ranks, *link.victims})
    return tuple(rank for rank in ends if waits_for_a_cpu(timings, rank, link.recoverable_ratio or 0.0))


def _note(link: Culprit, ranks: tuple[int, ...]) -> Note:
    text = (
        f"{'; '.join(link.evidence)}: threads of {ranks_text(ranks)} wait for a CPU, which moves the data here, so that"
        " it is not known whether the way is slow"
    )
    return Note(SLOW_TRANSFERS, text, link.ranks[:MAX_NAMED_RANKS])
