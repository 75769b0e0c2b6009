"""Sizes, bandwidths and columns as nccl-tests has them."""

from __future__ import annotations

import pytest

from laggard.model import Verdict
from laggard.rings.describe import render_nccl_tests
from laggard.rings.document import Ring, RingNode
from laggard.rings.judge import measured, ring_result
from laggard.rings.options import bus_factor, counts, parse_size, size_text, sweep_sizes


@pytest.mark.parametrize(("text", "size"), [("8", 8), ("1K", 1024), ("64m", 64 << 20), ("2GiB", 2 << 30)])
def test_sizes_are_powers_of_1024(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "K", "-1", "1.5M", "1T", "9" * 20, "1K 2K"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="no size"):
        parse_size(text)


def test_sizes_are_written_as_they_are_read() -> None:
    for size in sweep_sizes(8, 1 << 30, 2):
        assert parse_size(size_text(size)) == size


def test_a_sweep_ends_at_its_largest_size() -> None:
    assert sweep_sizes(1024, 5000, 2) == (1024, 2048, 4096)
    assert sweep_sizes(1024, 1024, 4) == (1024,)


def test_bus_bandwidth_is_nccl_tests() -> None:
    """doc/PERFORMANCE.md: 2(n-1)/n for all_reduce, (n-1)/n for the two others."""
    assert bus_factor("all_reduce", 8) == 2 * 7 / 8
    assert bus_factor("all_gather", 8) == bus_factor("reduce_scatter", 8) == 7 / 8


def test_parts_are_rounded_down_to_16_bytes() -> None:
    """AllGatherGetCollByteCount in src/all_gather.cu."""
    assert counts("all_reduce", 1000, 3) == (250, 250)
    assert counts("all_gather", 1024, 3) == (84, 252)
    assert counts("reduce_scatter", 1024, 3) == (252, 84)
    assert counts("all_gather", 32, 3) == (0, 0)


def test_a_result_is_the_mean_of_the_ranks_and_the_sum_of_their_faults() -> None:
    reports = [measured("all_reduce", 1 << 20, seconds, wrong) for seconds, wrong in (((1e-3, 3e-3), 0), ((4e-3,), 5))]
    result = ring_result(reports, 2)
    assert result.time_seconds == pytest.approx(3e-3)
    assert result.algbw_bytes_per_second == pytest.approx((1 << 20) / 3e-3)
    assert result.busbw_bytes_per_second == pytest.approx(result.algbw_bytes_per_second)
    assert (result.wrong, result.iterations) == (5, 1)
    assert result.p99_seconds == pytest.approx(3.5e-3)


def test_the_columns_of_nccl_tests() -> None:
    """A program that splits rows finds size, count, type, redop, root, and two halves of time, algbw, busbw, #wrong."""
    results = tuple(
        ring_result([measured(op, 16 << 20, (0.01,), 0)] * 4, 4)
        for op in ("all_reduce", "all_gather", "reduce_scatter")
    )
    nodes = (RingNode(0, "n0", 0, 4, "CPU"),)
    text = render_nccl_tests(Ring(Verdict.OK, 4, {"backend": "gloo"}, nodes, results, ()))
    rows = [line.split() for line in text.splitlines() if not line.startswith("#")]
    assert [len(row) for row in rows] == [13, 13, 13]
    time, unmeasured = ["10000.0", "1.68"], ["N/A"] * 4
    assert rows[0] == ["16777216", "4194304", "float", "sum", "-1", *unmeasured, *time, "2.52", "0"]
    assert rows[1] == ["16777216", "1048576", "float", "none", "-1", *time, "1.26", "0", *unmeasured]
    assert rows[2] == ["16777216", "1048576", "float", "sum", "-1", *time, "1.26", "0", *unmeasured]
    assert "# Out of bounds values : 0 OK" in text
    assert "# Avg bus bandwidth    : 1.67772" in text
