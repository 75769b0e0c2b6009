"""The places at which the ranks of a job stand, told once for all that stand alike: 15 ranks in all_reduce at
train.py:120, rank 9 in torch.save at ckpt.py:41. Standard library only."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from laggard.stacks.frames import collective_of, own_frame, place_text, short_text
from laggard.stacks.sampled import Counted, Sampled


class Standing(NamedTuple):
    """Ranks whose training threads stand at one place. `waits`: the collective that they are in, empty: in none;
    `stack`: of the first of them."""

    ranks: tuple[int, ...]
    place: str
    waits: str
    stack: Counted


def standings(sampled: Iterable[Sampled]) -> tuple[Standing, ...]:
    """The ranks by the place that each stood at most often; first those that are in no collective, the fewest ranks
    first: whom the others wait for is among them."""
    found: dict[tuple[str, str], list[tuple[int, Counted]]] = {}
    for each in sampled:
        stack = each.training.stacks[0]
        waits = stack.waits or collective_of(stack.frames)
        found.setdefault((_place(stack, waits), waits), []).append((each.rank, stack))
    told = [
        Standing(tuple(sorted(rank for rank, _ in ranks)), place, waits, min(ranks, key=lambda it: it[0])[1])
        for (place, waits), ranks in found.items()
    ]
    return tuple(sorted(told, key=lambda it: (bool(it.waits), len(it.ranks), it.ranks)))


def _place(stack: Counted, waits: str) -> str:
    if waits:
        return f"{waits}, called in {short_text(own_frame(stack.frames))}"
    return place_text(stack.frames)


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
