"""A rank whose own threads hold Python's lock is told so; threads that hold nobody up are not."""

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
TOLD = ("seconds", "busy_seconds", "late_seconds", "collecting_ratio")
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


def test_what_the_garbage_collector_takes_beyond_the_peers_explains() -> None:
    """The rank costs a sixth of the step."""
    timings = job(4, 60, slow=[((1,), 0.5)])
    for collecting, kind in ((0.3, "uneven_work"), (0.02, "slow_compute")):
        threads = (CALM, CALM._replace(collecting=collecting), CALM, CALM)
        (culprit,) = locate(dataclasses.replace(timings, own_threads=threads)).culprits
        assert (culprit.kind, culprit.node is None) == (kind, kind == "uneven_work")
        assert ("collected garbage for 0.30 s of each second" in culprit.evidence[0]) == (kind == "uneven_work")
    (culprit,) = locate(dataclasses.replace(timings, own_threads=(CALM._replace(collecting=0.3),) * 4)).culprits
    assert culprit.kind == "slow_compute", "all ranks collect as much"


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


@given(st.fixed_dictionaries({name: anything for name in (*TOLD, "names")}))
def test_what_a_rank_says_of_its_threads_is_bounded(told: dict[str, Any]) -> None:
    found = own_threads({OWN_THREADS: told})
    if found is not None:
        assert 0 <= found.late_seconds < 1e9 and found.busy >= 0 and len(found.names) <= 4
        assert all(len(name) <= 48 and name.isprintable() for name in found.names)
