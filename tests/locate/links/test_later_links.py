"""Links that become slow in the run, or now and then, by what their transfers took before; and what only looks so."""

import dataclasses
from collections.abc import Collection

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.collective_rows import Row, collectives, of, only
from support.timings import job
from support.trained_groups import ACROSS, ALL, BEGIN, RING, trained

from laggard.kit.constants import PHASES
from laggard.locate.collectives import ProcessGroup
from laggard.locate.job_timings import JobTimings
from laggard.locate.links.raised import change_point
from laggard.locate.verdict import locate
from laggard.model import Culprit, Location, Verdict


def since_begin(step: int, members: tuple[int, ...]) -> float:
    return 0.04 if step >= BEGIN else 0.0


def no_culprit(location: Location) -> bool:
    return not location.culprits


def test_one_group_that_became_slow_lies_between_any_of_its_machines() -> None:
    (culprit,) = locate(trained([ALL], since_begin)).culprits
    assert (culprit.kind, culprit.persistence, culprit.since_step) == ("slow_link", "persistent", BEGIN)
    assert culprit.nodes == ("n0", "n1", "n2", "n3") and culprit.node is None and culprit.confidence <= 0.5
    assert culprit.recoverable_ratio == pytest.approx(0.04 / 0.37, abs=0.03)
    assert any(
        "transfers take 60 ms a step, 3.0 times as long as in the other steps" in line for line in culprit.evidence
    )


@pytest.mark.parametrize(("lost", "named"), [(0.1, True), (0.8, False)])
def test_a_few_lost_records_of_a_large_group_hide_no_transfer(lost: float, named: bool) -> None:
    """Where many are lost, whoever came last may be among them."""
    timings = trained([ALL], since_begin)
    kept = np.random.default_rng(3).random(len(of(timings).column)) >= lost
    location = locate(only(timings, kept))
    assert [culprit.kind for culprit in location.culprits] == ["slow_link"] * named
    assert [note.kind for note in location.notes] == ["slower_since"] * (not named)


def test_the_machine_that_all_slower_groups_share_is_named_where_equal_ones_are_as_before() -> None:
    timings = trained(RING, lambda step, members: since_begin(step, members) if 4 in members else 0.0)
    (culprit,) = locate(timings).culprits
    assert culprit.kind == "slow_link" and culprit.node == "n1"


def test_groups_over_the_same_machines_that_all_became_slow_are_told_together() -> None:
    (culprit,) = locate(trained(ACROSS, since_begin)).culprits
    assert culprit.kind == "slow_link" and culprit.ranks == ALL and culprit.group is None
    assert any("all 4 slow channels go through a way among the machines" in line for line in culprit.evidence)


def test_a_slow_link_that_comes_and_goes_is_intermittent() -> None:
    bursts = {10, 11, 12, 30, 31, 50, 51, 52}
    (culprit,) = locate(trained([ALL], lambda step, _: 0.08 if step in bursts else 0.0)).culprits
    assert (culprit.kind, culprit.persistence) == ("slow_link", "intermittent")
    assert any("8 of 58 steps are longer" in line for line in culprit.evidence)


