"""The jobs without hooks, from what several agents were told by NCCL RAS. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from msgspec import structs

from laggard.locate.hang.launched_job import LaunchedJob
from laggard.wire.ras import RasCommunicator, RasJob, RasSource

MAX_AGE_SECONDS = 180.0
"""The largest age of an answer that is judged, by the agent's count and the time since the agent's own answer."""


class RasAnswer(NamedTuple):
    """The report of an agent, its name, and how many seconds ago it reported."""

    node: str
    source: RasSource
    seconds_ago: float


def launched_jobs(answers: Iterable[RasAnswer]) -> tuple[LaunchedJob, ...]:
    """One job for each user and largest communicator: what the newest answer says, with what each agent sees of the
    processes on its own node."""
    reports: dict[tuple[int, str], list[tuple[str, RasJob]]] = {}
    for answer in answers:
        for job in answer.source.jobs:
            aged = structs.replace(job, age_seconds=job.age_seconds + answer.seconds_ago)
            if aged.communicators and aged.age_seconds <= MAX_AGE_SECONDS:
                reports.setdefault((job.owner, _world(job)), []).append((answer.node, aged))
    return tuple(_joined(of_job) for of_job in reports.values())


def _world(job: RasJob) -> str:
    return max(job.communicators, key=lambda it: it.size).id


def _joined(reports: list[tuple[str, RasJob]]) -> LaunchedJob:
    newest = min((report for _, report in reports), key=lambda report: report.age_seconds)
    named = next((report.job_id for _, report in reports if not report.job_id.startswith("nccl-")), newest.job_id)
    hosts: dict[str, set[str]] = {}
    seen: dict[tuple[str, int], str] = {}
    for node, report in sorted(reports, key=lambda each: -each[1].age_seconds):
        for host in report.local_hosts:
            hosts.setdefault(host, set()).add(node)
        seen |= _processes(report)
    nodes = {host: names.pop() for host, names in hosts.items() if len(names) == 1}
    communicators = tuple(_with_processes(it, seen) for it in newest.communicators)
    return LaunchedJob(structs.replace(newest, job_id=named, communicators=communicators), nodes)


def _processes(report: RasJob) -> dict[tuple[str, int], str]:
    return {(rank.host, rank.pid): rank.process for it in report.communicators for rank in it.ranks if rank.process}


def _with_processes(it: RasCommunicator, seen: dict[tuple[str, int], str]) -> RasCommunicator:
    ranks = tuple(
        structs.replace(rank, process=seen.get((rank.host, rank.pid), rank.process)) if rank.pid > 0 else rank
        for rank in it.ranks
    )
    return structs.replace(it, ranks=ranks)
