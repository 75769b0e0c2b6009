"""Describes a comparison in words: one sentence, then what supports it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from laggard.kit.words import capital, joined, listed, phase_text, printable_line, ranks_text, seconds_text
from laggard.locate.against.compare import size_text
from laggard.model import Note
from laggard.stacks.difference import MIN_SAMPLES, Place, described, difference, shares
from laggard.stacks.sampled import ASKED, Sampled, Thread, merged, own_frame
from laggard.wire.digest import IN_FEW_STEPS, Change, Comparison, Difference

IN_THE_CODE: Final = "in_the_code"
"""The kind of these notes."""

_MAX_CHANGES: Final = 2
_MAX_TEXT: Final = 300


def places_of_changes(changes: Sequence[Change], now: Sequence[Sampled], before: Sequence[Sampled]) -> tuple[Note, ...]:
    """A note on each of the largest changes of a phase that takes longer, where both, or this run alone, were sampled
    in it. `now`, `before`: what the ranks' processes left."""
    notes = []
    for change in [each for each in changes if each.kind == "phase" and each.seconds > 0][:_MAX_CHANGES]:
        own, old = (_in_phase(documents, change) for documents in (now, before))
        if own is not None:
            where = f" of {len(change.ranks)} ranks" if len(change.ranks) > 1 else ""
            text = f"in the code, {phase_text(change.phase or '')}{where}: {_place(own, old)}"
            notes.append(Note(IN_THE_CODE, printable_line(text, _MAX_TEXT), change.ranks))
    return tuple(notes)


def _in_phase(documents: Sequence[Sampled], change: Change) -> Sampled | None:
    """All samples of the change's phase, of its ranks, of all where none is named; None where there are too few."""
    kept = [each for each in documents if each.why == ASKED and (not change.ranks or each.rank in change.ranks)]
    if not kept:
        return None
    whole, phase = merged(kept), (change.phase or "").removesuffix(IN_FEW_STEPS)
    thread = Thread(whole.training.name, tuple(each for each in whole.training.stacks if each.phase == phase))
    return whole._replace(threads=(thread, *whole.threads[1:])) if thread.samples >= MIN_SAMPLES else None


def _place(own: Sampled, old: Sampled | None) -> str:
    """The function in which more of the phase's samples are than were; else the one in which most are."""
    found = difference(own, [old]) if old is not None else None
    if found is None:
        frame = own_frame(max(own.training.stacks, key=lambda each: each.times).frames)
        place = Place(frame.function, frame.file)
        was = shares(old.training.stacks).get(place, 0.0) if old is not None else None
        found = described(place, own.training, shares(own.training.stacks)[place], was)
    return found._replace(phase="").text("before")  # the note names the phase


_MAX_IN_SENTENCE = 3
_MAX_CHARACTERS = 80
_IN_SENTENCE = ("waiting", "standstill", "partial")
_ASIDE = ("culprit", "lacks", "same_run")
"""Kinds of notes that stand below the answer whatever it is."""
_TRIFLE_SECONDS = 1e-9  # what rounding leaves of a difference


def sentence(comparison: Comparison) -> str:
    """The answer; it ends with a full stop and holds no line break, whatever text is in the comparison."""
    still = _texts(comparison, "standstill")[:1]
    seen = "; ".join(_texts(comparison, "partial"))
    before = [f"{capital(seen)}."] if seen else []
    before += [f"{capital(still[0])}. Until then:"] if still else []
    return printable_line(" ".join((*before, f"{_answer(comparison)}.")))


def _texts(comparison: Comparison, kind: str) -> list[str]:
    return [note.text for note in comparison.notes if note.kind == kind]


def _answer(comparison: Comparison) -> str:
    against, waiting = comparison.against, _texts(comparison, "waiting")
    if comparison.step is None:
        reasons = [_difference_text(each) for each in comparison.not_alike[:_MAX_IN_SENTENCE]]
        reasons += [note.text for note in comparison.notes if note.kind not in (*_IN_SENTENCE, *_ASIDE)]
        return f"Cannot compare with {against}: {'; '.join(reasons) or 'nothing is known of it'}"
    parts = [_change_text(change) for change in comparison.changes[:_MAX_IN_SENTENCE]]
    if not parts:
        where = " in any part of a step" if waiting else ""
        return f"No difference from {against}{where}: {'; '.join((_seen_text(comparison), *waiting))}"
    if is_changed(comparison):
        ratio = comparison.step.ratio or 0.0
        percent = f"{abs(ratio) * 100:.{0 if abs(ratio) >= 0.0995 else 1}f} %"
        how, whole = f"{percent} {'slower' if ratio > 0 else 'faster'} than", waiting
    else:
        longer = {change.seconds > 0 for change in comparison.changes}
        how = "Not as in" if len(longer) > 1 else "Longer than in" if longer == {True} else "Shorter than in"
        whole = [f"the step as a whole changed by {_signed(comparison.step.seconds)}, which is not certain"]
    return f"{how} {against}: {'; '.join((joined(parts), *whole, _else_text(comparison)))}"


