"""The places in the code of a job's culprits: the stacks that the ranks' processes took, put beside the verdict.

A slow rank is compared with its peers, by shares of samples; a hung one stands beside a rank that waits for it; one
that died left its last stack. Where a rank has no stack of its own, its place in the kernel stands in for one. Without
a culprit, stacks are a note on a job that stands still. They accuse nobody but of a hang, of an ended job: a rank that
stood in its own code while all others waited in a collective, where nothing else tells. A stack says where a process
stood once. So it counts only where the process is known to have stood there to the end, and where all ranks of the job
left one: who is missing may be whom all wait for. The thresholds are our own choices."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
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

MAX_SHARE = 0.5
"""The largest share of the ranks that may stand outside of collectives. Where there are more, nobody waits for them."""

CONFIDENCE = 0.7
"""The confidence in such a culprit: it stood still when the job was ended, and may have come later."""

_SLOW_KINDS = ("slow_compute", "slow_host", "slow_input", "uneven_work", "busy_threads")
_STANDING = (STALLED, HELD, TERMINATED, CRASHED, ASKED)
_LAST = (FAILED, CRASHED, TERMINATED, HELD, STALLED)
_STILL_NOTES = ("deadlock", "mismatch", "waiting", "starting", "hang", "unseen_ranks", "unfinished")
_ENDED_NOTES = ("first_unseen", "ended")
_OF_DEATHS = ("first_unseen", "rank_died", "unfinished")
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
    stacks = _Stacks(sampled, kernel)
    if not stacks.by_rank and not kernel:
        return location
    if timings is not None and _may_be_hung(location, stacks):
        location = _with_hung(location, stacks, timings)
    accused = {rank for culprit in location.culprits for rank in culprit.ranks}
    culprits = tuple(structs.replace(each, stack=stacks.of(each, accused) or each.stack) for each in location.culprits)
    notes = location.notes
    if not location.ranks_seen and not location.culprits:
        notes = (*notes, *stacks.notes())
    elif _stood_still(location, stacks) and (told := stacks.standing_note()):
        dead = any(it.kind == "dead" for it in culprits)  # else nobody asks who died first
        notes = (*(note for note in notes if dead or note.kind != "first_unseen"), *told)
    return structs.replace(location, culprits=culprits, notes=notes)


def _may_be_hung(location: Location, stacks: _Stacks) -> bool:
    """Whether who hangs is not known: nothing else is known of the job, it is said to have waited, or a rank of whose
    end nothing is recorded is taken for dead."""
    if location.culprits:
        return all(it.kind == "dead" and it.end is None for it in location.culprits)
    ended = stacks.stalled and any(note.kind in _ENDED_NOTES for note in location.notes)
    is_open = not location.ranks_seen or ended or _stood_still(location, stacks)
    return location.verdict is Verdict.UNKNOWN and is_open


def _stood_still(location: Location, stacks: _Stacks) -> bool:
    """Whether the job stood still and no culprit's stack says where: nobody is accused, or who was killed last is."""
    if not location.culprits:
        return any(note.kind in _STILL_NOTES for note in location.notes)
    return stacks.stalled and all(culprit.kind == "dead" for culprit in location.culprits)


def _with_hung(location: Location, stacks: _Stacks, timings: JobTimings) -> Location:
    culprits = hung_by_stacks(timings, stacks.last, stacks.by_rank)
    dead = {rank for it in location.culprits for rank in it.ranks}
    hung = {rank for it in culprits for rank in it.ranks}
    if not culprits or (dead and not (dead == hung and all(stacks.last[rank].why == HELD for rank in dead))):
        return location
    notes = tuple(note for note in location.notes if note.kind not in _OF_DEATHS)
    return structs.replace(location, verdict=Verdict.FAIL, culprits=culprits, notes=notes)


