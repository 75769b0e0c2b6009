"""Describes a location in words: one sentence, then what supports it. The page and `laggard locate` use the same
words."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

from laggard.kit.words import capital, counted, phase_text, printable_line, ranks_text, seconds_text
from laggard.model import MAX_NAMED_RANKS, Culprit, Location, Note, Verdict
from laggard.wire.job_words import end_text, left_early

NOT_HELD = "not_held"
"""The kind of the note on jobs that the collector has no room for: who reads any answer should know of them."""

SURROUNDING = (
    "partial", "rank_died", "agents_silent", "contested", "ended", "stale", "coarse", "held", "stall",
    "slow_before", "nodes_failing", "own_past", "slower_since", "slower_at_times", "unseen", "digest_skipped", NOT_HELD,
)  # fmt: skip
"""Kinds of notes that go along with a verdict and are not the reason why there is none."""


def sentence(location: Location) -> str:
    """The answer, and what is not watched at all. It ends with a full stop and holds no line break, whatever text is in
    the location."""
    not_held = [capital(note.text) for note in location.notes if note.kind == NOT_HELD]
    return " ".join((_answer(location), *(printable_line(f"{text}.") for text in not_held)))


def _answer(location: Location) -> str:
    cause = _cause(location)
    if location.culprits and cause is None:
        return printable_line(_culprit_sentence(location))
    if location.verdict is Verdict.OK:
        steps, uneven = _step_count(location), _uneven(location)
        looked_at = counted(location.ranks_seen, "rank") + (f", {counted(steps, 'step')}" if steps else "")
        # Uneven work is nobody's fault, and what the step time goes to.
        but, who = (", but work is uneven", f" {capital(uneven.text)}.") if uneven else ("", "")
        return printable_line(f"No rank is slow{but}: {looked_at} looked at.{who}")
    reason = cause.text.rstrip(".") if cause else "nothing is known about any rank"
    start = "Something is wrong" if location.verdict is Verdict.FAIL else "Cannot tell"
    return printable_line(f"{start}: {reason}.")


def _uneven(location: Location) -> Note | None:
    return next((note for note in location.notes if note.kind == "uneven_work"), None)


def details(location: Location) -> list[str]:
    """Lines of evidence, one culprit after the other, each with its advice first, then the notes that are not in the
    sentence."""
    lines = _of_each(location, lambda it: (f"what to do: {it.advice}" if it.advice else "", *_support(it, location)))
    return lines + note_lines(location)


def advice_lines(location: Location) -> list[str]:
    """The advice, a line for each culprit that has some."""
    return _of_each(location, lambda culprit: (culprit.advice,))


def support_lines(location: Location) -> list[str]:
    """The evidence of the culprits, without advice."""
    return _of_each(location, lambda culprit: _support(culprit, location))


def _of_each(location: Location, lines_of: Callable[[Culprit], Iterable[str]]) -> list[str]:
    """The lines of all culprits, each under its culprit's name where there are several."""
    several = len(location.culprits) > 1
    named = ((f"{culprit_name(it)}: " if several else "", line) for it in location.culprits for line in lines_of(it))
    return [capital(printable_line(prefix + line)) for prefix, line in named if line]


def _support(culprit: Culprit, location: Location) -> Iterator[str]:
    if culprit.stack:
        yield f"in the code: {culprit.stack.text}"
    yield from culprit.evidence
    if culprit.findings:
        who = "its nodes report" if len(culprit.machines) > 1 else "its node reports"
        yield f"{who} {', '.join(culprit.findings)}"
    if culprit.victims:
        wait = f"wait{'s' if len(culprit.victims) == 1 else ''} for {_words(culprit)['it']}"
        yield f"{_victims(culprit, location)} {'cannot go on without it' if culprit.kind == 'dead' else wait}"


def note_lines(location: Location) -> list[str]:
    in_sentence = _uneven(location) if location.verdict is Verdict.OK else _cause(location)
    notes = (note for note in location.notes if note is not in_sentence and note.kind != NOT_HELD)
    return [capital(printable_line(note.text)) for note in notes]


def culprit_name(culprit: Culprit) -> str:
    """The rank, machine or link, for the middle of a sentence: `rank 2 on n1`, `the link n1 mlx5_0 to n2 mlx5_0`."""
    ranks, node = ranks_text(culprit.ranks), culprit.node
    beside, on = f" ({ranks})" if ranks else "", f" on {node}" if node else ""
    if culprit.is_within_machine:
        return f"the links within {node}{beside}"
    if culprit.kind == "slow_link" and culprit.link:
        ends = (" ".join(filter(None, (end.get("node"), end.get("device")))) or "?" for end in culprit.link)
        return "the link " + " to ".join(ends)
    if culprit.kind == "slow_link" and ranks:
        return f"the network of {ranks}{on}"
    # One rank is told by its number, whether its CPU's want is known by now or not: the name does not change with that.
    if culprit.kind in ("slow_host", "dead") and len(culprit.ranks) != 1 and node:
        return f"host {node}{beside}"
    return (ranks or culprit.device or "a machine") + on


def culprit_text(culprit: Culprit) -> str:
    """The culprit and its fault, for the middle of a sentence: `rank 2 on n1 is slow in forward`."""
    return printable_line(f"{culprit_name(culprit)} {_condition(culprit)}")


