"""The format `kernel log`: dmesg in all its forms, journalctl -k, syslog, /dev/kmsg, netconsole; and the logs of the
clients of GPFS and BeeGFS, which are judged by the same rules."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from laggard.diagnose import kernel_findings
from laggard.diagnose.file_content import FileContent
from laggard.diagnose.file_format import FileFormat, FileJudgement, KnownHardware
from laggard.diagnose.kernel.accelerator_rules import GSP_XIDS, SOME_GSP
from laggard.diagnose.kernel.corrected_storm import CorrectedStorms
from laggard.diagnose.kernel.driver_assertions import DriverAssertions
from laggard.diagnose.kernel.judge import RuleJudge
from laggard.diagnose.kernel.lines import KERNEL, LogLine, is_bare, read_line
from laggard.diagnose.kernel.not_understood import NotUnderstood, is_suspicious
from laggard.diagnose.kernel.records import FILE_SYSTEM_CLIENTS, read_records
from laggard.model import Finding, Severity
from laggard.probes.gpu.model.driver_log import xids_of
from laggard.probes.gpu.xid import judge_xids
from laggard.probes.host.kernel_log import KernelMessage
from laggard.probes.pci.rules.kernel_messages import device_errors_of

_RELEVANT = ("NVRM: ", "SXid", "mlx5_core", "PCIe Bus Error", *kernel_findings.RELEVANT)
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


def recognise_file_system_log(content: FileContent) -> bool:
    clients, _, lines = _counted(content, FILE_SYSTEM_CLIENTS)
    return clients > 0 and clients >= _MIN_SHARE * lines


def _counted(content: FileContent, programs: Sequence[str]) -> tuple[int, int, int]:
    """Returns of the first lines how many are of these programs, how many have any head, and how many there are."""
    lines = [line for line in content.text[: 1 << 18].splitlines()[:_SAMPLE_LINES] if line.strip() and line[0] != " "]
    found = [read_line(line) for line in lines]
    bare = sum(1 for line, each in zip(lines, found, strict=True) if each is None and is_bare(line))
    of_programs = sum(1 for each in found if each is not None and each.program in programs)
    headed = sum(1 for each in found if each is not None)
    return of_programs + (bare if KERNEL in programs else 0), headed, len(lines)


class _Host:
    """What the log of one host says."""

    def __init__(self) -> None:
        self.rules = RuleJudge()
        self.storms = CorrectedStorms()
        self.messages: list[KernelMessage] = []
        self.not_understood = NotUnderstood()
        self.assertions = DriverAssertions()
        self.records = 0

    def feed(self, record: LogLine) -> None:
        self.records += 1
        known = self.storms.feed(record) | self.rules.feed(record)
        self.assertions.feed(record)
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
    if assertions := sum(host.assertions.count for host in hosts.values()):
        facts["driver_assertions"] = assertions
    facts |= {"records": sum(host.records for host in hosts.values()), "looked_for": LOOKED_FOR}
    if named := [name for name in hosts if name]:
        facts["hosts"] = named
    return FileJudgement(tuple(findings), facts, "; ".join(unknown))


def _judge_host(host: _Host) -> tuple[list[Finding], dict[str, object], int]:
    lines = xids_of(host.messages)
    of_gpus, counted = judge_xids(lines)
    of_devices = (
        msgspec.structs.replace(each, device=host.rules.devices.name_of(each.device))
        for each in (*device_errors_of(host.messages), *host.storms.findings())
        if each.code != "GPU_LOST"  # the same record as an Xid 79
    )
    of_host = kernel_findings.judge_messages(message.text for message in host.messages)
    found = _without_repeats((*of_gpus, *host.rules.findings(), *of_devices, *of_host))
    found = host.assertions.beside(found, [*(line.seconds for line in lines), *host.rules.seconds_of("GPU", "FABRIC")])
    return found, dict(counted), len(lines)


def _without_repeats(findings: Iterable[Finding]) -> list[Finding]:
    """Returns for each device and code one finding, the gravest: several tables know some of the records. An Xid is
    one by its number."""
    kept: dict[tuple[object, ...], Finding] = {}
    listed = list(findings)
    named = any(each.evidence.get("xid") in GSP_XIDS for each in listed)
    for each in listed:
        if named and each.device == SOME_GSP:  # an Xid names the GPU
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


KERNEL_LOG = FileFormat("kernel log", recognise, judge, end_matters=True)
FILE_SYSTEM_LOG = FileFormat("file system client's log", recognise_file_system_log, judge, end_matters=True)
