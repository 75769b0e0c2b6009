"""Corrected PCIe errors that come in storms: the kernel writes a few of them and counts those that it leaves out.

Source: Linux, drivers/pci/pcie/aer.c, whose lines are limited to ten in five seconds; lib/ratelimit.c.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator
from typing import Final

from laggard.diagnose.kernel.lines import LogLine
from laggard.model import Finding, Severity
from laggard.probes.probe import finding

_CORRECTED = re.compile(
    r"AER: (?:Multiple )?Correct(?:ed|able) error (?:message )?received(?: from|:) ([0-9a-f:.]{12})"
    r"|([0-9a-f:.]{12}): (?:AER: )?PCIe Bus Error: severity=Correct"
)
_LEFT_OUT = re.compile(r"\b(?:\w*aer\w*|pci_\w+|pcie_\w+): (\d{1,9}) callbacks suppressed")
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
        if "suppressed" in record.text and (found := _LEFT_OUT.search(record.text)) and self._device:
            self._count[self._device] += int(found[1])
            if int(found[1]) >= _STORM_LEFT_OUT:
                self._storms.add(self._device)
            return True
        found = _CORRECTED.search(record.text) if "Correct" in record.text else None
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
            yield finding(
                "PCIE_AER_ERRORS",
                device,
                f"a storm of corrected PCIe errors (AER): {self._count[device]} in this log",
                evidence={"count": self._count[device]},
                fix="Reseat the card or its riser; check the link's width and speed, and other cards in that slot.",
                commands=(f"lspci -vv -s {device}", f"dmesg -T | grep {device}"),
                severity=Severity.WARNING,
            )
