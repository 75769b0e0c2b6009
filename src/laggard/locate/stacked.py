"""The places in the code of a job's culprits: the stacks that the ranks' processes took, put beside the verdict.

A slow rank is compared with its peers, by shares of samples; a hung one stands beside a rank that waits for it; one
that died left its last stack. Where a rank has no stack of its own, its place in the kernel stands in for one. Without
a culprit, stacks are a note on a job that stands still. They accuse nobody but of a hang, of an ended job: a rank that
stood in its own code while all others waited in a collective, where nothing else tells. A stack says where a process
stood once. So it counts only where the process is known to have stood there to the end, and where all ranks of the job
left one: who is missing may be whom all wait for. The thresholds are our own choices."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cached_property

from msgspec import structs

from laggard.kit.majority import grouped
from laggard.kit.words import counted, joined, printable_line, ranks_text, seconds_text
from laggard.locate.explanation import explained
from laggard.locate.job_timings import JobTimings
from laggard.locate.shares import HALF
from laggard.model import MAX_NAMED_RANKS, Culprit, CulpritStack, Location, Note, Verdict
from laggard.stacks.difference import (
    MAX_PEERS,
    Difference,
    Standing,
    difference,
    differences,
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
    Thread,
    frame_text,
    is_library,
    merged,
    own_frame,
    place_text,
    short_text,
)

CONFIDENCE = 0.7
"""The confidence in such a culprit: it stood still when the job was ended, and may have come later."""

_SLOW_KINDS = ("slow_compute", "slow_host", "slow_input", "uneven_work", "busy_threads")
_SLOW_NOTES = ("slow_in_few_steps", "uneven_work", "place_or_machine", "unnamed_time")
_STANDING = (STALLED, HELD, TERMINATED, CRASHED, ASKED)
_LAST = (FAILED, CRASHED, TERMINATED, HELD, STALLED)
_STILL_NOTES = ("deadlock", "mismatch", "waiting", "starting", "hang", "unseen_ranks", "unfinished")
_ENDED_NOTES = ("first_unseen", "ended")
_OF_DEATHS = ("first_unseen", "rank_died", "unfinished")
MOST_SAMPLES, FEW_SAMPLES = HALF, 0.05
"""The least share of a slow rank's samples in its slow phase in one function of the user's own, and the largest of its
peers', where the code explains the rank. Of 60 samples, of which none is there, the true share is below 0.05 (rule of
three, 95 %)."""

_MAX_PLACES = 4
_MAX_TEXT = 400
_MAX_PLACE = 160


def located(locate: Callable[[JobTimings], Location], timings: JobTimings, sampled: Iterable[Sampled]) -> Location:
    """The verdict. Where others wait for a rank's time in no phase, its stacks tell whether it works there."""
    location = locate(timings)
    unnamed = {rank for note in location.notes if note.kind == "unnamed_time" for rank in note.ranks}
    stacks = _Stacks(grouped(sampled, lambda each: each.rank), {}) if unnamed else None
    own_code = {rank: share for rank in unnamed if stacks and (share := stacks.in_own_code(rank, unnamed))}
    return locate(dataclasses.replace(timings, own_code=own_code)) if own_code else location


def with_stacks(
    location: Location,
    sampled: Iterable[Sampled],
    timings: JobTimings | None = None,
    kernel: Mapping[int, str] | None = None,
) -> Location:
    """The location, each culprit with its stack where there is one; a job that stands still without a culprit gets the
    rank that its stacks call hung, or a note on where its ranks stand. `timings`: those of the location; None: nobody
    is called hung. `kernel`: the places in the kernel, in words, of ranks without stacks."""
    stacks = _Stacks(grouped(sampled, lambda each: each.rank), kernel or {})
    if not stacks.by_rank and not kernel:
        return location
    if timings is not None and _may_be_hung(location, stacks):
        location = _with_hung(location, stacks, timings)
    accused = {rank for culprit in location.culprits for rank in culprit.ranks}
    culprits = tuple(_with_stack(each, stacks.of(each, accused) or each.stack) for each in location.culprits)
    notes = tuple(map(stacks.beside, location.notes))
    if not location.ranks_seen and not location.culprits:
        notes = (*notes, *stacks.notes())
    elif _stood_still(location, stacks) and (told := stacks.standing_note()):
        dead = any(it.kind == "dead" for it in culprits)  # else nobody asks who died first
        notes = (*(note for note in notes if dead or note.kind != "first_unseen"), *told)
    return structs.replace(location, culprits=culprits, notes=notes)


