"""The ranks that hang or died in a job without hooks, by the launch counts of NCCL RAS. Pure.

All ranks of a communicator launch the same collectives in the same order. So where no count changes any more, the ranks
with fewer launches are those that the others wait for; a rank that is behind in one communicator and ahead in another
waits itself. Counts that differ for a moment say nothing: the ranks are read one after the other. Nor do equal counts,
whatever stands still: sends, receives and collectives in CUDA graphs are not counted.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from msgspec import structs

from laggard.kit.majority import grouped
from laggard.kit.words import counted, listed, ranks_text, seconds_text
from laggard.locate.explanation import explained
from laggard.locate.hang.hangs import HUNG_LATE_SECONDS
from laggard.locate.hang.wait_graph import CIRCLE, CONFIDENCE, STANDSTILL_SECONDS, ranks_in_cycles
from laggard.locate.job_timings import JobTimings, NodeFindings, build_timings
from laggard.model import MAX_NAMED_RANKS, Culprit, Location, Note, Verdict, Window
from laggard.wire.ranks import Launches, RasCommunicator, RasJob, RasRank

_LOST = {
    "stopped": "its process is stopped, by a signal or a debugger, as the agent there sees",
    "gone": "its process is gone, as the agent there sees",
    "not reached": "NCCL RAS considers its process dead: it has not reached it for 60 s",
}
"""What is wrong with a process that does not answer."""

_MAX_PROCESSES = 8

_ERRORS = (
    "unhandled CUDA error", "system error", "internal error", "invalid argument", "invalid usage",
    "remote process error",
)  # fmt: skip
"""The values of ncclResult_t from 1 on in NCCL's own words (ncclErrorToString, src/ras/client_support.cc)."""


class Device(NamedTuple):
    """One GPU of one process, in each communicator one rank."""

    host: str
    pid: int
    gpu: int


Members = Mapping[Device, RasRank]


class LaunchedJob(NamedTuple):
    """A job as NCCL RAS tells of it. `nodes`: names of its hosts; a host that no agent is on has none."""

    report: RasJob
    nodes: Mapping[str, str]

    @property
    def world(self) -> RasCommunicator:
        return max(self.report.communicators, key=lambda it: it.size)

    def node(self, host: str) -> str:
        return self.nodes.get(host, host)

    def ranks_of(self, members: Iterable[Device]) -> tuple[int, ...]:
        """Their ranks in the largest communicator, as far as they are known."""
        known = {_device_of(rank): rank.rank for rank in self.world.ranks}
        return tuple(sorted(known[device] for device in members if device in known))[:MAX_NAMED_RANKS]

    def culprit(self, members: Members, how: str, known: str, victims: Iterable[int], stopped: bool) -> Culprit:
        """These ranks of one host. `how`: the first line of the evidence; `known`: one of CONFIDENCE."""
        return Culprit(
            kind="hung",
            ranks=self.ranks_of(members),
            node=self.node(next(iter(members)).host),
            gpu=str(next(iter(members)).gpu) if len(members) == 1 else None,
            evidence=(how, _processes_text(members)),
            victims=tuple(victims)[:MAX_NAMED_RANKS],
            confidence=CONFIDENCE[known],
            stopped=stopped,
        )

    def others(self, members: Members) -> tuple[int, ...]:
        """The ranks that answer, but these: the report has only those that are missing or behind."""
        left = {rank.rank for rank in self.world.ranks if rank.missing or _device_of(rank) in members}
        return tuple(rank for rank in range(self.world.size) if rank not in left)

    def note(self, kind: str, members: Iterable[Device], text: str) -> Note:
        """`text`: with the ranks in place of `{}`."""
        devices = [*members]
        ranks, nodes = self.ranks_of(devices), {self.node(device.host) for device in devices}
        node = nodes.pop() if len(nodes) == 1 else None
        who = (ranks_text(ranks) or counted(len(devices), "rank")) + (f" on {node}" if node else "")
        return Note(kind, text.format(who), ranks, node)


def no_timings(job: LaunchedJob, findings: Mapping[str, NodeFindings]) -> JobTimings:
    """The empty timings of a job that has none."""
    return build_timings(job.report.job_id, job.world.size, {}, {}, findings)


