"""A ring as text: the answer first, then what was measured."""

from __future__ import annotations

from collections.abc import Iterator

from laggard.model import Severity, Verdict
from laggard.rings.bandwidth import size_text
from laggard.rings.document import Ring, RingResult
from laggard.text.report import by_severity
from laggard.text.words import ascii_line, capital, counted


def render(ring: Ring) -> str:
    return "".join(f"{ascii_line(line)}\n" for line in _lines(ring))


def headline(ring: Ring) -> str:
    """The answer in one sentence."""
    serious = [found for found in by_severity(ring.findings) if found.severity is not Severity.INFO]
    if serious:
        more = f", and {counted(len(serious) - 1, 'more finding')}" if len(serious) > 1 else ""
        return f"{capital(serious[0].device)} {serious[0].summary} ({serious[0].code}{more})."
    if ring.verdict is Verdict.UNKNOWN:
        return f"Cannot tell: {ring.unknown}."
    if ring.pairs is not None:
        pairs = ring.pairs
        return (
            f"No slow node and no slow link among {counted(len(ring.nodes), 'node')}: "
            f"{pairs.links_measured} of {counted(pairs.links, 'link')} measured in {counted(pairs.rounds, 'round')}."
        )
    best = max((result.busbw_bytes_per_second for result in ring.results), default=0.0)
    return (
        f"All results right: {counted(ring.world_size, 'rank')} on {counted(len(ring.nodes), 'node')} "
        f"by {ring.transport.get('backend')}, busbw up to {gigabytes(best)} GB/s."
    )


def gigabytes(per_second: float) -> str:
    return f"{per_second / 1e9:.3g}"


def _lines(ring: Ring) -> Iterator[str]:
    yield headline(ring)
    for found in by_severity(ring.findings):
        yield f"{found.severity.value} {found.code}: {found.device} {found.summary}"
        yield f"  What to do: {found.fix.text}"
        yield f"  More: laggard findings explain {found.code}"
    if ring.unknown and ring.findings:
        yield f"Not judged: {ring.unknown}"
    if ring.results:
        yield ""
        names = f"{'operation':<15}{'size':>7}{'time (us)':>12}{'p50':>11}{'p99':>11}{'algbw':>9}{'busbw':>9}  wrong"
        yield f"{names}   (GB/s)"
        yield from map(_row, ring.results)


def _row(result: RingResult) -> str:
    times = "".join(
        f"{seconds * 1e6:>{width}.1f}"
        for seconds, width in ((result.time_seconds, 12), (result.p50_seconds, 11), (result.p99_seconds, 11))
    )
    rates = "".join(f"{gigabytes(rate):>9}" for rate in (result.algbw_bytes_per_second, result.busbw_bytes_per_second))
    return f"{result.op:<15}{size_text(result.size_bytes):>7}{times}{rates}{result.wrong:>7}"
