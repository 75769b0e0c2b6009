"""The places in the code of a job's culprits: the stacks that the ranks' processes took, put beside the verdict.

A slow rank is compared with its peers, by shares of samples; a hung one stands beside a rank that waits for it; one
that died left its last stack. Where a rank has no stack of its own, its place in the kernel stands in for one. Stacks
accuse nobody but of a hang: else, without a culprit, they are a note on a job that stands still, and
nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from types import MappingProxyType
from typing import Final

from msgspec import structs

from laggard.kit.majority import grouped
from laggard.kit.words import counted, joined, printable_line, ranks_text, seconds_text
from laggard.locate.explanation import explained
from laggard.locate.job_timings import JobTimings
from laggard.model import MAX_NAMED_RANKS, Culprit, CulpritStack, Location, Note, Verdict
from laggard.stacks.difference import (
    MIN_SAMPLES,
    Difference,
    Standing,
    difference,
    differing_from,
    standing_beside,
    standings,
)
from laggard.stacks.sampled import (
    ASKED,
    CRASHED,
    FAILED,
    HELD,
    STALLED,
    TERMINATED,
    Counted,
    Sampled,
    collective_of,
    frame_text,
    merged,
    own_frame,
    place_text,
    short_text,
)

# The ranks that the stacks of an ended job call hung, where nothing else tells: each stood in its own code while all
# others waited in a collective. Pure.
#
# A stack says where a process stood once. So it counts only where the process is known to have stood there to the end,
# and where all ranks of the job left one: who is missing may be whom all wait for. The thresholds are our own choices.

MAX_SHARE = 0.5
"""The largest share of the ranks that may stand outside of collectives. Where there are more, nobody waits for them."""

CONFIDENCE = 0.7
"""The confidence in such a culprit: it stood still when the job was ended, and may have come later."""


def hung_by_stacks(
    timings: JobTimings, standing: Mapping[int, Sampled], documents: Mapping[int, Sequence[Sampled]]
) -> tuple[Culprit, ...]:
    """The hung ranks, those at one place as one culprit; none where the stacks cannot decide. `standing`: where each
    rank stood last; `documents`: all that each left."""
    if (timings.live and len(timings.ranks)) or not _is_whole(timings, standing):
        return ()
    all_of = standings(standing.values())
    out = [each for each in all_of if not each.waits]
    waiting = [each for each in all_of if each.waits]
    count = sum(len(each.ranks) for each in out)
    if not out or not waiting or count > MAX_SHARE * len(standing):
        return ()
    columns = {rank: place for place, rank in enumerate(timings.ranks.tolist())}
    ranks = [rank for each in out for rank in each.ranks]
    since = _waits_since(standing[rank] for each in waiting for rank in each.ranks)
    if not all(_stood_to_the_end(columns.get(rank), standing[rank], timings, documents[rank], since) for rank in ranks):
        return ()
    return tuple(explained(_culprit(each, waiting, standing, timings), timings) for each in out)


def _is_whole(timings: JobTimings, standing: Collection[int]) -> bool:
    size = max(timings.world_size, 1 + max(standing, default=0))
    return len(standing) == size


def _waits_since(waiting: Iterable[Sampled]) -> float:
    """The Unix time since which all of them wait."""
    return max((it.at - it.stalled_seconds for it in waiting if it.why == STALLED), default=math.inf)


def _stood_to_the_end(
    column: int | None, last: Sampled, timings: JobTimings, documents: Sequence[Sampled], since: float
) -> bool:
    """Whether nothing says that the rank went on from there, or that it was in a collective all the same: one that it
    had begun and did not wait for in Python. `since`: when the others' wait began, Unix time."""
    if last.why not in (STALLED, HELD):
        return False
    if not len(timings.ranks):
        return True
    if column is None:  # one that is held writes nothing; of an earlier standstill its dump may be as well
        return last.why == HELD and last.at >= since
    state, beat = timings.states[column], timings.last_beats[column] if timings.last_beats else None
    if state.in_flight is not None or state.stopped:
        return False
    if beat is None:
        return _was_there_when_asked_to_end(last, documents)
    begun = any(0 <= group.completed < group.enqueued for group in beat.beat.groups)
    return beat.in_flight is None and not begun


def _was_there_when_asked_to_end(last: Sampled, documents: Sequence[Sampled]) -> bool:
    """Whether SIGTERM found the rank at the same line: a handler then ended it in order, and no beat is its last."""
    own = own_frame(last.training.stacks[0].frames)
    asked = (own_frame(each.training.stacks[0].frames) for each in documents if each.why == TERMINATED)
    return any((each.file, each.line) == (own.file, own.line) for each in asked)