def locate_launches(job: LaunchedJob, findings: Mapping[str, NodeFindings]) -> Location:
    """The verdict. It is never ok: nothing tells slow ranks. `findings`: by node."""
    lost = _missing(job)
    culprits = [_lost_culprit(job, kind, of) for (kind, _), of in sorted(lost.items()) if kind in _LOST]
    notes = [_unresponsive_note(job, of) for (kind, _), of in lost.items() if kind not in _LOST]
    if all(it.kind != "dead" for it in culprits):
        behind, told = _ranks_behind(job)
        culprits, notes = [*culprits, *behind], [*notes, *told]
    notes += [*_error_notes(job), _source_note(job)]
    failed = culprits or any(note.kind in ("deadlock", "launches_differ", "nccl_error") for note in notes)
    nodes = tuple(sorted({job.node(rank.host) for it in job.report.communicators for rank in it.ranks}))
    timings = dataclasses.replace(no_timings(job, findings), nodes=nodes)
    return Location(
        verdict=Verdict.FAIL if failed else Verdict.UNKNOWN,
        job_id=job.report.job_id,
        world_size=job.world.size,
        ranks_seen=job.world.answered,
        window=Window(),
        slowdown_ratio=None,
        culprits=tuple(explained(culprit, timings) for culprit in culprits),
        notes=tuple(notes),
        owner=job.report.owner,
    )


def _missing(job: LaunchedJob) -> dict[tuple[str, str], dict[Device, RasRank]]:
    """The ranks that NCCL RAS has no answer from, by what is wrong with them and host. A communicator that ranks have
    begun to leave has such, too."""
    settled = (it for it in job.report.communicators if not (it.starting or it.ending))
    gone: dict[tuple[str, str], dict[Device, RasRank]] = {}
    for rank in (rank for it in settled for rank in it.ranks if rank.missing):
        if kind := _missing_kind(rank):
            gone.setdefault((kind, rank.host), {}).setdefault(_device_of(rank), rank)
    return gone


def _missing_kind(rank: RasRank) -> str:
    """One of _LOST, or unresponsive; empty where nothing is wrong with the process. What the agent sees of it goes
    before what NCCL concludes."""
    if rank.process == "gone":
        return "gone"
    if rank.process == "stopped" and rank.readings > 1:
        return "stopped"
    if rank.dead and not rank.process:
        return "not reached"
    return "unresponsive" if rank.unresponsive or rank.dead or rank.process == "stopped" else ""


def _lost_culprit(job: LaunchedJob, kind: str, members: Members) -> Culprit:
    others, stopped = job.others(members), kind == "stopped"
    is_half = kind == "not reached" and 2 * len(others) <= job.world.size
    found = job.culprit(members, _LOST[kind], "cut off" if is_half else kind, others, stopped=stopped)
    if stopped:
        return found
    halves = "half of the ranks or more are not reached: the network between the two parts may be the cause"
    return structs.replace(found, kind="dead", evidence=(*found.evidence, halves) if is_half else found.evidence)


def _unresponsive_note(job: LaunchedJob, members: Members) -> Note:
    longest = max(rank.unchanged_seconds for rank in members.values())
    since = f" for {seconds_text(longest)}" if longest else ""
    return job.note("unresponsive", members, f"{{}} does not answer NCCL RAS{since}")


class _Wait(NamedTuple):
    """A communicator in which nothing goes on, and its devices that have launched the fewest collectives."""

    communicator: RasCommunicator
    behind: Members
    waiting: frozenset[Device]


def _ranks_behind(job: LaunchedJob) -> tuple[list[Culprit], list[Note]]:
    still = [it for it in job.report.communicators if _is_still(it) and not it.starting and not it.ending]
    notes = [_differing_note(job, it, odd) for it in still if (odd := _differing(it))]
    waits = [wait for it in still if not _differing(it) and (wait := _wait(it))]
    named = {device for wait in waits for device in wait.waiting}
    culprits = []
    waits_for: dict[Device, set[Device]] = {}
    for wait in sorted(waits, key=lambda it: (-it.communicator.unchanged_seconds, it.communicator.size)):
        for device in wait.waiting:
            waits_for.setdefault(device, set()).update(wait.behind)
        late = [device for device, rank in wait.behind.items() if device not in named and _is_still(rank)]
        named.update(late)
        for on_host in grouped(late, lambda device: device.host).values():
            found = _hung_culprit(job, wait, {device: wait.behind[device] for device in on_host})
            notes.append(job.note("not_arrived", on_host, f"{{}}: {found.evidence[0]}"))
            if found.stopped or wait.communicator.unchanged_seconds >= HUNG_LATE_SECONDS:
                culprits.append(found)
    roots = named - waits_for.keys()
    circle = () if roots else ranks_in_cycles(waits_for)
    if circle:
        notes.insert(0, job.note("deadlock", circle, CIRCLE))
    return culprits, notes


