"""Hung ranks from sends and receives, from the states of a job's ranks: the pure part, with every number chosen."""

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs
from support.timings import of_states

from laggard.locate.hang.hangs import HUNG_LATE_SECONDS, NOTHING_FOUND, PartialVerdict, hung_ranks
from laggard.locate.hang.wait_graph import ranks_in_cycles
from laggard.locate.job_timings import RankState
from laggard.rankfile.layout import LANE_COUNT
from laggard.wire.ranks import BeatRow, InFlight, LaneProgress

STEP = 0.1
PP = "pp:0-3"

Counts = Mapping[tuple[str, int], int]
"""How many of an operation with a peer a rank has entered."""


def stage(counts: Counts, inside: tuple[str, int] | None = None, seconds: float = 200.0, **changes: Any) -> RankState:
    """A rank that has entered so many sends and receives, and is inside the last of one of them."""
    values = {"age": 0.5, "state": "running", "stopped": False, "group": PP, **changes}
    lanes = tuple(
        LaneProgress(op, values["group"], count, count - ((op, peer) == inside), peer)
        for (op, peer), count in counts.items()
    )
    flight = InFlight(inside[0], values["group"], counts[inside], seconds, inside[1]) if inside else None
    return RankState(
        values["state"], 7, "forward", flight, values["stopped"], BeatRow(values["age"], 1.0, "off", lanes, ())
    )


def find_hung(*states: RankState, step: float | None = STEP) -> PartialVerdict:
    return hung_ranks(of_states(states, 8), step)


def late(found: PartialVerdict) -> list[int]:
    return [rank for note in found.notes if note.kind == "not_arrived" for rank in note.ranks]


def hung(found: PartialVerdict) -> list[int]:
    return [rank for culprit in found.culprits for rank in culprit.ranks]


def unknown(found: PartialVerdict) -> bool:
    """Whether the notes report waits and name nobody."""
    kinds = {note.kind for note in found.notes}
    return kinds == {"waiting"} and not found.culprits and "nobody is known to be missing" in found.notes[0].text


RECEIVES = stage({("recv", 1): 9}, ("recv", 1))
SENDS = stage({("send", 1): 9}, ("send", 1))


@pytest.mark.parametrize(("op", "other", "direction"), [("recv", "send", "from"), ("send", "recv", "to")])
def test_a_partner_that_has_not_come_is_noted_at_once_and_called_hung_after_minutes(
    op: str, other: str, direction: str
) -> None:
    def waited(seconds: float) -> PartialVerdict:
        return find_hung(stage({(op, 1): 9}, (op, 1), seconds), stage({(other, 0): 8}))

    assert waited(0.5) == NOTHING_FOUND
    assert late(waited(2.0)) == late(waited(HUNG_LATE_SECONDS + 1)) == [1]
    said = f"others have waited for it for 2.00 s in {op} of {PP} {direction} rank 1, number 9"
    assert waited(2.0).notes[0].text.endswith(said)
    assert hung(waited(HUNG_LATE_SECONDS - 1)) == [] and hung(waited(HUNG_LATE_SECONDS + 1)) == [1]
    assert waited(HUNG_LATE_SECONDS + 1).culprits[0].victims == (0,)


def test_both_ends_are_named_in_the_words_of_who_waits() -> None:
    notes = [note.text for note in find_hung(RECEIVES, stage({("send", 0): 8})).notes]
    assert notes == [
        "rank 1 on n0: it is in step 8, in forward; others have waited for it for 200 s in recv of pp:0-3 from rank 1, "
        "number 9",
        "rank 0 waits in recv of pp:0-3 from rank 1, number 9, for 200 s",
    ]


def test_a_partner_that_has_come_or_not_begun() -> None:
    assert unknown(find_hung(RECEIVES, stage({("send", 0): 9})))
    assert unknown(find_hung(RECEIVES, stage({("send", 0): 12})))  # it sends ahead
    first = stage({("recv", 1): 1}, ("recv", 1))
    assert late(find_hung(first, stage({}))) == [1]
    assert unknown(find_hung(first))  # nothing is known of 1


def test_groups_named_otherwise_on_both_sides_are_one_pair() -> None:
    assert late(find_hung(RECEIVES, stage({("send", 0): 8}, group="pp:0-1"))) == [1]
    assert unknown(find_hung(RECEIVES, stage({("send", 0): 9}, group="pp:0-1")))


def test_a_chain_ends_at_the_stage_that_computes() -> None:
    found = find_hung(
        stage({("send", 1): 9, ("recv", 1): 8}, ("recv", 1)),
        stage({("recv", 0): 9, ("send", 2): 9, ("send", 0): 7}, ("send", 2)),
        stage({("recv", 1): 8, ("send", 3): 8}),
        stage({("recv", 2): 9}, ("recv", 2)),
    )
    assert late(found) == [2] and hung(found) == [2] and found.culprits[0].victims == (0, 1, 3)


