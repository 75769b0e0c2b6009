"""Who is slow, by simulated times of pairs: one node, two, a link, nobody, with noise."""

import math
import random
from collections.abc import Mapping
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from laggard.rings.pairs.findings import PairsJudged, judge_measured
from laggard.rings.pairs.judge import Judgement, Pair, culprits_of, exploring_rounds, judge_pairs, next_round
from laggard.rings.pairs.rounds import PairsMeasured


class Found(NamedTuple):
    judgement: Judgement
    rounds: int
    pairs: list[list[Pair]]
    times: Mapping[Pair, tuple[float, ...]]


def find(
    nodes: int,
    slow_nodes: Mapping[int, float] | None = None,
    slow_links: Mapping[Pair, float] | None = None,
    noise: float = 0.02,
    seed: int = 0,
) -> Found:
    """Plays all rounds. A pair is as slow as the slowest of its nodes and its link; noise only makes times longer."""
    dice = random.Random(seed)
    times: dict[Pair, tuple[float, ...]] = {}
    played: list[list[Pair]] = []
    while pairs := next_round(range(nodes), times, judge_pairs(times), len(played)):
        for pair in pairs:
            parts = [(slow_nodes or {}).get(node, 1.0) for node in pair] + [(slow_links or {}).get(pair, 1.0)]
            seconds = 0.01 * max(parts) * math.exp(abs(dice.gauss(0, noise)))
            times[pair] = (*times.get(pair, ()), seconds)
        played.append(pairs)
        assert len(played) < 4 * nodes + 20, "the rounds do not end"
    return Found(judge_pairs(times), len(played), played, times)


def named(found: Found) -> tuple[set[int], set[Pair]]:
    assert not found.judgement.suspect_nodes and not found.judgement.suspect_links
    return set(found.judgement.slow_nodes), set(found.judgement.slow_links)


SIZES = st.sampled_from([3, 4, 5, 7, 8, 9, 16, 17, 33, 64])
SLOWER = st.floats(1.5, 100)
NOISE = st.sampled_from([0.0, 0.02, 0.05])


@settings(max_examples=25)
@given(SIZES, NOISE, st.integers(0, 1 << 30))
def test_a_healthy_ring_has_no_culprit(nodes: int, noise: float, seed: int) -> None:
    assert named(find(nodes, noise=noise, seed=seed)) == (set(), set())


@settings(max_examples=25)
@given(SIZES, NOISE, SLOWER, st.integers(0, 1 << 30))
def test_one_slow_node_is_named(nodes: int, noise: float, slower: float, seed: int) -> None:
    node = seed % nodes
    found = find(nodes, {node: slower}, noise=noise, seed=seed)
    assert named(found) == ({node}, set())
    assert found.judgement.slow_nodes[node] == pytest.approx(slower, rel=0.3)


@settings(max_examples=25)
@given(st.sampled_from([5, 8, 9, 16, 64]), NOISE, SLOWER, SLOWER, st.integers(0, 1 << 30))
def test_two_slow_nodes_are_named(nodes: int, noise: float, one: float, other: float, seed: int) -> None:
    first, second = random.Random(seed).sample(range(nodes), 2)
    assert named(find(nodes, {first: one, second: other}, noise=noise, seed=seed)) == ({first, second}, set())


@settings(max_examples=25)
@given(st.sampled_from([4, 5, 8, 9, 16, 17, 32]), NOISE, SLOWER, st.integers(0, 1 << 30))
def test_a_slow_link_between_good_nodes_is_told_from_a_slow_node(
    nodes: int, noise: float, slower: float, seed: int
) -> None:
    one, other = sorted(random.Random(seed).sample(range(nodes), 2))
    assert named(find(nodes, slow_links={(one, other): slower}, noise=noise, seed=seed)) == (set(), {(one, other)})


@settings(max_examples=12)
@given(st.sampled_from([8, 16]), st.integers(0, 1 << 30))
def test_a_slow_node_beside_a_slow_link(nodes: int, seed: int) -> None:
    node, one, other = random.Random(seed).sample(range(nodes), 3)
    link = (min(one, other), max(one, other))
    assert named(find(nodes, {node: 10.0}, {link: 5.0}, seed=seed)) == ({node}, {link})


def test_a_quarter_of_the_nodes_may_be_slow() -> None:
    for seed in range(20):
        slow = dict.fromkeys(random.Random(seed).sample(range(16), 4), 3.0)
        assert named(find(16, slow, seed=seed)) == (set(slow), set())