def _culprit(
    standing: Standing, waiting: Sequence[Standing], sampled: Mapping[int, Sampled], timings: JobTimings
) -> Culprit:
    columns = [place for place, rank in enumerate(timings.ranks.tolist()) if rank in standing.ranks]
    nodes = {sampled[rank].node for rank in standing.ranks}
    steps = [step for column in columns if (step := timings.states[column].step) is not None]
    victims = sorted(rank for each in waiting for rank in each.ranks)
    return Culprit(
        kind="hung",
        ranks=standing.ranks[:MAX_NAMED_RANKS],
        node=nodes.pop() or None if len(nodes) == 1 else None,
        gpu=timings.gpus[columns[0]] if len(standing.ranks) == len(columns) == 1 else None,
        since_step=min(steps) + 1 if steps else None,
        confidence=CONFIDENCE,
        evidence=tuple(_evidence(standing, waiting, victims, sampled)),
        victims=tuple(victims[:MAX_NAMED_RANKS]),
    )


def _evidence(
    standing: Standing, waiting: Sequence[Standing], victims: Sequence[int], sampled: Mapping[int, Sampled]
) -> Iterator[str]:
    holds = any(sampled[rank].why == HELD for rank in standing.ranks)
    several, seconds = len(standing.ranks) > 1, max(sampled[rank].stalled_seconds for rank in standing.ranks)
    for_long = f" for {seconds_text(seconds)} or more" if seconds else ""
    others = f"{ranks_text(victims)} {'was' if len(victims) == 1 else 'were'}"
    waits = joined(list(dict.fromkeys(each.waits for each in waiting))[:3])
    yield (
        f"{'they' if several else 'it'} stood still in {'their' if several else 'its'} own code{for_long}, in no"
        f" collective{', with Python held up by C code' if holds else ''}, while {others} in {waits}"
    )


_SLOW_KINDS = ("slow_compute", "slow_host", "slow_input", "uneven_work", "busy_threads")
_STANDING = (STALLED, HELD, TERMINATED, CRASHED, ASKED)
_LAST = (FAILED, CRASHED, TERMINATED, HELD, STALLED)
_STILL_NOTES = ("deadlock", "mismatch", "waiting", "starting", "hang", "unseen_ranks", "unfinished")
_ENDED_NOTES = ("first_unseen", "ended")
_MAX_PEERS = 8
_MAX_TEXT = 400
_MAX_PLACE = 160
_NO_PLACES: Final[Mapping[int, str]] = MappingProxyType({})


def with_stacks(
    location: Location,
    sampled: Iterable[Sampled],
    timings: JobTimings | None = None,
    kernel: Mapping[int, str] = _NO_PLACES,
) -> Location:
    """The location, each culprit with its stack where there is one; a job that stands still without a culprit gets the
    rank that its stacks call hung, or a note on where its ranks stand. `timings`: those of the location; None: nobody
    is called hung. `kernel`: the places in the kernel, in words, of ranks without stacks."""
    by_rank = _by_rank(sampled)
    if not by_rank and not kernel:
        return location
    if timings is not None and _may_be_hung(location, by_rank):
        location = _with_hung(location, by_rank, timings)
    accused = {rank for culprit in location.culprits for rank in culprit.ranks}
    culprits = tuple(
        structs.replace(culprit, stack=stack)
        if (stack := _stack_of(culprit, by_rank, accused) or _kernel_stack(culprit, by_rank, kernel))
        else culprit
        for culprit in location.culprits
    )
    notes = location.notes
    if not location.ranks_seen and not location.culprits:
        notes = (*notes, *standing_notes(chain.from_iterable(by_rank.values())))
    elif _stood_still(location, by_rank) and (told := _standing_note(by_rank, kernel)):
        notes = (*_without_deaths(notes, location), *told)
    return structs.replace(location, culprits=culprits, notes=notes)


def _may_be_hung(location: Location, by_rank: Mapping[int, list[Sampled]]) -> bool:
    """Whether who hangs is not known: nothing else is known of the job, it is said to have waited, or a rank of whose
    end nothing is recorded is taken for dead."""
    if location.culprits:
        return all(it.kind == "dead" and it.end is None for it in location.culprits)
    if location.verdict is not Verdict.UNKNOWN:
        return False
    return not location.ranks_seen or _stood_still(location, by_rank) or _was_ended_standing(location, by_rank)