def test_a_chain_goes_on_through_a_stage_that_waits_for_less_long_so_far() -> None:
    def found(seconds: float) -> PartialVerdict:
        first = stage({("recv", 1): 5}, ("recv", 1), 21.0)
        middle = stage({("recv", 2): 5, ("send", 0): 4}, ("recv", 2), seconds)
        return find_hung(first, middle, stage({("send", 1): 4}), step=10.0)

    assert late(found(3.0)) == late(found(30.0)) == [2]
    assert late(found(0.1)) == [1]  # rank 1 does not wait yet


@pytest.mark.parametrize("last", [("send", 2), ("recv", 1)])
def test_a_batch_waits_for_the_message_whose_partner_is_missing(last: tuple[str, int]) -> None:
    """The live word is the last message of the batch, whichever that is."""
    batch = stage({("recv", 1): 5, ("send", 2): 5}, last)
    assert batch.beat is not None
    lanes = tuple(structs.replace(lane, done=4) for lane in batch.beat.lanes)
    batch = batch._replace(beat=structs.replace(batch.beat, lanes=lanes))
    found = find_hung(batch, stage({("send", 0): 4}), stage({("recv", 0): 5}))
    assert late(found) == [1] and "recv of pp:0-3 from rank 1, number 5" in found.notes[0].text
    assert "rank 0 waits in recv of pp:0-3 from rank 1, number 5" in found.notes[1].text
    assert unknown(find_hung(batch, stage({("send", 0): 5}), stage({("recv", 0): 5})))
    assert unknown(
        find_hung(batch, stage({("send", 0): 2}), stage({("recv", 0): 5}))
    )  # counts that contradict each other


def test_a_stopped_partner_is_hung_at_once() -> None:
    stopped = stage({("send", 0): 8}, stopped=True, age=2.0)
    found = find_hung(stage({("recv", 1): 9}, ("recv", 1), 1.1), stopped)
    assert hung(found) == [1] and "others have waited for it for 1.10 s in recv of pp:0-3" in found.notes[0].text


def test_a_silent_partner_is_waited_for_whatever_its_last_beat_counted() -> None:
    assert hung(find_hung(RECEIVES, stage({("send", 0): 3}, age=300.0))) == [1]


@pytest.mark.parametrize("other", ["unknown", "finished", "died"])
def test_a_partner_that_is_not_known_to_run_is_not_blamed(other: str) -> None:
    assert unknown(find_hung(RECEIVES, stage({("send", 0): 8}, state=other)))


@pytest.mark.parametrize(
    ("waiter", "partner", "why"),
    [
        (RECEIVES, {("send", 0): 3}, "nine less one were received, three were sent: it was restarted"),
        (SENDS, {("recv", 0): 3}, "the same of what was sent"),
        (SENDS, {("recv", 0): 4, ("recv", -1): 4}, "it receives from anybody, which may be from us"),
        (stage({("recv", -1): 9}, ("recv", -1)), {("send", 0): 8}, "we receive from anybody"),
        (RECEIVES, {("send", -1): 8}, "an agent that reports no peers"),
        (RECEIVES, {("send", peer): 9 for peer in range(2, LANE_COUNT + 2)}, "no room in its rank file for our pair"),
    ],
)
def test_counts_that_cannot_be_compared_accuse_nobody(waiter: RankState, partner: Counts, why: str) -> None:
    assert unknown(find_hung(waiter, stage(partner))), why


def test_counts_of_before_the_wait_accuse_nobody() -> None:
    waiter = stage({("recv", 1): 9}, ("recv", 1), 1.5)
    assert unknown(find_hung(waiter, stage({("send", 0): 8}, age=1.6)))
    assert late(find_hung(waiter, stage({("send", 0): 8}, age=1.4))) == [1]


def test_ranks_that_wait_for_one_another_are_a_deadlock_without_a_culprit() -> None:
    ring = [("recv", (rank + 1) % 3) for rank in range(3)]
    found = find_hung(*(stage({each: 1}, each) for each in ring), stage({}))
    assert not found.culprits and [note.kind for note in found.notes] == ["deadlock"] + 3 * ["waiting"]
    assert found.notes[0].text.startswith("ranks 0-2 wait for one another") and found.notes[0].ranks == (0, 1, 2)


def test_notes_name_only_a_few_of_thousands_of_pairs() -> None:
    """A thousand pipelines of two, each of which waits for its second stage."""
    pairs = (
        (stage({("recv", rank + 1): 9}, ("recv", rank + 1)), stage({("send", rank): 8})) for rank in range(0, 2000, 2)
    )
    found = find_hung(*(each for pair in pairs for each in pair))
    assert late(found) == hung(found) == list(range(1, 2000, 2))
    waiting = [note for note in found.notes if note.kind == "waiting"]
    assert len(waiting) < 50 and waiting[-1].text.startswith("ranks 64, 66, 68, 70 and 964 more wait in others, for up")
    assert {rank for culprit in found.culprits for rank in culprit.victims} <= set(range(0, 2000, 2))


