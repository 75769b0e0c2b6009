"""The answer in words: every verdict, every kind of culprit, and hostile text."""

from typing import Any

import pytest
from msgspec import convert, to_builtins
from support.rows import rows

from laggard.kit.words import ranks_text
from laggard.locate.describe import details, note_lines, sentence
from laggard.model import Culprit, Location, Note, Verdict, Window


def _location(verdict: Verdict, *culprits: Culprit, notes: tuple[Note, ...] = (), **changes: Any) -> Location:
    values: dict[str, Any] = dict(
        verdict=verdict,
        job_id="job-1",
        world_size=4,
        ranks_seen=4,
        window=Window(0, 56, 57 * 0.25),
        slowdown_ratio=1.7,
        culprits=culprits,
        notes=notes,
    )
    return Location(**{**values, **changes})


def _culprit(kind: str = "slow_compute", ranks: tuple[int, ...] = (2,), **changes: Any) -> Culprit:
    values: dict[str, Any] = dict(
        kind=kind, ranks=ranks, node="n1", phase="forward", recoverable_ratio=0.41, slowdown_ratio=1.7
    )
    return Culprit(**{**values, **changes})


@rows("locate/sentences")
def test_sentence(location: dict[str, Any], culprits: tuple[dict[str, Any], ...], text: str) -> None:
    """`location` and `culprits`: what differs from the usual ones."""
    made = to_builtins(_location(Verdict.OK)) | location
    usual = to_builtins(_culprit())
    assert sentence(convert({**made, "culprits": [usual | each for each in culprits]}, Location)) == text


def test_details_name_the_culprit_only_where_there_are_several() -> None:
    one = _culprit(evidence=("waits least",), findings=("GPU_THROTTLED",), victims=(0, 1, 3))
    assert details(_location(Verdict.FAIL, one)) == [
        "Waits least",
        "Its node reports GPU_THROTTLED",
        "Ranks 0-1 and 3 wait for it",
    ]
    two = details(_location(Verdict.FAIL, one, _culprit(ranks=(0,), evidence=("busy",))))
    assert two[0] == "Rank 2 on n1: waits least" and two[-1] == "Rank 0 on n1: busy"


def test_what_to_do_comes_before_the_evidence() -> None:
    culprit = _culprit(evidence=("waits least",), advice="look at its GPU")
    assert details(_location(Verdict.FAIL, culprit)) == ["What to do: look at its GPU", "Waits least"]


def test_a_slow_network_is_named_by_its_ranks_where_the_adapter_is_not_known() -> None:
    culprit = _culprit("slow_link", (5,), phase="collective", recoverable_ratio=0.1)
    assert sentence(_location(Verdict.FAIL, culprit)).startswith("The network of rank 5 on n1 is slow: ")


def test_what_is_wrong_comes_before_what_is_not_known() -> None:
    unseen, deadlock = Note("first_unseen", "no rank's end is recorded"), Note("deadlock", "ranks 0-1 wait")
    location = _location(Verdict.FAIL, notes=(unseen, deadlock))
    assert sentence(location) == "Something is wrong: ranks 0-1 wait." and unseen.text in "".join(
        note_lines(location)
    ).replace("No rank", "no rank")


def test_a_note_that_is_in_the_sentence_is_not_repeated() -> None:
    notes = (Note("partial", "4 of 8 ranks are seen"), Note("no_agent", "no agent answers"))
    assert note_lines(_location(Verdict.UNKNOWN, notes=notes)) == ["4 of 8 ranks are seen"]
    assert len(note_lines(_location(Verdict.OK, notes=notes))) == 2


def test_a_cut_list_of_victims_is_not_taken_for_all() -> None:
    victims = tuple(range(64))
    lines = details(_location(Verdict.FAIL, _culprit(ranks=(70,), victims=victims), ranks_seen=512))
    assert lines == ["At least 64 of the other 511 ranks wait for it"]


@pytest.mark.parametrize(
    ("ranks", "text"),
    [((2,), "rank 2"), ((0, 1, 2, 3, 7), "ranks 0-3 and 7"), (tuple(range(0, 20, 2)), "ranks 0, 2, 4, 6 and 6 more")],
)
def test_ranks_text(ranks: tuple[int, ...], text: str) -> None:
    assert ranks_text(ranks) == text


def test_a_hostile_name_stays_on_one_line() -> None:
    text = sentence(_location(Verdict.FAIL, _culprit(node="n1\nlaggard: all is well\x1b[2J\u202e")))
    assert "\n" not in text and "\x1b" not in text and "\u202e" not in text
