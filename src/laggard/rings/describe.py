"""A ring as text: the answer first, then what was measured."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from laggard.kit.parts import Line, Part, Table
from laggard.kit.words import ascii_line, capital, counted, printable_line
from laggard.model import Severity, Verdict
from laggard.rings.document import Ring, RingResult, Suspect
from laggard.rings.options import ELEMENT_BYTES, size_text
from laggard.wire.words import by_severity


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


# A ring in the columns of nccl-tests (src/common.cu, src/util.cu), for programs that read those. Pure.
#
# torch's all_reduce is in place, and its two others are not, so that each row has one half and `N/A` in the other.

_NOT_MEASURED = f"  {'N/A':>7}  {'N/A':>6}  {'N/A':>6}  {'N/A':>6}"


def render_nccl_tests(ring: Ring) -> str:
    return "".join(f"{line}\n" for line in _lines(ring))


def _lines(ring: Ring) -> Iterator[str]:
    yield f"# laggard ring: {ring.world_size} ranks, {ring.transport.get('backend', 'no backend')}"
    for node in ring.nodes:
        for rank in range(node.first_rank, node.first_rank + node.ranks):
            yield f"#  Rank {rank:2d} on {printable_line(node.node, 80):>10} {node.model}"
    for op in dict.fromkeys(result.op for result in ring.results):
        yield f"# {op}"
        yield "#"
        yield f"# {'':56}{'out-of-place':>22}{'in-place':>33}"
        names = f"{'size':>12}  {'count':>12}  {'type':>8}  {'redop':>6}  {'root':>6}"
        half = f"  {'time':>7}  {'algbw':>6}  {'busbw':>6}  {'#wrong':>6}"
        yield f"#{names[1:]}{half}{half}"
        units = f"{'(B)':>12}  {'(elements)':>12}  {'':>8}  {'':>6}  {'':>6}"
        half = f"  {'(us)':>7}  {'(GB/s)':>6}  {'(GB/s)':>6}  {'':>6}"
        yield f"#{units[1:]}{half}{half}".rstrip()
        yield from (_row(result, ring.world_size) for result in ring.results if result.op == op)
    for found in ring.findings:
        yield f"# {found.code}: {printable_line(found.device)} {printable_line(found.summary)}"
    if ring.unknown:
        yield f"# unknown: {printable_line(ring.unknown)}"
    wrong = sum(result.wrong for result in ring.results)
    yield f"# Out of bounds values : {wrong} {'OK' if not wrong and ring.verdict is not Verdict.FAIL else 'FAILED'}"
    mean = sum(result.busbw_bytes_per_second for result in ring.results) / max(1, len(ring.results))
    yield f"# Avg bus bandwidth    : {mean / 1e9:g}"


def _row(result: RingResult, ranks: int) -> str:
    whole = result.size_bytes // ELEMENT_BYTES
    count = whole if result.op == "all_reduce" else whole // ranks
    operator = "none" if result.op == "all_gather" else "sum"
    half = (
        f"  {_fit(result.time_seconds * 1e6, 7)}  {_fit(result.algbw_bytes_per_second / 1e9, 6)}"
        f"  {_fit(result.busbw_bytes_per_second / 1e9, 6)}  {result.wrong:>6g}"
    )
    halves = _NOT_MEASURED + half if result.op == "all_reduce" else half + _NOT_MEASURED
    return f"{result.size_bytes:>12}  {count:>12}  {'float':>8}  {operator:>6}  {-1:>6}{halves}"


def _fit(value: float, width: int) -> str:
    """A number with two decimals, or as many as fit (getFloatStr in util.cu)."""
    digits = next((digits for digits in (2, 1) if len(f"{value:.{digits}f}") <= width), 0)
    return f"{value:{width}.{digits}f}"
