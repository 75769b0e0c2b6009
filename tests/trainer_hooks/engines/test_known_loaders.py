"""Loaders that are not torch's: the training thread's waits for their batches are input, and what comes is theirs."""

from __future__ import annotations

import sys
import threading
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from laggard.trainer_hooks import wrapping
from laggard.trainer_hooks.engines.known_calls import ITERATORS, NEXT_METHODS, hook_calls, loader_calls
from laggard.trainer_hooks.record.events import EVALUATION, INPUT


class Phases:
    """Stands in for a session whose training thread is this one; `seen` are the phases that were entered and left."""

    def __init__(self) -> None:
        self.seen: list[object] = []
        self.evaluates = False
        self.steps = SimpleNamespace(thread=threading.get_ident())
        self.recorder = SimpleNamespace(enter=self.seen.append, leave=lambda: self.seen.append("left"))
        self.forward = SimpleNamespace(evaluates=lambda: self.evaluates)

    def taken(self) -> list[object]:
        found = self.seen.copy()
        self.seen.clear()
        return found


class Batches:
    """Stands in for a library's own iterator: it has more than iteration, and ends."""

    fails = False

    def __init__(self) -> None:
        self.left, self.size = 2, 7

    def __iter__(self) -> Batches:
        return self

    def __next__(self) -> int:
        if self.fails:
            raise OSError("the file server is gone")
        if not self.left:
            raise StopIteration
        self.left -= 1
        return self.left


@pytest.fixture
def session(monkeypatch: pytest.MonkeyPatch) -> Phases:
    """The libraries are there, each with the class and the method that is looked for, and hooked by this test alone."""
    monkeypatch.setattr(wrapping, "_acts", {})
    monkeypatch.setattr(wrapping, "_unseen", set())
    for name, path in (*((name, f"{owner}.__next__") for name, owner in NEXT_METHODS), *ITERATORS):
        owner, _, method = path.partition(".")
        module = sys.modules.get(name)
        if not isinstance(module, Library):
            monkeypatch.setitem(sys.modules, name, module := Library(name))
        kind = module.__dict__.setdefault(owner, type(owner, (), {}))
        setattr(kind, method, (lambda self: 5) if method == "__next__" else (lambda self, *_: Batches()))
    session = Phases()
    hook_calls(loader_calls(session))  # type: ignore[arg-type]
    return session


class Library(ModuleType): ...


def made(name: str, owner: str) -> Any:
    return getattr(sys.modules[name], owner)()


@pytest.mark.parametrize(("name", "owner"), NEXT_METHODS)
def test_next_of_an_iterator_is_a_wait_for_input(session: Phases, name: str, owner: str) -> None:
    assert next(made(name, owner)) == 5 and session.taken() == [INPUT, "left"]


@pytest.mark.parametrize(("name", "path"), ITERATORS)
def test_each_step_over_what_a_method_returns_is_one(session: Phases, name: str, path: str) -> None:
    owner, _, method = path.partition(".")
    found = getattr(made(name, owner), method)()
    assert found.size == 7 and session.taken() == [], "nothing is waited for yet"
    assert list(found) == [1, 0] and session.taken() == [INPUT, "left"] * 3, "the last one is told that it is over"
    assert next(getattr(made(name, owner), method)()) == 1 and session.taken() == [INPUT, "left"]


def test_in_an_evaluation_it_is_part_of_that_and_an_error_leaves_the_phase(
    session: Phases, monkeypatch: pytest.MonkeyPatch
) -> None:
    session.evaluates = True
    found = iter(made("webdataset.pipeline", "DataPipeline"))
    assert next(found) == 1 and session.taken() == [EVALUATION, "left"]
    monkeypatch.setattr(Batches, "fails", True)
    with pytest.raises(OSError, match="gone"):
        next(found)
    assert session.taken() == [EVALUATION, "left"]


def test_other_threads_wait_for_nobody(session: Phases) -> None:
    given: list[int] = []
    loader = made("webdataset.pipeline", "DataPipeline")
    thread = threading.Thread(target=lambda: given.extend(loader))
    thread.start()
    thread.join()
    assert given == [1, 0] and session.taken() == []


def test_what_is_hooked_is_not_hooked_again(session: Phases) -> None:
    hook_calls(loader_calls(session))  # type: ignore[arg-type]
    assert next(made(*NEXT_METHODS[0])) == 5 and session.taken() == [INPUT, "left"]
