"""Waits for functional collectives are assigned to them in order; when they are not seen the rank says so."""

import sys
from threading import get_ident
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from laggard.rankfile.fact_names import UNSEEN_WAITS
from laggard.trainer_hooks.collectives.groups import FunctionalWaits
from laggard.trainer_hooks.record.ending import Facts
from laggard.trainer_hooks.record.events import LaneLog, with_waits
from laggard.trainer_hooks.record.recorder import Recorder

WAITS = st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), max_size=12).map(
    lambda pairs: [(1000 * place + gap, 1000 * place + gap + length) for place, (gap, length) in enumerate(pairs)]
)


@given(WAITS, st.integers(0, 12))
def test_collectives_get_the_longest_waits_in_order(waits: list[tuple[int, int]], count: int) -> None:
    log = LaneLog(0, lambda _: None)
    launches = [(log.next_word(), log, 1, 8, 0) for _ in range(count)]
    paired = with_waits(launches, waits)
    assert [launch[0] for launch, _ in paired] == [launch[0] for launch in launches]
    given_waits = [wait for _, wait in paired if wait is not None]
    assert given_waits == sorted(given_waits) and len(given_waits) == min(count, len(waits))
    lengths = sorted((end - began for began, end in waits), reverse=True)[:count]
    assert sorted((end - began for began, end in given_waits), reverse=True) == lengths
    assert all(launch[2] == (wait[0] if wait else 1) for launch, wait in paired), "launched when its wait began"


@pytest.fixture
def functional(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The waits of a recorder, and a module whose wait_tensor they hook: it stands in for torch's."""
    torch: Any = ModuleType("torch")
    torch._C = SimpleNamespace(_current_graph_task_id=lambda: -1)
    monkeypatch.setitem(sys.modules, "torch", torch)
    facts, recorder = Facts(), Recorder([])
    waits, module = FunctionalWaits(recorder, facts, get_ident), SimpleNamespace(wait_tensor=lambda tensor: tensor)
    waits.hook(module)
    return SimpleNamespace(waits=waits, wait=module.wait_tensor, facts=facts, recorder=recorder)


def test_waits_that_are_seen_are_no_reason_to_doubt(functional: Any) -> None:
    for _ in range(50):
        assert functional.wait("tensor") == "tensor"
        assert len(functional.waits.take()) == 1
        functional.waits.checked(made=1)
    assert functional.facts.get(UNSEEN_WAITS) is None
    assert functional.recorder.totals.errors == 0


def test_what_cpp_makes_once_or_twice_is_no_reason_to_doubt_either(functional: Any) -> None:
    for step in range(50):
        functional.waits.checked(made=step in (1, 2))
        assert functional.facts.get(UNSEEN_WAITS) is None


def test_unseen_waits_step_after_step_are_told_until_they_end(functional: Any) -> None:
    for _ in range(4):
        functional.wait("tensor")
        functional.waits.checked(made=3)
    assert functional.facts.get(UNSEEN_WAITS) is True
    for _ in range(10):
        functional.waits.checked(made=0)
    assert functional.facts.get(UNSEEN_WAITS) is None


def test_another_threads_wait_is_not_the_trainings(functional: Any) -> None:
    other = FunctionalWaits(functional.recorder, functional.facts, lambda: -1)
    module = SimpleNamespace(wait_tensor=lambda tensor: tensor)
    other.hook(module)
    module.wait_tensor("tensor")
    assert other.take() == []
