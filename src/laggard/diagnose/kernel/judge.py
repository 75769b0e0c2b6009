"""Records of a log that was pasted, judged by all tables of rules: what was found and not closed, as findings. Pure,
and bounded."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Mapping
from typing import Final

from laggard.diagnose.kernel.lines import LogLine
from laggard.diagnose.rules import Row, patterns, table
from laggard.kernel_rules.rule import Hit, Key, Rule, RuleJudge, rule_of, rules, rules_of
from laggard.model import Finding, Severity
from laggard.probes.gpu.model.amdgpu_log import AmdgpuMessage, amdgpu_messages
from laggard.probes.probe import finding

_P: Final = patterns("kernel_forms")

_MAX_DEVICES: Final = 256
_START_SECONDS: Final = 120.0
"""The time after a NIC's driver has started in which it reports ports without a cable: nobody lost them."""
_NAMES: Final = {"nvidia": "GPU", "amdgpu": "GPU", "habanalabs": "Gaudi", "nvme": "NVMe"}


class Devices:
    """The devices that the records named so far."""

    def __init__(self) -> None:
        self._drivers: dict[str, str] = {}
        self._started: dict[str, float | None] = {}

    def note(self, record: LogLine) -> None:
        if len(self._drivers) < _MAX_DEVICES and (found := _P["of_driver"].match(record.text)):
            self._drivers[found[2]] = found[1]
        found = _P["nic_started"].match(record.text)
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
    found = _P["address"].fullmatch(device.lower())
    return f"{found[1] or '0000'}:{found[2]}" if found else ""


_MAX_TRACE_RECORDS: Final = 80
_MAX_MODULES: Final = 4
_MAX_TRACE_CHARACTERS: Final = 120


class LogJudge(RuleJudge):
    """Takes records in order and holds what the rules found in them."""

    def __init__(self) -> None:
        super().__init__(RULES)
        self.devices = Devices()
        self._traced: tuple[Key, int] | None = None

    def feed(self, record: LogLine) -> bool:
        """Judges one record; returns whether a rule knows it."""
        self.devices.note(record)
        self._note_trace(record.text)
        return self.take(record.text, record.seconds)

    def counts(self, rule: Rule, groups: Mapping[str, str], seconds: float | None) -> bool:
        return not rule.is_usual_at_start or not self.devices.is_starting(groups["device"], seconds)

    def hit(self, number: int, groups: Mapping[str, str], text: str, seconds: float | None) -> Key | None:
        key = super().hit(number, groups, text, seconds)
        if key and RULES[number].code == "KERNEL_FAULT" and (self._traced is None or key[1]):
            self._traced = key, self.records
        return key

    def _note_trace(self, text: str) -> None:
        """Notes the modules and places that the trace below a crash names."""
        if self._traced is None:
            return
        key, begun = self._traced
        hit = self.hits[key]
        if self.records - begun >= _MAX_TRACE_RECORDS:
            self._traced = None
        elif (
            (module := _P["in_module"].search(text))
            and module[1] not in hit.modules
            and len(hit.modules) < _MAX_MODULES
        ):
            self.hits[key] = hit._replace(modules=(*hit.modules, module[1]))
        elif _P["place"].match(text) and len(hit.trace) < _MAX_MODULES:
            self.hits[key] = hit._replace(trace=(*hit.trace, text[:_MAX_TRACE_CHARACTERS]))

    def findings(self) -> tuple[Finding, ...]:
        """Returns what was found and is not closed, in the order of the log; of one device and code the gravest."""
        best: dict[tuple[str, str], tuple[Severity, int, Finding]] = {}
        for (number, _), hit in self.hits.items():
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
            commands=rule.commands_for(groups["device"]),
            severity=severity,
        )


def _traced(hit: Hit) -> dict[str, object]:
    return {name: value for name, value in (("modules", hit.modules), ("trace", hit.trace)) if value}


_RANK: Final = {severity: place for place, severity in enumerate(Severity)}


_TABLE: Final = table("kernel")
_GROUPED: Final = re.compile(r"\\[(\[\])|]|\[[^\]]*\]|\((?:[^()\\]|\\.)*\)[*+?]?")
_NO_LITERAL: Final = re.compile(r"\\[AbBdDsSwW]|\.[*+?]?(?:\{[\d,]+\})?\??|.[*?]|.\{[\d,]+\}\??|[$^]")


def word_of(pattern: str) -> str:
    """The longest text that each match of a pattern holds outside of its groups; empty: there is none."""
    rest, before = pattern, ""
    while rest != before:
        before, rest = rest, _GROUPED.sub("\n", rest)
    if "|" in rest:
        return ""
    words = _NO_LITERAL.sub("\n", rest).replace("\\", "").split("\n")
    return max(words, key=len)


def _rule(row: Row) -> Rule:
    return rule_of(row._replace(device=row.device or "GPU {device}"), word_of(row.pattern))


def _amd_rule(message: AmdgpuMessage) -> Rule:
    rule = _rule(_TABLE.sections[f"amdgpu_{message.kind.name}"]._replace(pattern=message.pattern))
    named = rule.named if "(?P<device>" in message.pattern else "an AMD GPU"
    return rule._replace(word=message.word, named=named)


RULES: Final = (
    *(rule for name, rule in rules("host").items() if name not in ("uncorrected", "out_of_memory", "hot")),
    *(*rules_of("devices", "pcie"), *rules_of("devices", "nic"), *rules("disks").values()),
    *map(_amd_rule, amdgpu_messages()),
    *(_rule(row) for row in _TABLE.rows if row.code),
)
"""All rules; of several that take one record the first counts."""
SUSPICIOUS, FAILING, BENIGN = (_TABLE.of(name)[0].regex for name in ("suspicious", "failing", "benign"))
STORM: Final = _TABLE.sections["corrected_storm"]
