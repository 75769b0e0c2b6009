"""Findings from what a ring measured: RING_FAILED, RING_SLOW, and what is wrong with the devices' computing. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple, TypeVar

from laggard.model import Finding, Severity
from laggard.probes.active.measuring.rates import ActiveThresholds
from laggard.probes.probe import finding
from laggard.rings.document import RingResult
from laggard.rings.messages import Computed, Measured
from laggard.rings.options import bus_factor

# The times that are too long among several, by the times themselves. Pure.
#
# The centre is the lower median: it is right while fewer than half are slow, and also where exactly half are, since a
# fault makes nothing faster. The limit is four robust standard deviations (1.4826 times the median absolute deviation
# of the logarithms, which is the standard deviation of a normal distribution), and at least what the active probes call
# slow: what differs less is no fault, however exactly it is measured.

K = TypeVar("K")

MIN_MEASURED: Final = 3
"""The least number of times: of fewer, none can be said to be the odd one."""
DEVIATIONS: Final = 4.0
_MAD_TO_SIGMA: Final = 1.4826
MIN_RATIO: Final = 1 / ActiveThresholds().slow_ratio
"""The least that a time is longer than the usual one where it is too long."""


class Centre(NamedTuple):
    """The usual: the typical time, and the time from which on one is too long."""

    seconds: float
    limit: float


def centre_of(seconds: Iterable[float], deviations: float = DEVIATIONS) -> Centre | None:
    """Returns None where there are too few finite times. `deviations`: of the limit; fewer where more evidence than
    one time follows."""
    logs = sorted(math.log(value) for value in seconds if 0 < value < math.inf)
    if len(logs) < MIN_MEASURED:
        return None
    middle = _lower_median(logs)
    sigma = _MAD_TO_SIGMA * _lower_median(sorted(abs(value - middle) for value in logs))
    return Centre(math.exp(middle), math.exp(middle + max(math.log(MIN_RATIO), deviations * sigma)))


def slow_outliers(seconds: Mapping[K, float]) -> dict[K, float]:
    """Returns whose time is too long, with how many times as long as the typical one it is."""
    centre = centre_of(seconds.values())
    if centre is None:
        return {}
    return {key: value / centre.seconds for key, value in seconds.items() if value > centre.limit}


def _lower_median(ordered: list[float]) -> float:
    return ordered[(len(ordered) - 1) // 2]


_LIMITS: Final = ActiveThresholds()
_BLUNT_RATIO: Final = 2.0
"""The slowness, relative to the others, below which a comparison has to tell a device apart: where only a slower one
would stand out, it says too little."""
_FIX_FAILED: Final = (
    "Keep jobs off the node, run `laggard healthcheck --active` on it, and find the one at fault with "
    "`laggard ring --pairs`."
)
_FIX_WRONG: Final = (
    "Keep jobs off these nodes: gradients that they add up are wrong without any error. Find the node or link with "
    "`laggard ring --pairs`; the faulty part is a GPU's memory, a NIC or a driver."
)
_FIX_COMPUTE: Final = (
    "Look for the cause on the node: throttling (GPU_THROTTLED, GPU_TOO_HOT), a power cap, locked clocks, another "
    "process, a CPU quota. `laggard healthcheck --active` measures it alone."
)
_FIX_DEVICE: Final = (
    "Take the device out of service at once: its results are wrong without any error. Run NVIDIA's field diagnostics "
    "(`dcgmi diag -r 4`) and return the board if it fails again."
)


def ring_failed(name: str, text: str, evidence: Mapping[str, object] | None = None) -> Finding:
    return finding("RING_FAILED", name, text, evidence=evidence or {}, fix=_FIX_FAILED)


def wrong_results(results: Sequence[RingResult], reports: Mapping[int, Sequence[Measured]]) -> list[Finding]:
    """One finding for each operation with wrong results. `reports`: those of each rank."""
    findings = []
    for op in dict.fromkeys(result.op for result in results):
        wrong = [result for result in results if result.op == op and result.wrong]
        if wrong:
            ranks = [rank for rank, own in reports.items() if any(each.wrong and each.op == op for each in own)]
            evidence = {"size_bytes": [result.size_bytes for result in wrong], "ranks_that_saw_it": ranks[:64]}
            text = f"gave {sum(result.wrong for result in wrong)} wrong elements in {len(wrong)} sizes"
            findings.append(finding("RING_FAILED", f"the ring's {op}", text, evidence=evidence, fix=_FIX_WRONG))
    return findings


def judge_compute(computed: Mapping[int, Computed], names: Mapping[int, str]) -> tuple[list[Finding], set[int], str]:
    """Judges the ranks' devices by each other. Returns findings, the ranks that are slow, and what was not judged."""
    findings = [_device_wrong(names[rank], each) for rank, each in computed.items() if each.wrong]
    errors = [f"{names[rank]} did not compute: {each.error}" for rank, each in computed.items() if each.error]
    seconds = {rank: 1 / each.per_second for rank, each in computed.items() if each.per_second > 0}
    slow = slow_outliers(seconds)
    rates = sorted(each.per_second for each in computed.values())
    typical = rates[len(rates) // 2] if rates else 0.0
    findings += [_device_slow(names[rank], computed[rank].per_second, typical) for rank in sorted(slow)]
    if len(seconds) < 3 and not errors:
        errors = [f"{len(seconds)} devices are too few to compare their computing speed"]
    if is_blunt(computed):
        centre = centre_of(seconds.values())
        times = centre.limit / centre.seconds if centre else 0.0
        errors.append(
            f"the devices' computing speeds differ so much that only one {times:.1f} times slower would stand out: "
            "measure again where nothing else runs"
        )
    return findings, set(slow), "; ".join(errors)


def is_blunt(computed: Mapping[int, Computed]) -> bool:
    """Whether the devices' speeds are so uneven that only one which is many times slower would stand out."""
    centre = centre_of(1 / each.per_second for each in computed.values() if each.per_second > 0)
    return centre is not None and centre.limit > _BLUNT_RATIO * centre.seconds


def severity_of_ratio(ratio: float) -> Severity:
    """The severity by the share of the expected rate that is reached, as for the active probes."""
    return Severity.CRITICAL if ratio < _LIMITS.critical_ratio else Severity.WARNING


def _device_slow(name: str, per_second: float, typical: float) -> Finding:
    ratio = per_second / typical
    return finding(
        "GPU_SLOW",
        name,
        f"multiplies matrices at {per_second:.3g} flop/s, {ratio:.0%} of the ring's median".replace("%", " %"),
        evidence={"per_second": per_second, "median_per_second": typical, "ratio": round(ratio, 3)},
        fix=_FIX_COMPUTE,
        severity=severity_of_ratio(ratio),
    )


def _device_wrong(name: str, each: Computed) -> Finding:
    text = f"computed {each.wrong} of {each.checked} values of a product wrong"
    evidence = {"wrong": each.wrong, "checked": each.checked}
    return finding("GPU_WRONG_RESULT", name, text, evidence=evidence, fix=_FIX_DEVICE)


def ring_result(reports: Sequence[Measured], ranks: int) -> RingResult:
    """Puts the reports of all ranks about one operation and size together."""
    one = reports[0]
    seconds = _mean(report.mean for report in reports)
    algbw = one.size_bytes / max(seconds, 1e-12)
    return RingResult(
        op=one.op,
        size_bytes=one.size_bytes,
        time_seconds=seconds,
        algbw_bytes_per_second=algbw,
        busbw_bytes_per_second=algbw * bus_factor(one.op, ranks),
        wrong=sum(report.wrong for report in reports),
        iterations=min(report.iterations for report in reports),
        min_seconds=_mean(report.best for report in reports),
        p50_seconds=_mean(report.p50 for report in reports),
        p95_seconds=_mean(report.p95 for report in reports),
        p99_seconds=_mean(report.p99 for report in reports),
        max_seconds=_mean(report.worst for report in reports),
    )


def percentile(ordered: Sequence[float], share: float) -> float:
    """Returns the smallest value that at least `share` of the `ordered` values do not exceed."""
    place = -(-len(ordered) * share // 1)
    return ordered[min(len(ordered), max(1, int(place))) - 1]


def measured(op: str, size_bytes: int, seconds: Sequence[float], wrong: int) -> Measured:
    """Makes one rank's report of its iterations' times, of which there is at least one."""
    ordered = sorted(seconds)
    return Measured(
        op=op,
        size_bytes=size_bytes,
        iterations=len(ordered),
        mean=_mean(ordered),
        best=ordered[0],
        p50=percentile(ordered, 0.5),
        p95=percentile(ordered, 0.95),
        p99=percentile(ordered, 0.99),
        worst=ordered[-1],
        wrong=wrong,
    )


def _mean(values: Iterable[float]) -> float:
    listed = list(values)
    return sum(listed) / len(listed)