def test_a_node_and_a_link_that_fail_each_time_are_named() -> None:
    assert named(find(8, {3: math.inf})) == ({3}, set())
    assert named(find(8, slow_links={(2, 5): math.inf})) == (set(), {(2, 5)})


def test_two_nodes_have_nobody_to_be_compared_with() -> None:
    found = find(2, {1: 10.0})
    assert found.judgement.centre is None
    assert named(found) == (set(), set())


@settings(max_examples=20)
@given(SIZES, st.integers(0, 1 << 30))
def test_pairs_of_a_round_are_disjoint_and_all_links_of_few_nodes_are_measured(nodes: int, seed: int) -> None:
    found = find(nodes, {seed % nodes: 4.0}, noise=0.02, seed=seed)
    for pairs in found.pairs:
        members = [node for pair in pairs for node in pair]
        assert len(members) == len(set(members))
    if nodes <= 32:
        measured = {pair for pairs in found.pairs for pair in pairs}
        others = [node for node in range(nodes) if node != seed % nodes]
        assert measured >= {(one, other) for one in others for other in others if one < other}


@pytest.mark.parametrize("nodes", [64, 512])
def test_rounds_grow_as_the_logarithm(nodes: int) -> None:
    for faults in ({}, {nodes // 3: 8.0}, {1: 8.0, nodes - 1: 3.0}):
        found = find(nodes, faults)
        assert named(found) == (set(faults), set())
        assert found.rounds <= exploring_rounds(nodes) + 4 == 2 * math.log2(nodes) + 4


def test_a_healthy_ring_takes_no_more_rounds_than_a_tournament() -> None:
    assert [find(nodes, noise=0.0).rounds for nodes in (3, 8, 9, 16)] == [3, 7, 9, 15]


def test_culprits_of_wrong_results() -> None:
    assert culprits_of([(0, 3), (3, 5), (1, 2)]) == ((3,), ((1, 2),))
    assert culprits_of([]) == ((), ())


def name(node: int) -> str:
    return f"node {node}"


def judged(found: Found, slow_compute: set[int], wrong: Mapping[Pair, int] | None = None) -> PairsJudged:
    measured = PairsMeasured(found.times, wrong or {}, {}, found.rounds, (), {}, True)
    return judge_measured(measured, 8, 1 << 20, 2, slow_compute, True, name)


def test_findings_say_who_and_how_slow() -> None:
    result = judged(find(8, {3: 10.0}, {(1, 6): 2.0}, noise=0.0), set())
    node, link = result.findings
    assert (node.code, node.device, node.severity.value) == ("RING_SLOW", "node 3", "critical")
    assert "10 % of the ring's usual 105 MB/s" in node.summary
    assert node.evidence["ratio"] == pytest.approx(0.1)
    assert (link.code, link.device) == ("RING_SLOW", "the link between node 1 and node 6")
    assert (result.pairs.slow_nodes, result.pairs.slow_links, result.unknown) == ((3,), ((1, 6),), [])


def test_a_node_whose_cpu_is_slow_is_not_accused_for_its_pairs_too() -> None:
    result = judged(find(8, {3: 4.0}), {3})
    assert result.findings == [] and result.pairs.slow_compute == (3,)


def test_nor_are_its_links_where_it_was_fast_with_some_node() -> None:
    """A CPU with a quota is fast for a moment: its best time is usual, and its other pairs are slow each time."""
    found = find(8, slow_links={(1, 3): 1.3, (3, 5): 1.8})
    assert set(found.judgement.slow_links) == {(1, 3), (3, 5)}
    assert (judged(found, {3}).findings, judged(found, {3}).unknown) == ([], [])
    (left,) = judged(found, {1}).findings
    assert left.device == "the link between node 3 and node 5"
    once = find(8, noise=0.0)
    suspected = once._replace(times={**once.times, (3, 6): (0.02,)})
    assert judged(suspected, {3}).unknown == [] != judged(suspected, set()).unknown


def test_wrong_results_and_failures_name_node_or_link() -> None:
    result = judged(find(8), set(), {(0, 4): 3, (4, 5): 1, (1, 2): 9})
    assert [found.device for found in result.findings] == ["node 4", "the link between node 1 and node 2"]
    failed = judged(find(8, {2: math.inf}), set())
    assert [(found.code, found.device) for found in failed.findings] == [("RING_FAILED", "node 2")]
    row = next(row for row in failed.pairs.matrix if 2 in row.nodes)
    assert row.time_seconds is None and row.busbw_bytes_per_second is None