@pytest.mark.parametrize("spell", [1, 3, 5])
def test_a_link_that_is_slow_for_half_of_the_time_is_named(spell: int) -> None:
    """The median step is then neither long nor short."""
    timings = trained(RING, lambda step, members: 0.08 if step // spell % 2 and 4 in members else 0.0)
    (culprit,) = locate(timings).culprits
    assert (culprit.kind, culprit.node) == ("slow_link", "n1")


@pytest.mark.parametrize("seed", range(20))
def test_steps_of_uneven_length_are_no_change(seed: int) -> None:
    generator = np.random.default_rng(seed)
    longer = generator.normal(0.1, 0.02, 64)
    assert locate(trained(RING, lambda step, _: float(longer[step]), seed=seed)).verdict is Verdict.OK


TWICE = {*range(8, 14), *range(40, 46)}
"""Steps of two spells, one in each half."""


def only_of_n1(seconds: float, steps: Collection[int]) -> JobTimings:
    """A job in which what goes through the adapter of rank 4, on machine n1, takes longer in these steps."""
    return trained(RING, lambda step, members: seconds if step in steps and 4 in members else 0.0)


def test_what_came_twice_accuses_one_machine_and_not_the_network_as_a_whole() -> None:
    """What goes between many machines may be anybody's traffic."""
    (culprit,) = locate(only_of_n1(0.08, TWICE)).culprits
    assert (culprit.kind, culprit.node, culprit.persistence) == ("slow_link", "n1", "intermittent")
    assert no_culprit(locate(trained([ALL], lambda step, _: 0.08 if step in TWICE else 0.0)))


def test_two_flaps_of_seconds_name_the_machine() -> None:
    (culprit,) = locate(only_of_n1(4.0, (10, 50))).culprits
    assert (culprit.kind, culprit.node) == ("slow_link", "n1")


def test_what_costs_little_accuses_nobody() -> None:
    assert locate(only_of_n1(0.08, (10, 11, 50, 51))).verdict is Verdict.OK


@pytest.mark.parametrize(
    ("first", "last"),
    [
        pytest.param(14, 52, id="most of the recording"),
        pytest.param(2, 50, id="from the first step on"),
        pytest.param(20, 35, id="a quarter of it"),
    ],
)
def test_a_link_that_was_slow_for_a_part_of_the_recording_is_named(first: int, last: int) -> None:
    (culprit,) = locate(only_of_n1(0.08, range(first, last + 1))).culprits
    assert (culprit.kind, culprit.node, culprit.since_step) == ("slow_link", "n1", max(4, first))
    assert any(f"steps are longer, from step {max(4, first)} to {last}" in line for line in culprit.evidence)


def test_once_is_a_moment() -> None:
    assert locate(trained([ALL], lambda step, _: 0.3 if step == 30 else 0.0)).verdict is Verdict.OK


def test_a_network_that_is_slower_as_a_whole_has_no_place() -> None:
    location = locate(trained(RING, since_begin))
    assert no_culprit(location) and location.verdict is Verdict.UNKNOWN
    assert [note.kind for note in location.notes] == ["slow_transfers"]
    assert "no place in the network explains which do" in location.notes[0].text


def test_longer_sequences_are_nobodys_fault() -> None:
    """Transfers beside more work take longer, too."""
    timings = trained([ALL], since_begin)
    timings.phase_seconds[BEGIN - 2 :, :, PHASES.index("forward")] += 0.1
    timings.step_seconds[BEGIN - 2 :] += 0.1
    location = locate(timings)
    assert location.verdict is Verdict.OK and not location.notes


def test_checkpoints_and_the_steps_after_them_are_no_slow_link() -> None:
    saved = (10, 25, 40, 55)
    timings = trained([ALL], lambda step, _: 0.1 if step in saved or step - 1 in saved else 0.0)
    timings.phase_seconds[np.array(saved) - 2, :, PHASES.index("checkpoint")] += 0.2
    timings.step_seconds[np.array(saved) - 2] += 0.2
    location = locate(timings)
    assert location.verdict is Verdict.OK and not location.notes


def test_more_bytes_take_longer_and_accuse_no_link() -> None:
    location = locate(trained([ALL], since_begin, size=3000))
    assert no_culprit(location) and [note.kind for note in location.notes] == ["slower_since"]


def test_a_warm_up_that_ends_is_no_change_for_the_worse() -> None:
    assert locate(trained([ALL], lambda step, _: 0.04 if step < BEGIN else 0.0)).verdict is Verdict.OK


def test_steps_that_became_longer_without_a_reason_are_told() -> None:
    timings = trained([ALL], since_begin)
    location = locate(dataclasses.replace(timings, collectives=None))
    assert no_culprit(location) and location.verdict is Verdict.OK
    (note,) = location.notes
    assert note.kind == "slower_since" and "steps are longer, since step 32" in note.text


def test_steps_that_are_longer_again_and_again_without_a_reason_are_told() -> None:
    timings = trained([ALL], lambda step, _: 0.05 if step % 4 == 3 else 0.0)
    location = locate(dataclasses.replace(timings, collectives=None))
    assert no_culprit(location) and location.verdict is Verdict.OK
    (note,) = location.notes
    assert note.kind == "slower_at_times" and "steps are longer, from step" in note.text


def test_a_rank_that_became_slow_is_accused_and_no_link() -> None:
    timings = trained([ALL], lambda step, _: 0.0)
    timings.phase_seconds[BEGIN - 2 :, 5, PHASES.index("forward")] += 0.05
    timings.step_seconds[BEGIN - 2 :] += 0.05
    assert [(each.kind, each.ranks) for each in locate(timings).culprits] == [("slow_compute", (5,))]


@given(seed=st.integers(0, 9999), begin=st.integers(12, 52))
@settings(max_examples=10, deadline=None)
def test_the_step_is_found_from_which_on_it_is_slow(seed: int, begin: int) -> None:
    (culprit,) = locate(trained([ALL], lambda step, _: 0.06 if step >= begin else 0.0, seed)).culprits
    assert culprit.since_step == begin


def test_few_steps_and_equal_ones_have_no_change() -> None:
    assert change_point(np.arange(15.0)) is None and change_point(np.ones(60)) is None
    assert change_point(np.repeat((1.0, 2.0), 30)) == 30


# Links that let a burst of messages through and hold up what follows, as a token bucket does.

STEPS = 60
PAIRS, MESSAGES, SECONDS, HELD_UP, BURST = 8, 6, 0.002, 0.016, 2
"""Of each step; a message takes SECONDS, and HELD_UP where BURST others went the same way before it."""


def pipeline(limited: frozenset[tuple[int, int]] = frozenset(), apart: float = 0.02, dense: int = 0) -> JobTimings:
    """Pairs of neighbouring machines, on clocks up to 1000 s apart, that send to each other `apart` seconds one after
    the other; the first `dense` pairs send all messages of a step at once, so that each waits for the one before it.
    From the first to the second of each of `limited` there is a token bucket."""
    generator = np.random.default_rng(0)
    offset = generator.uniform(-1000, 1000, 2 * PAIRS)
    rows: list[Row] = []
    for step, pair, back in np.ndindex(STEPS, PAIRS, 2):
        source, target = (2 * pair + back, 2 * pair + 1 - back)
        over = 0.0
        for number in range(MESSAGES):
            sent = 10.0 * step + 0.4 * back + (0.0 if pair < dense else apart * number)
            posted = max(over, 10.0 * step - 0.01)
            held_up = (source, target) in limited and number >= BURST
            over = max(sent, over) + (HELD_UP if held_up else SECONDS) * generator.normal(1, 0.02)
            for rank, peer, op, begin, waited in (
                (source, target, "send", sent, over - sent),
                (target, source, "recv", posted, over - posted),
            ):
                times = begin + offset[rank], over + offset[rank], waited
                rows.append(Row(rank, step + 2, 0, op, MESSAGES * step + number, *times, peer=peer))
    return job(2 * PAIRS, STEPS, per_node=1, collectives=collectives(rows, [ProcessGroup("pp", "pp", ())]))


def culprits(timings: JobTimings) -> list[Culprit]:
    return [each for each in locate(timings).culprits if each.kind == "slow_link"]


@pytest.mark.parametrize("ways", [[(4, 5)], [(5, 4)], [(4, 5), (5, 4)]])
@pytest.mark.parametrize("dense", [0, 2, 8])
def test_the_limited_link_is_named(ways: list[tuple[int, int]], dense: int) -> None:
    (culprit,) = culprits(pipeline(frozenset(ways), dense=dense))
    assert set(culprit.ranks) <= {4, 5} and (culprit.recoverable_ratio or 0.0) > 0.03


@pytest.mark.parametrize("dense", [0, 1, 4, 7, 8])
def test_messages_that_wait_for_those_before_them_accuse_nobody(dense: int) -> None:
    location = locate(pipeline(dense=dense))
    assert location.verdict is Verdict.OK and location.culprits == ()
