"""Describes a location in words: one sentence, then what supports it. The page and `laggard locate` use the same
words."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from laggard.kit.words import capital, counted, phase_text, printable_line, ranks_text, seconds_text
from laggard.model import MAX_NAMED_RANKS, Culprit, Location, Note, Verdict
from laggard.wire.words import end_text, left_early

NOT_HELD = "not_held"
"""The kind of the note on jobs that the collector has no room for: who reads any answer should know of them."""

SURROUNDING = (
    "partial",
    "rank_died",
    "agents_silent",
    "contested",
    "ended",
    "stale",
    "coarse",
    "agents_asked",
    "held",
    "stall",
    "slow_before",
    "nodes_failing",
    "own_past",
    "slower_since",
    "slower_at_times",
    "unseen",
    "digest_skipped",
    NOT_HELD,
)
"""Kinds of notes that go along with a verdict and are not the reason why there is none."""


def sentence(location: Location) -> str:
    """The answer, and what is not watched at all. It ends with a full stop and holds no line break, whatever text is in
    the location."""
    not_held = [capital(note.text) for note in location.notes if note.kind == NOT_HELD]
    return " ".join((_answer(location), *(printable_line(f"{text}.") for text in not_held)))


def _answer(location: Location) -> str:
    if location.culprits:
        return printable_line(_culprit_sentence(location))
    if location.verdict is Verdict.OK:
        steps = _step_count(location)
        looked_at = (
            counted(location.ranks_seen, "rank") + (f", {counted(steps, 'step')}" if steps else "") + " looked at"
        )
        return f"No rank is slow: {looked_at}."
    cause = _cause(location)
    reason = cause.text.rstrip(".") if cause else "nothing is known about any rank"
    start = "Something is wrong" if location.verdict is Verdict.FAIL else "Cannot tell"
    return printable_line(f"{start}: {reason}.")


def details(location: Location) -> list[str]:
    """Lines of evidence, one culprit after the other, then the notes that are not in the sentence."""
    return evidence_lines(location) + note_lines(location)


def evidence_lines(location: Location) -> list[str]:
    """The lines of each culprit: the advice, then the evidence."""
    return _of_each(location, lambda it: ((f"what to do: {it.advice}",) if it.advice else ()) + _shown_by(it, location))


def advice_lines(location: Location) -> list[str]:
    """The advice, a line for each culprit that has some."""
    return _of_each(location, lambda culprit: (culprit.advice,) if culprit.advice else ())


def support_lines(location: Location) -> list[str]:
    """The evidence of the culprits, without advice."""
    return _of_each(location, lambda culprit: _shown_by(culprit, location))


def _of_each(location: Location, lines_of: Callable[[Culprit], Iterable[str]]) -> list[str]:
    """The lines of all culprits, each under its culprit's name where there are several."""
    several = len(location.culprits) > 1
    named = ((f"{culprit_name(it)}: " if several else "", line) for it in location.culprits for line in lines_of(it))
    return [capital(printable_line(prefix + line)) for prefix, line in named]


def _shown_by(culprit: Culprit, location: Location) -> tuple[str, ...]:
    where = (f"in the code: {culprit.stack.text}",) if culprit.stack else ()
    return (*where, *culprit.evidence, *_consequences(culprit, location))


def note_lines(location: Location) -> list[str]:
    in_sentence = None if location.culprits or location.verdict is Verdict.OK else _cause(location)
    notes = (note for note in location.notes if note is not in_sentence and note.kind != NOT_HELD)
    return [capital(printable_line(note.text)) for note in notes]


def culprit_name(culprit: Culprit) -> str:
    """The rank, machine or link, for the middle of a sentence: `rank 2 on n1`, `the link n1 mlx5_0 to n2 mlx5_0`."""
    if culprit.is_within_machine:
        return f"the links within {culprit.node}" + (f" ({ranks_text(culprit.ranks)})" if culprit.ranks else "")
    if culprit.kind == "slow_link" and culprit.link:
        ends = (" ".join(filter(None, (end.get("node"), end.get("device")))) or "?" for end in culprit.link)
        return "the link " + " to ".join(ends)
    if culprit.kind == "slow_link" and culprit.ranks:
        return f"the network of {ranks_text(culprit.ranks)}" + (f" on {culprit.node}" if culprit.node else "")
    # One rank is told by its number, whether its CPU's want is known by now or not: the name does not change with that.
    if culprit.kind in ("slow_host", "dead") and len(culprit.ranks) != 1 and culprit.node:
        return f"host {culprit.node}" + (f" ({ranks_text(culprit.ranks)})" if culprit.ranks else "")
    place = f" on {culprit.node}" if culprit.node else ""
    return (ranks_text(culprit.ranks) or culprit.device or "a machine") + place


def culprit_text(culprit: Culprit) -> str:
    """The culprit and its fault, for the middle of a sentence: `rank 2 on n1 is slow in forward`."""
    return printable_line(f"{culprit_name(culprit)} {_condition(culprit)}")


_WRONG = ("deadlock", "mismatch")
"""Notes of what is wrong without a culprit."""


def _cause(location: Location) -> Note | None:
    """The note that says why there is no verdict, which the sentence quotes; what is wrong comes before what is not
    known, and where the processes stand before the rest of that."""
    causes = [note for note in location.notes if note.kind not in SURROUNDING]
    causes.sort(key=lambda note: (note.kind not in _WRONG, note.kind != "stacks"))
    return next(iter(causes), next((note for note in location.notes if note.kind != NOT_HELD), None))


