"""The answer of ranks about their stacks, as lines for people: where a job stands still, or what a slow rank does more
than others; then where each is, and who did not answer. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from laggard.kit.words import capital, counted, printable_line, ranks_text, seconds_text
from laggard.stacks.difference import differences, standings
from laggard.stacks.sampled import (
    CRASHED,
    HELD,
    STALLED,
    TERMINATED,
    Counted,
    Sampled,
    collective_of,
    own_frame,
    place_text,
    short_text,
)
from laggard.wire.stacks import MissingStacks

STILL_SHARE: Final = 0.95
"""The share of its samples that a rank has at one place where it stands still."""

MAX_LINES: Final = 16
"""The most lines of one kind; JSON has all."""

_STANDING: Final = (STALLED, HELD, TERMINATED, CRASHED)
_PLACES: Final = 3
_LINE_CHARACTERS: Final = 400
_STOPPED: Final = "its process is stopped"
_WHY: Final = {
    STALLED: "made no progress for {seconds}",
    HELD: "ran no Python code for a while: C code holds Python's lock",
    TERMINATED: "was asked to end (SIGTERM)",
    CRASHED: "crashed",
    "failed": "ends by an exception",
}


class Answers(NamedTuple):
    """The stacks of a job's ranks. `missing`: those without stacks, and why."""

    job: str
    sampled: Mapping[int, Sampled]
    missing: Sequence[MissingStacks] = ()


def answer_lines(answers: Answers) -> list[str]:
    """The lines, the answer first, in one sentence; then where each rank is, who did not answer, and whose stacks they
    are."""
    sampled = list(answers.sampled.values())
    if sampled and is_still(sampled):
        lines = [_standing_sentence(sampled, answers), *_standing_lines(sampled)]
    else:
        differing = list(_difference_lines(answers.sampled))
        lines = [*(differing or [_without_difference(sampled)]), *_place_lines(sampled)]
    shown = (*lines, *_missing_lines(answers.missing), _head(answers))
    return [printable_line(line, _LINE_CHARACTERS) for line in shown]


def _standing_sentence(sampled: Sequence[Sampled], answers: Answers) -> str:
    """Who is waited for, where the stacks tell: the ranks at one place outside of collectives, while others wait in
    one. A rank that has not answered may be whom all wait for."""
    told = standings(sampled)
    out, waiting = [each for each in told if not each.waits], [each for each in told if each.waits]
    longest = max(each.stalled_seconds for each in sampled)
    since = f" for {seconds_text(longest)} or more" if longest else ""
    if len(sampled) == 1:
        return f"Rank {sampled[0].rank} stands still{since} in {told[0].place}."
    if not out:
        alike = waiting[0].place if len(told) == 1 else f"collectives, at {counted(len(told), 'place')}"
        return f"All {len(sampled)} ranks wait{since} in {alike}: none of them stands in its own code."
    if not waiting:
        at = f"in {told[0].place}" if len(told) == 1 else f"at {counted(len(told), 'place')}"
        return f"The ranks stand still{since} {at}, none of them in a collective."
    if len(out) > 1 or 2 * len(out[0].ranks) > len(sampled):
        count = sum(len(each.ranks) for each in out)
        verb = "waits" if len(sampled) - count == 1 else "wait"
        where = f"at {counted(len(out), 'place')}"
        return f"{count} ranks stand in their own code, {where}; {len(sampled) - count} {verb}{since}."
    victims = sorted(rank for each in waiting for rank in each.ranks)
    node = answers.sampled[out[0].ranks[0]].node
    on = f" on {node}" if node and len(out[0].ranks) == 1 else ""
    verb = "stands" if len(out[0].ranks) == 1 else "stand"
    doubt = f"; {ranks_text(it.rank for it in answers.missing)} told nothing" if answers.missing else ""
    return (
        f"{capital(ranks_text(out[0].ranks))}{on} {verb} still{since} in {out[0].place}: {ranks_text(victims)}"
        f" {'waits' if len(victims) == 1 else 'wait'} in {waiting[-1].waits}{doubt}."
    )


def _without_difference(sampled: Sequence[Sampled]) -> str:
    if not sampled:
        return "No rank has told its stacks."
    if len(sampled) == 1:
        return f"Rank {sampled[0].rank} goes on; there is no other to compare it with."
    return "The ranks go on, and none does more of anything than the others."


