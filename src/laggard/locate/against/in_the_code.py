"""Where in the code a part of the step takes longer than in an earlier run: the samples of that part in both runs,
compared function by function. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from laggard.model import Note
from laggard.stacks.difference import MIN_SAMPLES, difference, shares
from laggard.stacks.frames import is_library, own_frame, short_text
from laggard.stacks.sampled import ASKED, Counted, Sampled, Thread, merged
from laggard.text.words import phase_text, printable_line
from laggard.wire.comparison import Change
from laggard.wire.digest import IN_FEW_STEPS

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