def _with_stack(culprit: Culprit, stack: CulpritStack | None) -> Culprit:
    """The culprit with its stack, whose line of code comes first in the advice where it explains the culprit."""
    told = structs.replace(culprit, stack=stack)
    if stack is None or not told.is_in_the_code:
        return told
    advice = f"look at {stack.place}, where rank {stack.rank} alone is; else {culprit.advice}"
    return structs.replace(told, advice=advice.removesuffix("; else "))


@dataclasses.dataclass(frozen=True)
class _Stacks:
    """What the ranks of a job left, and the places in the kernel of those that left no stack."""

    by_rank: Mapping[int, Sequence[Sampled]]
    kernel: Mapping[int, str]

    @cached_property
    def last(self) -> Mapping[int, Sampled]:
        """Where each rank stood last, unless it went on."""
        return {rank: found for rank, its in self.by_rank.items() if (found := _stands(its)) is not None}

    @cached_property
    def standings(self) -> Sequence[Standing]:
        return standings(self.last.values())

    @cached_property
    def running(self) -> Mapping[int, Sampled]:
        """All samples of each rank that were taken while it ran."""
        asked = {rank: [each for each in its if each.why == ASKED] for rank, its in self.by_rank.items()}
        return {rank: merged(its) for rank, its in asked.items() if its}

    @cached_property
    def stalled(self) -> bool:
        return any(each.why in (STALLED, HELD) for its in self.by_rank.values() for each in its)

    def of(self, culprit: Culprit, accused: Collection[int]) -> CulpritStack | None:
        ranks = [rank for rank in culprit.ranks if rank in self.by_rank]
        if culprit.kind == "hung":
            return self._of_hung([*ranks, *(rank for rank in culprit.ranks if rank in self.kernel)])
        if culprit.kind in _SLOW_KINDS and ranks:
            return self._of_slow(ranks[0], accused)
        left = [each for each in self.by_rank[ranks[0]] if each.why in _LAST] if ranks else []
        if culprit.kind != "dead" or not left:
            return None
        stack = min(left, key=lambda each: (_LAST.index(each.why), -each.at)).training.stacks[0]
        place = place_text(stack.frames)
        return _stack(ranks[0], place, place, stack)

    def beside(self, note: Note) -> Note:
        """The note on what one rank took longer for, with the line of code where it is more often than its peers."""
        ranks = note.ranks if note.kind in _SLOW_NOTES and len(note.ranks) == 1 else ()
        stack = self._of_slow(ranks[0], ranks) if ranks else None
        return structs.replace(note, text=f"{note.text}; in the code: {stack.text}") if stack else note

    def _of_slow(self, rank: int, accused: Collection[int]) -> CulpritStack | None:
        found = self._difference(rank, accused)
        if found is None:
            return None
        peer = max(self._peers(accused), key=lambda each: each.training.samples)
        place = short_text(found.caller or found.frame)
        stack = _stack(rank, found.text(), place, found.stack, peer.rank, _typical(peer, found))
        return structs.replace(stack, only_here=_is_only_there(found, self.running[rank].training))

    def in_own_code(self, rank: int, accused: Collection[int]) -> float:
        """The share by which it is more often than its peers in the script's own code, in no phase."""
        found = self._difference(rank, accused)
        is_own = (
            found is not None and found.phase in ("", "other") and not (is_library(found.frame) and not found.caller)
        )
        return found.share - (found.peers_share or 0.0) if found and is_own else 0.0

    def _difference(self, rank: int, accused: Collection[int]) -> Difference | None:
        return difference(self.running[rank], self._peers(accused)) if rank in self.running else None

    def _peers(self, accused: Collection[int]) -> Sequence[Sampled]:
        return [each for other, each in self.running.items() if other not in accused][:MAX_PEERS]

    def _of_hung(self, ranks: Sequence[int]) -> CulpritStack | None:
        """Where the first of these ranks stands, by its stack or in the kernel, beside a rank that waits for it."""
        if not ranks:
            return None
        own, waiting = standing_beside(ranks[0], self.standings)
        if own is None and ranks[0] in self.by_rank:
            return None
        place = own.place if own else self.kernel[ranks[0]]
        kernel = self.last[ranks[0]].kernel if own and not own.waits else ""
        beside = _place(waiting) if waiting else ""
        peer, stack = (waiting.ranks[0], waiting.stack) if waiting else (None, None)
        text = "; ".join(filter(None, (place, kernel, beside)))
        return _stack(ranks[0], text, place, own.stack if own else None, peer, stack)

    def notes(self) -> tuple[Note, ...]:
        if all(each.is_still for its in self.by_rank.values() for each in its):
            return self.standing_note()
        text = "the processes go on, and no one does more of anything than the others"
        for rank, found in list(differences(self.running).items())[:1]:
            text = f"the processes go on, rank {rank} differs: {found.text()}"
        return (Note("stacks", printable_line(text, _MAX_TEXT)),)

    def standing_note(self) -> tuple[Note, ...]:
        if not self.standings:
            return ()
        silent = [f"rank {rank} {self.kernel[rank]}" for rank in sorted(self.kernel) if rank not in self.by_rank][:2]
        places = [*silent, *map(_place, self.standings[:_MAX_PLACES])]
        if more := len(self.standings[_MAX_PLACES:]):
            places.append(counted(more, "more place"))
        since = _for_long(each for its in self.by_rank.values() for each in its)
        text = f"the processes stand still{since}: {'; '.join(places)}"
        return (Note("stacks", printable_line(text, _MAX_TEXT)),)


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


