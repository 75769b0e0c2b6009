"""The answer in words: every verdict, every kind of culprit, and hostile text."""

from __future__ import annotations

from typing import Any

import pytest

from laggard.kit.words import ranks_text
from laggard.locate.describe import details, note_lines, sentence
from laggard.model import Culprit, Location, Note, RankEnd, Verdict, Window


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


LINK = ({"node": "n1", "device": "mlx5_0"}, {"node": "n2", "device": "mlx5_1"})


@pytest.mark.parametrize(
    ("location", "text"),
    [
        (
            _location(Verdict.FAIL, _culprit()),
            "Rank 2 on n1 is slow in forward: fixing it would save 0.10 s of each step, 41 % of the step time.",
        ),
        (
            _location(Verdict.FAIL, _culprit(phase=None), window=Window()),
            "Rank 2 on n1 is slow: fixing it would save 41 % of the step time.",
        ),
        (_location(Verdict.OK), "No rank is slow: 4 ranks, 57 steps looked at."),
        (_location(Verdict.UNKNOWN), "Cannot tell: nothing is known about any rank."),
        (
            _location(Verdict.UNKNOWN, notes=(Note("partial", "4 of 8"), Note("too_few_steps", "3 steps seen."))),
            "Cannot tell: 3 steps seen.",
        ),
        (
            _location(Verdict.FAIL, _culprit("hung", (3,), recoverable_ratio=None), notes=()),
            "Rank 3 on n1 is hung in forward: the others wait for it.",
        ),
        (
            _location(Verdict.FAIL, _culprit("hung", (3,), recoverable_ratio=None, stopped=True)),
            "Rank 3 on n1 is hung, stopped by a signal or a debugger: the others wait for it.",
        ),
        (
            _location(Verdict.FAIL, _culprit("dead", (3,), end=RankEnd(1.0, signal="SIGKILL", cause="out_of_memory"))),
            "Rank 3 on n1 died first: killed by SIGKILL, its host or cgroup was out of memory (OOM kill).",
        ),
        (
            _location(Verdict.FAIL, _culprit("dead", (3,), end=RankEnd(1.0, exit_code=1, exception="ValueError"))),
            "Rank 3 on n1 died first: exit status 1 after ValueError.",
        ),
        (
            _location(Verdict.FAIL, _culprit("dead", (3,))),
            "Rank 3 on n1 died first: its process is gone: killed, or left by os._exit.",
        ),
        (
            _location(Verdict.FAIL, _culprit("slow_host", (2, 3), recoverable_ratio=None)),
            "Host n1 (ranks 2-3) is slow in forward: 1.70 times the time of the others.",
        ),
        (
            _location(Verdict.FAIL, _culprit("slow_host", (2,), recoverable_ratio=None)),
            "Rank 2 on n1 is slow in forward: 1.70 times the time of the others.",
        ),
        (
            _location(Verdict.FAIL, _culprit("slow_input", (1,), recoverable_ratio=None, slowdown_ratio=None)),
            "Rank 1 on n1 is slow to get its input.",
        ),
        (
            _location(Verdict.FAIL, _culprit("slow_link", (), link=LINK, recoverable_ratio=0.1)),
            "The link n1 mlx5_0 to n2 mlx5_1 is slow: fixing it would save 25 ms of each step, 10 % of the step time.",
        ),
        (
            _location(Verdict.FAIL, _culprit(), _culprit(ranks=(0,), node="n0")),
            "Rank 2 on n1 is slow in forward: fixing it would save 0.10 s of each step, "
            "41 % of the step time. One more culprit: rank 0 on n0.",
        ),
    ],
)
def test_sentence(location: Location, text: str) -> None:
    assert sentence(location) == text


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
    assert lines == ["64 and more of the other 511 ranks wait for it"]


@pytest.mark.parametrize(
    ("ranks", "text"),
    [((2,), "rank 2"), ((0, 1, 2, 3, 7), "ranks 0-3 and 7"), (tuple(range(0, 20, 2)), "ranks 0, 2, 4, 6 and 6 more")],
)
def test_ranks_text(ranks: tuple[int, ...], text: str) -> None:
    assert ranks_text(ranks) == text


def test_a_hostile_name_stays_on_one_line() -> None:
    text = sentence(_location(Verdict.FAIL, _culprit(node="n1\nlaggard: all is well\x1b[2J\u202e")))
    assert "\n" not in text and "\x1b" not in text and "\u202e" not in text
