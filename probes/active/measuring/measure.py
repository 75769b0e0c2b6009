"""What every active probe does: measures each device, tells what it measured, and judges it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from laggard.model import Finding
from laggard.probes.active.measuring.devices import Device, measure_all
from laggard.probes.active.measuring.rules import ActiveThresholds, Measured, Subject, judge, told
from laggard.probes.host.host import Host
from laggard.probes.probe import Fact


def look(
    host: Host, thresholds: ActiveThresholds, subject: Subject, measure: Callable[[Any, Device], Measured]
) -> Iterator[Finding | Fact]:
    """`measure` takes torch and a device. Raises Unknown as measure_all() and judge() do."""
    measured, silent = measure_all(host, thresholds, measure)
    yield Fact("measured", told(measured, subject.unit))
    yield from judge(measured, silent, subject, thresholds)