def _line(sampled: Sampled) -> tuple[str, int | None]:
    """The line of the script at which the process stood."""
    own = own_frame(sampled.training.stacks[0].frames)
    return own.file, own.line


def _is_only_there(found: Difference, own: Thread) -> bool:
    """Whether most of the samples in the phase, in which the rank is slow, are in a function that peers are not in."""
    in_phase = sum(each.times for each in own.stacks if each.phase == found.phase and not found.where)
    share = found.share * (own.samples / in_phase if in_phase else 1.0)
    peers = found.peers_share
    known = peers is not None and peers < FEW_SAMPLES and share > MOST_SAMPLES
    return known and not is_library(found.frame)


def _typical(peer: Sampled, found: Difference) -> Counted:
    """The stack that the peer has most often; its child processes where it is those of the other that are slow."""
    children = [stack for thread in peer.threads[1:] if thread.pid for stack in thread.stacks]
    seen = children if found.where and children else peer.training.stacks
    return max(seen, key=lambda stack: stack.times)


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


def _place(standing: Standing) -> str:
    """`rank 0 in all_reduce, called in <module> (train.py:120)`."""
    ranks = standing.ranks
    return f"{ranks_text(ranks) if len(ranks) <= 2 else counted(len(ranks), 'rank')} in {standing.place}"


def _for_long(documents: Iterable[Sampled]) -> str:
    seconds = max((each.stalled_seconds for each in documents), default=0.0)
    return f" for {seconds_text(seconds)} or more" if seconds else ""


