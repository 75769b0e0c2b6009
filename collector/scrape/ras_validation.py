"""Validates the part of an agent's ranks document that is from NCCL RAS, whose words come from users' processes."""

from __future__ import annotations

from laggard.collector.scrape.bounds import MAX_COUNT, MAX_SECONDS, MAX_TEXT, MAX_WORLD, check_length, require, within
from laggard.wire.ras import STATES, RasCommunicator, RasJob, RasRank, RasSource

MAX_JOBS = 64
MAX_COMMUNICATORS = 1024
MAX_LISTED = 4096
MAX_OPERATIONS = 32
MAX_HOSTS = 256

_PROCESS_STATES = ("", "running", "stopped", "gone")


def check_ras(source: RasSource) -> None:
    """Raises WireError that says what is wrong with it."""
    require(source.state in STATES, f"ras: state is none of {', '.join(STATES)}")
    check_length("ras: reason", source.reason, MAX_TEXT * 4)
    require(len(source.jobs) <= MAX_JOBS, f"ras: more than {MAX_JOBS} jobs")
    for job in source.jobs:
        _check_job(job)


def _check_job(job: RasJob) -> None:
    check_length("ras: job_id", job.job_id)
    require(bool(job.job_id), "ras: job_id is empty")
    check_length("ras: nccl_version", job.nccl_version)
    require(within(job.owner, MAX_COUNT), "ras: owner is out of range")
    require(within(job.age_seconds, MAX_SECONDS), "ras: age_seconds is out of range")
    require(len(job.local_hosts) <= MAX_HOSTS, f"ras: more than {MAX_HOSTS} hosts")
    for host in job.local_hosts:
        check_length("ras: a host", host)
    require(len(job.communicators) <= MAX_COMMUNICATORS, f"ras: more than {MAX_COMMUNICATORS} communicators")
    require(sum(len(it.ranks) for it in job.communicators) <= MAX_LISTED, f"ras: more than {MAX_LISTED} ranks")
    for communicator in job.communicators:
        _check_communicator(communicator)


def _check_communicator(it: RasCommunicator) -> None:
    check_length("ras: a communicator's id", it.id)
    require(1 <= it.size <= MAX_WORLD, "ras: a communicator's size is out of range")
    require(0 <= it.at_front <= it.answered <= it.size, "ras: more ranks than the communicator has")
    require(within(it.unchanged_seconds, MAX_SECONDS), "ras: unchanged_seconds is out of range")
    require(within(it.readings, MAX_COUNT) and within(it.left_out, MAX_WORLD), "ras: a number is out of range")
    _check_launches(it.launches)
    require(len({rank.rank for rank in it.ranks}) == len(it.ranks), "ras: a rank stands twice in a communicator")
    for rank in it.ranks:
        _check_rank(rank, it.size)


def _check_rank(rank: RasRank, size: int) -> None:
    require(0 <= rank.rank < size, "ras: a rank is none of its communicator")
    check_length("ras: a host", rank.host)
    require(within(rank.pid + 1, MAX_COUNT) and within(rank.gpu + 1, MAX_WORLD), "ras: a pid or gpu is out of range")
    require(within(rank.unchanged_seconds, MAX_SECONDS), "ras: unchanged_seconds is out of range")
    require(within(rank.readings, MAX_COUNT) and within(rank.async_error, MAX_COUNT), "ras: a number is out of range")
    require(rank.process in _PROCESS_STATES, "ras: the state of a process is none")
    _check_launches(rank.launches)


def _check_launches(launches: dict[str, int]) -> None:
    require(len(launches) <= MAX_OPERATIONS, f"ras: more than {MAX_OPERATIONS} operations")
    for name, count in launches.items():
        check_length("ras: an operation", name)
        require(within(count, MAX_COUNT), "ras: a count is out of range")