def is_still(sampled: Sequence[Sampled]) -> bool:
    """Whether the ranks stand: one took its stacks since it made no progress, or each is always at one place."""
    return any(each.why in _STANDING for each in sampled) or all(map(_is_at_one_place, sampled))


def _head(answers: Answers) -> str:
    told, asked = len(answers.sampled), len(answers.sampled) + len(answers.missing)
    of = "" if told == asked else f" of {asked}"
    seconds = max((each.seconds for each in answers.sampled.values()), default=0.0)
    samples = max((each.training.samples for each in answers.sampled.values()), default=0)
    over = f", {counted(samples, 'sample')} of each over {seconds_text(seconds)}" if seconds else ""
    return f"Job {answers.job}: stacks of {counted(told, 'rank') if not of else f'{told}{of} ranks'}{over}."


def _standing_lines(sampled: Sequence[Sampled]) -> Iterator[str]:
    why = {each.rank: each for each in sampled}
    told = standings(sampled)
    for standing in told[:MAX_LINES]:
        first = why[standing.ranks[0]]
        reason = _WHY.get(first.why, "").format(seconds=seconds_text(first.stalled_seconds))
        kernel = f"; {first.kernel}" if first.kernel and not standing.waits else ""
        yield f"{_who(standing.ranks)}: {standing.place}{f' ({reason})' if reason else ''}{kernel}"
    if len(told) > MAX_LINES:
        yield f"and {counted(len(told) - MAX_LINES, 'more place')}: --format json has all"


def _difference_lines(sampled: Mapping[int, Sampled]) -> Iterator[str]:
    for rank, found in list(differences(sampled).items())[:MAX_LINES]:
        node = f" on {sampled[rank].node}" if sampled[rank].node else ""
        yield f"Rank {rank}{node} differs: {found.text()}."


def _place_lines(sampled: Sequence[Sampled]) -> Iterator[str]:
    """The places where ranks are most of the time, once for all whose first place is the same."""
    groups: dict[str, list[Sampled]] = {}
    for each in sampled:
        groups.setdefault(next(iter(_places(each)), "nowhere"), []).append(each)
    ordered = sorted(groups.values(), key=lambda ranks: (len(ranks), ranks[0].rank))
    for ranks in ordered[:MAX_LINES]:
        first = min(ranks, key=lambda each: each.rank)
        text = "; ".join(f"{100 * share:.0f} % {place}" for place, share in list(_places(first).items())[:_PLACES])
        who = _who([each.rank for each in ranks])
        yield f"{who}: {text}" if len(ranks) == 1 else f"{who}: as rank {first.rank}: {text}"
    if len(ordered) > MAX_LINES:
        yield f"and {counted(len(ordered) - MAX_LINES, 'more place')}: --format json has all"


def _missing_lines(missing: Iterable[MissingStacks]) -> Iterator[str]:
    reasons: dict[str, list[int]] = {}
    for each in missing:
        reasons.setdefault(_reason(each), []).append(each.rank)
    for reason, ranks in list(reasons.items())[:MAX_LINES]:
        yield f"No stacks of {ranks_text(ranks)}: {reason}."
    if len(reasons) > MAX_LINES:
        yield f"and {counted(len(reasons) - MAX_LINES, 'more reason')}: --format json has all"


def _reason(missing: MissingStacks) -> str:
    if missing.reason.startswith(_STOPPED) and missing.kernel.startswith("stopped"):
        return f"its process is {missing.kernel}"
    return f"{missing.reason}; it is {missing.kernel}" if missing.kernel else missing.reason


def _who(ranks: Sequence[int]) -> str:
    text = ranks_text(ranks)
    return f"{text[:1].upper()}{text[1:]}" + (f" ({len(ranks)})" if len(ranks) > 2 else "")


def _places(sampled: Sampled) -> dict[str, float]:
    """The places of the training thread with their shares, the most frequent first."""
    counts: Counter[str] = Counter()
    for each in sampled.training.stacks:
        counts[_place(each)] += each.times
    total = sum(counts.values())
    return {place: count / total for place, count in counts.most_common()} if total else {}


def _place(each: Counted) -> str:
    waits = each.waits or collective_of(each.frames)
    return f"{waits}, called in {short_text(own_frame(each.frames))}" if waits else place_text(each.frames)


def _is_at_one_place(sampled: Sampled) -> bool:
    return next(iter(_places(sampled).values()), 0.0) >= STILL_SHARE