def _was_ended_standing(location: Location, by_rank: Mapping[int, list[Sampled]]) -> bool:
    stalled = any(each.why in (STALLED, HELD) for documents in by_rank.values() for each in documents)
    return stalled and any(note.kind in _ENDED_NOTES for note in location.notes)


def _with_hung(location: Location, by_rank: Mapping[int, list[Sampled]], timings: JobTimings) -> Location:
    standing = {rank: each for rank, documents in by_rank.items() if (each := _standing(documents)) is not None}
    culprits = hung_by_stacks(timings, standing, by_rank)
    dead = {rank for it in location.culprits for rank in it.ranks}
    hung = {rank for it in culprits for rank in it.ranks}
    if not culprits or (dead and not (dead == hung and all(standing[rank].why == HELD for rank in dead))):
        return location
    notes = tuple(note for note in location.notes if note.kind not in ("first_unseen", "rank_died", "unfinished"))
    return structs.replace(location, verdict=Verdict.FAIL, culprits=culprits, notes=notes)


def _without_deaths(notes: tuple[Note, ...], location: Location) -> tuple[Note, ...]:
    """The notes without those on who died first: of a job that stood still before it was ended nobody asks that."""
    return (
        notes
        if any(it.kind == "dead" for it in location.culprits)
        else tuple(note for note in notes if note.kind != "first_unseen")
    )


def _stood_still(location: Location, by_rank: Mapping[int, list[Sampled]]) -> bool:
    """Whether the job stood still and no culprit's stack says where: nobody is accused, or who was killed last is."""
    if not location.culprits:
        return any(note.kind in _STILL_NOTES for note in location.notes)
    stood = any(each.why in (STALLED, HELD) for documents in by_rank.values() for each in documents)
    return stood and all(culprit.kind == "dead" for culprit in location.culprits)


def standing_notes(sampled: Iterable[Sampled]) -> tuple[Note, ...]:
    """A note on where the processes of a job stand of which nothing else is known; where they go on, on what one does
    more than the others. None where nothing is known."""
    by_rank = _by_rank(sampled)
    goes_on = any(not each.is_still for documents in by_rank.values() for each in documents)
    return _differing_notes(by_rank) if goes_on else _standing_note(by_rank)


def _differing_notes(by_rank: Mapping[int, list[Sampled]]) -> tuple[Note, ...]:
    asked = {rank: each for rank, documents in by_rank.items() if (each := _asked(documents)) is not None}
    told = {
        rank: found
        for rank, own in asked.items()
        if (found := difference(own, [peer for other, peer in asked.items() if other != rank][:_MAX_PEERS]))
        and not collective_of(found.stack.frames)
    }
    if not told:
        return (Note("stacks", "the processes go on, and no one does more of anything than the others"),)
    rank = max(told, key=lambda each: told[each].share - (told[each].peers_share or 0.0))
    return (
        Note("stacks", printable_line(f"the processes go on, rank {rank} differs: {told[rank].text()}", _MAX_TEXT)),
    )


def _by_rank(sampled: Iterable[Sampled]) -> dict[int, list[Sampled]]:
    return grouped(sampled, lambda each: each.rank)


def _stack_of(culprit: Culprit, by_rank: Mapping[int, list[Sampled]], accused: set[int]) -> CulpritStack | None:
    ranks = [rank for rank in culprit.ranks if rank in by_rank]
    if not ranks:
        return None
    if culprit.kind in _SLOW_KINDS:
        return _slow_stack(ranks[0], by_rank, accused)
    if culprit.kind == "hung":
        return _hung_stack(ranks[0], by_rank)
    return _last_stack(ranks[0], by_rank[ranks[0]]) if culprit.kind == "dead" else None


def _slow_stack(rank: int, by_rank: Mapping[int, list[Sampled]], accused: set[int]) -> CulpritStack | None:
    asked = {each: _asked(by_rank[each]) for each in by_rank if each == rank or each not in accused}
    own = asked.pop(rank, None)
    peers = [each for each in asked.values() if each is not None][:_MAX_PEERS]
    found = difference(own, peers) if own is not None else None
    if found is None:
        return None
    peer = max(peers, key=lambda each: each.training.samples)
    place = short_text(found.caller or found.frame)
    return _beside(rank, found.text(), place, found.stack, peer.rank, _typical(peer, found))


def _asked(documents: Sequence[Sampled]) -> Sampled | None:
    """All samples that were taken while the rank ran."""
    kept = [each for each in documents if each.why == ASKED]
    return merged(kept) if kept and sum(each.training.samples for each in kept) >= MIN_SAMPLES else None


