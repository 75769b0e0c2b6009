"""The ranks that hang or died in a job without hooks, by the launch counts of NCCL RAS. Pure.

All ranks of a communicator launch the same collectives in the same order. So where no count changes any more, the ranks
with fewer launches are those that the others wait for; a rank that is behind in one communicator and ahead in another
waits itself. Counts that differ for a moment say nothing: the ranks are read one after the other. Nor do equal counts,
whatever stands still: sends, receives and collectives in CUDA graphs are not counted.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from laggard.kit.words import counted, ranks_text, seconds_text
from laggard.locate.explanation import explained
from laggard.locate.hang.hangs import ranks_in_cycles
from laggard.locate.hang.launched_job import (
    STOPPED_CONFIDENCE,
    Device,
    LaunchedJob,
    communicator_name,
    device_of,
    gpu_of,
    inner_text,
    launches_text,
    others,
    processes_text,
    ranks_of,
    total,
)
from laggard.locate.job_timings import JobTimings, NodeFindings, build_timings
from laggard.locate.partial_verdict import PartialVerdict
from laggard.model import Culprit, Location, Note, Verdict, Window
from laggard.wire.ranks import RasCommunicator, RasRank

DEAD_CONFIDENCE = 0.7
"""The confidence that a process is dead which NCCL calls so. NCCL calls a process dead that it has not reached for 60
s: the network can be the cause."""
GONE_CONFIDENCE = 0.9
CUT_OFF_CONFIDENCE = 0.4
"""The confidence where half of the ranks or more are missing: the network between the halves may be the cause."""


def missing_peers(job: LaunchedJob) -> PartialVerdict:
    """The ranks that NCCL RAS has no answer from. A communicator that ranks have begun to leave has such, too."""
    gone: dict[tuple[str, str], dict[Device, RasRank]] = {}
    for communicator in job.report.communicators:
        if communicator.ending or communicator.starting:
            continue
        for rank in communicator.ranks:
            if rank.missing and (kind := _missing_kind(rank)):
                gone.setdefault((kind, rank.host), {}).setdefault(device_of(rank), rank)
    culprits = [
        _missing_culprit(job, kind, host, members)
        for (kind, host), members in sorted(gone.items())
        if kind != "unresponsive"
    ]
    notes = [_unresponsive_note(job, host, members) for (kind, host), members in gone.items() if kind == "unresponsive"]
    return PartialVerdict(tuple(culprits), tuple(notes))


def _missing_kind(rank: RasRank) -> str:
    """The state of the process: dead, stopped, unresponsive; empty where nothing is wrong with it. What the agent sees
    of the process itself goes before what NCCL concludes."""
    if rank.process == "gone":
        return "dead"
    if rank.process == "stopped":
        return "stopped" if rank.readings > 1 else "unresponsive"
    if rank.dead and rank.process != "running":
        return "dead"
    return "unresponsive" if rank.unresponsive or rank.dead else ""


def _missing_culprit(job: LaunchedJob, kind: str, host: str, members: Mapping[Device, RasRank]) -> Culprit:
    seen_gone = all(rank.process == "gone" for rank in members.values())
    cut_off = 2 * sum(rank.missing for rank in job.world.ranks) >= job.world.size
    confidence = GONE_CONFIDENCE if seen_gone else CUT_OFF_CONFIDENCE if cut_off else DEAD_CONFIDENCE
    evidence = [_how_text(kind, seen_gone), processes_text(members)]
    if kind == "dead" and not seen_gone and cut_off:
        evidence.append("half of the ranks or more are not reached: the network between the two parts may be the cause")
    return Culprit(
        kind="dead" if kind == "dead" else "hung",
        ranks=ranks_of(job, members),
        node=job.node(host),
        gpu=gpu_of(members),
        confidence=STOPPED_CONFIDENCE if kind == "stopped" else confidence,
        evidence=tuple(evidence),
        victims=others(job, members),
        stopped=kind == "stopped",
    )


def _how_text(kind: str, seen_gone: bool) -> str:
    if kind == "stopped":
        return "its process is stopped, by a signal or a debugger, as the agent there sees"
    if seen_gone:
        return "its process is gone, as the agent there sees"
    return "NCCL RAS considers its process dead: it has not reached it for 60 s"


def _unresponsive_note(job: LaunchedJob, host: str, members: Mapping[Device, RasRank]) -> Note:
    ranks = ranks_of(job, members)
    longest = max(rank.unchanged_seconds for rank in members.values())
    since = f" for {seconds_text(longest)}" if longest else ""
    text = f"{ranks_text(ranks) or 'a rank'} on {job.node(host)} does not answer NCCL RAS{since}"
    return Note("unresponsive", text, ranks, job.node(host))


STANDSTILL_SECONDS = 20.0
"""The time for which no count may have changed before anybody is named: at least two answers, whatever their
interval."""

HUNG_SECONDS = 180.0
"""The time for which no count may have changed before a rank that is behind is called hung. A rank that saves a
checkpoint is behind too; the same choice as in hangs.py for a rank that lives."""

HUNG_CONFIDENCE = 0.6
"""The confidence that a rank which is behind hangs. Launches are the host's: a rank may be behind because it waits for
something that is not counted."""


def no_timings(job: LaunchedJob, findings: Mapping[str, NodeFindings]) -> JobTimings:
    """The empty timings of a job that has none."""
    return build_timings(job.report.job_id, job.world.size, {}, {}, findings)


def locate_launches(job: LaunchedJob, findings: Mapping[str, NodeFindings]) -> Location:
    """The verdict. It is never ok: nothing tells slow ranks. `findings`: by node."""
    lost = missing_peers(job)
    behind = PartialVerdict() if any(it.kind == "dead" for it in lost.culprits) else _ranks_behind(job)
    found = (*lost.culprits, *behind.culprits)
    notes = (*lost.notes, *behind.notes, *_error_notes(job), _source_note(job))
    failed = found or any(note.kind in ("deadlock", "launches_differ", "nccl_error") for note in notes)
    nodes = tuple(sorted({job.node(rank.host) for it in job.report.communicators for rank in it.ranks}))
    timings = dataclasses.replace(no_timings(job, findings), nodes=nodes)
    return Location(
        verdict=Verdict.FAIL if failed else Verdict.UNKNOWN,
        job_id=job.report.job_id,
        world_size=job.world.size,
        ranks_seen=job.world.answered,
        window=Window(),
        slowdown_ratio=None,
        culprits=tuple(explained(culprit, timings) for culprit in found),
        notes=notes,
        owner=job.report.owner,
    )


def _source_note(job: LaunchedJob) -> Note:
    source = f"NCCL {job.report.nccl_version}, {seconds_text(job.report.age_seconds)} ago"
    text = (
        f"seen through NCCL RAS alone ({source}), which tells who hangs or died, and not who is slow; for that start "
        "the job under laggard run"
    )
    return Note("launches_only", text)


class _Wait(NamedTuple):
    """A communicator in which nothing goes on, and its ranks that have launched the fewest collectives."""

    communicator: RasCommunicator
    behind: tuple[RasRank, ...]
    fewest: int


def _ranks_behind(job: LaunchedJob) -> PartialVerdict:
    still = [it for it in job.report.communicators if _is_still(it)]
    mixed = [it for it in still if _differing(it)]
    waits = [wait for it in still if it not in mixed and (wait := _wait(it))]
    waiting = {device_of(rank) for wait in waits for rank in _waiting_in(wait)}
    roots: dict[Device, _Wait] = {}
    for wait in sorted(waits, key=lambda it: (-it.communicator.unchanged_seconds, it.communicator.size)):
        for rank in wait.behind:
            if device_of(rank) not in waiting and _has_stopped(rank):
                roots.setdefault(device_of(rank), wait)
    notes = [_differing_note(job, it) for it in mixed]
    if waits and not roots:
        notes += _deadlock_notes(job, waits)
    culprits = [_hung_culprit(job, wait, devices) for wait, devices in _by_wait(roots) if _is_hung(wait, devices)]
    notes += [_not_arrived_note(job, wait, devices) for wait, devices in _by_wait(roots)]
    return PartialVerdict(tuple(culprits), tuple(notes))


def _is_still(it: RasCommunicator) -> bool:
    return it.readings > 1 and it.unchanged_seconds >= STANDSTILL_SECONDS and not it.starting and not it.ending


def _has_stopped(rank: RasRank) -> bool:
    """Whether the device launches nothing in other communicators either."""
    return rank.readings > 1 and rank.unchanged_seconds >= STANDSTILL_SECONDS


def _wait(it: RasCommunicator) -> _Wait | None:
    """None where all ranks have launched as many."""
    answered = [rank for rank in it.ranks if not rank.missing]
    fewest = min((total(rank.launches) for rank in answered), default=total(it.launches))
    if fewest >= total(it.launches):
        return None
    return _Wait(it, tuple(rank for rank in answered if total(rank.launches) == fewest), fewest)


def _waiting_in(wait: _Wait) -> Iterator[RasRank]:
    yield from (rank for rank in wait.communicator.ranks if not rank.missing and total(rank.launches) > wait.fewest)


def _differing(it: RasCommunicator) -> list[RasRank]:
    """The ranks that have launched what those at the front have not: another program, or another order."""
    ahead = it.launches
    return [
        rank
        for rank in it.ranks
        if not rank.missing and any(count > ahead.get(name, 0) for name, count in rank.launches.items())
    ]


def _by_wait(roots: Mapping[Device, _Wait]) -> Iterator[tuple[_Wait, list[Device]]]:
    """The roots, together those that are behind in the same communicator on the same host."""
    together: dict[tuple[str, str], tuple[_Wait, list[Device]]] = {}
    for device, wait in roots.items():
        together.setdefault((wait.communicator.id, device.host), (wait, []))[1].append(device)
    yield from together.values()


def _is_hung(wait: _Wait, devices: Sequence[Device]) -> bool:
    return wait.communicator.unchanged_seconds >= HUNG_SECONDS or _all_stopped(wait, devices)


def _all_stopped(wait: _Wait, devices: Sequence[Device]) -> bool:
    return all(rank.process == "stopped" for rank in wait.behind if device_of(rank) in devices)


def _hung_culprit(job: LaunchedJob, wait: _Wait, devices: Sequence[Device]) -> Culprit:
    members = {device_of(rank): rank for rank in wait.behind if device_of(rank) in devices}
    stopped = _all_stopped(wait, devices)
    all_behind = {device_of(rank): rank for rank in wait.behind}
    return Culprit(
        kind="hung",
        ranks=ranks_of(job, members),
        node=job.node(devices[0].host),
        gpu=gpu_of(members),
        group=communicator_name(wait.communicator),
        confidence=STOPPED_CONFIDENCE if stopped else HUNG_CONFIDENCE,
        evidence=tuple(_hung_evidence(job, wait, members)),
        victims=others(job, all_behind) if wait.communicator.id == job.world.id else (),
        stopped=stopped,
    )


def _hung_evidence(job: LaunchedJob, wait: _Wait, members: Mapping[Device, RasRank]) -> Iterator[str]:
    it, own = wait.communicator, next(iter(members.values()))
    yield (
        f"NCCL RAS: launched {launches_text(own.launches)} in {communicator_name(it)}, where "
        f"{counted(it.at_front, 'rank')} launched {launches_text(it.launches)}, and no count has changed for "
        f"{seconds_text(it.unchanged_seconds)} ({it.readings} answers)"
    )
    if it.id != job.world.id:
        yield f"there it is {ranks_text(rank.rank for rank in members.values())} of {it.size}"
    yield processes_text(members)


def _not_arrived_note(job: LaunchedJob, wait: _Wait, devices: Sequence[Device]) -> Note:
    members = {device_of(rank): rank for rank in wait.behind if device_of(rank) in devices}
    ranks, it, node = ranks_of(job, members), wait.communicator, job.node(devices[0].host)
    who = ranks_text(ranks) or inner_text(members, it)
    verb = "has" if len(members) == 1 else "have"
    text = (
        f"{who} on {node} {verb} launched {counted(wait.fewest, 'collective')} of {total(it.launches)} in "
        f"{communicator_name(it)}, as NCCL RAS has it for {seconds_text(it.unchanged_seconds)}"
    )
    return Note("not_arrived", text, ranks, node)


def _deadlock_notes(job: LaunchedJob, waits: Sequence[_Wait]) -> Iterator[Note]:
    """Devices each of which is behind where another waits for it, in a circle."""
    numbers: dict[Device, int] = {}
    edges: dict[int, set[int]] = {}
    for wait in waits:
        behind = {numbers.setdefault(device_of(rank), len(numbers)) for rank in wait.behind}
        for rank in _waiting_in(wait):
            edges.setdefault(numbers.setdefault(device_of(rank), len(numbers)), set()).update(behind)
    circle = ranks_in_cycles(edges)
    if not circle:
        return
    devices = [device for device, number in numbers.items() if number in circle]
    ranks = ranks_of(job, devices)
    who = ranks_text(ranks) or counted(len(devices), "rank")
    text = f"{who} wait for one another, a deadlock: each has yet to launch what another waits in"
    yield Note("deadlock", text, ranks)


def _differing_note(job: LaunchedJob, it: RasCommunicator) -> Note:
    odd = _differing(it)
    ranks = ranks_of(job, {device_of(rank): rank for rank in odd})
    who = ranks_text(ranks) or counted(len(odd), "rank")
    text = (
        f"{who} launched other collectives in {communicator_name(it)} "
        f"({launches_text(odd[0].launches)}) than the others ({launches_text(it.launches)}), and nothing has gone on "
        f"for {seconds_text(it.unchanged_seconds)}: the program does not do the same on all ranks"
    )
    return Note("launches_differ", text, ranks)


_ERRORS = {
    1: "unhandled CUDA error",
    2: "system error",
    3: "internal error",
    4: "invalid argument",
    5: "invalid usage",
    6: "remote process error",
}
"""The values of ncclResult_t in NCCL's own words (ncclErrorToString, src/ras/client_support.cc). 7, in progress, is
none."""


def _error_notes(job: LaunchedJob) -> Iterator[Note]:
    for error, words in _ERRORS.items():
        failed = {
            device_of(rank): rank for it in job.report.communicators for rank in it.ranks if rank.async_error == error
        }
        if failed:
            ranks = ranks_of(job, failed)
            text = f"NCCL reports an error on {ranks_text(ranks) or counted(len(failed), 'rank')}: {words}"
            yield Note("nccl_error", text, ranks)
