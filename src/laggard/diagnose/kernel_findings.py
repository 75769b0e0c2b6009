"""Findings from a kernel's log about the host itself: processes that were killed for want of memory or crashed, machine
checks, network links, file servers. Pure.

The messages are those of mm/oom_kill.c, arch/x86/mm/fault.c, arch/x86/kernel/cpu/mce, drivers/edac,
mm/memory-failure.c, fs/nfs and net/sunrpc, and of the drivers of Mellanox, Intel and Broadcom NICs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple, TypeVar

from laggard.diagnose.job.advice import ADVICE
from laggard.model import Finding, Severity
from laggard.probes.host.kernel_log import parse_messages
from laggard.probes.probe import finding

RELEVANT: Final = (
    "Killed process", "segfault at", "Hardware Error", "Machine Check", "machine check", "Memory failure", "EDAC ",
    "Link ", "nfs: server",
)  # fmt: skip
"""Words of the lines that are judged here."""

_MANY_CORRECTED: Final = 10
"""The number of corrected memory errors from which on they are a finding. Corrected memory errors come singly; ten in
one log are a module that fails."""
_MIN_FLAPS: Final = 2
_MAX_DEVICES: Final = 64

_KILLED = re.compile(r"(?:Memory cgroup out|Out) of memory: Killed process (\d+) \(([^)]{1,40})\)")
_CRASHED = re.compile(r"((?:python|pt_|ray|torch)[\w.:-]{0,40})\[(\d+)\]: segfault at")
_UNCORRECTED = re.compile(
    r"\bEDAC \S+: \d+ UE |Machine Check Exception|Hardware Error\].*[Uu]ncorrected"
    r"|Memory failure: \S+ .*(?:Killing|recovery)|[Ff]atal machine check"
)
_CORRECTED = re.compile(r"\bEDAC \S+: (\d+) CE |Machine check events logged|Hardware Error\].*[Cc]orrected error")
_MODULE = re.compile(r"\bon (\S*(?:DIMM|CPU_SrcID|mc#|MC#)\S*)")
_LINK = re.compile(r"(\S+ [0-9a-f:.]{7,12}) (\S+): (?:NIC )?Link (?:is )?([Dd]own|[Uu]p)\b")
_SERVER = re.compile(r"nfs: server (\S+) (not responding|OK)")


_Key = TypeVar("_Key")


class _Lines(NamedTuple):
    times: int
    last: str


def judge_host_messages(log: str) -> tuple[Finding, ...]:
    messages = [message.text for message in parse_messages(log)]
    return (*_deaths(messages), *_machine_checks(messages), *_links(messages), *_servers(messages))


def _deaths(messages: Iterable[str]) -> Iterator[Finding]:
    """One finding for each program: the one that is killed again and again has a new number each time."""
    found: dict[tuple[str, str], _Lines] = {}
    for text in messages:
        if killed := _KILLED.search(text):
            _count(found, ("JOB_HOST_OUT_OF_MEMORY", killed[2]), text)
        elif crashed := _CRASHED.search(text):
            _count(found, ("JOB_SEGFAULT", crashed[1]), text)
    for (code, program), lines in found.items():
        starved = code == "JOB_HOST_OUT_OF_MEMORY"
        summary = "was killed by the kernel for want of host memory" if starved else "crashed in native code"
        advice = ADVICE["host_memory" if starved else "segfault"]
        yield _finding(code, program, summary, lines, advice.text, advice.commands, Severity.CRITICAL)


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
    fix = "Have the memory module or processor replaced; take the node out of service until then."
    commands = ("ras-mc-ctl --errors", "ipmitool sel elist")
    for device, lines in uncorrected.items():
        summary = "reports hardware errors that could not be corrected"
        yield _finding("MACHINE_CHECK", device, summary, lines, fix, commands, Severity.CRITICAL)
    for device, lines in corrected.items():
        if device not in uncorrected and lines.times >= _MANY_CORRECTED:
            summary = f"reports many corrected hardware errors: {lines.times}"
            yield _finding("MACHINE_CHECK", device, summary, lines, fix, commands, Severity.WARNING)


def _links(messages: Iterable[str]) -> Iterator[Finding]:
    """Reports links that went down and did not come back, and those that did so more than once."""
    downs: dict[str, _Lines] = {}
    is_down: dict[str, bool] = {}
    for text in messages:
        if match := _LINK.search(text):
            device = f"{match[2]} ({match[1]})"
            is_down[device] = match[3].lower() == "down"
            if is_down[device]:
                _count(downs, device, text)
    commands = ("ip -br link", "rdma link")
    for device, lines in downs.items():
        if is_down[device]:
            fix = "Check the cable, the transceiver and the switch's port, unless somebody set the port down."
            summary = "lost its link, and did not get it back in this log"
            yield _finding("RDMA_NETDEV_DOWN", device, summary, lines, fix, commands, Severity.WARNING)
        elif lines.times >= _MIN_FLAPS:
            summary = f"lost its link {lines.times} times and got it back"
            fix = "Clean or replace the cable and its transceivers; look at the switch's port."
            yield _finding("RDMA_LINK_FLAPPING", device, summary, lines, fix, commands, Severity.WARNING)


def _servers(messages: Iterable[str]) -> Iterator[Finding]:
    silent: dict[str, _Lines] = {}
    for text in messages:
        if match := _SERVER.search(text):
            if match[2] == "OK":
                silent.pop(match[1], None)
            else:
                _count(silent, match[1], text)
    for server, lines in silent.items():
        summary = "did not answer, and nothing in this log says that it does again"
        fix = "Check the file server and the network to it; processes on its mounts hang until it answers."
        device, commands = f"NFS server {server}", ("mount -t nfs,nfs4",)
        yield _finding("MOUNT_HUNG", device, summary, lines, fix, commands, Severity.CRITICAL)


def _count(found: dict[_Key, _Lines], key: _Key, text: str, number: int = 1) -> None:
    if key in found or len(found) < _MAX_DEVICES:
        found[key] = _Lines(found.get(key, _Lines(0, "")).times + number, text)


def _finding(
    code: str, device: str, summary: str, lines: _Lines, fix: str, commands: tuple[str, ...], severity: Severity
) -> Finding:
    evidence = {"count": lines.times, "last": lines.last[:200]}
    return finding(code, device, summary, evidence=evidence, fix=fix, commands=commands, severity=severity)
