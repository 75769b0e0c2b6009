"""The members of process groups, short enough for the facts of a rank file. Standard library only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

MAX_RUNS: Final = 64
"""The most runs of a group; one of more is left out: its numbers follow no pattern."""

MAX_NUMBERS: Final = 600
"""The most numbers of all groups of a rank together: at seven digits each they take half of the room for facts."""


class Run(NamedTuple):
    """`length` ranks from `first` on, every `stride`-th."""

    first: int
    length: int
    stride: int


def member_runs(members: Sequence[int]) -> list[int] | None:
    """The runs of `members`, in their order, as one list: first, count, stride, first, count, ... None where there are
    more than MAX_RUNS."""
    numbers: list[int] = []
    place = 0
    while place < len(members):
        count, stride = _run_from(members, place)
        numbers += (members[place], count, stride)
        place += count
        if len(numbers) > 3 * MAX_RUNS:
            return None
    return numbers


def _run_from(members: Sequence[int], place: int) -> tuple[int, int]:
    """The number of the members from `place` on that have one distance, and that distance. Two alone are no run: the
    second may begin a longer one."""
    stride = members[place + 1] - members[place] if place + 1 < len(members) else 1
    count = 1
    while stride > 0 and place + count < len(members) and members[place + count] - members[place + count - 1] == stride:
        count += 1
    if stride <= 0 or (count == 2 and place + 2 < len(members)):
        return 1, 1
    return count, stride


def parse_runs(value: Any, world_size: int) -> tuple[Run, ...]:
    """The runs that member_runs() wrote; none where `value` is no such list, or names a rank that the job of
    `world_size` ranks has not."""
    if not isinstance(value, list) or len(value) % 3 or len(value) > 3 * MAX_RUNS:
        return ()
    if any(type(number) is not int or not 0 <= number < 1 << 31 for number in value):
        return ()
    runs = tuple(Run(*value[place : place + 3]) for place in range(0, len(value), 3))
    if any(run.length < 1 or run.stride < 1 or run.first + (run.length - 1) * run.stride >= world_size for run in runs):
        return ()
    return runs if sum(run.length for run in runs) <= world_size else ()


def index_in(runs: Sequence[Run], rank: int) -> int | None:
    """The place of `rank` among the members; None where it is none of them."""
    before = 0
    for run in runs:
        steps, rest = divmod(rank - run.first, run.stride)
        if not rest and 0 <= steps < run.length:
            return before + steps
        before += run.length
    return None


def size_of(runs: Sequence[Run]) -> int:
    return sum(run.length for run in runs)


def members_of(runs: Sequence[Run]) -> tuple[int, ...]:
    return tuple(rank for run in runs for rank in range(run.first, run.first + run.length * run.stride, run.stride))