def is_changed(comparison: Comparison) -> bool:
    """Whether the step as a whole takes longer or shorter for certain."""
    return comparison.step is not None and comparison.step.share is not None


def details(comparison: Comparison) -> Iterator[str]:
    """Lines that support the answer."""
    step, aside = comparison.step, _ASIDE
    if step is not None:
        yield (
            f"A step takes {seconds_text(step.now_seconds)}, before {seconds_text(step.before_seconds)}"
            f" (95 % interval of the change: {_signed(step.low_seconds)} to {_signed(step.high_seconds)})"
        )
        for text in (*_texts(comparison, IN_THE_CODE), *map(_detail_text, comparison.changes)):
            yield capital(printable_line(text))
        if comparison.changes or is_changed(comparison):
            yield capital(_seen_text(comparison))
    for each in comparison.differences or ():
        yield printable_line(f"Changed: {_difference_text(each)}", 400)
    for note in comparison.notes:
        if note.kind not in (*_IN_SENTENCE, IN_THE_CODE) and (step is not None or note.kind in aside):
            yield capital(printable_line(note.text))


def _change_text(change: Change) -> str:
    percent = f"{100 * change.ratio:+.0f} %, " if change.ratio is not None else ""
    interval = f"95 % interval {_signed(change.low_seconds)} to {_signed(change.high_seconds)}"
    return f"{name_of(change)} {_signed(change.seconds)} ({percent}{interval})"


def _detail_text(change: Change) -> str:
    share = f", {100 * change.share:.0f} % of the step's change" if change.share is not None else ""
    times = f"{seconds_text(change.now_seconds)} a step, before {seconds_text(change.before_seconds)}"
    return f"{name_of(change)}: {times}{share}"


def name_of(change: Change) -> str:
    """The part and where: `forward of n3 (ranks 4-7)`, `all_reduce in dp of 8, 4.2 MB each`, `backward`."""
    part = phase_text(change.phase or "transfers of collectives")
    if change.kind == "operation":
        size = f", {size_text(change.size_bytes)} each" if change.size_bytes else ""
        part = f"transfers of {change.op} in {change.role} of {change.members}{size}"
    where = ranks_text(change.ranks)
    if change.nodes:
        where = f"{listed(change.nodes, 4)} ({where})"
    return f"{part} of {where}" if where else part


def _signed(seconds: float) -> str:
    seconds = seconds if abs(seconds) >= _TRIFLE_SECONDS else 0.0
    return f"{'-' if seconds < 0 else '+'}{seconds_text(abs(seconds))}"


def _seen_text(comparison: Comparison) -> str:
    """The smallest changes that would have been seen, of the phase that is the easiest to tell and of the hardest."""
    limits = sorted(comparison.smallest_seconds.items(), key=lambda item: item[1])
    whole = comparison.step.before_seconds if comparison.step else 0.0
    if not limits or whole <= 0:
        return "no phase is long enough to tell"
    first, *last = [
        f"{seconds_text(seconds)} in {phase_text(phase)}, {100 * seconds / whole:.1f} % of the step"
        for phase, seconds in dict.fromkeys((limits[0], limits[-1]))
    ]
    return f"a change would have been seen from {first}{f' (to {last[0]})' if last else ''} on"


def _else_text(comparison: Comparison) -> str:
    known = comparison.differences
    if known is None:
        return "what else changed is not recorded of both"
    told = [_difference_text(each) for each in known[:_MAX_IN_SENTENCE]]
    more = [f"{len(known) - len(told)} more"] if len(known) > len(told) else []
    return f"nothing else changed {f'but {joined([*told, *more])}' if told else 'that is recorded'}"


def _difference_text(difference: Difference) -> str:
    name, before, now = (
        printable_line(text, _MAX_CHARACTERS) for text in (difference.name, difference.before, difference.now)
    )
    if difference.name == "nodes":
        return joined([text for text in (f"{before} left" if before else "", f"{now} came" if now else "") if text])
    return f"{name} {before or 'not set'} -> {now or 'not set'}"
