"""Records judged by the tables of rules: what was found and not closed, as findings. Pure, and bounded."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Mapping
from typing import Final, NamedTuple

from laggard.diagnose.kernel.accelerator_rules import AMD_RULES, GAUDI_RULES, INTEL_RULES, NVIDIA_RULES
from laggard.diagnose.kernel.host_rules import DISK_RULES, HOST_RULES, NETWORK_FILE_SYSTEM_RULES, NIC_RULES, PCI_RULES
from laggard.diagnose.kernel.lines import LogLine
from laggard.diagnose.kernel.rule import STARTS, Rule
from laggard.model import Finding, Severity
from laggard.probes.probe import finding

_MAX_DEVICES: Final = 256
_START_SECONDS: Final = 120.0
"""The time after a NIC's driver has started in which it reports ports without a cable: nobody lost them."""
_NAMES: Final = {"nvidia": "GPU", "amdgpu": "GPU", "habanalabs": "Gaudi", "nvme": "NVMe"}
_OF_DRIVER = re.compile(
    r"^(nvidia|amdgpu|habanalabs|mlx5_core|mlx4_core|bnxt_en|ice|nvme)(?: nvme\d+: pci function)? ([0-9a-f:.]{12})\b"
)
_NIC_STARTED = re.compile(
    r"^mlx5_core ([0-9a-f:.]{12}): (?:.*module \d+, Cable (plugged)|"
    r"firmware version: |.*available PCIe bandwidth|E-Switch: Total vports|Rate limit: )"
)
_ADDRESS = re.compile(r"(?:[0-9a-f]{0,4}?([0-9a-f]{4}):)?([0-9a-f]{2}:[0-9a-f]{2}\.[0-7])")


class Devices:
    """The devices that the records named so far."""

    def __init__(self) -> None:
        self._drivers: dict[str, str] = {}
        self._started: dict[str, float | None] = {}

    def note(self, record: LogLine) -> None:
        if len(self._drivers) < _MAX_DEVICES and (found := _OF_DRIVER.match(record.text)):
            self._drivers[found[2]] = found[1]
        found = _NIC_STARTED.match(record.text)
        if found and (len(self._started) < _MAX_DEVICES or found[1] in self._started):
            self._started[found[1]] = -math.inf if found[2] else record.seconds

    def is_starting(self, address: str, seconds: float | None) -> bool:
        """Whether the NIC's driver was started just before, and has seen no cable since."""
        if address not in self._started:
            return seconds is not None and seconds <= _START_SECONDS  # after boot; dates are larger
        started = self._started[address]
        return started is None or seconds is None or seconds - started <= _START_SECONDS

    def name_of(self, address: str) -> str:
        """Returns a PCI device's address with what it is; anything else as it is."""
        owner = self._drivers.get(address)
        return address if owner is None else f"{_NAMES.get(owner, 'NIC')} {address}"


def pci_address(device: str) -> str:
    """Returns a PCI address as sysfs writes it; empty for what is none."""
    found = _ADDRESS.fullmatch(device.lower())
    return f"{found[1] or '0000'}:{found[2]}" if found else ""


RULES: Final = (
    *NVIDIA_RULES, *AMD_RULES, *GAUDI_RULES, *INTEL_RULES, *HOST_RULES, *PCI_RULES, *NIC_RULES, *DISK_RULES,
    *NETWORK_FILE_SYSTEM_RULES,
)  # fmt: skip
"""All rules; of several that take one record the first counts."""
_PATTERNS: Final = tuple(re.compile(rule.pattern) for rule in RULES)
_CLOSING: Final = tuple(re.compile(f"{rule.closed_by}|{STARTS}") if rule.closed_by else None for rule in RULES)
_MAX_HITS: Final = 256
"""The most pairs of a rule and a device that one log is judged by."""
_IN_MODULE = re.compile(r"\+0x[0-9a-f]+/0x[0-9a-f]+ \[(\w+)")
_MAX_TRACE_RECORDS: Final = 80
_MAX_MODULES: Final = 4
_MAX_TRACE_CHARACTERS: Final = 120
_PLACE = re.compile(r"(?:Workqueue|RIP|pc|CPU|Comm): \S")


class Hit(NamedTuple):
    """What one rule found of one device."""

    times: int
    first: int
    """The place of its first record, which orders findings."""
    last: str
    groups: Mapping[str, str]
    seconds: float | None = None
    closed: bool = False
    modules: tuple[str, ...] = ()
    trace: tuple[str, ...] = ()
    """What a trace says of where the kernel was."""


