"""Tells slow links from transfers that take longer for want of a CPU: in a job without GPUs the CPUs move the data.
Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from laggard.locate.job_timings import JobTimings
from laggard.locate.slow.host_facts import as_slow_host
from laggard.model import Culprit


class Told(NamedTuple):
    """The slow links that are left. `hosts` stand in place of links."""

    hosts: tuple[Culprit, ...] = ()
    links: tuple[Culprit, ...] = ()


def moved_by_cpus(timings: JobTimings, links: Sequence[Culprit], slow: Sequence[Culprit]) -> Told:
    """The links without those that the CPU of a slow rank explains, and the ranks whose threads wait for a CPU, each in
    place of a link."""
    if timings.profiled or any(timings.gpus):
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
