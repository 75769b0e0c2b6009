"""The best few beside the default, in turns: the only times on which a recommendation rests. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from laggard.tune.board import Board
from laggard.tune.plan import MIN_ROUNDS, Finalist, Found, Part, Plan, Proposal, Settings, Status, Steps, changes, key
from laggard.tune.statistics import Comparison, Word, compare

FINALISTS: Final = 3
_MAX_REPLACEMENTS: Final = 6
Times = dict[str, list[float]]
"""Seconds by configuration, one a round."""


def confirm(board: Board, plan: Plan, best: Settings) -> Steps:
    """Measures the best few and the default in rounds, until they are told apart. One that fails once is out, after
    however many right results, and the next best has to stand all rounds beside the others."""
    finalists, times, rounds, failures = _finalists(board, best), Times(), 0, 0
    while finalists and rounds < _most_rounds(board, finalists, times, plan) and not _default_is_wrong(board):
        yield from _round(board, finalists, times, backwards=rounds % 2 == 1)
        rounds += 1
        if any(board.mean(each) is None for each in finalists):
            failures += 1
            more = failures < _MAX_REPLACEMENTS
            right = [each for each in finalists if board.mean(each) is not None]
            finalists, rounds, times = (_finalists(board, best), 0, Times()) if more else (right, rounds, times)
        elif rounds >= MIN_ROUNDS:
            finalists = _still_open(finalists, times, plan)
            if _is_decided(board, finalists, times, plan):
                break
    return _found(board, finalists, times, plan, best)


def _most_rounds(board: Board, finalists: Sequence[Settings], times: Times, plan: Plan) -> int:
    """Returns twice the rounds, as far as there are trials left, where the best looks faster than the default by more
    than a tie, and is not for certain: the noise is large, and the question worth it."""
    own = max((_between(board.default, each, times, plan) for each in finalists), key=lambda each: each.ratio)
    worth_it = own.word is Word.OPEN and own.ratio > 1 + plan.tie
    return (2 if worth_it and plan.trials - board.spent > len(finalists) else 1) * plan.rounds_kept


def _finalists(board: Board, best: Settings) -> list[Settings]:
    """Returns what the search took for the best, and the fastest of the others."""
    ranked = [each for each in board.ranking() if each != board.default]
    return sorted(ranked, key=lambda each: each != best)[:FINALISTS]


def _round(board: Board, finalists: Sequence[Settings], times: Times, backwards: bool) -> Part:
    """Measures the default and the finalists one after the other. Only a round in which all ran counts."""
    turn = [board.default, *finalists]
    own = {}
    for each in turn[::-1] if backwards else turn:
        outcome = yield Proposal(dict(each), "confirm")
        board.add(each, outcome)
        if outcome.status is Status.OK and outcome.seconds is not None:
            own[key(each)] = outcome.seconds
    if len(own) == len(turn):
        for name, seconds in own.items():
            times.setdefault(name, []).append(seconds)


def _default_is_wrong(board: Board) -> bool:
    return board.failed.get(key(board.default)) is Status.WRONG


def _between(old: Settings, new: Settings, times: Times, plan: Plan) -> Comparison:
    return compare(times.get(key(old), []), times.get(key(new), []), plan.tie)


def _still_open(finalists: Sequence[Settings], times: Times, plan: Plan) -> list[Settings]:
    """Returns the fastest and those that are not slower for certain, the fastest first."""
    first, *others = sorted(finalists, key=lambda each: sum(times.get(key(each), [])))
    return [first, *(each for each in others if _between(first, each, times, plan).word is not Word.SLOWER)]


def _is_decided(board: Board, finalists: Sequence[Settings], times: Times, plan: Plan) -> bool:
    if _between(board.default, finalists[0], times, plan).word is Word.OPEN:
        return False
    return all(_between(finalists[0], each, times, plan).word is not Word.OPEN for each in finalists[1:])


def _found(board: Board, finalists: Sequence[Settings], times: Times, plan: Plan, first: Settings) -> Found:
    """The best configuration. The one that the search took for it stays so, unless another one is faster for certain:
    it was repeated more often. Of those that are as fast, the one with the fewest changes is the best."""
    compared = [Finalist(each, _between(board.default, each, times, plan)) for each in finalists]
    shown = tuple(sorted(compared, key=lambda each: -each.comparison.ratio))
    ordered = [each.configuration for each in shown]
    if _default_is_wrong(board):
        return Found(None, shown, (), "the default itself gave wrong results: the machine has to be repaired first")
    faster = [each for each in shown if each.comparison.word is Word.FASTER]
    best = _best(board, faster, times, plan, first)
    lead = best.configuration if best else ordered[0] if ordered else None
    words = (Word.TIE, Word.OPEN)
    tied = [each for each in ordered if lead and each != lead and _between(lead, each, times, plan).word in words]
    return Found(best, shown, tuple(tied), "")


def _best(board: Board, faster: Sequence[Finalist], times: Times, plan: Plan, first: Settings) -> Finalist | None:
    """Returns the best of those that are faster than the default, the fastest first; None where there is none."""
    lead = next((each for each in faster if each.configuration == first), faster[0] if faster else None)
    if lead is None:
        return None
    words = {
        key(each.configuration): _between(lead.configuration, each.configuration, times, plan).word for each in faster
    }
    surely = [each for each in faster if words[key(each.configuration)] is Word.FASTER]
    if surely:
        return surely[0]
    even = [each for each in faster if each == lead or words[key(each.configuration)] is Word.TIE]
    return min(even, key=lambda each: len(changes(board.space, each.configuration)))
