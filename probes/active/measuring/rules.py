"""What measured rates and checked results say about the devices of a node: pure functions.

A result that is not exactly right is critical whatever the rate. A rate is compared with what the profile expects, else
with the median of the other devices of the same kind; with neither it is not judged, and the probe says so.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

from laggard.model import Finding, Severity
from laggard.probes.errors import Unknown
from laggard.probes.probe import Thresholds, finding

EMULATED = "CPU, standing for a device"
"""The kind of what is no GPU."""


class ActiveThresholds(Thresholds, frozen=True):
    """Of one active probe."""

    device: Literal["cuda", "cpu"] = "cuda"
    """`cpu` tries the probe itself on a machine without GPUs: the CPU stands for several devices, run by run."""

    seconds: float = 0.5
    """How long each device is measured, after a warm-up."""

    slow_ratio: float = 0.85
    """Of the expected rate: below, a finding. Healthy GPUs of one model differ by 8 % on average in matrix
    multiplication (Sinha et al., SC22), so that 10 % would accuse sound ones."""

    critical_ratio: float = 0.7
    """Below, it is critical: the largest difference that they saw in a cluster without a defect is 22 %, and their
    outliers are 1.5 times slower than the median."""

    expected_per_second: float = 0.0
    """What a device of this cluster does, in the probe's unit; 0: not known, its peers are the measure."""


class Measured(NamedTuple):
    """One device: `kind` tells its peers, `wrong` of the `checked` values of the result were not what they must be."""

    device: str
    kind: str
    per_second: float
    checked: int
    wrong: int


class Subject(NamedTuple):
    """What was measured: `does` completes "the device ... 7.1e14 flop/s"."""

    code: str
    does: str
    unit: str
    fix: str
    commands: tuple[str, ...]


_FIX_WRONG = (
    "Take the GPU out of service at once: results are wrong without any error. Run NVIDIA's field diagnostics "
    "(`dcgmi diag -r 4`) and return the board if it fails again."
)


def judge(
    measured: Sequence[Measured], silent: Sequence[str], subject: Subject, thresholds: ActiveThresholds
) -> Iterator[Finding]:
    """The findings. Raises Unknown at the end where a device was not measured (`silent` says why), or where its rate
    had nothing to be compared with."""
    for each in measured:
        if each.wrong:
            yield _wrong(each, subject)
    alone: list[str] = []
    for each in measured:
        expected, whose = _expected(each, measured, thresholds)
        if expected is None:
            alone.append(f"{each.device} ({each.per_second:.3g} {subject.unit})")
        elif each.per_second < thresholds.slow_ratio * expected:
            yield _slow(each, expected, whose, subject, thresholds)
    if alone:
        text = f"no peer, and no expected_per_second in the profile, to judge the rate by: {', '.join(alone)}"
        silent = (*silent, text)
    if silent:
        raise Unknown("; ".join(silent))


def told(measured: Sequence[Measured], unit: str) -> dict[str, object]:
    """For the facts: always of the same form."""
    return {
        "unit": unit,
        "devices": {each.device: _told(each) for each in measured},
        "emulated": [each.device for each in measured if each.kind == EMULATED],
    }


def _told(each: Measured) -> dict[str, object]:
    rate = float(f"{each.per_second:.4g}")
    return {"kind": each.kind, "per_second": rate, "checked": each.checked, "wrong": each.wrong}


def median(values: Sequence[float]) -> float:
    """Of at least one value. (The standard library's module for it takes longer to import than the gate has.)"""
    ordered = sorted(values)
    return (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2


def _expected(each: Measured, measured: Sequence[Measured], thresholds: ActiveThresholds) -> tuple[float | None, str]:
    if thresholds.expected_per_second > 0:
        return thresholds.expected_per_second, "the profile"
    peers = [other.per_second for other in measured if other is not each and other.kind == each.kind]
    return (median(peers), f"the median of {len(peers)} peers") if peers else (None, "")


def _slow(each: Measured, expected: float, whose: str, subject: Subject, thresholds: ActiveThresholds) -> Finding:
    ratio = each.per_second / expected
    critical = ratio < thresholds.critical_ratio
    return finding(
        subject.code,
        each.device,
        f"{subject.does} {each.per_second:.3g} {subject.unit}, {ratio:.0%} of {whose}".replace("%", " %", 1),
        severity=Severity.CRITICAL if critical else Severity.WARNING,
        evidence={
            "measured_per_second": each.per_second,
            "expected_per_second": expected,
            "expected_from": whose,
            "unit": subject.unit,
            "ratio": round(ratio, 3),
            "slow_ratio": thresholds.slow_ratio,
        },
        fix=subject.fix,
        commands=subject.commands,
    )


def _wrong(each: Measured, subject: Subject) -> Finding:
    return finding(
        "GPU_WRONG_RESULT",
        each.device,
        f"{each.wrong} of {each.checked} values are wrong ({subject.does} test)",
        evidence={"wrong": each.wrong, "checked": each.checked, "test": subject.does, "reference": "exact integers"},
        fix=_FIX_WRONG,
        commands=("nvidia-smi -q -d ECC,ROW_REMAPPER", "dcgmi diag -r 4"),
    )