class RuleJudge:
    """Takes records in order and holds what the rules found in them."""

    def __init__(self) -> None:
        self._hits: dict[tuple[int, str], Hit] = {}
        self.devices = Devices()
        self._records = 0
        self._traced: tuple[tuple[int, str], int] | None = None

    def feed(self, record: LogLine) -> bool:
        """Judges one record; returns whether a rule knows it."""
        self._records += 1
        text = record.text
        self.devices.note(record)
        self._note_trace(text)
        known = self._close(record)
        for number, rule in enumerate(RULES):
            if rule.word in text and (found := _PATTERNS[number].search(text)):
                groups = {name: value or "" for name, value in found.groupdict().items()}
                if not rule.is_usual_at_start or not self.devices.is_starting(groups["device"], record.seconds):
                    self._hit(number, groups, record)
                return True
        return known

    def _note_trace(self, text: str) -> None:
        """Notes the modules and places that the trace below a crash names."""
        if self._traced is None:
            return
        key, begun = self._traced
        hit = self._hits[key]
        if self._records - begun > _MAX_TRACE_RECORDS:
            self._traced = None
        elif (module := _IN_MODULE.search(text)) and module[1] not in hit.modules and len(hit.modules) < _MAX_MODULES:
            self._hits[key] = hit._replace(modules=(*hit.modules, module[1]))
        elif _PLACE.match(text) and len(hit.trace) < _MAX_MODULES:
            self._hits[key] = hit._replace(trace=(*hit.trace, text[:_MAX_TRACE_CHARACTERS]))

    def _close(self, record: LogLine) -> bool:
        closed = False
        for (number, device), hit in self._hits.items():
            closing = _CLOSING[number]
            if hit.closed or closing is None or not (found := closing.search(record.text)):
                continue
            if _is_settling(RULES[number], hit, record.seconds):
                continue
            named = found.groupdict().get("device")
            if named is None or named.lower() == device:
                self._hits[number, device] = hit._replace(closed=True)
                closed = True
        return closed

    def _hit(self, number: int, groups: dict[str, str], record: LogLine) -> None:
        key = number, groups.get("device", "").lower()
        before = self._hits.get(key)
        if before is None and len(self._hits) >= _MAX_HITS:
            return
        start = before or Hit(0, self._records, "", groups)
        self._hits[key] = start._replace(
            times=start.times + 1, last=record.text, groups=groups, seconds=record.seconds, closed=False
        )
        if RULES[number].code == "KERNEL_FAULT" and (self._traced is None or key[1]):
            self._traced = key, self._records

    def seconds_of(self, *subjects: str) -> list[float | None]:
        """Returns when rules were met last whose codes begin with one of these words."""
        return [hit.seconds for (number, _), hit in self._hits.items() if RULES[number].code.startswith(subjects)]

    def findings(self) -> tuple[Finding, ...]:
        """Returns what was found and is not closed, in the order of the log; of one device and code the gravest."""
        best: dict[tuple[str, str], tuple[Severity, int, Finding]] = {}
        for (number, _), hit in self._hits.items():
            rule = RULES[number]
            severity = rule.after if hit.closed else rule.severity
            if severity is None or hit.times < rule.least:
                continue
            made = self._finding(rule, severity, hit)
            kept = best.get((made.code, made.device))
            if kept is None or (_RANK[severity], hit.first) < (_RANK[kept[0]], kept[1]):
                best[made.code, made.device] = severity, hit.first, made
        return tuple(made for _, _, made in sorted(best.values(), key=lambda each: each[1]))

    def _finding(self, rule: Rule, severity: Severity, hit: Hit) -> Finding:
        groups = defaultdict(str, hit.groups)
        if address := pci_address(groups["device"]):
            groups["device"] = address
        device = self.devices.name_of(rule.named.format_map(groups).strip())
        summary = rule.summary.format_map(groups).strip(" :")
        if hit.modules:
            summary += f", in the module {hit.modules[0]}"
        times = f", {hit.times} lines of the log" if hit.times > 1 else ""
        return finding(
            rule.code,
            device,
            summary + times,
            evidence={"count": hit.times, "last": hit.last[:300], **_traced(hit)},
            fix=rule.fix,
            commands=tuple(command.replace("{device}", groups["device"]) for command in rule.commands),
            severity=severity,
        )


def _is_settling(rule: Rule, hit: Hit, seconds: float | None) -> bool:
    if not rule.settle_seconds:
        return False
    return hit.seconds is None or seconds is None or 0 <= seconds - hit.seconds <= rule.settle_seconds


def _traced(hit: Hit) -> dict[str, object]:
    return {name: value for name, value in (("modules", hit.modules), ("trace", hit.trace)) if value}


_RANK: Final = {severity: place for place, severity in enumerate(Severity)}
