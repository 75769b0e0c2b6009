"""What the gate remembers of this node from one run to the next: when it was seen drained, when somebody resumed it,
and the evidence that was known until then. So a drain that an operator took back is not made again for the same
evidence.

One small file holds it, in the directory that only this user can write to. It is of one boot: the kernel's log and the
counters begin anew with each. A file that is missing, damaged or another user's is no memory: the gate then judges as
if it ran for the first time.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from laggard import wire
from laggard.gate.settings import GateSettings
from laggard.gate.slurm import SlurmError, SlurmNode
from laggard.kit.constants import ACCEPTED_FILE, AGENT_PORT
from laggard.kit.environment import ENV_GATE_TICKET
from laggard.model import MAX_FINDINGS, Finding, Report, Severity, Verdict
from laggard.probes.errors import Unknown
from laggard.probes.host.host import Host
from laggard.probes.runner.state_file import locked_state, read_state, replace_state

# What a finding is based on, where that may be long over: lines of the kernel's log, and counters. A disk that is full
# is full now; an Xid was logged once, and is found again for a day. Pure.

_COUNTS: Final[Mapping[str, Sequence[str]]] = {
    "GPU_XID": ("count",),
    "MACHINE_CHECK": ("count",),
    "RDMA_DRIVER_ERROR": ("count",),
    "PCIE_AER_ERRORS": ("total",),
    "RDMA_ERRORS_RISING": ("value",),
    "RDMA_LINK_FLAPPING": ("counters/link_downed", "hw_counters/link_downed", "carrier_down_count"),
}
"""The counts in the evidence of findings that look back, by code; of several the sum. They only rise until the next
boot, or until the driver is loaded anew."""

_KINDS: Final = ("xid", "sxid", "kind", "counter")
"""The names in the evidence of what tells two findings of one code and device apart."""

_MAX_NUMBER: Final = 2.0**63


class Evidence(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the finding `code` on `device` is based on: `at`, the Unix time of its last record, and `count`, how often
    it was counted. None: not known, or the finding is about what is true now."""

    code: str
    device: str
    kind: str = ""
    at: float | None = None
    count: int | None = None

    @property
    def key(self) -> tuple[str, str, str]:
        return self.code, self.device, self.kind


def evidence_of(finding: Finding) -> Evidence:
    told = finding.evidence
    return Evidence(
        finding.code,
        finding.device,
        next((f"{name} {told[name]}"[:64] for name in _KINDS if name in told), ""),
        _number(told.get("last_at")),
        _count(told, _COUNTS.get(finding.code, ())),
    )


def critical_evidence(findings: Sequence[Finding]) -> dict[int, Evidence]:
    """That of the critical findings, by their places."""
    return {place: evidence_of(it) for place, it in enumerate(findings) if it.severity is Severity.CRITICAL}


def _count(told: Mapping[str, Any], names: Sequence[str]) -> int | None:
    counts = [count for name in names if (count := _number(told.get(name))) is not None]
    return int(sum(counts)) if counts else None


def _number(value: Any) -> float | None:
    """`value` where it is a number that can be a time or a count; else None."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < _MAX_NUMBER
    return float(value) if is_number else None


FILE_NAME: Final = "gate.json"
GRANT_FILE: Final = "drains.json"
"""Holds the collector's last yes to a drain of this node (drain_cap.py)."""
_MAX_NODES: Final = 16
"""The most nodes of one machine: slurmd can run several under names of their own."""
_MAX_BYTES: Final = 1 << 20


class NodeMemory(msgspec.Struct, frozen=True, omit_defaults=True):
    """The memory of one node. Times are in Unix seconds, by this machine's clock.

    `seen_drained_at`: when the node was last seen drained; None: it was not drained when it was last looked at.
    `resumed_at`: when it was resumed by somebody other than laggard, as well as that is known. `evidence`: what was
    known while it was drained. `unknown`: what its probes could not judge when it was drained, a line for each.
    """

    seen_drained_at: float | None = None
    resumed_at: float | None = None
    evidence: tuple[Evidence, ...] = ()
    unknown: tuple[str, ...] = ()

    def is_older_than_change(self, made_at: float) -> bool:
        """Whether a report of `made_at` is from before the last change of the node's state, or may be."""
        return self.seen_drained_at is not None or (self.resumed_at is not None and made_at <= self.resumed_at)


class MemoryFile(msgspec.Struct, frozen=True):
    """The file's content: the memory of each node, of the boot `boot_id`."""

    boot_id: str
    nodes: dict[str, NodeMemory] = {}
    laggard_gate: int = 1  # the version of this document


