"""A wrong result of a ring is seen, whatever is wrong with it: real gloo between two ranks, which are threads here."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from support.later import Later

from laggard.rings.judge import is_blunt, judge_compute, measured, ring_result, wrong_results
from laggard.rings.messages import Computed
from laggard.rings.worker.group import Group
from laggard.rings.worker.rank import Exchange

pytestmark = pytest.mark.torch
torch = Later("torch")
SIZE = 64 << 10
Damage = Callable[[Any], None]


@pytest.fixture(scope="module")
def groups() -> Iterator[list[Group]]:
    import torch.distributed as distributed

    store = distributed.HashStore()
    with ThreadPoolExecutor(2) as threads:
        made = threads.map(lambda place: Group(torch, "cpu", store, place, 2, 120.0, "127.0.0.1"), range(2))
        yield list(made)


def wrong_elements(groups: list[Group], op: str, damage: Damage | None = None) -> list[int]:
    """How many elements of each rank's result are wrong, where `damage` is done to that of rank 1."""

    def check(group: Group) -> int:
        exchange = Exchange(group, op, SIZE)
        healthy = exchange.run

        def run() -> None:
            healthy()
            if damage is not None and group.place == 1:
                damage(exchange._output)

        exchange.run = run  # type: ignore[method-assign]
        return exchange.check()

    with ThreadPoolExecutor(2) as threads:
        return list(threads.map(check, groups))


@pytest.mark.parametrize("op", ["all_reduce", "reduce_scatter", "all_gather"])
def test_right_results_have_nothing_wrong(op: str, groups: list[Group]) -> None:
    assert wrong_elements(groups, op) == [0, 0]


def flip(output: Any) -> None:
    output[7] += 1


def swap_chunks(output: Any) -> None:
    half = len(output) // 2
    output.copy_(torch.cat((output[half:], output[:half])))


def forget(output: Any) -> None:
    output[-100:] = 0


def not_a_number(output: Any) -> None:
    output[3] = float("nan")


@pytest.mark.parametrize("op", ["all_reduce", "reduce_scatter", "all_gather"])
@pytest.mark.parametrize(("damage", "least"), [(flip, 1), (swap_chunks, 1000), (forget, 90), (not_a_number, 1)])
def test_a_wrong_result_is_counted_by_who_has_it(op: str, damage: Damage, least: int, groups: list[Group]) -> None:
    healthy, damaged = wrong_elements(groups, op, damage)
    assert healthy == 0
    assert damaged >= least


def test_a_wrong_sum_fails_the_ring_with_its_sizes_and_ranks() -> None:
    reports = {rank: [measured("all_reduce", SIZE, (0.1,), 7 * (rank == 1))] for rank in range(2)}
    results = [ring_result([own[0] for own in reports.values()], 2)]
    (found,) = wrong_results(results, reports)
    assert (found.code, found.severity.value) == ("RING_FAILED", "critical")
    assert found.evidence == {"size_bytes": [SIZE], "ranks_that_saw_it": [1]}
    assert "7 wrong elements in 1 sizes" in found.summary


def computed(rate: float, wrong: int = 0) -> Computed:
    return Computed(rate, 100, wrong)


def test_a_device_that_computes_slowly_or_wrongly_is_named() -> None:
    ranks = {0: computed(1e9), 1: computed(0.3e9), 2: computed(1.02e9), 3: computed(1e9, wrong=4)}
    names = {rank: f"node {rank}" for rank in ranks}
    findings, slow, unknown = judge_compute(ranks, names)
    assert {(found.code, found.device) for found in findings} == {
        ("GPU_SLOW", "node 1"),
        ("GPU_WRONG_RESULT", "node 3"),
    }
    assert (slow, unknown) == ({1}, "")


def test_two_devices_are_too_few_to_compare() -> None:
    findings, slow, unknown = judge_compute({0: computed(1e9), 1: computed(1e8)}, {0: "a", 1: "b"})
    assert (findings, slow) == ([], set()) and "too few" in unknown


def test_devices_whose_speeds_vary_too_much_cannot_be_compared() -> None:
    rates = {0: 1e9, 1: 2.2e9, 2: 0.5e9, 3: 3e9, 4: 0.4e9}
    _, slow, unknown = judge_compute({rank: computed(rate) for rank, rate in rates.items()}, dict.fromkeys(rates, "a"))
    assert not slow and "times slower would stand out" in unknown


def test_speeds_that_are_too_uneven_to_compare_are_no_answer_yet() -> None:
    """A ring then measures all of them again, and not only those that look slow."""
    assert is_blunt({rank: computed(rate) for rank, rate in enumerate((1e9, 2.2e9, 0.5e9, 3e9, 0.4e9))})
    assert not is_blunt({rank: computed(rate) for rank, rate in enumerate((1e9, 1.02e9, 0.98e9, 1e9, 0.1e9))})
    assert not is_blunt({0: computed(1e9), 1: computed(1e8)})
