"""Decides from the nodes' reports, each read once, which faults begin, go on and are repaired. Makes the sights that
the trackers look at. No clock, no file.

A fault ends when the check that found it could tell, for `quiet_seconds`, and found nothing: an agent that is silent
and a check that cannot tell end nothing.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from msgspec import structs

from laggard.collector.incidents.identity import Ends, MachineNames
from laggard.collector.incidents.incident import (
    MAX_REPORTED,
    WEEK_SECONDS,
    Fault,
    Moment,
    NodeName,
    NodeSight,
    Run,
    SeenFinding,
)
from laggard.collector.incidents.tracker import Observation
from laggard.collector.jobs.snapshot import JobSnapshot
from laggard.collector.node_findings import NodeGpus
from laggard.locate.job_timings import UNLISTED, UNNAMED
from laggard.model import SEVERITIES, Finding, Report, Severity, Verdict

MAX_FAULTS = 32_768
"""The most open faults."""

MAX_OF_NODE = 128
"""The most open faults of one node."""

REWRITE_SECONDS = 3600.0
"""The largest age of what is stored of an open fault."""

_MAX_TEXT = 400

Key = tuple[str, str, str, str]
"""Machine, or node where its GPUs are not known; code; device; detail."""


@dataclasses.dataclass
class _Open:
    """An open fault. `quiet`: for how many seconds its check has not found it."""

    fault: Fault
    observed_at: float
    stored_at: float = float("-inf")
    quiet: float = 0.0


class FaultTracker:
    """The open faults. Not thread-safe: one round follows the other."""

    def __init__(
        self, quiet_seconds: float, moment: Moment, open_before: Iterable[Fault] = (), names: Iterable[NodeName] = ()
    ) -> None:
        self._quiet_seconds = quiet_seconds
        self._names = MachineNames(names)
        self._ends = Ends()
        self._last_id = 0
        self._open: dict[Key, _Open] = {}
        for fault in open_before:
            self._open[_key(fault)] = _Open(fault, moment.monotonic)
            self._last_id = max(self._last_id, fault.id)

    def remember(self, closed: Iterable[Fault]) -> None:
        """Takes faults that have ended: one that is there again has come back."""
        for fault in closed:
            self._last_id = max(self._last_id, fault.id)
            self._note_end(fault)

    @property
    def open(self) -> tuple[Fault, ...]:
        return tuple(each.fault for each in self._open.values())

    def observe(self, sights: Sequence[NodeSight], moment: Moment) -> tuple[list[Fault], list[NodeName]]:
        """Takes one round in. Returns the faults and the names that are to be stored anew."""
        names = self._names.observe(sights, moment.wall)
        changed = self._moved(names, moment) if names else []
        by_place: dict[str, list[_Open]] = {}
        for each in self._open.values():
            by_place.setdefault(each.fault.machine or each.fault.node, []).append(each)
        for sight in sights:
            machine = self._names.machine(sight.node)
            changed += self._observe_node(sight, machine, by_place.get(machine or sight.node, []), moment)
        changed += self._without_word(moment)
        return changed, names

    def _moved(self, names: Sequence[NodeName], moment: Moment) -> list[Fault]:
        """Takes faults over to the machine's new name; those of a machine whose name is another's now are over."""
        changed = []
        now_at = {it.machine: it.node for it in names if it.machine}
        now_is = {it.node: it.machine for it in names}
        for key, each in list(self._open.items()):
            was = each.fault
            if was.machine and now_at.get(was.machine, was.node) != was.node:
                self._rekey(key, structs.replace(was, node=now_at[was.machine]))
            elif was.machine and now_is.get(was.node, was.machine) not in ("", was.machine):
                changed.append(self._close(key, moment.wall, "replaced"))
            elif not was.machine and now_is.get(was.node):
                self._rekey(key, structs.replace(was, machine=now_is[was.node]))
        return changed

    def _rekey(self, key: Key, fault: Fault) -> None:
        each = self._open.pop(key)
        each.fault, each.stored_at = fault, float("-inf")
        self._open[_key(fault)] = each

    def _observe_node(
        self, sight: NodeSight, machine: str, of_node: Sequence[_Open], moment: Moment
    ) -> Iterable[Fault]:
        place = machine or sight.node
        seen: dict[Key, SeenFinding] = {}
        for found in sight.found[:MAX_OF_NODE]:
            key = (place, found.finding.code, found.finding.device[:_MAX_TEXT], found.detail)
            seen[key] = min(found, seen.get(key, found), key=lambda it: SEVERITIES.index(it.finding.severity))
        changed = []
        for each in list(of_node):
            key = _key(each.fault)
            if key not in seen and each.fault.probe in sight.telling:
                each.quiet += moment.monotonic - each.observed_at
                taken_back = (each.fault.code, each.fault.detail) in sight.cancelled
                if each.quiet >= self._quiet_seconds or taken_back:
                    changed.append(self._close(key, each.fault.seen_at, "cancelled" if taken_back else "repaired"))
            each.observed_at = moment.monotonic
        room = MAX_OF_NODE - len(of_node)
        for key, found in seen.items():
            if key in self._open:
                self._go_on(self._open[key], found, moment)
            elif room > 0 and len(self._open) < MAX_FAULTS:
                room -= 1
                self._open[key] = _Open(self._begun(sight.node, machine, found, moment), moment.monotonic)
            else:
                continue
            each = self._open[key]
            if moment.monotonic - each.stored_at >= REWRITE_SECONDS:
                each.stored_at = moment.monotonic
                changed.append(each.fault)
        return changed

    def _go_on(self, each: _Open, found: SeenFinding, moment: Moment) -> None:
        was, severity = each.fault, _worse(each.fault.severity, found.finding.severity)
        if severity is not was.severity:
            each.stored_at = float("-inf")
        each.quiet = 0.0
        summary = found.finding.summary[:_MAX_TEXT]
        each.fault = structs.replace(was, severity=severity, summary=summary, seen_at=max(was.seen_at, moment.wall))

    def _begun(self, node: str, machine: str, found: SeenFinding, moment: Moment) -> Fault:
        self._last_id = max(self._last_id + 1, int(moment.wall * 1000))
        finding = found.finding
        fault = Fault(
            id=self._last_id,
            node=node,
            machine=machine,
            code=finding.code,
            device=finding.device[:_MAX_TEXT],
            severity=finding.severity,
            summary=finding.summary[:_MAX_TEXT],
            probe=found.probe,
            opened_at=moment.wall,
            seen_at=moment.wall,
            gpu=found.gpu,
            detail=found.detail,
        )
        return structs.replace(fault, returned=self._ends.before(_place(fault), moment.wall))

    def _without_word(self, moment: Moment) -> list[Fault]:
        """Closes the faults of machines of which nothing has been heard for a week."""
        gone = [key for key, it in self._open.items() if moment.monotonic - it.observed_at >= WEEK_SECONDS]
        return [self._close(key, self._open[key].fault.seen_at, "gone") for key in gone]

    def _close(self, key: Key, at: float, reason: str) -> Fault:
        was = self._open.pop(key).fault
        closed = structs.replace(was, closed_at=max(was.opened_at, at), closed_because=reason)
        self._note_end(closed)
        return closed

    def _note_end(self, fault: Fault) -> None:
        if fault.closed_at is not None and fault.closed_because == "repaired":
            self._ends.note(_place(fault), fault.closed_at)


def _key(fault: Fault) -> Key:
    return fault.machine or fault.node, fault.code, fault.device, fault.detail


def _place(fault: Fault) -> tuple[str, ...]:
    """The place at which a fault comes back: a GPU takes its own along to another machine."""
    where = (fault.gpu,) if fault.gpu else (fault.machine or fault.node, fault.device)
    return (fault.code, fault.detail, *where)


def _worse(one: Severity, other: Severity) -> Severity:
    return min(one, other, key=SEVERITIES.index)


# The sights that the trackers look at in a round, made from the agents' reports and the jobs' verdicts. Pure.
#
# A report is an agent's word, and may hold anything: what cannot be read is not known.

_XIDS: Final = "gpu_xid"
_XID_CODE: Final = "GPU_XID"
_TAKEN_BACK: Final = "xids_taken_back"
"""The fact of the Xid probe that counts the Xids which a later one took back."""


def node_sight(node: str, report: Report) -> NodeSight:
    """The faults that a node's report tells of."""
    gpus = NodeGpus.of(report.facts)
    probes = {place: probe.name for probe in report.probes for place in probe.findings}
    found = tuple(
        SeenFinding(finding, probes.get(place, ""), _gpu(gpus, finding.device), _detail(finding))
        for place, finding in enumerate(report.findings[:MAX_REPORTED])
        if finding.severity is not Severity.INFO
    )
    telling = frozenset(it.name for it in report.probes if it.verdict in (Verdict.OK, Verdict.FAIL) and not it.unknown)
    return NodeSight(node, frozenset(gpus.uuids), found, telling | {""}, _taken_back(report.facts))


