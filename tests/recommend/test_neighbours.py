"""What neighbours' systems state, as formulas and rules."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from laggard.deepspeed_config import parse_config
from laggard.recommend.advice.recommend import recommend
from laggard.recommend.advice.rules.network_settings import mixed_groups, place
from laggard.recommend.advice.rules.small_messages import TwoLevels, best_speedup, is_latency_bound
from laggard.recommend.advice.situation import JobProfile, Situation

KINDS = {"a": "InfiniBand", "b": "Ethernet", "c": "InfiniBand", "d": "Ethernet"}


@settings(max_examples=50, deadline=None)
@given(st.dictionaries(st.text("abcdef", min_size=1), st.sampled_from(("IB", "RoCE", "TCP")), min_size=1, max_size=20))
def test_a_placement_never_alternates_between_kinds(kinds: dict[str, str]) -> None:
    placement = place(kinds)
    assert sorted(placement.hosts) == sorted(kinds)
    order = [kinds[host] for host in placement.hosts]
    changes = sum(first != second for first, second in zip(order, order[1:], strict=False))
    assert changes == len(set(kinds.values())) - 1 == len(placement.kinds) - 1


def test_groups_that_span_kinds_are_found_and_the_rest_left_alone() -> None:
    nodes = {0: "a", 1: "b", 2: "c", 3: "d", 4: "unknown"}
    assert mixed_groups([(0, 2), (1, 3), (0, 1), (0, 4)], nodes, KINDS) == ((0, 1),)


def test_a_job_on_two_kinds_gets_a_hostfile_unless_its_groups_are_pure() -> None:
    mixed = Situation(kind_of_node=KINDS)
    assert recommend(mixed).files["hostfile"] == "b\nd\na\nc\n"
    nodes = {0: "a", 1: "b", 2: "c", 3: "d"}
    assert not recommend(mixed._replace(node_of_rank=nodes, data_parallel_groups=((0, 2), (1, 3)))).items
    assert recommend(mixed._replace(node_of_rank=nodes, data_parallel_groups=((0, 1), (2, 3)))).items
    assert not recommend(Situation(kind_of_node={"a": "InfiniBand", "b": "InfiniBand"})).items


def test_the_published_regime_of_small_reductions() -> None:
    assert [is_latency_bound(size, 4) for size in (64e3, 128 << 10, 2 << 20, 3 << 20)] == [False, True, True, False]
    assert not is_latency_bound(1 << 20, 1)
    speedups = [best_speedup(size, TwoLevels(nodes, 4)) for size in (128 << 10, 1 << 20) for nodes in (4, 8, 16)]
    assert all(1.0 < speedup < 3.7 for speedup in speedups)
    assert best_speedup(1 << 30, TwoLevels(16, 4)) < 1.0  # large messages are NCCL's


def test_small_reductions_are_advised_on_where_they_cost() -> None:
    profile = JobProfile(1.0, exposed_share=0.4, collectives={"all_reduce": (64.0, 512e3)})
    job = Situation(profile=profile, nodes=4, ranks=16)
    (item,) = recommend(job).items
    assert item.key == "all-reduce of small messages" and item.gain.ratio is not None and item.gain.ratio > 1
    assert not recommend(job._replace(nodes=1)).items
    assert not recommend(job._replace(profile=profile._replace(exposed_share=0.01))).items
    assert not recommend(job._replace(profile=profile._replace(collectives={"all_reduce": (2.0, 512e6)}))).items


def test_layered_accumulation_is_an_option_of_stage_3_that_communicates() -> None:
    config = {"gradient_accumulation_steps": 8, "zero_optimization": {"stage": 3}}
    job = Situation(deepspeed=parse_config(config), profile=JobProfile(1.0, exposed_share=0.5))
    item = next(item for item in recommend(job).items if item.key == "layered accumulation")
    assert item.gain.high == pytest.approx(1 / (1 - 0.5 * 7 / 8))