# Who hangs, by the stacks alone.


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
    culprits = hung_by_stacks(timings, stacks)
    dead = {rank for it in location.culprits for rank in it.ranks}
    hung = {rank for it in culprits for rank in it.ranks}
    if not culprits or (dead and not (dead == hung and all(stacks.last[rank].why == HELD for rank in dead))):
        return location
    notes = tuple(note for note in location.notes if note.kind not in _OF_DEATHS)
    return structs.replace(location, verdict=Verdict.FAIL, culprits=culprits, notes=notes)


def hung_by_stacks(timings: JobTimings, stacks: _Stacks) -> tuple[Culprit, ...]:
    """The hung ranks, those at one place as one culprit; none where the stacks cannot decide."""
    is_whole = len(stacks.last) == max(timings.world_size, 1 + max(stacks.last, default=0))
    if (timings.live and len(timings.ranks)) or not is_whole:
        return ()
    out = [each for each in stacks.standings if not each.waits]
    waiting = [each for each in stacks.standings if each.waits]
    ranks = [rank for each in out for rank in each.ranks]
    if not out or not waiting or len(ranks) > HALF * len(stacks.last):
        return ()
    stalls = (each for rank, each in stacks.last.items() if rank not in ranks and each.why == STALLED)
    since = max((it.at - it.stalled_seconds for it in stalls), default=math.inf)
    if not all(_stood_to_the_end(rank, timings, stacks, since) for rank in ranks):
        return ()
    return tuple(explained(_culprit(each, waiting, stacks, timings), timings) for each in out)


def _stood_to_the_end(rank: int, timings: JobTimings, stacks: _Stacks, since: float) -> bool:
    """Whether nothing says that the rank went on from there, or that it was in a collective all the same: one that it
    had begun and did not wait for in Python. `since`: when the others' wait began, Unix time."""
    last = stacks.last[rank]
    if last.why not in (STALLED, HELD):
        return False
    if not len(timings.ranks):
        return True
    # One that is held writes nothing; of an earlier standstill its dump may be as well.
    if rank not in timings.column_of:
        return last.why == HELD and last.at >= since
    column = timings.column_of[rank]
    state, beat = timings.states[column], timings.last_beats[column] if timings.last_beats else None
    if state.in_flight is not None or state.stopped:
        return False
    if beat is None:  # SIGTERM found it at the same line: a handler ended it in order, and no beat is its last
        return any(each.why == TERMINATED and _line(each) == _line(last) for each in stacks.by_rank[rank])
    begun = any(0 <= group.completed < group.enqueued for group in beat.beat.groups)
    return beat.in_flight is None and not begun


def _culprit(standing: Standing, waiting: Sequence[Standing], stacks: _Stacks, timings: JobTimings) -> Culprit:
    own = [stacks.last[rank] for rank in standing.ranks]
    columns = [timings.column_of[rank] for rank in standing.ranks if rank in timings.column_of]
    nodes = {each.node for each in own}
    steps = [step for column in columns if (step := timings.states[column].step) is not None]
    victims = sorted(rank for each in waiting for rank in each.ranks)
    held = ", with Python held up by C code" if any(each.why == HELD for each in own) else ""
    waits = joined(list(dict.fromkeys(each.waits for each in waiting))[:3])
    stood = f"stood still in own code{_for_long(own)}, in no collective{held}, while {ranks_text(victims)} waited in"
    return Culprit(
        kind="hung",
        ranks=standing.ranks[:MAX_NAMED_RANKS],
        node=nodes.pop() or None if len(nodes) == 1 else None,
        gpu=timings.gpus[columns[0]] if len(standing.ranks) == len(columns) == 1 else None,
        since_step=min(steps) + 1 if steps else None,
        confidence=CONFIDENCE,
        evidence=(f"{stood} {waits}",),
        victims=tuple(victims[:MAX_NAMED_RANKS]),
    )
