"""Judges the measured rates and checked results of the devices of a node. Pure.

A result that is not exactly right is critical at any rate. A rate is compared with what the profile expects, else with
the median of the other devices of the same model; with neither it is not judged, and the probe is unknown.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

from laggard.model import Finding, Severity
from laggard.probes.errors import Unknown
from laggard.probes.probe import NotNegative, Ratio, Thresholds, rules, say, section

EMULATED = "CPU, standing for a device"
"""The model of a device that is no GPU."""


class ActiveThresholds(Thresholds, frozen=True):
    """The thresholds that all active probes have."""

    device: Literal["cuda", "cpu"] = "cuda"
    """`cpu` tests the probe itself on a machine without GPUs: each of several runs on the CPU stands for a device."""

    seconds: NotNegative = 0.5
    """The time for which each device is measured after a warm-up."""

    slow_ratio: Ratio = 0.85
    """A smaller share of the expected rate is a finding. Healthy GPUs of one model differ by 8 % on average in matrix
    multiplication (Sinha et al., SC22), so that a limit of 10 % would accuse healthy ones."""

    critical_ratio: Ratio = 0.7
    """A smaller share is critical: the largest difference that Sinha et al. saw in a cluster without a defect is 22 %,
    and their outliers are 1.5 times slower than the median."""

    expected_per_second: NotNegative = 0.0
    """The rate of a device of this cluster, in the probe's unit; 0: devices are compared with their peers."""


class Measurement(NamedTuple):
    """The rate of one device. `wrong` of the `checked` values of its results were not right."""

    device: str
    model: str
    """Devices of one model are peers."""

    per_second: float
    checked: int
    wrong: int


class NotMeasured(NamedTuple):
    reason: str
    """Names the device."""

    device: str = ""
    fault: str = ""
    """The code of the finding where the device itself is at fault."""


class RateTest(NamedTuple):
    """The test of an active probe. `activity` completes "the device ... 7.1e14 flop/s"."""

    kind: str
    """The section of rules/gpu.ini for a device that is slow."""
    activity: str
    unit: str


def judge(
    measured: Sequence[Measurement], not_measured: Sequence[NotMeasured], test: RateTest, thresholds: ActiveThresholds
) -> Iterator[Finding]:
    """Yields findings, then raises Unknown where a device was not measured, or where its rate has no measure."""
    for each in measured:
        if each.wrong:
            yield _wrong(each, test)
    yield from (_stopped(each, test) for each in not_measured if each.fault)
    unjudged: list[str] = []
    for each in measured:
        expected, source = _expected(each, measured, thresholds)
        if expected is None:
            unjudged.append(f"{each.device} ({each.per_second:.3g} {test.unit})")
        elif each.per_second < thresholds.slow_ratio * expected:
            yield _slow(each, expected, source, test, thresholds)
    reasons = [each.reason for each in not_measured]
    if unjudged:
        reasons.append(
            f"no peer, and no expected_per_second in the profile, to judge the rate by: {', '.join(unjudged)}"
        )
    if reasons:
        raise Unknown("; ".join(reasons))


def fault_code(text: str) -> str:
    """Returns the code of the finding for an error of CUDA; empty where the GPU need not be at fault."""
    return next((row.code for row in rules("cuda") if row.pattern in text.lower()), "")


def facts_of(measured: Sequence[Measurement], unit: str) -> dict[str, object]:
    """Returns the measurements for the report's facts."""
    return {
        "unit": unit,
        "devices": {each.device: _fact_of(each) for each in measured},
        "emulated": [each.device for each in measured if each.model == EMULATED],
    }


def _fact_of(each: Measurement) -> dict[str, object]:
    rate = float(f"{each.per_second:.4g}")
    return {"kind": each.model, "per_second": rate, "checked": each.checked, "wrong": each.wrong}


def median(values: Sequence[float]) -> float:
    """Returns the median of at least one value. (The standard library's module takes too long to import.)"""
    ordered = sorted(values)
    return (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2


def _expected(
    each: Measurement, measured: Sequence[Measurement], thresholds: ActiveThresholds
) -> tuple[float | None, str]:
    if thresholds.expected_per_second > 0:
        return thresholds.expected_per_second, "the profile"
    peers = [other.per_second for other in measured if other is not each and other.model == each.model]
    return (median(peers), f"the median of {len(peers)} peers") if peers else (None, "")


def _slow(each: Measurement, expected: float, source: str, test: RateTest, thresholds: ActiveThresholds) -> Finding:
    ratio = each.per_second / expected
    severity = Severity.CRITICAL if ratio < thresholds.critical_ratio else Severity.WARNING
    evidence = {"ratio": round(ratio, 3), "expected_per_second": expected, "expected_from": source}
    told = f"{test.activity} {each.per_second:.3g} {test.unit}, {ratio:.0%} of {source}".replace("%", " %", 1)
    return say("gpu", test.kind, each.device, evidence, severity, told=told)


def _wrong(each: Measurement, test: RateTest) -> Finding:
    told = {"wrong": each.wrong, "checked": each.checked}
    evidence = {**told, "test": test.activity, "reference": "exact integers"}
    return say("gpu", "wrong", each.device, evidence, activity=test.activity, **told)


def _stopped(each: NotMeasured, test: RateTest) -> Finding:
    error = each.reason.removeprefix(f"{each.device}: ")
    words = section("gpu", "stopped")._replace(code=each.fault, device=each.device)
    return words.found({"error": error, "test": test.activity}, error=error)
