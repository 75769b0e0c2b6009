"""Where processes of one job stand, beside one another: who is in no collective while the others are, who is in another
one, and who waits in two at once. What the innermost frame of a thread does is told by its class."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from laggard.diagnose.joined.dump_lines import Frame, departing_frame, is_helper, own_frame, wait_of
from laggard.diagnose.joined.stacks import Stack, frame_text
from laggard.diagnose.rules import table
from laggard.kit.words import joined, ranks_text
from laggard.locate.shares import HALF, MOST
from laggard.model import Fix

_MAX_ODD_SHARE: Final = 1 / 3
_MIN_UNRANKED: Final = 3
"""The fewest processes of unknown ranks of which one may be the odd one: any of them may be no rank."""
_MAX_NAMED: Final = 4
_NO_CALLS: Final = ("backward", "synchronize")
"""Waits within which other threads call collectives by design, and those for the GPU."""
_CLASSES: Final = table("stacks").of("class")
_NEAR: Final = 8
"""The innermost frames among which a queue stands that a thread reads by polling."""
_AT_FORK = re.compile(r"after_fork|_bootstrap$")
_QUEUES = re.compile(r"(?:^|/)(?:queue|queues|dataloader|multiprocessing/\w+)\.py$|[Qq]ueue")
_OF_TORCH = re.compile(r"torch/distributed/(?:distributed_c10d|c10d_logger|rendezvous)\.py$")


class Seen(NamedTuple):
    """A process whose stack was taken. `rank`, `pid`, `host`: None where they are not told."""

    stack: Stack
    path: str
    rank: int | None
    host: str | None = None

    @property
    def frames(self) -> tuple[Frame, ...]:
        return self.stack.frames

    @property
    def name(self) -> str:
        return f"rank {self.rank}" if self.rank is not None else f"process {self.stack.pid}"


class Stands(NamedTuple):
    """What is told of some processes together. `frame`: the line that shows it."""

    who: tuple[Seen, ...]
    says: str
    kind: str
    """The name of its advice in rules/hangs.ini."""
    frame: Frame

    @property
    def fix(self) -> Fix:
        return table("hangs").advice[self.kind]


def class_of(frames: Sequence[Frame]) -> str:
    """Returns what a thread does that is in no collective, by its innermost frame: `waits for a lock`, `reads or
    writes`; empty: it may compute."""
    name = frames[0].function.rpartition(".")[2].strip()
    told = next((row.says for row in _CLASSES if row.regex.fullmatch(name)), "")
    is_other = told == "waits for a queue" and not _QUEUES.search(f"{frames[0].file} {frames[0].function}")
    return "" if is_other else told


def blocked(seen: Sequence[Seen]) -> list[Stands]:
    """Processes that wait for a lock, where none is in a collective and another waits for a queue, as for the batch of
    a worker: that one waits for them."""
    if any(wait_of(it.frames) for it in seen):
        return []
    queued = [it for it in seen if any(class_of((frame,)) == "waits for a queue" for frame in it.frames[:_NEAR])]
    locked = [it for it in seen if it not in queued and class_of(it.frames) == "waits for a lock"]
    if not queued or not locked:
        return []
    frame = next((it for it in locked[0].frames if not class_of((it,))), locked[0].frames[0])
    forked = any(_AT_FORK.search(it.function) for it in locked[0].frames)
    says = f"waits for a lock in {frame_text(frame)}{', right after it was forked' if forked else ''}; "
    says += f"{names_of(queued)} waits for its queue, in {frame_text(own_frame(queued[0].frames))}"
    return [Stands(tuple(locked), says, "forked" if forked else "hung", frame)]


def standings(seen: Sequence[Seen]) -> list[Stands]:
    """Returns what stands out; nothing where each process may only wait for the others. Helpers count for nothing."""
    kept = [it for it in seen if not is_helper(it.frames)]
    return _in_two(kept) or list(_elsewhere(kept))


def names_of(seen: Sequence[Seen]) -> str:
    """`ranks 0-2`, `process 17 and process 18`; of many without ranks, their number."""
    ranks = [it.rank for it in seen if it.rank is not None]
    if len(ranks) == len(seen):
        return ranks_text(ranks)
    named = [it.name for it in seen]
    return joined(named) if len(named) <= _MAX_NAMED else f"{len(named)} processes"


def _in_two(seen: Sequence[Seen]) -> list[Stands]:
    """Processes that have two threads in collectives: nearly all of them, or it may be the moment of the look."""
    found = [(it, other) for it in seen if (other := _second_wait(it.stack))]
    if not found or len(found) < MOST * len(seen):
        return []
    first, other = found[0]
    main, second = (f"{wait_of(its)} at {frame_text(_caller(its))}" for its in (first.frames, other))
    who = tuple(it for it, _ in found)
    each = "each of them " if len(who) > 1 else ""
    says = f"wait in two collectives at once: {each}in {main} and, in another thread, in {second}; one group that two "
    says += "threads use hangs so"
    return [Stands(who, says if len(who) > 1 else says.replace("wait", "waits", 1), "two_waits", _caller(other))]


def _second_wait(stack: Stack) -> tuple[Frame, ...]:
    if wait_of(stack.frames) in ("", *_NO_CALLS):
        return ()
    return next((its for its in stack.others if wait_of(its) not in ("", *_NO_CALLS)), ())


def _caller(frames: Sequence[Frame]) -> Frame:
    """The innermost own frame; where all are libraries', the innermost that called torch's collective."""
    own = own_frame(frames)
    return own if own is not frames[0] else next((it for it in frames if not _OF_TORCH.search(it.file)), own)


def _elsewhere(seen: Sequence[Seen]) -> Iterator[Stands]:
    """Processes that are in no collective while others are; else those few that are in another collective."""
    calls = {it: wait_of(it.frames) for it in seen}
    waiting, out = [it for it in seen if calls[it]], [it for it in seen if not calls[it]]
    ranked = all(it.rank is not None for it in seen)
    most = max(1, len(seen) * HALF) if ranked else 1
    if (
        waiting
        and out
        and len(out) <= most
        and (ranked or (len(seen) >= _MIN_UNRANKED and len(set(calls.values())) == 2))
    ):
        for it in out:
            frame = departing_frame(it.frames, [other.frames for other in waiting])
            others = names_of(waiting) if ranked else f"the {len(waiting)} others"
            are = f"{others} {'is' if len(waiting) == 1 else 'are'} in {calls[waiting[0]]}"
            does = f", it {told}" if (told := class_of(it.frames)) else ""
            says = f"hung in {frame_text(frame)}: it is in no collective{does}, while {are}"
            yield Stands((it,), says, "hung", frame)
    elif not out and ranked and len(seen) >= _MIN_UNRANKED:
        yield from _odd(seen, calls)


def _odd(seen: Sequence[Seen], calls: Mapping[Seen, str]) -> Iterator[Stands]:
    places = {it: (calls[it], own_frame(it.frames)._replace(text="", offset=0)) for it in seen}
    counts = Counter(places.values()).most_common()
    if len(counts) != 2 or counts[1][1] > _MAX_ODD_SHARE * len(seen):
        return
    (call, frame), (odd_call, odd_frame) = counts[0][0], counts[1][0]
    rest = names_of([it for it in seen if places[it] == counts[0][0]])
    for it in (it for it in seen if places[it] == counts[1][0]):
        says = (
            f"is in another call than the others: {odd_call} at {frame_text(odd_frame)}, while {rest} are in {call} at "
            f"{frame_text(frame)}"
        )
        yield Stands((it,), says, "odd", own_frame(it.frames))