def hung_by_stacks(
    timings: JobTimings, standing: Mapping[int, Sampled], documents: Mapping[int, Sequence[Sampled]]
) -> tuple[Culprit, ...]:
    """The hung ranks, those at one place as one culprit; none where the stacks cannot decide. `standing`: where each
    rank stood last; `documents`: all that each left."""
    is_whole = len(standing) == max(timings.world_size, 1 + max(standing, default=0))
    if (timings.live and len(timings.ranks)) or not is_whole:
        return ()
    all_of = standings(standing.values())
    out = [each for each in all_of if not each.waits]
    waiting = [each for each in all_of if each.waits]
    ranks = [rank for each in out for rank in each.ranks]
    if not out or not waiting or len(ranks) > MAX_SHARE * len(standing):
        return ()
    columns = {rank: place for place, rank in enumerate(timings.ranks.tolist())}
    stalls = (standing[rank] for each in waiting for rank in each.ranks if standing[rank].why == STALLED)
    since = max((it.at - it.stalled_seconds for it in stalls), default=math.inf)
    if not all(_stood_to_the_end(columns.get(rank), standing[rank], timings, documents[rank], since) for rank in ranks):
        return ()
    return tuple(explained(_culprit(each, waiting, standing, timings), timings) for each in out)


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
    if beat is None:  # SIGTERM found it at the same line: a handler ended it in order, and no beat is its last
        return any(each.why == TERMINATED and _line(each) == _line(last) for each in documents)
    begun = any(0 <= group.completed < group.enqueued for group in beat.beat.groups)
    return beat.in_flight is None and not begun


def _line(sampled: Sampled) -> tuple[str, int | None]:
    """The line of the script at which the process stood."""
    own = own_frame(sampled.training.stacks[0].frames)
    return own.file, own.line


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
        evidence=(_stood_text([sampled[rank] for rank in standing.ranks], waiting, victims),),
        victims=tuple(victims[:MAX_NAMED_RANKS]),
    )


def _stood_text(own: Sequence[Sampled], waiting: Sequence[Standing], victims: Collection[int]) -> str:
    they, their = ("they", "their") if len(own) > 1 else ("it", "its")
    seconds = max(each.stalled_seconds for each in own)
    for_long = f" for {seconds_text(seconds)} or more" if seconds else ""
    held = ", with Python held up by C code" if any(each.why == HELD for each in own) else ""
    waits = joined(list(dict.fromkeys(each.waits for each in waiting))[:3])
    return (
        f"{they} stood still in {their} own code{for_long}, in no collective{held}, while {ranks_text(victims)} "
        f"{'was' if len(victims) == 1 else 'were'} in {waits}"
    )


def standing_notes(sampled: Iterable[Sampled]) -> tuple[Note, ...]:
    """A note on where the processes of a job stand of which nothing else is known; where they go on, on what one does
    more than the others. None where nothing is known."""
    return _Stacks(sampled, _NO_PLACES).notes()


