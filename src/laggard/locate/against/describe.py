"""Describes a comparison in words: one sentence, then what supports it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from laggard.kit.words import capital, joined, phase_text, printable_line, ranks_text, seconds_text
from laggard.locate.against.compare import is_changed
from laggard.model import Note
from laggard.stacks.difference import MIN_SAMPLES, difference, shares
from laggard.stacks.sampled import ASKED, Counted, Sampled, Thread, is_library, merged, own_frame, short_text
from laggard.wire.digest import IN_FEW_STEPS, Change, Comparison, Difference

IN_THE_CODE: Final = "in_the_code"
"""The kind of these notes."""

_MAX_CHANGES: Final = 2
_MAX_TEXT: Final = 300


def places_of_changes(changes: Sequence[Change], now: Sequence[Sampled], before: Sequence[Sampled]) -> tuple[Note, ...]:
    """A note on each of the largest changes of a phase that takes longer, where both, or this run alone, were sampled
    in it. `now`, `before`: what the ranks' processes left."""
    longer = [each for each in changes if each.kind == "phase" and each.seconds > 0][:_MAX_CHANGES]
    return tuple(note for each in longer for note in _of_change(each, now, before))


def _of_change(change: Change, now: Sequence[Sampled], before: Sequence[Sampled]) -> Iterator[Note]:
    phase = (change.phase or "").removesuffix(IN_FEW_STEPS)
    own, old = (_in_phase(documents, change.ranks, phase) for documents in (now, before))
    if own is None:
        return
    where = f" of {len(change.ranks)} ranks" if len(change.ranks) > 1 else ""
    text = f"in the code, {phase_text(change.phase or '')}{where}: {_place(own, old)}"
    yield Note(IN_THE_CODE, printable_line(text, _MAX_TEXT), change.ranks)


def _in_phase(documents: Sequence[Sampled], ranks: Sequence[int], phase: str) -> Sampled | None:
    """All samples of the phase of these ranks, of all where none is named; None where there are too few."""
    kept = [each for each in documents if each.why == ASKED and (not ranks or each.rank in ranks)]
    if not kept:
        return None
    whole = merged(kept)
    stacks = tuple(each for each in whole.training.stacks if each.phase == phase)
    thread = Thread(whole.training.name, stacks)
    return whole._replace(threads=(thread, *whole.threads[1:])) if thread.samples >= MIN_SAMPLES else None


def _place(own: Sampled, old: Sampled | None) -> str:
    """The function in which more of the phase's samples are than were; else the one in which most are."""
    found = difference(own, [old]) if old is not None else None
    if found is not None:
        return found._replace(phase="").text("before")  # the note names the phase
    most = max(own.training.stacks, key=lambda each: each.times)
    frame = own_frame(most.frames)
    share, was = (_share(each, most) for each in (own, old))
    then = f"; before {was:.0%}".replace("%", " %") if was is not None else ""
    library = "" if is_library(frame) else "its own line "
    return f"{share or 0.0:.0%} of the samples in ".replace("%", " %") + f"{library}{short_text(frame)}{then}"


def _share(sampled: Sampled | None, stack: Counted) -> float | None:
    if sampled is None:
        return None
    frame = own_frame(stack.frames)
    found = shares(sampled.training.stacks)
    return next((share for place, share in found.items() if place == (frame.function, frame.file)), 0.0)


_MAX_IN_SENTENCE = 3
_MAX_CHARACTERS = 80
_MAX_NUMBER = 1e18
_IN_SENTENCE = ("waiting", "standstill", "partial")
_BEFORE_ANSWER = "partial"
_ASIDE = ("culprit", "lacks", "same_run")
"""Kinds of notes that stand below the answer whatever it is."""
_TRIFLE_SECONDS = 1e-9  # what rounding leaves of a difference


def sentence(comparison: Comparison) -> str:
    """The answer; it ends with a full stop and holds no line break, whatever text is in the comparison."""
    still = next((note.text for note in comparison.notes if note.kind == "standstill"), None)
    seen = [note.text for note in comparison.notes if note.kind == _BEFORE_ANSWER]
    before = f"{capital('; '.join(seen))}. " if seen else ""
    before += f"{capital(still)}. Until then: " if still else ""
    return printable_line(f"{before}{_answer(comparison)}.")


def _answer(comparison: Comparison) -> str:
    if comparison.step is None:
        reasons = [_difference_text(each) for each in comparison.not_alike[:_MAX_IN_SENTENCE]]
        reasons += [note.text for note in comparison.notes if note.kind not in (*_IN_SENTENCE, *_ASIDE)]
        return f"Cannot compare with {comparison.against}: {'; '.join(reasons) or 'nothing is known of it'}"
    parts = [_change_text(change) for change in comparison.changes[:_MAX_IN_SENTENCE]]
    waiting = [note.text for note in comparison.notes if note.kind == "waiting"]
    if not parts:
        where = " in any part of a step" if waiting else ""
        return f"No difference from {comparison.against}{where}: {'; '.join((_seen_text(comparison), *waiting))}"
    if is_changed(comparison):
        what = "; ".join((joined(parts), *waiting))
        return f"{_ratio_text(comparison.step)} than {comparison.against}: {what}; {_else_text(comparison)}"
    whole = f"the step as a whole changed by {_signed(comparison.step.seconds)}, which is not certain"
    longer = {change.seconds > 0 for change in comparison.changes}
    how = "Not as" if len(longer) > 1 else "Longer than" if longer == {True} else "Shorter than"
    return f"{how} in {comparison.against}: {joined(parts)}; {whole}; {_else_text(comparison)}"