def _is_still(it: RasCommunicator | RasRank) -> bool:
    """Whether nothing was launched for a while; by a rank: in no communicator."""
    return it.readings > 1 and it.unchanged_seconds >= STANDSTILL_SECONDS


def _wait(it: RasCommunicator) -> _Wait | None:
    """None where all ranks have launched as many."""
    counts = {_device_of(rank): sum(rank.launches.values()) for rank in it.ranks if not rank.missing}
    fewest = min(counts.values(), default=sum(it.launches.values()))
    if fewest >= sum(it.launches.values()):
        return None
    behind = {_device_of(rank): rank for rank in it.ranks if counts.get(_device_of(rank)) == fewest}
    return _Wait(it, behind, frozenset(counts) - behind.keys())


def _hung_culprit(job: LaunchedJob, wait: _Wait, members: Members) -> Culprit:
    it, own = wait.communicator, next(iter(members.values()))
    how = (
        f"NCCL RAS: launched {_launches_text(own.launches)} in {_name(it)}, where "
        f"{counted(it.at_front, 'rank')} launched {_launches_text(it.launches)}, and no count has changed for "
        f"{seconds_text(it.unchanged_seconds)} ({it.readings} answers)"
    )
    victims = job.others(wait.behind) if it.id == job.world.id else ()
    stopped = all(rank.process == "stopped" for rank in members.values())
    found = job.culprit(members, how, "stopped" if stopped else "late", victims, stopped)
    inside = () if victims else (f"there it is {ranks_text(rank.rank for rank in members.values())} of {it.size}",)
    return structs.replace(found, group=_name(it), evidence=(how, *inside, *found.evidence[1:]))


def _differing(it: RasCommunicator) -> list[RasRank]:
    """The ranks that have launched what those at the front have not: another program, or another order."""
    return [
        rank
        for rank in it.ranks
        if not rank.missing and any(count > it.launches.get(name, 0) for name, count in rank.launches.items())
    ]


def _differing_note(job: LaunchedJob, it: RasCommunicator, odd: Sequence[RasRank]) -> Note:
    own, others = _launches_text(odd[0].launches), _launches_text(it.launches)
    text = f"{{}} launched other collectives in {_name(it)} ({own}) than the others ({others})"
    still = f"nothing has gone on for {seconds_text(it.unchanged_seconds)}"
    return job.note("launches_differ", map(_device_of, odd), f"{text}, and {still}: the program is not the same on all")


def _error_notes(job: LaunchedJob) -> Iterator[Note]:
    everybody = [rank for it in job.report.communicators for rank in it.ranks]
    for error, words in enumerate(_ERRORS, 1):
        failed = {_device_of(rank) for rank in everybody if rank.async_error == error}
        if failed:
            yield job.note("nccl_error", failed, f"NCCL reports an error on {{}}: {words}")


def _source_note(job: LaunchedJob) -> Note:
    source = f"NCCL {job.report.nccl_version}, {seconds_text(job.report.age_seconds)} ago"
    tells = "which tells who hangs or died: for who is slow start the job under laggard run"
    return Note("launches_only", f"seen through NCCL RAS alone ({source}), {tells}")


def _device_of(rank: RasRank) -> Device:
    """NCCL RAS does not know the process of every rank that is missing: those are told apart by their numbers."""
    return Device(rank.host, rank.pid if rank.pid > 0 else -1 - rank.rank, rank.gpu)


def _name(it: RasCommunicator) -> str:
    return f"communicator {it.id.partition('/')[0]} of {counted(it.size, 'rank')}"


def _processes_text(members: Iterable[Device]) -> str:
    pids = sorted({device.pid for device in members if device.pid > 0})
    if not pids:
        return "NCCL RAS does not know its process"
    gpus = sorted({device.gpu for device in members})
    return f"pid {listed([*map(str, pids)], _MAX_PROCESSES)}, CUDA device {listed([*map(str, gpus)], _MAX_PROCESSES)}"


def _launches_text(launches: Launches) -> str:
    counts = ", ".join(f"{name} {count}" for name, count in sorted(launches.items(), key=lambda item: -item[1])[:5])
    return f"{counted(sum(launches.values()), 'collective')}" + (f" ({counts})" if len(launches) > 1 else "")
