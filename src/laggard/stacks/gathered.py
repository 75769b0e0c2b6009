"""The places at which the ranks of a job stand, told once for all that stand alike: 15 ranks in all_reduce at
train.py:120, rank 9 in torch.save at ckpt.py:41. Standard library only."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from laggard.stacks.frames import (
    collective_of,
    inner_place_text,
    is_library,
    own_frame,
    place_text,
    short_text,
    waits_for_children,
)
from laggard.stacks.sampled import Counted, Sampled


class Standing(NamedTuple):
    """Ranks whose training threads stand at one place. `waits`: the collective that they are in, empty: in none;
    `stack`: of the first of them."""

    ranks: tuple[int, ...]
    place: str
    waits: str
    stack: Counted


def standings(sampled: Iterable[Sampled]) -> tuple[Standing, ...]:
    """Returns the ranks by the place that each stood at most often; first those that are in no collective, the fewest
    ranks first: whom the others wait for is among them."""
    seen = [(each.rank, *_stack_of(each)) for each in sampled]
    found = _grouped(seen, _place)
    if len(found) == 1 and not next(iter(found))[1]:  # one line of the script, from which they went on to other places
        found = _grouped(seen, _inner_place)
    told = [
        Standing(tuple(sorted(rank for rank, _ in ranks)), place, waits, min(ranks, key=lambda it: it[0])[1])
        for (place, waits), ranks in found.items()
    ]
    return tuple(sorted(told, key=lambda it: (bool(it.waits), len(it.ranks), it.ranks)))


def _grouped(
    seen: Iterable[tuple[int, Counted, str]], place: Callable[[Counted, str, str], str]
) -> dict[tuple[str, str], list[tuple[int, Counted]]]:
    found: dict[tuple[str, str], list[tuple[int, Counted]]] = {}
    for rank, stack, whose in seen:
        waits = stack.waits or collective_of(stack.frames)
        found.setdefault((place(stack, waits, whose), waits), []).append((rank, stack))
    return found


def _stack_of(sampled: Sampled) -> tuple[Counted, str]:
    """Returns where the rank stands, and whose stack that is, empty: its own. A rank that waits for its child processes
    stands where one of these is in the script's own code."""
    own = sampled.training.stacks[0]
    if waits_for_children(own.frames):
        for thread in sampled.threads[1:]:
            if thread.pid and thread.stacks and not is_library(own_frame(thread.stacks[0].frames)):
                return thread.stacks[0], "its child process "
    return own, ""


def _place(stack: Counted, waits: str, whose: str) -> str:
    if waits:
        return f"{waits}, called in {short_text(own_frame(stack.frames))}"
    return whose + place_text(stack.frames)


def _inner_place(stack: Counted, waits: str, whose: str) -> str:
    return whose + inner_place_text(stack.frames)


def standing_beside(rank: int, all_of: Sequence[Standing]) -> tuple[Standing | None, Standing | None]:
    """Returns where the rank stands, and where most of the others wait for it; None where nothing is known."""
    own = next((each for each in all_of if rank in each.ranks), None)
    others = [each for each in all_of if each is not own]
    waiting = max(others, key=lambda each: (bool(each.waits), len(each.ranks)), default=None)
    return own, waiting


def differing_from(own: Counted, other: Counted) -> int:
    """Returns how many of `own`'s frames, from the innermost one on, are not on the other stack: both came the same way
    down to there."""
    common = 0
    for mine, others in zip(reversed(own.frames), reversed(other.frames), strict=False):
        if (mine.function, mine.file) != (others.function, others.file):
            break
        common += 1
    return len(own.frames) - common


def newest(sampled: Iterable[Sampled]) -> Mapping[int, Sampled]:
    """The newest document of each rank."""
    found: dict[int, Sampled] = {}
    for each in sampled:
        if each.rank not in found or each.at > found[each.rank].at:
            found[each.rank] = each
    return found
