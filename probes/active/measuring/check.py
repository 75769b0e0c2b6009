"""The work of every active probe: it measures each device, reports the rates, and judges them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from laggard.model import Finding
from laggard.probes.active.measuring.devices import ComputeDevice, measure_all
from laggard.probes.active.measuring.rates import ActiveThresholds, Measurement, RateTest, facts_of, judge
from laggard.probes.host.host import Host
from laggard.probes.probe import Fact


def check_rates(
    host: Host, thresholds: ActiveThresholds, test: RateTest, measure: Callable[[Any, ComputeDevice], Measurement]
) -> Iterator[Finding | Fact]:
    """`measure` takes torch and a device. Raises Unknown as measure_all() and judge() do."""
    measured, not_measured = measure_all(host, thresholds, measure)
    yield Fact("measured", facts_of(measured, test.unit))
    yield from judge(measured, not_measured, test, thresholds)
