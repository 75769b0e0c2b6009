"""A signed question counts once, whatever the clock does, and not if it was asked before the collector started."""

from __future__ import annotations

from laggard.collector.web.signed_requests import Nonces

NONCE = "0123456789abcdef"


class Clock:
    now = 50.0

    def __call__(self) -> float:
        return self.now


def test_a_step_of_the_clock_there_and_back_makes_no_question_new() -> None:
    nonces = Nonces(300.0, 4, 0.0, Clock())
    assert nonces.refusal(NONCE, 1000.0, 1001.0) == ""
    assert nonces.refusal("f" * 16, 4600.0, 4600.0) == ""
    assert nonces.refusal(NONCE, 1000.0, 1002.0) == "this was asked before"
    assert "s apart" in nonces.refusal("e" * 16, float("nan"), 1000.0)


def test_what_was_asked_before_the_start_counts_for_nothing() -> None:
    nonces = Nonces(300.0, 4, 1010.0, Clock())
    assert "before the collector started" in nonces.refusal(NONCE, 1000.0, 1011.0)
    assert nonces.refusal(NONCE, 1010.5, 1011.0) == ""


def test_room_comes_back_when_the_oldest_cannot_be_said_again() -> None:
    clock = Clock()
    nonces = Nonces(300.0, 4, 0.0, clock)
    for number in range(4):
        assert nonces.refusal(str(number) * 16, 1000.0, 1000.0) == ""
    assert nonces.refusal("a" * 16, 1000.0, 1000.0) == "too many questions: ask again later"
    clock.now += 601.0
    assert nonces.refusal("a" * 16, 1601.0, 1601.0) == ""
    assert "s apart" in nonces.refusal("b" * 16, 1000.0, 1601.0)
