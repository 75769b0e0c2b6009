"""Slow adapters, ways and machines' links, from how long transfers take: without clocks, and without accusing ranks."""

import dataclasses
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.collective_rows import Row, changed, collectives, of, only
from support.timings import job

from laggard.kit.constants import PHASES
from laggard.locate.collectives import ProcessGroup
from laggard.locate.describe import culprit_text
from laggard.locate.job_timings import JobTimings
from laggard.locate.links import network
from laggard.locate.verdict import locate
from laggard.model import Culprit, Verdict

NODES, PER_NODE, STEPS = 8, 4, 20
RANKS = NODES * PER_NODE
TRANSFER = {"tp": 0.01, "dp": 0.02, "pp": 0.004}  # seconds

Slow = dict[frozenset[int] | int, float]
"""By which factor transfers through a rank's adapter take longer, or those between two ranks."""

FORWARD = PHASES.index("forward")


def groups() -> list[ProcessGroup]:
    """Tensor groups within machines; data-parallel groups of every second machine; pipelines of two machines."""
    tensor = [tuple(range(node * PER_NODE, (node + 1) * PER_NODE)) for node in range(NODES)]
    data = [
        tuple(range(stage * PER_NODE + local, RANKS, 2 * PER_NODE)) for stage in (0, 1) for local in range(PER_NODE)
    ]
    pairs = [(rank, rank + PER_NODE) for rank in range(RANKS) if rank // PER_NODE % 2 == 0]
    return [
        ProcessGroup(f"{role}:{number}", role, members)
        for role, of_role in (("tp", tensor), ("dp", data), ("pp", pairs))
        for number, members in enumerate(of_role)
    ]


def factor(members: tuple[int, ...], slow: Slow) -> float:
    crosses = len({rank // PER_NODE for rank in members}) > 1
    found = [1.0]
    for place, by in slow.items():
        within = isinstance(place, frozenset) and place <= set(members)
        if within or (isinstance(place, int) and crosses and place in members):
            found.append(by)
    return max(found)


def recorded(
    slow: Slow | None = None, seed: int = 0, in_node: tuple[int, float] = (0, 1.0), routed: bool = False, **options: Any
) -> JobTimings:
    """A job whose ranks arrive at each collective up to 50 ms apart, on clocks that are off by up to 1000 s. `routed`:
    how many bytes each transfers is by chance, as of a router's tokens."""
    generator = np.random.default_rng(seed)
    offset = generator.uniform(-1000, 1000, RANKS)
    known = groups()
    rows: list[Row] = []
    for step in range(STEPS):
        for number, group in enumerate(known):
            by = factor(group.ranks, slow or {})
            if group.role == "tp" and group.ranks[0] // PER_NODE == in_node[0]:
                by = in_node[1]
            size = int(1e6 * generator.uniform(0.7, 1.4)) if routed else 10**6
            seconds = TRANSFER[group.role] * by * generator.normal(1, 0.02) * size / 1e6
            arrival = 10.0 * step + generator.uniform(0, 0.05, len(group.ranks))
            for place, rank in enumerate(group.ranks):
                op, peer = "all_reduce", -1
                if group.role == "pp":
                    op, peer = ("send", "recv")[place], group.ranks[1 - place]
                times = arrival[place] + offset[rank], arrival.max() + seconds + offset[rank]
                rows.append(Row(rank, step + 2, number, op, step, *times, peer=peer, size=size))
    positions = (np.arange(RANKS) // PER_NODE % 2).astype(np.int32)
    return job(RANKS, STEPS, per_node=PER_NODE, positions=positions, collectives=collectives(rows, known), **options)


def culprits(timings: JobTimings) -> tuple[Culprit, ...]:
    return locate(timings).culprits


@given(seed=st.integers(0, 9999), rank=st.integers(0, RANKS - 1))
@settings(max_examples=20, deadline=None)
def test_a_slow_adapter_is_where_slow_groups_and_pairs_meet(seed: int, rank: int) -> None:
    (culprit,) = culprits(recorded({rank: 2.5}, seed))
    assert (culprit.kind, culprit.ranks, culprit.node) == ("slow_link", (rank,), f"n{rank // PER_NODE}")
    assert culprit.phase == "collective" and culprit.slowdown_ratio == pytest.approx(2.5, rel=0.1)
    assert any(f"the network adapter of rank {rank}" in line for line in culprit.evidence)


@given(seed=st.integers(0, 9999), slow=st.none() | st.integers(0, RANKS - 1))
@settings(max_examples=20, deadline=None)
def test_transfers_of_which_no_two_are_of_one_size_are_compared_by_their_bytes(seed: int, slow: int | None) -> None:
    found = culprits(recorded({} if slow is None else {slow: 2.5}, seed, routed=True))
    assert [each.ranks for each in found] == ([] if slow is None else [(slow,)])


def test_a_slow_way_between_two_ranks_is_named_by_its_ends() -> None:
    (culprit,) = culprits(recorded({frozenset((0, 4)): 4.0}))
    assert culprit.kind == "slow_link" and culprit.ranks == (0, 4)
    assert culprit.link == ({"node": "n0"}, {"node": "n1"})


def test_the_links_within_a_machine_are_told_from_its_adapters() -> None:
    with_gpus = tuple(f"GPU-{rank}" for rank in range(RANKS))
    (culprit,) = culprits(dataclasses.replace(recorded(in_node=(3, 3.0)), gpus=with_gpus))
    assert (culprit.kind, culprit.node, culprit.ranks) == ("slow_link", "n3", (12, 13, 14, 15))
    assert culprit.link == ({"node": "n3"}, {"node": "n3"})
    assert culprit_text(culprit) == "the links within n3 (ranks 12-15) are slow"
    assert "NVLink" in culprit.advice and "switch" not in culprit.advice and "laggard ring" not in culprit.advice


def of_stages(slow: Slow) -> JobTimings:
    """The job, of which the pipeline's stages are known."""
    return dataclasses.replace(recorded(slow), stages=(np.arange(RANKS) // PER_NODE % 2).astype(np.int32))


@pytest.mark.parametrize(("factor", "verdict"), [(1.7, Verdict.OK), (4.0, Verdict.FAIL)])
def test_a_stage_whose_schedule_makes_it_wait_is_no_slow_link(factor: float, verdict: Verdict) -> None:
    """All groups of the second stage take longer: kinds of work differ, each by its schedule."""
    last = {frozenset((PER_NODE + local, 3 * PER_NODE + local)): factor for local in range(PER_NODE)}
    assert locate(of_stages(last)).verdict is verdict


def test_within_a_stage_a_little_tells() -> None:
    (culprit,) = culprits(of_stages({5: 1.5}))
    assert culprit.ranks == (5,)


def test_ranks_of_one_machine_without_gpus_have_no_links() -> None:
    assert culprits(recorded(in_node=(3, 3.0))) == ()


def test_where_one_group_alone_is_slow_any_of_its_members_may_be_the_place() -> None:
    timings = recorded()
    whole = of(timings)
    slow = (whole.group == NODES + 1) & (whole.peer < 0)
    (culprit,) = culprits(changed(timings, end=np.where(slow, whole.end + 0.05, whole.end)))
    assert culprit.ranks == whole.groups[NODES + 1].ranks and culprit.group == "dp:1"
    assert culprit.node is None and culprit.confidence <= 0.5
    assert culprit.nodes == tuple(f"n{rank // PER_NODE}" for rank in culprit.ranks)


@given(seed=st.integers(0, 9999))
@settings(max_examples=20, deadline=None)
def test_even_networks_accuse_nothing_and_slow_ranks_no_link(seed: int) -> None:
    assert locate(recorded(seed=seed)).verdict is Verdict.OK
    (culprit,) = culprits(_slow_rank(seed))
    assert (culprit.kind, culprit.ranks) == ("slow_compute", (7,))


def _slow_rank(seed: int) -> JobTimings:
    timings = recorded(seed=seed)
    timings.phase_seconds[:, 7, 1] += 0.06
    return timings


def test_who_costs_most_is_named_first() -> None:
    timings = recorded({2: 40.0})
    timings.phase_seconds[:, 9, 1] += 0.03
    timings.step_seconds[:] += 0.03
    found = culprits(timings)
    assert [(each.kind, each.ranks) for each in found] == [("slow_link", (2,)), ("slow_compute", (9,))]
    saved = [each.recoverable_ratio or 0.0 for each in found]
    assert saved[0] > saved[1] > 0


@pytest.mark.parametrize(("saved", "named"), [(0.0, 0), (0.009, 0), (0.011, 1), (None, 1)])
def test_a_slow_adapter_that_holds_nobody_up_is_no_culprit(
    monkeypatch: pytest.MonkeyPatch, saved: float | None, named: int
) -> None:
    """The payoff stands in for a replay: of one in which the slow transfers queue behind others, of one without."""
    monkeypatch.setattr(network, "replayed", lambda *_: saved)
    assert len(culprits(recorded({2: 2.5}))) == named


@pytest.mark.parametrize(("ahead", "named"), [(0.0, [("slow_link", (0, 1, 2, 3))]), (0.3, [])])
def test_who_is_ahead_of_the_peers_waits_for_them_in_what_stands_behind_their_collectives(
    ahead: float, named: list[tuple[str, tuple[int, ...]]]
) -> None:
    timings = recorded(in_node=(0, 20.0), gpus=tuple(f"GPU-{rank}" for rank in range(RANKS)))
    timings.phase_seconds[:, PER_NODE:, FORWARD] += ahead
    timings.waited_seconds[:, :PER_NODE] += ahead
    timings.step_seconds[:] += ahead
    assert [(each.kind, each.ranks) for each in culprits(timings)] == named


def test_congestion_that_all_share_accuses_nothing() -> None:
    timings = recorded()
    congested = np.where(of(timings).step % 3 == 0, 0.02, 0.0)
    assert culprits(changed(timings, end=of(timings).end + congested)) == ()


def test_a_collective_of_which_a_member_is_not_seen_is_no_transfer() -> None:
    """The one that is not seen may have come last: then all others waited, and none of them shows the transfer."""
    timings = recorded()
    whole = of(timings)
    late = (whole.group == NODES) & (whole.column == whole.groups[NODES].ranks[-1])
    waited = np.where((whole.group == NODES) & ~late, 0.5, 0.0)
    assert culprits(only(changed(timings, end=whole.end + waited), ~late)) == ()


def pipeline(late: float = 0.0, busy: float = 0.0, slow: tuple[int, int] = (-1, -1), seed: int = 0) -> JobTimings:
    """Eight pairs of neighbouring machines that send to each other four times a step, on clocks up to 1000 s apart. The
    receives of every second pair's first rank come `late` (its stage is slow); in the first pair senders are `busy`
    for so long after each send, and learn of its end only then. Transfers between the `slow` ranks take 8 times as
    long."""
    generator = np.random.default_rng(seed)
    offset = generator.uniform(-1000, 1000, 2 * 8)
    rows: list[Row] = []
    for step, pair, number in np.ndindex(STEPS, 8, 4):
        for source, target in ((2 * pair, 2 * pair + 1), (2 * pair + 1, 2 * pair)):
            seconds = 0.002 * (8.0 if {source, target} == set(slow) else 1.0) * generator.normal(1, 0.02)
            sent = 10.0 * step + 0.3 * number + 0.02
            posted = sent - generator.uniform(0.002, 0.01)
            if pair % 2 == 0 and number and target == 2 * pair:
                posted = sent + late
            over = max(sent, posted) + seconds
            learnt = max(over, sent + busy) if pair == 0 else over
            blocked = over - sent if learnt == over else 0.0
            for rank, peer, op, begin, end, waited in (
                (source, target, "send", sent, learnt, blocked),
                (target, source, "recv", posted, over, over - posted),
            ):
                times = begin + offset[rank], end + offset[rank], waited
                rows.append(Row(rank, step + 2, 0, op, 4 * step + number, *times, peer=peer))
    return job(16, STEPS, per_node=1, collectives=collectives(rows, [ProcessGroup("pp", "pp", ())]))


@pytest.mark.parametrize(("late", "busy"), [(0.0, 0.0), (0.04, 0.0), (0.0, 0.05), (0.04, 0.05)])
def test_neither_a_slow_stage_nor_a_busy_sender_is_a_slow_link(late: float, busy: float) -> None:
    assert not [each for each in culprits(pipeline(late, busy)) if each.kind == "slow_link"]


@pytest.mark.parametrize(("late", "busy"), [(0.0, 0.0), (0.04, 0.0), (0.0, 0.05), (0.04, 0.05)])
@pytest.mark.parametrize("slow", [(0, 1), (4, 5)])
def test_a_slow_link_is_found_beside_a_slow_stage_and_a_busy_sender(
    late: float, busy: float, slow: tuple[int, int]
) -> None:
    found = [each for each in culprits(pipeline(late, busy, slow)) if each.kind == "slow_link"]
    assert [each.ranks for each in found] == [slow]


def beside_work(blocked: float) -> JobTimings:
    """A job whose tensor groups send beside work, for 0.4 s of each collective: of the machine n3 the ranks are blocked
    for `blocked` of it, the others for 0.01 s."""
    timings = recorded()
    timings = dataclasses.replace(timings, gpus=tuple(f"GPU-{rank}" for rank in range(RANKS)))
    whole = of(timings)
    within = np.array([group.role == "tp" for group in whole.groups])[whole.group]
    there = within & (whole.column // PER_NODE == 3)
    noise = np.random.default_rng(1).normal(1, 0.02, len(within))
    waited = np.where(within, np.where(there, blocked, 0.01) * noise, np.nan)
    end = np.where(within, whole.start + 0.4 * noise, whole.end)
    return changed(timings, waited=waited, end=end)


def test_a_group_that_is_blocked_longer_by_transfers_beside_equal_work_has_slow_links() -> None:
    (culprit,) = culprits(beside_work(0.12))
    assert (culprit.kind, culprit.node, culprit.ranks) == ("slow_link", "n3", (12, 13, 14, 15))


@pytest.mark.parametrize(("blocked", "named"), [(0.12, True), (0.025, False)])
def test_of_two_groups_it_takes_more_to_tell(blocked: float, named: bool) -> None:
    timings = beside_work(blocked)
    whole = of(timings)
    within = np.array([group.role == "tp" for group in whole.groups])[whole.group]
    kept = ~within | np.isin(whole.column // PER_NODE, (2, 3))
    found = [it.ranks for it in culprits(only(timings, kept)) if it.kind == "slow_link"]
    assert found == [(12, 13, 14, 15)] * named


def test_who_is_hardly_blocked_longer_has_no_slow_links() -> None:
    assert not culprits(beside_work(0.012))


def test_the_way_between_two_machines_is_told_by_all_its_pairs() -> None:
    (culprit,) = culprits(recorded({frozenset((rank, rank + PER_NODE)): 30.0 for rank in range(PER_NODE)}))
    assert culprit.link == ({"node": "n0"}, {"node": "n1"}) and culprit.ranks == tuple(range(2 * PER_NODE))