NOTHING: Final = NodeMemory()


def load_memory(node: str, boot_id: str) -> NodeMemory:
    """The memory of `node`; nothing where there is none that can be used."""
    return _load(boot_id).nodes.get(node, NOTHING)


def change_memory(node: str, boot_id: str, change: Callable[[NodeMemory], NodeMemory]) -> NodeMemory:
    """Replaces the memory of `node` by what `change` makes of it, which is returned. Of two gates the second waits for
    the first. Raises Unknown where it cannot be kept."""
    with locked_state(FILE_NAME):
        file = _load(boot_id)
        before = file.nodes.get(node, NOTHING)
        after = change(before)
        if after != before:
            others = {name: it for name, it in file.nodes.items() if name != node}
            for name in list(others)[: max(0, len(others) - _MAX_NODES + 1)]:
                del others[name]
            data = wire.encode(MemoryFile(boot_id, {**others, node: after}))
            if len(data) > _MAX_BYTES:
                raise Unknown(f"{len(data)} bytes are too many to keep")
            replace_state(FILE_NAME, data)
    return after


def forget_grant() -> None:
    """This node is well: what the collector let be drained is repaired, and the next fault is asked for anew."""
    with contextlib.suppress(Unknown):
        if read_state(GRANT_FILE):
            replace_state(GRANT_FILE, b"")


def observed(memory: NodeMemory, node: SlurmNode, asked_at: float, now: float) -> NodeMemory:
    """The memory after SLURM has shown `node`, for which it was asked at `asked_at`. A drain that another gate made
    since then is no resume."""
    if node.is_drained:
        return msgspec.structs.replace(memory, seen_drained_at=now)
    if memory.seen_drained_at is None or memory.seen_drained_at > asked_at:
        return memory
    return msgspec.structs.replace(
        memory, seen_drained_at=None, resumed_at=_between(memory.seen_drained_at, node.last_busy, now)
    )


def drained(memory: NodeMemory, evidence: Iterable[Evidence], now: float, unknown: Iterable[str] = ()) -> NodeMemory:
    """The memory of a node that is drained now, on which `evidence` is seen, and `unknown` cannot be judged."""
    known = _merged(memory.evidence, evidence)
    return msgspec.structs.replace(memory, seen_drained_at=now, evidence=known, unknown=tuple(sorted(unknown)))


def unknowns(report: Report) -> frozenset[str]:
    """What the probes could not judge, a line for each, without numbers, which may change from look to look."""
    told = ((it.name, it.unknown or it.reason) for it in report.probes if it.unknown or it.verdict is Verdict.UNKNOWN)
    return frozenset(re.sub(r"\d+", "#", f"{name}: {text}") for name, text in told)


def is_well(report: Report, memory: NodeMemory) -> bool:
    """Whether nothing fails, and all can be judged that could be judged when the node was drained: what was unknown
    before the fault is no part of it."""
    return report.verdict is Verdict.OK or (
        report.verdict is Verdict.UNKNOWN and unknowns(report) <= frozenset(memory.unknown)
    )


def resumed_by_laggard(memory: NodeMemory) -> NodeMemory:
    return msgspec.structs.replace(memory, seen_drained_at=None)


def with_first_look(memory: NodeMemory, evidence: Iterable[Evidence]) -> NodeMemory:
    """The memory after the first look at a node that was resumed: what a count has reached by then is from before."""
    return msgspec.structs.replace(memory, evidence=_merged(memory.evidence, evidence))


def is_from_before_resume(memory: NodeMemory, evidence: Evidence) -> bool:
    """Whether `evidence` is no newer than the resume. By its time where it has one; else by its count, which was as
    high before. What has neither is true now, and so newer than any resume."""
    if memory.resumed_at is None or memory.seen_drained_at is not None:
        return False
    if evidence.at is not None:
        return evidence.at <= memory.resumed_at
    known = next((it.count for it in memory.evidence if it.key == evidence.key), None)
    return evidence.count is not None and known is not None and evidence.count <= known


def _between(earliest: float, time: float | None, latest: float) -> float:
    """The end of the second `time` where the resume can have been in it; else `latest`, which is surely not before the
    resume."""
    return min(time + 1.0, latest) if time is not None and earliest <= time + 1.0 and time <= latest else latest


def _merged(known: Iterable[Evidence], new: Iterable[Evidence]) -> tuple[Evidence, ...]:
    """The newest of each; of too many the last."""
    merged = {it.key: it for it in known} | {it.key: it for it in new}
    return tuple(merged.values())[-MAX_FINDINGS:]


