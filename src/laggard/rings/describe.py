"""A ring as text: the answer first, then what was measured."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from laggard.model import Severity, Verdict
from laggard.rings.bandwidth import size_text
from laggard.rings.document import Ring, RingResult, Suspect
from laggard.terminal.parts import Line, Part, Table
from laggard.text.report import by_severity
from laggard.text.words import ascii_line, capital, counted


def ring_parts(ring: Ring) -> list[Part]:
    return [part._replace(text=ascii_line(part.text)) if isinstance(part, Line) else part for part in _parts(ring)]


def headline(ring: Ring) -> str:
    """The answer in one sentence."""
    if ring.suspect is not None and ring.suspect.outcome != "confirmed":
        return suspect_text(ring.suspect)
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


def suspect_text(suspect: Suspect) -> str:
    """The judgement of a suspect in one sentence, with its figures."""
    figures = [
        f"{100 * ratio:.0f} % of their {what}"
        for what, ratio in (("rate", suspect.ratio), ("computing", suspect.compute_ratio))
        if ratio is not None
    ]
    told = f" ({', '.join(figures)})" if figures else ""
    head = (
        f"Cannot tell of {suspect.node}"
        if suspect.outcome == "unknown"
        else f"{suspect.node} is {suspect.outcome}{' as slow' if suspect.outcome == 'confirmed' else ''}"
    )
    return f"{head}: {suspect.why}{told}."


def gigabytes(per_second: float) -> str:
    return f"{per_second / 1e9:.3g}"


def _parts(ring: Ring) -> Iterator[Part]:
    yield Line(headline(ring), ring.verdict.value)
    for found in by_severity(ring.findings):
        yield Line(f"{found.severity.value} {found.code}: {found.device} {found.summary}", found.severity.value)
        yield Line(f"  What to do: {found.fix.text}")
        yield Line("  More:", command=f"laggard findings explain {found.code}")
    if ring.unknown and ring.findings:
        yield Line(f"Not judged: {ring.unknown}")
    if not ring.authenticated:
        yield Line("Nothing proves who took part: the nodes had no token (--token-file).")
    if ring.suspect is not None:
        yield from _swaps(ring)
    if ring.results:
        yield Line("")
        yield _table(ring.results)


def _swaps(ring: Ring) -> Iterator[Line]:
    """A line for each two nodes in their places, the suspect's first."""
    assert ring.suspect is not None
    names, own = {node.number: node.node for node in ring.nodes}, ring.suspect.number
    if ring.suspect.outcome == "confirmed":
        yield Line(suspect_text(ring.suspect))
    for swap in sorted(ring.suspect.swaps, key=lambda it: own not in (it.first, it.second)):
        rate = swap.busbw_bytes_per_second
        told = "failed" if rate is None else f"{rate / 1e6:.4g} MB/s"
        places = f"{names.get(swap.first)} first, {names.get(swap.second)} second"
        yield Line(f"  {places}: {told}, the best of {swap.times}")


def _table(results: Sequence[RingResult]) -> Table:
    first, *names = ("operation", "size", "time (us)", "p50", "p99", "algbw", "busbw", "wrong")
    rows = tuple(map(_cells, results))
    units = {"algbw": "algbw GB/s", "busbw": "busbw GB/s"}
    shown = (first, *(units.get(name, name) for name in names))
    return Table(shown, rows, right=frozenset(shown[1:]), spare=("p50", "p99", "algbw GB/s"))


def _cells(result: RingResult) -> tuple[str, ...]:
    times = (result.time_seconds, result.p50_seconds, result.p99_seconds)
    rates = (result.algbw_bytes_per_second, result.busbw_bytes_per_second)
    return (
        result.op,
        size_text(result.size_bytes),
        *(f"{seconds * 1e6:.1f}" for seconds in times),
        *map(gigabytes, rates),
        str(result.wrong),
    )
