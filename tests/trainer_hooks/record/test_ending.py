"""How a training process ends, as Python sees it: the status, the exception's type, and nothing of its text."""

import sys
from collections.abc import Iterator

import pytest

from laggard.rankfile.fact_names import ENDING
from laggard.trainer_hooks.record.ending import (
    FACTS,
    forget_calls,
    note_caught,
    note_departure,
    note_ending,
    note_present_ending,
    on_departure,
    on_error,
    on_failure,
    watch_exceptions,
)


@pytest.fixture(autouse=True)
def calls() -> Iterator[list[object]]:
    """What is called, in its order; nothing of it stays."""
    made: list[object] = []
    FACTS.set(ENDING, None)
    on_error(lambda error: made.append(type(error)))
    on_failure(lambda: made.append("failure"))
    on_departure(lambda: made.append("departure"))
    yield made
    forget_calls()
    FACTS.set(ENDING, None)


class DistBackendError(RuntimeError):
    """Stands in for torch's."""


class Hostile(Exception):
    def __str__(self) -> str:
        raise SystemError


def wrapped(inner: Exception, chained: bool, outer: type[BaseException] = ValueError) -> BaseException:
    """What a script raises in place of whatever ended its training."""
    made = outer(3)
    made.__context__ = inner
    if chained:
        made.__cause__ = inner
    return made


@pytest.mark.parametrize(
    ("error", "told"),
    [
        *(
            (wrapped(inner, chained), {"exit_code": 1, "exception": "ValueError", "others_failed": of_others})
            for inner, of_others in ((DistBackendError("NCCL"), True), (KeyError("secret"), False))
            for chained in (True, False)
        ),
        (wrapped(DistBackendError("NCCL"), False, SystemExit), {"exit_code": 3, "others_failed": True}),
        (wrapped(KeyError("secret"), False, SystemExit), {"exit_code": 3}),
        (KeyError("secret"), {"exit_code": 1, "exception": "KeyError", "others_failed": False}),
        (RuntimeError("[gloo/transport/tcp/pair.cc:534] Connection closed by peer"), {"exit_code": 1,
            "exception": "RuntimeError", "others_failed": True}),
        (DistBackendError("NCCL"), {"exit_code": 1, "exception": "DistBackendError", "others_failed": True}),
        (SystemExit(3), {"exit_code": 3}),
        (SystemExit(-1), {"exit_code": 255}),
        (SystemExit("no data"), {"exit_code": 1}),
        (KeyboardInterrupt(), {"exit_code": 1, "exception": "KeyboardInterrupt", "others_failed": False}),
    ],
)  # fmt: skip
def test_what_ends_a_process_is_told_by_status_and_type(
    error: BaseException, told: dict[str, object], calls: list[object]
) -> None:
    note_ending(error)
    found = dict(FACTS.get(ENDING))
    assert found.pop("at_seconds") > 0 and found == told
    note_ending(ValueError())
    note_departure()
    assert calls == [type(error), "failure"], "once: what follows is not why it ended, and it did not leave in order"


@pytest.mark.parametrize("error", [SystemExit(), SystemExit(0), SystemExit(256)])
def test_an_end_in_order_is_no_failure(error: SystemExit, calls: list[object]) -> None:
    note_ending(error)
    note_departure()
    assert FACTS.get(ENDING) is None and calls == ["departure"]


def test_a_framework_that_catches_takes_an_end_in_order_for_a_failure_too(calls: list[object]) -> None:
    note_caught(SystemExit(0))
    assert {**FACTS.get(ENDING), "at_seconds": 0} == {"exit_code": 1, "exception": "SystemExit", "at_seconds": 0}
    assert calls == [SystemExit, "failure"]


def test_an_exception_that_fails_itself_harms_nobody(calls: list[object]) -> None:
    note_ending(Hostile())
    assert FACTS.get(ENDING) is None and calls == []


def test_what_is_on_its_way_out_is_told_also_behind_the_exit_of_a_spawned_process(calls: list[object]) -> None:
    note_present_ending()
    assert calls == [], "nothing is"
    try:
        try:
            raise KeyError("secret")
        except KeyError:
            sys.exit(1)
    except SystemExit:
        note_departure()
        note_present_ending()
    assert FACTS.get(ENDING)["exception"] == "KeyError" and calls == [KeyError, "failure"]


def test_whoever_gets_uncaught_exceptions_gets_them_still(monkeypatch: pytest.MonkeyPatch, calls: list[object]) -> None:
    monkeypatch.setattr(sys, "excepthook", lambda *_: calls.append("the script's own"))
    watch_exceptions()
    sys.excepthook(ValueError, ValueError(), None)
    assert calls == [ValueError, "failure", "the script's own"]


def test_a_forked_child_calls_nobody(calls: list[object]) -> None:
    forget_calls()
    note_ending(ValueError())
    assert calls == [] and FACTS.get(ENDING)["exception"] == "ValueError"