def _culprit_sentence(location: Location) -> str:
    first, *others = location.culprits
    text = f"{capital(culprit_name(first))} {_condition(first)}"
    cost = _cost(first, location)
    text += f": {cost}." if cost else "."
    if others:
        also = f"{len(others)} more culprits, the next" if len(others) > 1 else "One more culprit"
        text += f" {also}: {culprit_name(others[0])}."
    return text


def _consequences(culprit: Culprit, location: Location) -> list[str]:
    lines = []
    if culprit.findings:
        who = "its nodes report" if len(culprit.machines) > 1 else "its node reports"
        lines.append(f"{who} {', '.join(culprit.findings)}")
    if culprit.victims:
        verb = "waits" if len(culprit.victims) == 1 else "wait"
        if culprit.kind == "dead":
            return [*lines, f"{_victims(culprit, location)} cannot go on without it"]
        lines.append(f"{_victims(culprit, location)} {verb} for {'them' if len(culprit.ranks) > 1 else 'it'}")
    return lines


def _victims(culprit: Culprit, location: Location) -> str:
    """The ranks that wait. Where the list of victims may have been cut, their number out of all ranks."""
    count, others = len(culprit.victims), location.ranks_seen - len(culprit.ranks)
    if count < MAX_NAMED_RANKS or others <= count:
        return ranks_text(culprit.victims)
    return f"{count} and more of the other {others} ranks"


def _condition(culprit: Culprit) -> str:
    """`is slow in forward`, `are hung in a collective of group dp:0-3`."""
    is_one = len(culprit.ranks) < 2 or culprit.kind in ("slow_host", "slow_link")
    verb = "is" if is_one and not culprit.is_within_machine else "are"
    if culprit.kind == "dead":
        return f"{'left' if left_early(culprit.end) else 'died'} first: {end_text(culprit.end)}"
    if culprit.kind == "hung" and culprit.silent:
        return "fell silent first, stopped or killed"
    if culprit.device_stopped:
        whose = "its GPU" if len(culprit.ranks) == 1 else "one of their GPUs"
        return f"{verb} hung, {whose} no longer completes what it launched"
    if culprit.kind == "hung":
        stopped = ", stopped by a signal or a debugger" if culprit.stopped else ""
        return f"{verb} hung{stopped}" + (f" in {_place(culprit)}" if _place(culprit) and not stopped else "")
    if culprit.kind == "slow_input":
        return f"{verb} slow to get {_possessive(culprit)} input"
    if culprit.kind == "uneven_work":
        has = "have" if len(culprit.ranks) > 1 else "has"
        return f"{has} more work than {_possessive(culprit)} peers" + (f", {_place(culprit)}" if culprit.phase else "")
    if culprit.kind == "corrupt":
        return "computes other parameters than its replicas"
    if culprit.kind == "busy_threads":
        return f"{verb} held up by threads of {_possessive(culprit)} own process"
    if culprit.phase == "between_steps":
        return f"{verb} slow between steps"
    return f"{verb} slow" + (f" in {_place(culprit)}" if _place(culprit) and culprit.kind != "slow_link" else "")


def _place(culprit: Culprit) -> str:
    if culprit.phase == "collective":
        return "a collective" + (f" of group {culprit.group}" if culprit.group else "")
    return phase_text(culprit.phase or "")


def _cost(culprit: Culprit, location: Location) -> str:
    """The cost of the culprit for the job; in seconds of each step where the window has a length."""
    if culprit.kind == "dead":
        return ""
    if culprit.kind == "corrupt":
        return f"they differ since step {culprit.since_step}"
    if culprit.kind == "hung":
        verb = "waited" if culprit.silent else "wait"
        return f"the others {verb} for " + ("them" if len(culprit.ranks) > 1 else "it")
    if not culprit.recoverable_ratio:
        peers = "the others" if culprit.kind in ("slow_link", "slow_host") else _possessive(culprit) + " peers"
        return f"{culprit.slowdown_ratio:.2f} times the time of {peers}" if culprit.slowdown_ratio else ""
    share = f"{culprit.recoverable_ratio:.0%} of the step time".replace("%", " %")
    steps = _step_count(location)
    if not steps or location.window.seconds <= 0:
        return f"fixing it would save {share}"
    seconds = culprit.recoverable_ratio * (location.window.step_seconds or location.window.seconds / steps)
    return f"fixing it would save {seconds_text(seconds)} of each step, {share}"


def _possessive(culprit: Culprit) -> str:
    return "their" if len(culprit.ranks) > 1 else "its"


def _step_count(location: Location) -> int:
    window = location.window
    if window.first_step is None or window.last_step is None:
        return 0
    return window.last_step - window.first_step + 1


NOTE_KIND: Final = "unseen"
_MAX_REASONS: Final = 2
_MAX_LINE_CHARACTERS: Final = 600


def unseen_note(ranks: Sequence[int], whys: Sequence[str], world_size: int) -> Note:
    """`2 processes (ranks 0-1) trained without being seen: why`. `ranks`, `whys`: of each process."""
    reasons = list(dict.fromkeys(whys))
    more = f"; and {len(reasons) - _MAX_REASONS} more reasons" if len(reasons) > _MAX_REASONS else ""
    each = tuple(sorted(set(ranks)))
    named = f" ({ranks_text(each[:MAX_NAMED_RANKS])})" if world_size > 1 else ""
    text = f"{len(ranks)} process{'' if len(ranks) == 1 else 'es'}{named} trained without being seen"
    return Note(
        NOTE_KIND, printable_line(f"{text}: {'; '.join(reasons[:_MAX_REASONS])}{more}", _MAX_LINE_CHARACTERS), each
    )
