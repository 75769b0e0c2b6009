"""Findings from a kernel's log about the host itself: processes that were killed for want of memory or crashed, machine
checks, network links. Pure.

The messages are those of mm/oom_kill.c, arch/x86/mm/fault.c, arch/x86/kernel/cpu/mce, drivers/edac,
mm/memory-failure.c, and of the drivers of Mellanox, Intel and Broadcom NICs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple, TypeVar

from laggard.diagnose.job.rules import ADVICE
from laggard.diagnose.rules import table, words
from laggard.kernel_rules.devices import LINK, link_changes
from laggard.kernel_rules.rule import rules
from laggard.model import Finding, Fix, Severity

RELEVANT: Final = words("kernel")
"""Words of the lines that are judged here."""

_SAYS: Final = table("kernel").sections
_MANY_CORRECTED: Final = 10
"""The number of corrected memory errors from which on they are a finding. Corrected memory errors come singly; ten in
one log are a module that fails."""
_MIN_FLAPS: Final = 2
_MAX_DEVICES: Final = 64

_KILLED = re.compile(r"(?:Memory cgroup out|Out) of memory: Killed process (\d+) \(([^)]{1,40})\)")
_OOM_OF = re.compile(r"oom-kill:constraint=CONSTRAINT_MEMCG\b.*?\boom_memcg=([^,]*).*\bpid=(\d+)")
_OF_SCHEDULER = re.compile(r"slurm|pbs|lsf|htcondor|sge|flux", re.IGNORECASE)
_OF_SYSTEM = re.compile(r"^/(?:system|init)\b")
_TRAINING = re.compile(r"(?:python[\d.]*|pt_\w+|torchrun|ray::.*|ray|deepspeed|accelerate|train.*)$")
"""The names of processes that train: a limit of another program's own is no fault of the node."""
_CRASHED = re.compile(r"((?:python|pt_|ray|torch)[\w.:-]{0,40})\[(\d+)\]: segfault at")
_OF_PROBES = rules("host")["uncorrected"]
_UNCORRECTED = re.compile(_OF_PROBES.pattern)
_CORRECTED = re.compile(r"\bEDAC \S+: (\d+) CE |Machine check events logged|Hardware Error\].*[Cc]orrected error")
_MODULE = re.compile(r"\bon (\S*(?:DIMM|CPU_SrcID|mc#|MC#)\S*)")


_Key = TypeVar("_Key")


class _Lines(NamedTuple):
    times: int
    last: str


def knows(text: str) -> bool:
    """Whether a record is one of those that are judged here."""
    return any(pattern.search(text) for pattern in (_KILLED, _CRASHED, _UNCORRECTED, _CORRECTED, LINK))


def judge_messages(texts: Iterable[str]) -> tuple[Finding, ...]:
    messages = list(texts)
    return (*_deaths(messages), *_machine_checks(messages), *_links(messages))


def _deaths(messages: Iterable[str]) -> Iterator[Finding]:
    """One finding for each program: the one that is killed again and again has a new number each time. A program that
    reached the limit of its own cgroup and is neither a job's nor a training is a warning."""
    found: dict[tuple[str, str, Severity], _Lines] = {}
    groups: dict[str, str] = {}
    for text in messages:
        if limited := _OOM_OF.search(text):
            groups = {limited[2]: limited[1]}  # the kernel names the cgroup, and kills next
        elif killed := _KILLED.search(text):
            severity = _severity_of_kill(killed[2], groups.get(killed[1]) if text.startswith("Memory cgroup") else None)
            _count(found, ("JOB_HOST_OUT_OF_MEMORY", killed[2], severity), text)
        elif crashed := _CRASHED.search(text):
            _count(found, ("JOB_SEGFAULT", crashed[1], Severity.CRITICAL), text)
    for (code, program, severity), lines in found.items():
        kind = "starved" if code == "JOB_HOST_OUT_OF_MEMORY" else "crashed"
        limit = ": it reached the limit of its own cgroup" if severity is Severity.WARNING else ""
        row = _SAYS[kind]._replace(fix=ADVICE["host_memory" if kind == "starved" else "segfault"])
        yield row.found(_counted(lines), severity, program=program, limit=limit)


def _severity_of_kill(program: str, cgroup: str | None) -> Severity:
    """`cgroup`: the one whose limit was reached; None: the whole host had no memory left, or it is not told."""
    if cgroup is None or _OF_SCHEDULER.search(cgroup):
        return Severity.CRITICAL
    trains = _TRAINING.match(program) and not _OF_SYSTEM.match(cgroup)
    return Severity.CRITICAL if trains else Severity.WARNING


def _machine_checks(messages: Iterable[str]) -> Iterator[Finding]:
    uncorrected: dict[str, _Lines] = {}
    corrected: dict[str, _Lines] = {}
    for text in messages:
        module = _MODULE.search(text)
        device = module[1] if module else "the host"
        if _UNCORRECTED.search(text):
            _count(uncorrected, device, text)
        elif match := _CORRECTED.search(text):
            _count(corrected, device, text, int(match[1] or 1))
    fix = Fix(_OF_PROBES.fix, _OF_PROBES.commands)
    for device, lines in uncorrected.items():
        yield _SAYS["uncorrected"]._replace(fix=fix, says=_OF_PROBES.summary).found(_counted(lines), device=device)
    for device, lines in corrected.items():
        if device not in uncorrected and lines.times >= _MANY_CORRECTED:
            yield _SAYS["corrected"]._replace(fix=fix).found(_counted(lines), device=device, times=lines.times)


def _links(messages: Iterable[str]) -> Iterator[Finding]:
    """Reports links that went down and did not come back, and those that did so more than once; not those that have
    been down since their driver's start."""
    downs: dict[str, _Lines] = {}
    is_down: dict[str, bool] = {}
    for change in link_changes((None, text) for text in messages):
        device = f"{change.device} ({change.driver})".removesuffix(" ()")
        is_down[device] = change.down
        if change.down:
            _count(downs, device, change.text)
    for device, lines in downs.items():
        if is_down[device]:
            yield _SAYS["link_lost"].found(_counted(lines), device=device)
        elif lines.times >= _MIN_FLAPS:
            yield _SAYS["link_flapped"].found(_counted(lines), device=device, times=lines.times)


def _count(found: dict[_Key, _Lines], key: _Key, text: str, number: int = 1) -> None:
    if key in found or len(found) < _MAX_DEVICES:
        found[key] = _Lines(found.get(key, _Lines(0, "")).times + number, text)


def _counted(lines: _Lines) -> dict[str, object]:
    return {"count": lines.times, "last": lines.last[:200]}
