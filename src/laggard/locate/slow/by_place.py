"""Tells work that is divided unevenly by place from slow machines. Pure.

Some programs give ranks different work by their place in a group that nobody declared as such: with causal attention
the later parts of a sequence are more work, an expert is hot, the last of a sequence-parallel group has the loss.
Then the same place of each group takes longer, by about the same. One cause explains that, where slow machines would
be as many coincidences. Ranks are then compared with those in the same place of other groups, so that a slow one is
still found.

Where all that have the place stand on one machine, or on neighbouring ones, and nobody else does, one fault there is
as good an explanation. What divides work by place is there from the first step on, and in the passes; a machine that
is slow from some step on, elsewhere too or in the update, or has findings that can be the cause, is accused. Else a
note says between what it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from laggard.kit.constants import PHASES
from laggard.kit.words import joined, ranks_text, seconds_text
from laggard.locate.explanation import has_cause
from laggard.locate.job_timings import Floats, JobTimings
from laggard.locate.medians import distinct, last_axis_median, median, median_over_steps
from laggard.locate.positions import MIN_GROUPS, GroupPlaces
from laggard.locate.slow.steps import MIN_STEPS, Steps, node_numbers
from laggard.locate.slow.tested import MIN_COST
from laggard.locate.slow.uneven_work import MAX_UPDATE_RATIO, MIN_UPDATE_SHARE
from laggard.model import MAX_NAMED_RANKS, Note

MIN_PLACE_RATIO: Final = MIN_COST
"""The least difference between places, as a share of the step, by which ranks are compared within their places."""

ALIKE_RATIO: Final = 0.25
"""The share of that difference up to which ranks of one place are equally busy."""

ALIKE_SHARE: Final = 0.7
"""The share of the ranks of all places that have to be so: others may be slow."""

HEAVY_SHARE: Final = 0.75
"""The share of the ranks in the place with the most work that are at least so busy."""

BEFORE_RATIO: Final = 0.5
"""The share of the difference in the last quarter of the window that the first quarter has, where it is by design."""

PASSES_SHARE: Final = 0.5
"""The least share of the difference that is in the forward and backward passes, where it is by design."""

MAX_SAMPLED: Final = 64
"""The most steps of the window by which places are compared."""

MAX_ROUNDS: Final = 3
"""The most kinds of groups by which the ranks of one class are divided."""

PLACE_OR_MACHINE: Final = "place_or_machine"

_PASSES = PHASES.index("forward"), PHASES.index("backward")
_OPTIMIZER = PHASES.index("optimizer")


class ByPlace(NamedTuple):
    """The steps, with ranks compared within their places where these have different work; what is told of that, and
    whether a machine may be the cause as well."""

    steps: Steps
    notes: tuple[Note, ...] = ()
    confounded: bool = False


class _Uneven(NamedTuple):
    """A class of ranks with the same work but for their places in the groups of a kind."""

    kind: GroupPlaces
    columns: NDArray[np.int64]
    place: NDArray[np.int64]  # of each of `columns`
    heavy: NDArray[np.bool_]  # of each, whether it is in one of the places with more work
    difference: float  # between the places with the most and the least work, seconds a step
    misfit: float  # the mean deviation of the ranks from their places, as a share of that


def by_place(timings: JobTimings, steps: Steps) -> ByPlace:
    """Compares ranks within their places where work differs by place."""
    if not timings.group_places:
        return ByPlace(steps)
    found: list[_Uneven] = []
    blamed = np.zeros(len(timings.ranks), np.bool_)
    number = steps.peers.number.astype(np.int64)
    for _ in range(MAX_ROUNDS):
        new = [each for each in _uneven_classes(timings, steps, number) if not blamed[each.columns].any()]
        for each in new:
            if _is_confounded(timings, each) and _blames_machine(timings, steps, each):
                blamed[each.columns] = True
                continue
            number[each.columns] += (each.place + 1) * (int(number.max()) + 1)
            found.append(each)
        number = np.unique(number, return_inverse=True, return_counts=True)[1].astype(np.int64)
        if not new:
            break
    if not found:
        return ByPlace(steps)
    notes = tuple(_notes(timings, steps, found))
    confounded = any(note.kind == PLACE_OR_MACHINE for note in notes)
    return ByPlace(steps.regrouped(number, timings.nodes), notes, confounded)


def _uneven_classes(timings: JobTimings, steps: Steps, number: NDArray[np.int64]) -> Iterator[_Uneven]:
    """The classes of ranks in which work differs by place, each with the kind of groups that fits best: of those that
    fit about as well, the one with the fewest members in a group."""
    for own in distinct(number):
        columns = np.flatnonzero(number == own)
        if len(columns) < 2 * MIN_GROUPS or steps.past.alone[columns].any():
            continue
        fitting = [each for kind in timings.group_places if (each := _uneven(steps, kind, columns)) is not None]
        if fitting:
            best = min(each.misfit for each in fitting)
            yield min((each for each in fitting if each.misfit <= 1.5 * best + 0.05), key=lambda each: each.kind.size)


def _uneven(steps: Steps, kind: GroupPlaces, columns: NDArray[np.int64]) -> _Uneven | None:
    """The difference by place, in the whole window or, where it came later, in its last quarter; None: there is
    none."""
    place, group = kind.place[columns].astype(np.int64), kind.group[columns]
    if (place < 0).any() or len(distinct(group)) < MIN_GROUPS or len(distinct(place)) < 2:
        return None
    count = len(steps.numbers)
    for length in (count, max(MIN_STEPS, count // 4)):
        found = _in_window(steps, kind, columns, place, slice(count - length, None, max(1, length // MAX_SAMPLED)))
        if found is not None:
            return found
    return None


def _in_window(
    steps: Steps, kind: GroupPlaces, columns: NDArray[np.int64], place: NDArray[np.int64], rows: slice
) -> _Uneven | None:
    busy = steps.busy[rows, columns]
    level = median_over_steps(busy - last_axis_median(busy)[:, None])
    several = [each for each in distinct(place).tolist() if np.isfinite(level[place == each]).sum() >= MIN_GROUPS]
    if len(several) < 2:
        return None
    usual = np.full(int(place.max()) + 1, np.nan)
    for each in several:
        usual[each] = _lower_middle(level[place == each])
    difference = float(np.nanmax(usual) - np.nanmin(usual))
    if difference <= MIN_PLACE_RATIO * median(steps.duration[rows]):
        return None
    deviation = (level - usual[place])[np.isfinite(level) & np.isfinite(usual[place])] / difference
    heaviest = (level - usual[place])[place == int(np.nanargmax(usual))] / difference
    if (
        (np.abs(deviation) <= ALIKE_RATIO).mean() < ALIKE_SHARE
        or (heaviest >= -ALIKE_RATIO).mean() < HEAVY_SHARE
        or (np.abs(heaviest) <= ALIKE_RATIO).mean() < 0.5
    ):
        return None
    heavy = np.nan_to_num(usual[place] - np.nanmin(usual)) > difference / 2
    return _Uneven(kind, columns, place, heavy, difference, float(np.minimum(np.abs(deviation), 1.0).mean()))


def _lower_middle(values: Floats) -> float:
    """The median of the known values; of two in the middle the smaller, so that half of the ranks make no place
    heavy."""
    known = np.sort(values[np.isfinite(values)])
    return float(known[(len(known) - 1) // 2])


def _is_confounded(timings: JobTimings, each: _Uneven) -> bool:
    """Whether all ranks with more work stand on one machine, or on neighbouring ones, and none of the others does: a
    fault of what these share is one cause, too."""
    machine = node_numbers([timings.nodes[column] for column in each.columns])
    heavy, light = distinct(machine[each.heavy]), distinct(machine[~each.heavy])
    return not np.isin(heavy, light).any() and int(heavy[-1] - heavy[0]) == len(heavy) - 1


def _blames_machine(timings: JobTimings, steps: Steps, each: _Uneven) -> bool:
    """Whether anything tells that the machine, and not the place, makes these ranks slow."""
    heavy, light = each.columns[each.heavy], each.columns[~each.heavy]
    quarter = max(MIN_STEPS, len(steps.numbers) // 4)
    before = _differences(steps, heavy, light, slice(None, quarter))
    now = _differences(steps, heavy, light, slice(-quarter, None))
    if not before.sum() > BEFORE_RATIO * now.sum():
        return True
    if steps.phased and now[list(_PASSES)].sum() < PASSES_SHARE * now.sum():
        return True
    phase = PHASES[int(now.argmax())] if steps.phased else None
    machines = {timings.nodes[column] for column in heavy.tolist()}
    return _has_slow_update(steps, heavy, light) or any(has_cause(timings, node, machines, phase) for node in machines)


def _differences(steps: Steps, heavy: NDArray[np.int64], light: NDArray[np.int64], rows: slice) -> Floats:
    """[P]: by how many seconds a step the ranks `heavy` take longer than `light`, by judged phase."""
    found = np.zeros(len(PHASES))
    for phase in steps.judged_phases:
        one, other = (median(median_over_steps(steps.phases[rows][:, those, phase])) for those in (heavy, light))
        found[phase] = np.nan_to_num(one - other)
    return found


def _has_slow_update(steps: Steps, heavy: NDArray[np.int64], light: NDArray[np.int64]) -> bool:
    """Whether the update, whose work is the same in all places, takes longer as well."""
    own, usual = (median(median_over_steps(steps.phases[:, those, _OPTIMIZER])) for those in (heavy, light))
    return usual >= MIN_UPDATE_SHARE * median(steps.duration) and own > MAX_UPDATE_RATIO * usual


def _notes(timings: JobTimings, steps: Steps, found: list[_Uneven]) -> Iterator[Note]:
    """A note for each kind of groups by whose places work differs by so much that it would accuse a rank."""
    step = median(steps.duration)
    told = [each for each in found if each.difference > MIN_PLACE_RATIO * step]
    for doubted in (False, True):
        for kind in timings.group_places:
            some = [each for each in told if each.kind is kind and _is_confounded(timings, each) == doubted]
            if some:
                yield _note(timings, some, step, doubted)


def _note(timings: JobTimings, found: list[_Uneven], step: float, doubted: bool) -> Note:
    kind, most = found[0].kind, max(each.difference for each in found)
    columns = np.sort(np.concatenate([each.columns[each.heavy] for each in found]))
    ranks = tuple(timings.ranks[columns].tolist())
    places = distinct(np.concatenate([each.place[each.heavy] for each in found])) + 1
    where = f"{'place' if len(places) == 1 else 'places'} {joined(list(map(str, places.tolist())))} of {kind.size}"
    groups = f"in their groups{f' of role {kind.role}' if kind.role else ''}"
    text = (
        f"{ranks_text(ranks)} are busier than those in other places, by up to {seconds_text(most)} a step"
        f" ({most / step * 100:.0f} % of it), and have {where} {groups}"
    )
    if not doubted:
        more = (
            "the work is divided so, as a sequence by context parallelism, and ranks are compared within their places"
        )
        return Note("uneven_work", f"{text}, in all of them: {more}", ranks=ranks[:MAX_NAMED_RANKS])
    machines = sorted({timings.nodes[column] or "" for column in columns.tolist()} - {""})
    text = f"{text}; no others run on {_named(machines)}: it has more work by its place, or what these share is slow"
    return Note(
        PLACE_OR_MACHINE,
        text,
        ranks=ranks[:MAX_NAMED_RANKS],
        node=machines[0] if len(machines) == 1 else None,
    )


def _named(machines: list[str]) -> str:
    if not machines:
        return "their machines"
    return joined(machines) if len(machines) <= 4 else f"{joined(machines[:3])} and {len(machines) - 3} more machines"