def _typical(peer: Sampled, found: Difference) -> Counted:
    """The stack that the peer has most often; its child processes where it is those of the other that are slow."""
    children = [stack for thread in peer.threads[1:] if thread.pid for stack in thread.stacks]
    seen = children if found.where and children else peer.training.stacks
    return max(seen, key=lambda stack: stack.times)


def _hung_stack(rank: int, by_rank: Mapping[int, list[Sampled]]) -> CulpritStack | None:
    all_of = _standings(by_rank)
    own, waiting = standing_beside(rank, all_of)
    if own is None:
        return None
    last = _standing(by_rank[rank])
    place = f"{own.place}; {last.kernel}" if last is not None and last.kernel and not own.waits else own.place
    text = place if waiting is None else f"{place}; {_who(waiting)} in {waiting.place}"
    if waiting is None:
        return _beside(rank, text, own.place, own.stack)
    return _beside(rank, text, own.place, own.stack, waiting.ranks[0], waiting.stack)


def _kernel_stack(
    culprit: Culprit, by_rank: Mapping[int, list[Sampled]], kernel: Mapping[int, str]
) -> CulpritStack | None:
    """Returns where a hung rank without a Python frame stands, beside a rank that waits for it."""
    rank = next((each for each in culprit.ranks if each in kernel and each not in by_rank), None)
    if culprit.kind != "hung" or rank is None:
        return None
    _, waiting = standing_beside(rank, _standings(by_rank))
    text = kernel[rank] if waiting is None else f"{kernel[rank]}; {_who(waiting)} in {waiting.place}"
    return CulpritStack(
        text=printable_line(text, _MAX_TEXT),
        place=printable_line(kernel[rank], _MAX_PLACE),
        rank=rank,
        frames=(),
        peer=waiting.ranks[0] if waiting else None,
        peer_frames=tuple(map(frame_text, waiting.stack.frames)) if waiting else (),
    )


def _standings(by_rank: Mapping[int, list[Sampled]]) -> tuple[Standing, ...]:
    found = map(_standing, by_rank.values())
    return standings(each for each in found if each is not None)


def _standing(documents: Sequence[Sampled]) -> Sampled | None:
    """Where the process stood last, unless it went on. What SIGTERM found there is told by what was taken before, which
    has the child processes, too."""
    last = _newest([each for each in documents if each.is_still], _STANDING)
    stalled = _newest(documents, (STALLED,))
    if last is None or stalled is None or last.why != TERMINATED:
        return last
    own, before = (own_frame(each.training.stacks[0].frames) for each in (last, stalled))
    return stalled if (own.file, own.line) == (before.file, before.line) else last


def _newest(documents: Sequence[Sampled], reasons: Sequence[str]) -> Sampled | None:
    return max((each for each in documents if each.why in reasons), key=lambda each: each.at, default=None)


def _last_stack(rank: int, documents: Sequence[Sampled]) -> CulpritStack | None:
    last = next((found for why in _LAST if (found := _newest(documents, (why,)))), None)
    if last is None:
        return None
    stack = last.training.stacks[0]
    place = place_text(stack.frames)
    return _beside(rank, place, place, stack)


def _beside(
    rank: int, text: str, place: str, own: Counted, peer: int | None = None, other: Counted | None = None
) -> CulpritStack:
    return CulpritStack(
        text=printable_line(text, _MAX_TEXT),
        place=printable_line(place, _MAX_PLACE),
        rank=rank,
        frames=tuple(map(frame_text, own.frames)),
        differing=differing_from(own, other) if other else 0,
        peer=peer,
        peer_frames=tuple(map(frame_text, other.frames)) if other else (),
    )


def _standing_note(by_rank: Mapping[int, list[Sampled]], kernel: Mapping[int, str] = _NO_PLACES) -> tuple[Note, ...]:
    told = _standings(by_rank)
    if not told:
        return ()
    silent = [f"rank {rank} {kernel[rank]}" for rank in sorted(kernel) if rank not in by_rank][:2]
    text = "; ".join((*silent, *(f"{_who(each)} in {each.place}" for each in told[:4])))
    more = f"; {counted(len(told) - 4, 'more place')}" if len(told) > 4 else ""
    longest = max((each.stalled_seconds for documents in by_rank.values() for each in documents), default=0.0)
    since = f" for {seconds_text(longest)} or more" if longest else ""
    return (Note("stacks", printable_line(f"the processes stand still{since}: {text}{more}", _MAX_TEXT)),)


def _who(standing: Standing) -> str:
    return ranks_text(standing.ranks) if len(standing.ranks) <= 2 else counted(len(standing.ranks), "rank")
