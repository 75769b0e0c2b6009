"""What is kept between two rounds of scrapes."""

from __future__ import annotations

import threading

import pytest

from laggard.collector.web.api import MAX_ANSWERS, SnapshotAnswers


def test_an_answer_is_made_once_a_snapshot() -> None:
    answers, first, second = SnapshotAnswers(), object(), object()
    made: list[object] = []

    def ask(snapshot: object, key: str) -> int:
        return answers.get(snapshot, key, lambda: made.append(snapshot) or len(made))

    assert [ask(first, "a"), ask(first, "a"), ask(first, "b"), ask(second, "a")] == [1, 1, 2, 3]
    assert made == [first, first, second]


def test_threads_that_ask_at_once_get_one_answer() -> None:
    answers, snapshot = SnapshotAnswers(), object()
    begun, go_on = threading.Event(), threading.Event()
    made: list[int] = []

    def make() -> int:
        begun.set()
        assert go_on.wait(300)
        made.append(1)
        return len(made)

    got: list[int] = []
    threads = [threading.Thread(target=lambda: got.append(answers.get(snapshot, "a", make))) for _ in range(4)]
    for thread in threads:
        thread.start()
    assert begun.wait(300)
    assert answers.get(snapshot, "b", lambda: 7) == 7, "another answer waited for the one that is being made"
    go_on.set()
    for thread in threads:
        thread.join(120)
    assert got == [1, 1, 1, 1] and made == [1]


def test_what_fails_is_tried_again_and_the_oldest_go() -> None:
    answers, snapshot = SnapshotAnswers(), object()
    with pytest.raises(ZeroDivisionError):
        answers.get(snapshot, "a", lambda: 1 / 0)
    assert answers.get(snapshot, "a", lambda: 5) == 5
    for number in range(MAX_ANSWERS):
        answers.get(snapshot, number, lambda: 0)
    assert answers.get(snapshot, "a", lambda: 6) == 6
