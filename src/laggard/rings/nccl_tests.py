"""A ring in the columns of nccl-tests (src/common.cu, src/util.cu), for programs that read those. Pure.

torch's all_reduce is in place, and its two others are not, so that each row has one half and `N/A` in the other.
"""

from __future__ import annotations

from collections.abc import Iterator

from laggard.model import Verdict
from laggard.rings.bandwidth import ELEMENT_BYTES
from laggard.rings.document import Ring, RingResult
from laggard.text.words import printable_line

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
