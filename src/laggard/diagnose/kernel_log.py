"""The format `kernel log`: dmesg in all its forms, journalctl -k, syslog, /dev/kmsg, netconsole. Logs of the clients
of GPFS and BeeGFS, and of systemd-networkd, are judged by the same rules.

Beside the tables of rules two things are judged by what stands around them: storms of corrected PCIe errors, and
records that say that something failed and that no rule knows.

Sources: Linux, drivers/pci/pcie/aer.c, whose lines are limited to ten in five seconds, lib/ratelimit.c.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

import msgspec

from laggard.diagnose import kernel_findings
from laggard.diagnose.failing_lines import says_the_end
from laggard.diagnose.file_format import FileContent, FileFormat, FileJudgement, KnownHardware
from laggard.diagnose.kernel.judge import BENIGN, FAILING, STORM, SUSPICIOUS, LogJudge
from laggard.diagnose.kernel.lines import (
    KERNEL,
    OTHER_PROGRAMS,
    PROGRAMS,
    LogLine,
    indent_of,
    is_bare,
    read_line,
    read_records,
)
from laggard.diagnose.rules import patterns
from laggard.model import Finding, Severity
from laggard.probes.gpu.model.driver_log import xids_of
from laggard.probes.gpu.xid import judge_xids
from laggard.probes.host.kernel_log import KernelMessage

_P: Final = patterns("kernel_forms")

_STORM_RECORDS: Final = 10
_STORM_SECONDS: Final = 10.0
"""Ten in ten seconds are a storm: a sound link has one in days."""
_STORM_LEFT_OUT: Final = 100
_MAX_DEVICES: Final = 64


class CorrectedStorms:
    """Counts corrected errors of each device."""

    def __init__(self) -> None:
        self._last: dict[str, deque[float]] = {}
        self._count: dict[str, int] = {}
        self._storms: set[str] = set()
        self._device = ""

    def feed(self, record: LogLine) -> bool:
        """Counts one record; returns whether it was of this kind."""
        if "suppressed" in record.text and (found := _P["left_out"].search(record.text)) and self._device:
            self._count[self._device] += int(found[1])
            if int(found[1]) >= _STORM_LEFT_OUT:
                self._storms.add(self._device)
            return True
        found = _P["corrected"].search(record.text) if "Correct" in record.text else None
        if found is None or (len(self._count) >= _MAX_DEVICES and (found[1] or found[2]) not in self._count):
            return found is not None
        self._device = device = found[1] or found[2]
        self._count[device] = self._count.get(device, 0) + (found[2] is not None)
        if record.seconds is not None and found[2]:
            times = self._last.setdefault(device, deque(maxlen=_STORM_RECORDS))
            times.append(record.seconds)
            if len(times) == _STORM_RECORDS and 0 <= times[-1] - times[0] <= _STORM_SECONDS:
                self._storms.add(device)
        return True

    def findings(self) -> Iterator[Finding]:
        for device in sorted(self._storms):
            yield STORM.found({"count": self._count[device]}, device=device, count=self._count[device])


_ERROR_LEVEL: Final = 3
_WARNING_LEVEL: Final = 4
_OF_NVIDIA = re.compile(r"NVRM|nvidia")
"""NVIDIA's drivers log what they do at the level of errors, so that their words decide."""
MAX_SHOWN: Final = 3
_MAX_SUSPICIOUS_CHARACTERS: Final = 120


def is_suspicious(record: LogLine) -> bool:
    """Whether a record that no rule knows may be a fault: of whatever driver, if it says itself that something ended;
    of those that matter to a training, also if it says that something failed."""
    if (record.level is not None and record.level > _WARNING_LEVEL) or BENIGN.search(record.text):
        return False
    if not SUSPICIOUS.match(record.text):
        return bool(FAILING.search(record.text)) and says_the_end(record.text)
    is_error = record.level is not None and record.level <= _ERROR_LEVEL and not _OF_NVIDIA.match(record.text)
    return is_error or bool(FAILING.search(record.text))


class NotUnderstood:
    """Holds a few of the records that no rule knows, of different kinds, and counts the others."""

    def __init__(self) -> None:
        self._shown: dict[str, str] = {}
        self._count = 0

    def add(self, record: LogLine) -> None:
        self._count += 1
        kind = re.sub(r"[0-9a-fx]*\d[0-9a-fx]*", "N", record.text[:_MAX_SUSPICIOUS_CHARACTERS])
        if len(self._shown) < MAX_SHOWN:
            self._shown.setdefault(kind, record.text[:_MAX_SUSPICIOUS_CHARACTERS])

    def __str__(self) -> str:
        """The records in words, as the reason why the answer is unknown; empty: there were none."""
        if not self._count:
            return ""
        lines = "line" if self._count == 1 else "lines"
        return f"{self._count} {lines} of errors that laggard does not know: {' | '.join(self._shown.values())}"


_RELEVANT = ("NVRM: ", "SXid", "mlx5_core", *kernel_findings.RELEVANT)
"""Words of the records that the rules of probes and of kernel_findings.py look at: a few in thousands."""
_MIN_SHARE = 0.5
_SAMPLE_LINES = 400
_MIN_HEADED = 0.9
_MIN_OF_SYSTEM = 0.1
_MAX_HOSTS: Final = 64
_MAX_MESSAGES: Final = 200_000
LOOKED_FOR: Final = (
    "looked for errors of GPUs (NVIDIA, AMD, Gaudi), NVSwitches, NICs, PCIe, memory and CPUs, disks, local and network "
    "file systems, the IOMMU, the clock and the kernel itself, and for killed processes"
)


