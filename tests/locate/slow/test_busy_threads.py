"""A rank whose own threads hold Python's lock is told so; threads that hold nobody up are not."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.timings import job

from laggard.locate.job_timings import OwnThreads, own_threads
from laggard.locate.verdict import locate
from laggard.rankfile.fact_names import OWN_THREADS

CALM = OwnThreads(0.01, 0.0002, ())
SPINNING = OwnThreads(0.7, 0.009, ("Thread-1 (spin)",))


def kind_of(told: dict[int, OwnThreads | None]) -> str:
    timings = job(4, 60, slow=[((1,), 0.5)], phase="between_steps")
    threads = tuple(told.get(rank, CALM) for rank in range(4))
    (culprit,) = locate(dataclasses.replace(timings, own_threads=threads)).culprits
    assert culprit.ranks == (1,)
    return culprit.kind


def test_the_threads_are_named_and_no_machine_is_accused() -> None:
    timings = job(4, 60, slow=[((1,), 0.5)])
    (culprit,) = locate(dataclasses.replace(timings, own_threads=(CALM, SPINNING, CALM, CALM))).culprits
    assert (culprit.kind, culprit.node) == ("busy_threads", None)
    assert "Thread-1 (spin)" in culprit.evidence[0] and "GIL" in culprit.evidence[0]
    assert "no machine is at fault" in culprit.advice


@pytest.mark.parametrize(
    "told",
    [
        {1: CALM},
        {1: None},
        {1: OwnThreads(0.7, 0.0002, ("tokenizer",))},  # it runs, and nobody waits for the lock
        {1: OwnThreads(0.01, 0.009, ())},  # the training thread itself holds it
        dict.fromkeys(range(4), SPINNING),  # all ranks have such threads
    ],
)
def test_threads_that_are_not_the_cause_excuse_nobody(told: dict[int, OwnThreads | None]) -> None:
    assert kind_of(told) == "slow_host"


anything = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3),
)


@given(st.fixed_dictionaries({name: anything for name in ("seconds", "busy_seconds", "late_seconds", "names")}))
def test_what_a_rank_says_of_its_threads_is_bounded(told: dict[str, Any]) -> None:
    found = own_threads({OWN_THREADS: told})
    if found is not None:
        assert 0 <= found.late_seconds < 1e9 and found.busy >= 0 and len(found.names) <= 4
        assert all(len(name) <= 48 and name.isprintable() for name in found.names)
