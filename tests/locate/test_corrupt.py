"""The rank whose parameters differ from those of its replicas is named, where a majority says which one that is; nobody
else is."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs
from support.collectors import rank_row
from support.steps import step_table
from support.timings import job

from laggard.locate.describe import details, sentence
from laggard.locate.job_timings import JobTimings, NodeFindings, RankDigests, collected, digests, live_timings
from laggard.locate.partial_verdict import corrupt_ranks
from laggard.locate.verdict import locate
from laggard.model import Verdict
from laggard.rankfile.fact_names import DIGEST_SHARDED, DIGEST_SKIPPED, DIGESTS
from laggard.recording.reader import read_recording
from laggard.recording.writer import JobRecording
from laggard.wire import encode

STEPS = tuple(range(0, 200, 20))


def values(offset: int = 0, since: int = 1 << 30, steps: tuple[int, ...] = STEPS, by: int = 1) -> RankDigests:
    """The digests of a rank whose parameters are off by `by` from step `since` on; `offset` tells designs apart."""
    return RankDigests(20, {step: 1000 * offset + step + by * (step >= since) for step in steps})


def timings_of(*told: RankDigests | None, **changes: Any) -> JobTimings:
    return dataclasses.replace(job(len(told), 60, per_node=1), digests=told, **changes)


def test_the_rank_that_differs_from_most_is_named_with_the_step_and_what_to_do() -> None:
    found = {"n2": NodeFindings(("GPU_WRONG_RESULT", "GPU_THROTTLED"))}
    timings = timings_of(values(), values(), values(since=120), values(), findings_by_node=found)
    location = locate(timings)
    (culprit,) = location.culprits
    assert location.verdict is Verdict.FAIL
    assert (culprit.kind, culprit.ranks, culprit.node, culprit.since_step) == ("corrupt", (2,), "n2", 120)
    assert culprit.evidence == (
        "its parameters differ from 3 replicas since step 120",
        "at step 100 they were the same",
    )
    assert culprit.findings == ("GPU_WRONG_RESULT",)
    assert "laggard healthcheck --active" in culprit.advice and "GPU_WRONG_RESULT" in culprit.advice
    assert sentence(location) == (
        "Rank 2 on n2 computes other parameters than its replicas: they differ since step 120."
    )
    assert any("node reports GPU_WRONG_RESULT" in line for line in details(location))


def test_of_two_replicas_nobody_is_named() -> None:
    location = locate(timings_of(values(), values(since=40)))
    (note,) = (note for note in location.notes if note.kind == "corrupt_pair")
    assert location.verdict is Verdict.UNKNOWN and not location.culprits
    assert note.ranks == (0, 1) and note.text.startswith("corrupted: ranks 0-1 differ, which one is not known")
    assert "corrupted: ranks 0-1" in sentence(location)


def test_a_rank_that_never_agreed_is_not_compared() -> None:
    location = locate(timings_of(values(), values(), values(offset=1), values()))
    (note,) = (note for note in location.notes if note.kind == "digest_skipped")
    assert location.verdict is Verdict.OK and not location.culprits and note.ranks == (2,)


def test_shards_are_not_compared_and_that_is_said_once() -> None:
    sharded = RankDigests(1, {}, DIGEST_SHARDED)
    location = locate(timings_of(*[sharded] * 4))
    (note,) = (note for note in location.notes if note.kind == "digest_skipped")
    assert location.verdict is Verdict.OK and note.ranks == (0, 1, 2, 3) and "ZeRO-3" in note.text


def test_replicas_that_all_differ_from_each_other_are_no_fault() -> None:
    told = [values(since=40, by=each) for each in range(4)]
    location = locate(timings_of(*told))
    assert location.verdict is Verdict.OK and not location.culprits
    assert [note.kind for note in location.notes] == ["digest_skipped"]


def test_two_camps_are_told_and_nobody_is_named() -> None:
    location = locate(timings_of(*[values()] * 3, *[values(since=60)] * 2))
    assert location.verdict is Verdict.UNKNOWN and not location.culprits
    assert [note.kind for note in location.notes] == ["corrupt_pair"]


def test_ranks_of_other_places_are_never_compared() -> None:
    """Two tensor halves of three replicas each: their parameters differ, by design and from the first step on; or, with
    equal first parameters, from the second on."""
    halves = np.array([0, 1] * 3, np.int32)
    told = [values(), values(since=20)] * 3
    assert locate(timings_of(*told, replicas=halves)).verdict is Verdict.OK
    told[3] = values(since=60, by=2)
    assert locate(timings_of(*told, replicas=halves)).verdict is not Verdict.OK


def test_a_difference_that_the_next_update_ends_is_told_nevertheless() -> None:
    once = RankDigests(20, {step: step + (step == 120) for step in STEPS})
    (culprit,) = locate(timings_of(values(), once, values())).culprits
    assert culprit.since_step == 120 and culprit.evidence[-1] == "from step 140 on they are the same again"


def test_a_live_job_is_judged_by_the_facts_of_its_ranks_and_so_is_what_is_kept_of_it(tmp_path: Path) -> None:
    rows, tables = {}, {}
    for rank in range(4):
        pairs = [[step, f"{step + (rank == 3 and step >= 120):016x}"] for step in (0, 100, 120, 140)]
        facts = {DIGESTS: {"every": 20, "first": pairs[0], "last": pairs}}
        rows[rank] = structs.replace(rank_row(rank, world_size=4), facts=facts)
        tables[rank] = step_table([])
    asked = dict.fromkeys(rows, 0.0)
    live = live_timings("j", 4, tables, rows, {}, asked)
    assert [(it.kind, it.ranks, it.since_step) for it in locate(live).culprits] == [("corrupt", (3,), 120)]
    lines = JobRecording("j", rows, {}, {}, asked).lines()
    (tmp_path / "job.jsonl").write_bytes(b"\n".join(encode(line) for line in lines))
    assert read_recording([tmp_path / "job.jsonl"]).timings.digests == live.digests


def test_without_digests_nothing_is_said() -> None:
    assert corrupt_ranks(job(4, 60)) == corrupt_ranks(timings_of(None, None, None)) == ((), ())


def test_a_rank_that_is_a_step_ahead_is_no_fault() -> None:
    assert locate(timings_of(values(), values(steps=(*STEPS, 200)), values(steps=STEPS[:-1]))).verdict is Verdict.OK


def test_where_the_facts_hold_too_few_digests_the_step_is_the_latest_possible() -> None:
    kept = (0, 120, 140, 160)
    timings = timings_of(values(steps=kept), values(steps=kept), values(steps=kept, since=60))
    (culprit,) = locate(timings).culprits
    assert culprit.evidence[0] == "its parameters differ from 2 replicas since step 120 or before"


@given(
    count=st.integers(3, 12),
    bad=st.data(),
    since=st.sampled_from(STEPS[1:]),
    by=st.integers(1, (1 << 64) - 1),
)
def test_one_of_three_or_more_is_always_named(count: int, bad: st.DataObject, since: int, by: int) -> None:
    rank = bad.draw(st.integers(0, count - 1))
    told = [values(since=since, by=by) if each == rank else values() for each in range(count)]
    found = corrupt_ranks(timings_of(*told))
    assert [(it.ranks, it.since_step) for it in found.culprits] == [((rank,), since)] and not found.notes


@given(
    told=st.lists(
        st.none()
        | st.builds(
            lambda steps, value: collected(20, ((step, value) for step in steps)),
            st.sets(st.sampled_from(STEPS)),
            st.integers(0, 3),
        ),
        min_size=1,
        max_size=8,
    ),
    places=st.data(),
)
def test_who_never_changes_is_never_named(told: list[RankDigests | None], places: st.DataObject) -> None:
    """Each rank has one digest at all its steps: whoever agreed at first agrees for ever."""
    classes = np.array([places.draw(st.integers(0, 2)) for _ in told], np.int32)
    found = corrupt_ranks(timings_of(*told, replicas=classes))
    assert not found.culprits and all(note.kind == "digest_skipped" for note in found.notes)


@given(st.lists(st.lists(st.integers(0, 2), min_size=5, max_size=5), min_size=1, max_size=7))
def test_whoever_is_named_differs_from_a_majority_that_agrees(table: list[list[int]]) -> None:
    told = [RankDigests(1, dict(enumerate([9, *row]))) for row in table]
    for culprit in corrupt_ranks(timings_of(*told)).culprits:
        (rank,) = culprit.ranks
        columns = [[each.by_step[step] for each in told] for step in range(1, 6)]
        usual = [max(set(column), key=column.count) for column in columns]
        assert len(told) > 2 and any(
            column[rank] != most and 2 * column.count(most) > len(told)
            for column, most in zip(columns, usual, strict=True)
        )
        assert culprit.since_step is not None and told[rank].by_step[0] == 9


anything = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=17),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3),
)


@given(
    st.fixed_dictionaries(
        {
            DIGESTS: anything | st.fixed_dictionaries(dict.fromkeys(("every", "first", "last"), anything)),
            DIGEST_SKIPPED: anything,
        }
    )
)
def test_whatever_a_rank_says_is_read_or_left_out(facts: Mapping[str, Any]) -> None:
    found = digests(facts)
    assert found is None or all(0 <= value < 1 << 64 for value in found.by_step.values())


@pytest.mark.parametrize("value", ["", "12", "0" * 17, "g" * 16, "-" + "1" * 15, "０" * 16, 7])
def test_a_value_is_sixteen_hexadecimal_digits(value: object) -> None:
    assert digests({DIGESTS: {"every": 1, "first": [0, value]}}) is None
    assert digests({DIGESTS: {"every": 1, "first": [0, "00000000000000ff"]}}) == RankDigests(1, {0: 255})