def test_stages_that_do_not_wait_are_not_noted() -> None:
    assert find_hung(stage({("recv", 1): 9}, ("recv", 1), 0.05), stage({("send", 0): 8})) == NOTHING_FOUND


class Job(NamedTuple):
    """Messages (from, to) in an order in which they can pass, and the rank that stops before its `at`th of them.
    `buffered`: a send is over before anybody receives it; else each side waits for the other."""

    ranks: int
    messages: list[tuple[int, int]]
    stuck: int
    at: int
    buffered: bool


@st.composite
def jobs(draw: Callable[..., Any]) -> Job:
    ranks = draw(st.integers(2, 5))
    pair = st.lists(st.integers(0, ranks - 1), min_size=2, max_size=2, unique=True).map(tuple)
    messages = draw(st.lists(pair, max_size=30))
    return Job(ranks, messages, draw(st.integers(0, ranks - 1)), draw(st.integers(0, 12)), draw(st.booleans()))


def final_states(job: Job) -> list[tuple[Counter[tuple[str, int]], tuple[str, int] | None]]:
    """The ranks once nothing moves any more: the messages that each has entered, and the one that it is in."""
    to_do: list[list[tuple[str, int]]] = [[] for _ in range(job.ranks)]
    for source, to in job.messages:
        to_do[source].append(("send", to))
        to_do[to].append(("recv", source))
    del to_do[job.stuck][job.at :]
    entered: list[Counter[tuple[str, int]]] = [Counter(ops[:1]) for ops in to_do]

    def is_over(rank: int, op: str, peer: int) -> bool:
        met = entered[peer]["recv" if op == "send" else "send", rank] >= entered[rank][op, peer]
        return met or (job.buffered and op == "send")

    moved = True
    while moved:
        moved = False
        for rank, ops in enumerate(to_do):
            while ops and is_over(rank, *ops[0]):
                moved = True
                del ops[0]
                entered[rank].update(ops[:1])
    return [(count, ops[0] if ops else None) for count, ops in zip(entered, to_do, strict=True)]


@given(jobs(), st.lists(st.floats(0.6, 300.0), min_size=5, max_size=5))
def test_for_any_messages_only_the_stuck_rank_is_named(job: Job, times: list[float]) -> None:
    final = final_states(job)
    found = find_hung(*(stage(*each, seconds) for each, seconds in zip(final, times, strict=False)))
    waits = any(inside and seconds >= 1.0 for (_, inside), seconds in zip(final, times, strict=False))
    assert late(found) == ([job.stuck] if waits else []), (
        "the rank that has not come is named, a rank that waits is not"
    )
    assert set(hung(found)) <= {job.stuck}


KINDS = st.lists(st.sampled_from(("normal", "older", "restarted")), min_size=5, max_size=5)


@given(jobs(), KINDS, st.integers(1, 9))
def test_where_counts_are_wrong_or_missing_nobody_else_is_named(job: Job, kinds: list[str], lost: int) -> None:
    """Some agents are older and do not report peers; some ranks were restarted and count anew."""
    states = []
    for (counts, inside), kind in zip(final_states(job), kinds, strict=False):
        if kind == "restarted":
            counts = Counter({each: max(count - lost, int(each == inside)) for each, count in counts.items()})
        state = stage(counts, inside)
        states.append(_without_peers(state) if kind == "older" else state)
    assert set(late(find_hung(*states))) <= {job.stuck}


def _without_peers(state: RankState) -> RankState:
    assert state.beat is not None
    flight = state.in_flight and structs.replace(state.in_flight, peer=-1)
    lanes = tuple(structs.replace(lane, peer=-1) for lane in state.beat.lanes)
    return state._replace(in_flight=flight, beat=structs.replace(state.beat, lanes=lanes))


wait_graphs = st.dictionaries(st.integers(0, 7), st.sets(st.integers(0, 7), max_size=3), max_size=8)


@given(wait_graphs)
def test_ranks_in_cycles_are_those_on_cycles_and_between_them(waits_for: dict[int, set[int]]) -> None:
    def reachable(start: int) -> set[int]:
        seen: set[int] = set()
        ahead = list(waits_for.get(start, ()))
        while ahead:
            one = ahead.pop()
            if one in waits_for and one not in seen:
                seen.add(one)
                ahead += waits_for[one]
        return seen

    cycles = {one for one in waits_for if one in reachable(one)}
    before = {one for one in waits_for if reachable(one) & cycles}
    after = {other for one in cycles for other in reachable(one)}
    assert ranks_in_cycles(waits_for) == before & after
