"""The measurements of the ranks, put together as results of the whole ring. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from laggard.rings.bandwidth import bus_factor
from laggard.rings.document import RingResult
from laggard.rings.messages import Measured


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