def _gpu(gpus: NodeGpus, device: str) -> str:
    about = gpus.about(device) or ()
    return about[0] if len(about) == 1 and about[0] not in (UNLISTED, UNNAMED) else ""


def _detail(finding: Finding) -> str:
    """The number of an Xid or SXid."""
    number = finding.evidence.get("xid", finding.evidence.get("sxid")) if finding.code == _XID_CODE else None
    return str(number) if isinstance(number, int) else ""


def _taken_back(facts: Mapping[str, Any]) -> frozenset[tuple[str, str]]:
    """The Xids that later ones took back."""
    told = facts.get(_XIDS)
    numbers = told.get(_TAKEN_BACK) if isinstance(told, dict) else None
    return frozenset((_XID_CODE, str(number)) for number in numbers) if isinstance(numbers, dict) else frozenset()


def observation(job: JobSnapshot) -> Observation:
    """What an incident is told of: a slow culprit counts when steps have shown it that were not there when it was
    named first."""
    it = job.location
    return Observation(
        job.key,
        job.running,
        it.verdict in (Verdict.OK, Verdict.FAIL) and not job.seen_once,
        tuple(each for each in it.culprits if each not in job.seen_once),
        job.progressed_at,
        max(it.world_size, it.ranks_seen),
        it.slowdown_ratio,
        job.told,
        None if job.started_at is None else Run(job.attempt, job.started_at),
    )