def _load(boot_id: str) -> MemoryFile:
    try:
        file = wire.decode(read_state(FILE_NAME), MemoryFile)
    except (Unknown, wire.WireError):
        return MemoryFile(boot_id)
    return file if file.boot_id == boot_id else MemoryFile(boot_id)


# This node as SLURM shows it, together with what the gate remembers of it.

_NO_BOOT: Final = "unknown boot"


class Seen(msgspec.Struct, frozen=True):
    """`node`: as SLURM shows it; None: SLURM gave no answer, and `error` says why. `problem`: why the memory cannot be
    kept; empty: it is."""

    node: SlurmNode | None
    memory: NodeMemory
    error: str = ""
    problem: str = ""


def remembered(settings: GateSettings, node: str) -> NodeMemory:
    """What the gate remembers of the node, without a question to SLURM. `node`: its name in reports."""
    return load_memory(settings.slurm_node(node).node, _boot_id(settings.subject.host))


def look(settings: GateSettings, node: str, evidence: Iterable[Evidence] = ()) -> Seen:
    """Asks SLURM for the node, and remembers what that says. `evidence`: what is critical on it now. Where SLURM gives
    no answer the memory stays as it is."""
    slurm = settings.slurm_node(node)
    asked_at = time.time()
    try:
        shown = slurm.show()
    except SlurmError as error:
        return Seen(None, remembered(settings, node), str(error))
    now = time.time()

    def change(memory: NodeMemory) -> NodeMemory:
        after = observed(memory, shown, asked_at, now)
        was_resumed = memory.seen_drained_at is not None and after.seen_drained_at is None
        return with_first_look(after, evidence) if shown.is_drained or was_resumed else after

    memory, problem = remember(settings, node, change)
    return Seen(shown, memory, problem=problem)


def remember(settings: GateSettings, node: str, change: Callable[[NodeMemory], NodeMemory]) -> tuple[NodeMemory, str]:
    """The memory after `change`, and why it cannot be kept; empty: it is kept."""
    name, boot_id = settings.slurm_node(node).node, _boot_id(settings.subject.host)
    try:
        return change_memory(name, boot_id, change), ""
    except Unknown as error:
        return change(load_memory(name, boot_id)), str(error)


def _boot_id(host: Host) -> str:
    """Of the machine that is judged."""
    try:
        return host.boot_id()
    except Unknown:
        return _NO_BOOT


# The ticket: what the next prologs may ask this node's agent without starting laggard (deploy/slurm/gate.sh).
#
# Python alone knows what its gate judges, and by which thresholds. A prolog that has run as a whole writes that down,
# for an hour, in a folder of root's. Where the agent's report would not stand for its own probes, there is no ticket,
# nor for a node that was drained when it was last looked at: who notices its resume has to run as a whole.


def write_ticket(settings: GateSettings, environ: Mapping[str, str]) -> None:
    """Writes the ticket where the prolog asks for one: `SCHEMA PROFILE FINGERPRINT UPTIME`, with the uptime in
    hundredths of a second. What keeps it from being written keeps no job waiting: the next prolog runs as a whole."""
    path = environ.get(ENV_GATE_TICKET, "")
    if not path.startswith("/") or not _may_be_asked(settings):
        return
    from laggard.probes.choose import fingerprint
    from laggard.probes.profiles import PROFILE, SCHEMA, gate_profile

    if settings.subject.profile != gate_profile() or _is_known_as_drained(settings):
        return
    uptime = int(time.clock_gettime(time.CLOCK_BOOTTIME) * 100)
    line = f"{SCHEMA} {PROFILE} {fingerprint(settings.subject.host.node())} {uptime}\n"
    with contextlib.suppress(OSError):
        _replace(path, line.encode("ascii"))


def _is_known_as_drained(settings: GateSettings) -> bool:
    return remembered(settings, settings.subject.host.node()).seen_drained_at is not None


def _may_be_asked(settings: GateSettings) -> bool:
    """Whether the agent's report answers the same question as this run of the gate."""
    subject = settings.subject
    is_prolog = bool(settings.slurm.mode) and not settings.slurm.resume
    is_plain = settings.gang is None and not subject.active_probes and settings.accepted == ACCEPTED_FILE
    return is_prolog and is_plain and subject.agent_port == AGENT_PORT


def _replace(path: str, data: bytes) -> None:
    """Whoever reads it meanwhile reads the old one or the new one, as a whole."""
    new = f"{path}.{os.getpid()}"
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        os.write(descriptor, data)
    finally:
        os.close(descriptor)
    os.rename(new, path)