def recognise(content: FileContent) -> bool:
    """Most lines are the kernel's, or a system log's (/var/log/messages) with a share of the kernel's."""
    kernel, headed, lines = _counted(content, (KERNEL,))
    return kernel > 0 and (kernel >= _MIN_SHARE * lines or (headed >= _MIN_HEADED * lines <= kernel / _MIN_OF_SYSTEM))


def recognise_other_program(content: FileContent) -> bool:
    count, _, lines = _counted(content, OTHER_PROGRAMS)
    return count > 0 and count >= _MIN_SHARE * lines


def _counted(content: FileContent, programs: Sequence[str]) -> tuple[int, int, int]:
    """Returns of the first lines how many are of these programs, how many have any head, and how many there are."""
    shown = [line for line in content.text[: 1 << 18].splitlines()[:_SAMPLE_LINES] if line.strip()]
    indent = indent_of(shown[0]) if shown else 0
    lines = [line[indent:] for line in shown if line[:indent].strip(" ") == "" and line[indent : indent + 1] != " "]
    found = [read_line(line) for line in lines]
    bare = sum(1 for line, each in zip(lines, found, strict=True) if each is None and is_bare(line))
    of_programs = sum(1 for each in found if each is not None and each.program in programs)
    headed = sum(1 for each in found if each is not None)
    return of_programs + (bare if KERNEL in programs else 0), headed, len(lines)


class _Host:
    """The findings of the log of one host."""

    def __init__(self) -> None:
        self.rules = LogJudge()
        self.storms = CorrectedStorms()
        self.messages: list[KernelMessage] = []
        self.not_understood = NotUnderstood()
        self.records = 0

    def feed(self, record: LogLine) -> None:
        self.records += 1
        known = self.storms.feed(record) | self.rules.feed(record)
        relevant = any(word in record.text for word in _RELEVANT)
        if relevant and len(self.messages) < _MAX_MESSAGES:
            self.messages.append(KernelMessage(record.seconds, record.text))
        if not known and is_suspicious(record) and not kernel_findings.knows(record.text):
            self.not_understood.add(record)


def judge(content: FileContent, hardware: KnownHardware) -> FileJudgement:
    hosts: dict[str, _Host] = {}
    for record in read_records(content.pieces()):
        name = record.host if record.host in hosts or len(hosts) < _MAX_HOSTS else ""
        hosts.setdefault(name, _Host()).feed(record)
    findings: list[Finding] = []
    unknown: list[str] = []
    facts: dict[str, object] = {"xids": 0, "xids_of_applications": {}}
    for name, host in hosts.items():
        found, counted, xids = _judge_host(host)
        facts |= counted
        facts["xids"] = facts["xids"] + xids  # type: ignore[operator]
        findings += (_of_host(each, name, len(hosts) > 1) for each in found)
        if not any(each.severity is Severity.CRITICAL for each in found):
            unknown += filter(None, [str(host.not_understood)])
    facts |= {"records": sum(host.records for host in hosts.values()), "looked_for": LOOKED_FOR}
    if named := [name for name in hosts if name]:
        facts["hosts"] = named
    return FileJudgement(tuple(findings), facts, "; ".join(unknown))


def _judge_host(host: _Host) -> tuple[list[Finding], dict[str, object], int]:
    lines = xids_of(host.messages)
    of_gpus, counted = judge_xids(lines)
    of_devices = (
        msgspec.structs.replace(each, device=host.rules.devices.name_of(each.device)) for each in host.storms.findings()
    )
    of_host = kernel_findings.judge_messages(message.text for message in host.messages)
    found = _without_repeats((*of_gpus, *host.rules.findings(), *of_devices, *of_host), _addresses(host.messages))
    return found, dict(counted), len(lines)


def _addresses(messages: Iterable[KernelMessage]) -> dict[str, str]:
    """The GPUs that some record names both by their number and by their address."""
    found = filter(None, (_P["kernel_log_numbered"].search(message.text) for message in messages))
    return {f"GPU {each[2]}": f"GPU {each[1]}.0" for each in found}


def _without_repeats(findings: Iterable[Finding], addresses: Mapping[str, str]) -> list[Finding]:
    """Returns for each device and code one finding, the gravest: several tables know some of the records. An Xid is
    one by its number."""
    kept: dict[tuple[object, ...], Finding] = {}
    listed = [msgspec.structs.replace(each, device=addresses.get(each.device, each.device)) for each in findings]
    named = {each.code for each in listed if _P["of_a_gpu"].match(each.code) and not _P["unnamed"].match(each.device)}
    for each in listed:
        if named and each.code == "GPU_LOST" and _P["unnamed"].match(each.device):  # a record beside it names the GPU
            continue
        key = (each.code, each.device, each.evidence.get("xid"), each.evidence.get("sxid"))
        if key not in kept or (kept[key].severity is not Severity.CRITICAL and each.severity is Severity.CRITICAL):
            kept[key] = each
    return list(kept.values())


def _of_host(found: Finding, host: str, several: bool) -> Finding:
    if not host:
        return found
    device = f"{found.device} on {host}" if several else found.device
    return msgspec.structs.replace(found, device=device, evidence={**found.evidence, "host": host})


def takes(line: str) -> bool:
    """Whether a line of a kernel's log is one that judge() reads, and not another program's."""
    found = read_line(line)
    return line[:1] in " \t" or is_bare(line) if found is None else found.program in PROGRAMS


KERNEL_LOG = FileFormat("kernel log", recognise, judge, end_matters=True, covers=("job log", "NCCL log"), takes=takes)
OTHER_LOG = KERNEL_LOG._replace(name="log of a system's program", recognise=recognise_other_program)