def details(comparison: Comparison) -> Iterator[str]:
    """Lines that support the answer."""
    if comparison.step is not None:
        step = comparison.step
        yield (
            f"A step takes {seconds_text(step.now_seconds)}, before {seconds_text(step.before_seconds)}"
            f" (95 % interval of the change: {_signed(step.low_seconds)} to {_signed(step.high_seconds)})"
        )
        of_code = (note for note in comparison.notes if note.kind == IN_THE_CODE)
        yield from (capital(printable_line(note.text)) for note in of_code)
        for change in comparison.changes:
            yield capital(printable_line(_detail_text(change)))
        if comparison.changes or is_changed(comparison):
            yield capital(_seen_text(comparison))
    for each in comparison.differences or ():
        yield printable_line(f"Changed: {_difference_text(each)}", 400)
    shown = comparison.notes if comparison.step else [it for it in comparison.notes if it.kind in _ASIDE]
    yield from (capital(printable_line(note.text)) for note in shown if note.kind not in (*_IN_SENTENCE, IN_THE_CODE))


def _ratio_text(step: Change) -> str:
    ratio = step.ratio or 0.0
    return f"{abs(ratio) * 100:.{0 if abs(ratio) >= 0.0995 else 1}f} % {'slower' if ratio > 0 else 'faster'}"


def _change_text(change: Change) -> str:
    percent = f"{change.ratio:+.0%}, ".replace("%", " %") if change.ratio is not None else ""
    interval = f"95 % interval {_signed(change.low_seconds)} to {_signed(change.high_seconds)}"
    return f"{name_of(change)} {_signed(change.seconds)} ({percent}{interval})"


def _detail_text(change: Change) -> str:
    share = f", {change.share:.0%} of the step's change".replace("%", " %") if change.share is not None else ""
    times = f"{seconds_text(change.now_seconds)} a step, before {seconds_text(change.before_seconds)}"
    return f"{name_of(change)}: {times}{share}"


def name_of(change: Change) -> str:
    """The part and where: `forward of n3 (ranks 4-7)`, `all_reduce in dp of 8, 4.2 MB each`, `backward`."""
    if change.kind == "operation":
        size = f", {_size_text(change.size_bytes)} each" if change.size_bytes else ""
        part = f"transfers of {change.op} in {change.role} of {change.members}{size}"
    else:
        part = phase_text(change.phase or "transfers of collectives")
    where = ranks_text(change.ranks)
    if change.nodes:
        shown = joined(change.nodes[:4]) + (f" and {len(change.nodes) - 4} more" if len(change.nodes) > 4 else "")
        where = f"{shown} ({where})"
    return f"{part} of {where}" if where else part


def _size_text(size: int) -> str:
    for unit, factor in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= factor:
            return f"{size / factor:.3g} {unit}"
    return f"{size} B"


def _signed(seconds: float) -> str:
    seconds = seconds if abs(seconds) >= _TRIFLE_SECONDS else 0.0
    return f"{'-' if seconds < 0 else '+'}{seconds_text(abs(seconds))}"


def _seen_text(comparison: Comparison) -> str:
    """The smallest changes that would have been seen, of the phase that is the easiest to tell and of the hardest."""
    limits = sorted(comparison.smallest_seconds.items(), key=lambda item: item[1])
    whole = comparison.step.before_seconds if comparison.step else 0.0
    if not limits or whole <= 0:
        return "no phase is long enough to tell"
    texts = [
        f"{seconds_text(seconds)} in {phase_text(phase)}, {seconds / whole:.1%} of the step".replace("%", " %")
        for phase, seconds in dict.fromkeys((limits[0], limits[-1]))
    ]
    return f"a change would have been seen from {' (to '.join(texts)}{')' if len(texts) > 1 else ''} on"


def _else_text(comparison: Comparison) -> str:
    known = comparison.differences
    if known is None:
        return "what else changed is not recorded of both"
    if not known:
        return "nothing else changed that is recorded"
    shown = joined([_difference_text(each) for each in known[:_MAX_IN_SENTENCE]])
    more = f" and {len(known) - _MAX_IN_SENTENCE} more" if len(known) > _MAX_IN_SENTENCE else ""
    return f"nothing else changed but {shown}{more}"


def _difference_text(difference: Difference) -> str:
    before, now = (printable_line(text, _MAX_CHARACTERS) for text in (difference.before, difference.now))
    if difference.name == "nodes":
        return joined([text for text in (f"{before} left" if before else "", f"{now} came" if now else "") if text])
    name = printable_line(difference.name, _MAX_CHARACTERS)
    told = _size_of if name.startswith("bytes of ") else _count_of if name.startswith("elements of ") else str
    return f"{name} {told(before) or 'not set'} -> {told(now) or 'not set'}"


def _size_of(text: str) -> str:
    """A number of bytes as people read it; a text that is none as it is: a digest may hold anything."""
    number = _number(text)
    return text if number is None else _size_text(round(number))


def _count_of(text: str) -> str:
    number = _number(text)
    return text if number is None else f"{number:,.0f}"


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if 0 <= number < _MAX_NUMBER else None