class _Stacks:
    """What the ranks of a job left. `last`: where each stood last, unless it went on."""

    def __init__(self, sampled: Iterable[Sampled], kernel: Mapping[int, str]) -> None:
        self.by_rank = grouped(sampled, lambda each: each.rank)
        self.last = {rank: found for rank, its in self.by_rank.items() if (found := _stands(its)) is not None}
        self._documents = [each for documents in self.by_rank.values() for each in documents]
        self.stalled = any(each.why in (STALLED, HELD) for each in self._documents)
        self._standings = standings(self.last.values())
        self._kernel = kernel

    def of(self, culprit: Culprit, accused: Collection[int]) -> CulpritStack | None:
        ranks = [rank for rank in culprit.ranks if rank in self.by_rank]
        if culprit.kind == "hung":
            return self._of_hung([*ranks, *(rank for rank in culprit.ranks if rank in self._kernel)])
        if culprit.kind in _SLOW_KINDS and ranks:
            return self._of_slow(ranks[0], accused)
        return _last_stack(ranks[0], self.by_rank[ranks[0]]) if culprit.kind == "dead" and ranks else None

    def _of_slow(self, rank: int, accused: Collection[int]) -> CulpritStack | None:
        asked = {each: _asked(its) for each, its in self.by_rank.items() if each == rank or each not in accused}
        own = asked.pop(rank, None)
        peers = [each for each in asked.values() if each is not None][:_MAX_PEERS]
        found = difference(own, peers) if own is not None else None
        if found is None:
            return None
        peer = max(peers, key=lambda each: each.training.samples)
        place = short_text(found.caller or found.frame)
        return _stack(rank, found.text(), place, found.stack, peer.rank, _typical(peer, found))

    def _of_hung(self, ranks: Sequence[int]) -> CulpritStack | None:
        """Where the first of these ranks stands, by its stack or in the kernel, beside a rank that waits for it."""
        if not ranks:
            return None
        own, waiting = standing_beside(ranks[0], self._standings)
        if own is None and ranks[0] in self.by_rank:
            return None
        place = own.place if own else self._kernel[ranks[0]]
        kernel = self.last[ranks[0]].kernel if own and not own.waits else ""
        beside = f"{_who(waiting)} in {waiting.place}" if waiting else ""
        peer, stack = (waiting.ranks[0], waiting.stack) if waiting else (None, None)
        text = "; ".join(filter(None, (place, kernel, beside)))
        return _stack(ranks[0], text, place, own.stack if own else None, peer, stack)

    def notes(self) -> tuple[Note, ...]:
        return self.standing_note() if all(each.is_still for each in self._documents) else self._differing_note()

    def standing_note(self) -> tuple[Note, ...]:
        told = self._standings
        if not told:
            return ()
        silent = [f"rank {rank} {self._kernel[rank]}" for rank in sorted(self._kernel) if rank not in self.by_rank][:2]
        text = "; ".join((*silent, *(f"{_who(each)} in {each.place}" for each in told[:4])))
        more = f"; {counted(len(told) - 4, 'more place')}" if len(told) > 4 else ""
        longest = max((each.stalled_seconds for each in self._documents), default=0.0)
        since = f" for {seconds_text(longest)} or more" if longest else ""
        return (Note("stacks", printable_line(f"the processes stand still{since}: {text}{more}", _MAX_TEXT)),)

    def _differing_note(self) -> tuple[Note, ...]:
        asked = {rank: each for rank, its in self.by_rank.items() if (each := _asked(its)) is not None}
        told = {}
        for rank, own in asked.items():
            found = difference(own, [peer for other, peer in asked.items() if other != rank][:_MAX_PEERS])
            if found and not collective_of(found.stack.frames):
                told[rank] = found
        text = "the processes go on, and no one does more of anything than the others"
        if told:
            rank = max(told, key=lambda each: told[each].share - (told[each].peers_share or 0.0))
            text = printable_line(f"the processes go on, rank {rank} differs: {told[rank].text()}", _MAX_TEXT)
        return (Note("stacks", text),)


def _asked(documents: Sequence[Sampled]) -> Sampled | None:
    """All samples that were taken while the rank ran."""
    kept = [each for each in documents if each.why == ASKED]
    return merged(kept) if kept and sum(each.training.samples for each in kept) >= MIN_SAMPLES else None


def _typical(peer: Sampled, found: Difference) -> Counted:
    """The stack that the peer has most often; its child processes where it is those of the other that are slow."""
    children = [stack for thread in peer.threads[1:] if thread.pid for stack in thread.stacks]
    seen = children if found.where and children else peer.training.stacks
    return max(seen, key=lambda stack: stack.times)


def _stands(documents: Sequence[Sampled]) -> Sampled | None:
    """Where the process stood last, unless it went on. What SIGTERM found there is told by what was taken before, which
    has the child processes, too."""
    last = _newest([each for each in documents if each.is_still], _STANDING)
    stalled = _newest(documents, (STALLED,))
    if last is None or stalled is None or last.why != TERMINATED:
        return last
    return stalled if _line(last) == _line(stalled) else last


def _newest(documents: Sequence[Sampled], reasons: Sequence[str]) -> Sampled | None:
    return max((each for each in documents if each.why in reasons), key=lambda each: each.at, default=None)


def _last_stack(rank: int, documents: Sequence[Sampled]) -> CulpritStack | None:
    last = next((found for why in _LAST if (found := _newest(documents, (why,)))), None)
    if last is None:
        return None
    stack = last.training.stacks[0]
    place = place_text(stack.frames)
    return _stack(rank, place, place, stack)


def _stack(
    rank: int, text: str, place: str, own: Counted | None, peer: int | None = None, other: Counted | None = None
) -> CulpritStack:
    return CulpritStack(
        text=printable_line(text, _MAX_TEXT),
        place=printable_line(place, _MAX_PLACE),
        rank=rank,
        frames=tuple(map(frame_text, own.frames)) if own else (),
        differing=differing_from(own, other) if own and other else 0,
        peer=peer,
        peer_frames=tuple(map(frame_text, other.frames)) if other else (),
    )


def _who(standing: Standing) -> str:
    return ranks_text(standing.ranks) if len(standing.ranks) <= 2 else counted(len(standing.ranks), "rank")
