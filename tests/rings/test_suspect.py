"""Whether one node is slow, by simulated times of pairs in both places: it, a link, a peer, nobody, with noise."""

import math
import random
from collections.abc import Mapping

from hypothesis import given, settings
from hypothesis import strategies as st

from laggard.rings.pairs.judge import (
    MAX_TURNS,
    MIN_TURNS,
    Places,
    SuspectJudgement,
    judge_suspect,
    judgement_of,
    turn,
    without_places,
)
from laggard.rings.pairs.rounds import Computing, PairsMeasured, pairs_without_places, suspect_of

SUSPECT = 1
USUAL = Computing(1.0, False, 0, "")


def measure(
    slow: Mapping[int, float],
    links: Mapping[Places, float] | None = None,
    nodes: int = 4,
    noise: float = 0.02,
    seed: int = 0,
) -> tuple[SuspectJudgement, dict[Places, tuple[float, ...]]]:
    """Plays turns until it is decided. A pair is as slow as the slowest of its nodes and its link; noise only makes
    times longer."""
    dice = random.Random(seed)
    times: dict[Places, tuple[float, ...]] = {}
    judged = judge_suspect(SUSPECT, times)
    for number in range(MAX_TURNS):
        for places in turn(SUSPECT, range(nodes)):
            pair = (min(places), max(places))
            part = max(1.0, *(slow.get(node, 1.0) for node in places), (links or {}).get(pair, 1.0))
            times[places] = (*times.get(places, ()), 0.01 * part * math.exp(abs(dice.gauss(0, noise))))
        judged = judge_suspect(SUSPECT, times)
        if number + 1 >= MIN_TURNS and judged.outcome != "unknown":
            break
    return judged, times


NOISE = st.sampled_from([0.0, 0.02, 0.05])
SEED = st.integers(0, 1 << 30)
NODES = st.sampled_from([3, 4, 5])


@settings(max_examples=50)
@given(NODES, NOISE, SEED)
def test_an_innocent_node_is_acquitted(nodes: int, noise: float, seed: int) -> None:
    judged, _ = measure({}, nodes=nodes, noise=noise, seed=seed)
    assert judged.outcome == "acquitted" and judged.ratio is not None and judged.ratio < 1.18


@settings(max_examples=50)
@given(NODES, st.floats(1.6, 100), NOISE, SEED)
def test_a_slow_node_is_confirmed(nodes: int, slower: float, noise: float, seed: int) -> None:
    judged, times = measure({SUSPECT: slower}, nodes=nodes, noise=noise, seed=seed)
    assert judged.outcome == "confirmed", judged
    assert all(len(own) >= MIN_TURNS for own in times.values())
    assert (SUSPECT, 0) in times and (0, SUSPECT) in times


@settings(max_examples=50)
@given(st.floats(1.6, 100), NOISE, SEED)
def test_a_slow_link_or_a_slow_peer_is_not_the_suspects_fault(slower: float, noise: float, seed: int) -> None:
    of_link, _ = measure({}, {(0, SUSPECT): slower}, noise=noise, seed=seed)
    of_peer, _ = measure({0: slower}, noise=noise, seed=seed)
    assert (of_link.outcome, of_peer.outcome) == ("acquitted", "acquitted")
    assert "with 2 of 3 of them in both" in of_link.why


def test_with_three_peers_a_slow_one_hides_no_slow_suspect() -> None:
    judged, _ = measure({SUSPECT: 5.0, 0: 5.0})
    assert judged.outcome == "confirmed"


def test_a_node_that_fails_with_each_peer_is_confirmed_and_peers_that_fail_prove_nothing() -> None:
    judged, _ = measure({SUSPECT: math.inf})
    assert (judged.outcome, judged.ratio) == ("confirmed", math.inf)
    times = {(0, 2): (math.inf,), (2, 0): (math.inf,), (0, 1): (0.1,), (1, 0): (0.1,)}
    assert judge_suspect(SUSPECT, times).outcome == "unknown"


def test_slow_in_one_place_alone_or_measured_once_is_not_told() -> None:
    among = {(0, 2): (0.01, 0.01), (2, 0): (0.01, 0.01)}
    one_place = {**among, (0, 1): (0.1, 0.1), (1, 0): (0.01, 0.01), (1, 2): (0.01, 0.01), (2, 1): (0.1, 0.1)}
    assert judge_suspect(SUSPECT, one_place).why == "it was as fast as its peers in one place, and not in the other"
    once = {**among, (0, 1): (0.1,), (1, 0): (0.1,), (1, 2): (0.1,), (2, 1): (0.1,)}
    assert judge_suspect(SUSPECT, once).why == "it was slow so far, and measured too few times to be sure"
    one_peer = {**among, (0, 1): (0.1,) * 9, (1, 0): (0.1,) * 9}
    assert judge_suspect(SUSPECT, one_peer).outcome == "unknown"


def measured(times: Mapping[Places, tuple[float, ...]], wrong: Mapping[Places, int] | None = None) -> PairsMeasured:
    return PairsMeasured(times, wrong or {}, {}, len(times), (), {}, True)


def test_what_computes_slowly_or_wrongly_is_confirmed_whatever_it_exchanges() -> None:
    judged, times = measure({})
    slow = suspect_of(SUSPECT, "n1", measured(times), judged, Computing(0.4, True, 0, ""), 1 << 20, 2)
    assert (slow.outcome, slow.why) == ("confirmed", "it computes at 40 % of its peers' rate")
    wrong = suspect_of(SUSPECT, "n1", measured(times), judged, Computing(1.0, False, 3, ""), 1 << 20, 2)
    assert wrong.outcome == "confirmed"
    passed_on = measured(times, {(1, 0): 4, (2, 1): 4})
    assert suspect_of(SUSPECT, "n1", passed_on, judged, USUAL, 1 << 20, 2).why == "it gave wrong results"
    blunt = suspect_of(SUSPECT, "n1", measured(times), judged, Computing(1.0, False, 0, "too uneven"), 1 << 20, 2)
    assert (blunt.outcome, "could not be judged: too uneven" in blunt.why) == ("unknown", True)


def test_the_document_has_each_place_and_the_matrix_each_pair() -> None:
    judged, times = measure({SUSPECT: 2.0}, nodes=3)
    told = suspect_of(SUSPECT, "n1", measured(times), judged, USUAL, 1 << 20, 2)
    assert [(it.first, it.second) for it in told.swaps] == [(0, 1), (0, 2), (1, 0), (1, 2), (2, 0), (2, 1)]
    assert told.ratio is not None and 0.4 < told.ratio < 0.6
    pairs = pairs_without_places(measured(times)).times
    assert set(pairs) == {(0, 1), (0, 2), (1, 2)} and pairs == without_places(times)
    judgement = judgement_of(SUSPECT, [0, 1, 2], judged)
    assert set(judgement.slow_nodes) == {SUSPECT} and judgement.good == {0, 2}