WRONG: Final = ("deadlock", "mismatch")
"""Notes of what is wrong, with or without a culprit."""


def _cause(location: Location) -> Note | None:
    """The note that says why there is no verdict, or what the culprit did, which the sentence quotes; what is wrong
    comes before what is not known, and where the processes stand before the rest of that."""
    if location.culprits:
        of_it = (note for note in location.notes if note.kind in WRONG and note.ranks == location.culprits[0].ranks)
        return next(of_it, None)
    causes = [note for note in location.notes if note.kind not in SURROUNDING]
    causes.sort(key=lambda note: (note.kind not in WRONG, note.kind != "stacks"))
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


_ONE: Final = {"be": "is", "have": "has", "it": "it", "its": "its"}
_SEVERAL: Final = {"be": "are", "have": "have", "it": "them", "its": "their"}
"""The words for one culprit, and for several ranks."""


def _words(culprit: Culprit) -> Mapping[str, str]:
    """A machine and a link are one, whoever is there; the links within a machine are several."""
    words = _SEVERAL if len(culprit.ranks) > 1 else _ONE
    is_one = words is _ONE or culprit.kind in ("slow_host", "slow_link")
    return {**words, "be": "is" if is_one and not culprit.is_within_machine else "are"}


def _victims(culprit: Culprit, location: Location) -> str:
    """The ranks that wait. Where the list of victims may have been cut, their number out of all ranks."""
    count, others = len(culprit.victims), location.ranks_seen - len(culprit.ranks)
    if count < MAX_NAMED_RANKS or others <= count:
        return ranks_text(culprit.victims)
    return f"at least {count} of the other {others:,} ranks"


_CONDITIONS: Final = {
    "hung": "{be} hung{where}",
    "slow_input": "{be} slow to get {its} input",
    "slow_link": "{be} slow",
    "uneven_work": "{have} more work than {its} peers{after}",
    "corrupt": "computes other parameters than its replicas",
    "busy_threads": "{be} held up by threads of {its} own process",
    "silent": "fell silent first, stopped or killed",
    "stopped": "{be} hung, stopped by a signal or a debugger",
    "device_stopped": "{be} hung, {gpu} no longer completes what it launched",
    "dead": "died first: {end}",
    "left": "left first: {end}",
}
"""What is wrong with a culprit, by its situation; of others it is slow, in a phase where one is known."""


def situation(culprit: Culprit) -> str:
    """The kind of a culprit, and more exactly of one that hangs or is dead."""
    if culprit.kind == "dead":
        return "left" if left_early(culprit.end) else "dead"
    told = {"silent": culprit.silent, "device_stopped": culprit.device_stopped, "stopped": culprit.stopped}
    return next((name for name, holds in told.items() if holds), culprit.kind)


def _condition(culprit: Culprit) -> str:
    """`is slow in forward`, `are hung in a collective of group dp:0-3`."""
    place = _place(culprit)
    words = {
        **_words(culprit),
        "where": f" {place}" if place == "between steps" else f" in {place}" if place else "",
        "after": f", {place}" if place else "",
        "gpu": "its GPU" if len(culprit.ranks) == 1 else "one of their GPUs",
        "end": end_text(culprit.end),
    }
    return _CONDITIONS.get(situation(culprit), "{be} slow{where}").format(**words)


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
        return f"the others {'waited' if culprit.silent else 'wait'} for {_words(culprit)['it']}"
    if not culprit.recoverable_ratio:
        peers = "the others" if culprit.kind in ("slow_link", "slow_host") else f"{_words(culprit)['its']} peers"
        return f"{culprit.slowdown_ratio:.2f} times the time of {peers}" if culprit.slowdown_ratio else ""
    share = f"{100 * culprit.recoverable_ratio:.0f} % of the step time"
    steps = _step_count(location)
    if not steps or location.window.seconds <= 0:
        return f"fixing it would save {share}"
    seconds = culprit.recoverable_ratio * (location.window.step_seconds or location.window.seconds / steps)
    return f"fixing it would save {seconds_text(seconds)} of each step, {share}"


def _step_count(location: Location) -> int:
    window = location.window
    if window.first_step is None or window.last_step is None:
        return 0
    return window.last_step - window.first_step + 1


_MAX_REASONS: Final = 2
_MAX_LINE_CHARACTERS: Final = 600


def unseen_note(ranks: Sequence[int], whys: Sequence[str], world_size: int) -> Note:
    """`2 processes (ranks 0-1) trained without being seen: why`. `ranks`, `whys`: of each process."""
    reasons, each = list(dict.fromkeys(whys)), tuple(sorted(set(ranks)))
    more = [f"and {len(reasons) - _MAX_REASONS} more reasons"] if len(reasons) > _MAX_REASONS else []
    named = f" ({ranks_text(each[:MAX_NAMED_RANKS])})" if world_size > 1 else ""
    processes = "1 process" if len(ranks) == 1 else f"{len(ranks)} processes"
    text = f"{processes}{named} trained without being seen: {'; '.join((*reasons[:_MAX_REASONS], *more))}"
    return Note("unseen", printable_line(text, _MAX_LINE_CHARACTERS), each)
