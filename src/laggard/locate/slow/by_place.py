"""Tells work that is divided unevenly by place from slow machines. Pure.

Some programs give ranks different work by their place in a group that nobody declared as such: with causal attention
the later parts of a sequence are more work, an expert is hot, the last of a sequence-parallel group has the loss.
Then the same place of each group takes longer, by about the same. One cause explains that, where slow machines would
be as many coincidences. Ranks are then compared with those in the same place of other groups, so that a slow one is
still found.

Where all that have the place stand on one machine, or on neighbouring ones, and nobody else does, one fault there is
as good an explanation. What divides work by place is there from the first step on, and in the passes; a machine that is
slow from some step on, elsewhere too or in the update, is accused. Else a note says between what it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from laggard.kit.constants import PHASES
from laggard.kit.majority import grouped
from laggard.kit.words import joined, listed, ranks_text, seconds_text
from laggard.locate.job_timings import Floats, JobTimings
from laggard.locate.medians import distinct, last_axis_median, median, median_over_steps
from laggard.locate.positions import TENSOR, GroupPlaces, canonical_role
from laggard.locate.shares import HALF, MIN_COST, MOST
from laggard.locate.slow.steps import MIN_STEPS, PASSES, Steps, node_numbers
from laggard.locate.slow.uneven_work import is_slower_at_update
from laggard.model import MAX_NAMED_RANKS, Note

MAX_NAMED_MACHINES: Final = 4


class _Uneven(NamedTuple):
    """A class of ranks with the same work but for their places in the groups of a kind."""

    kind: GroupPlaces
    columns: NDArray[np.int64]
    place: NDArray[np.int64]  # of each of `columns`
    heavy: NDArray[np.bool_]  # of each, whether it is in one of the places with more work
    difference: float  # between the places with the most and the least work, seconds a step
    misfit: float  # the mean deviation of the ranks from their places, as a share of that
    confounded: bool  # whether what the machines of those with more work share is one cause, too


def by_place(timings: JobTimings, steps: Steps) -> tuple[Steps, tuple[Note, ...]]:
    """The steps, with ranks compared within their places where these have different work; and what is told of that."""
    found = [
        each
        for each in (_uneven_classes(timings, steps) if timings.group_places else ())
        if not (_is_of_equal_parts(steps, each) or each.confounded and _blames_machine(steps, each))
    ]
    if not found:
        return steps, ()
    place = np.zeros(len(timings.ranks), np.int64)
    for each in found:
        place[each.columns] = each.place + 1
    classes = steps.peers.number * (int(place.max()) + 1) + place
    return steps.regrouped(classes, timings.nodes), tuple(_notes(timings, steps, found))


def _uneven_classes(timings: JobTimings, steps: Steps) -> Iterator[_Uneven]:
    """The classes of ranks in which work differs by place, each with the kind of groups that fits best."""
    for own in distinct(steps.peers.number):
        columns = np.flatnonzero(steps.peers.number == own)
        fitting = [each for kind in timings.group_places if (each := _uneven(timings, steps, kind, columns))]
        if fitting:
            yield min(fitting, key=lambda each: each.misfit)


def _uneven(timings: JobTimings, steps: Steps, kind: GroupPlaces, columns: NDArray[np.int64]) -> _Uneven | None:
    """The difference by place; None: there is none."""
    place = kind.place[columns].astype(np.int64)
    if (place < 0).any():
        return None
    busy = steps.busy[:, columns]
    level = median_over_steps(busy - last_axis_median(busy)[:, None])
    several = [each for each in distinct(place).tolist() if np.isfinite(level[place == each]).sum() > 1]
    if len(several) < 2:
        return None
    usual = np.full(int(place.max()) + 1, np.nan)
    for each in several:
        usual[each] = _lower_middle(level[place == each])
    difference = float(np.nanmax(usual) - np.nanmin(usual))
    if not difference > MIN_COST * median(steps.duration):
        return None
    deviation = np.abs(level - usual[place]) / difference
    deviation = deviation[np.isfinite(deviation)]
    if (deviation <= 1 - MOST).mean() < MOST:
        return None
    heavy = np.nan_to_num(usual[place] - np.nanmin(usual)) > difference / 2
    confounded = _have_machines_to_themselves(tuple(timings.nodes[column] for column in columns), heavy)
    return _Uneven(kind, columns, place, heavy, difference, float(np.minimum(deviation, 1.0).mean()), confounded)


def _lower_middle(values: Floats) -> float:
    """The median of the known values; of two in the middle the smaller, so that half of the ranks make no place
    heavy."""
    known = np.sort(values[np.isfinite(values)])
    return float(known[(len(known) - 1) // 2])


def _have_machines_to_themselves(nodes: tuple[str | None, ...], heavy: NDArray[np.bool_]) -> bool:
    """Whether all ranks with more work stand on one machine, or on neighbouring ones, and none of the others does."""
    machine = node_numbers(nodes)
    own = distinct(machine[heavy])
    return not np.isin(own, machine[~heavy]).any() and int(own[-1] - own[0]) == len(own) - 1


def _blames_machine(steps: Steps, each: _Uneven) -> bool:
    """Whether anything tells that the machine, and not the place, makes these ranks slow: they were not so from the
    first step on, or not in the passes, or their update, whose work is the same in all places, takes longer as well."""
    heavy, light = each.columns[each.heavy], each.columns[~each.heavy]
    quarter = max(MIN_STEPS, len(steps.numbers) // 4)
    before = _differences(steps, heavy, light, slice(None, quarter))
    now = _differences(steps, heavy, light, slice(-quarter, None))
    by_design = before[list(PASSES)] if steps.phased else before
    return not by_design.sum() > HALF * now.sum() or is_slower_at_update(steps, heavy, light)


def _is_of_equal_parts(steps: Steps, each: _Uneven) -> bool:
    """Whether the passes of tensor groups are what differs: their members compute equal parts of the same layers. What
    one of them alone does for the others, as loading the input, is by design."""
    differs = _differences(steps, each.columns[each.heavy], each.columns[~each.heavy], slice(None))
    is_tensor = canonical_role(each.kind.role) == TENSOR and steps.phased
    return is_tensor and bool(differs[list(PASSES)].sum() > HALF * differs.sum())


def _differences(steps: Steps, heavy: NDArray[np.int64], light: NDArray[np.int64], rows: slice) -> Floats:
    """[P]: by how many seconds a step the ranks `heavy` take longer than `light`, by judged phase."""
    found = np.zeros(len(PHASES))
    for phase in steps.judged_phases:
        one, other = (median(median_over_steps(steps.phases[rows][:, those, phase])) for those in (heavy, light))
        found[phase] = np.nan_to_num(one - other)
    return found


def _notes(timings: JobTimings, steps: Steps, found: Sequence[_Uneven]) -> Iterator[Note]:
    """A note for each kind of groups by whose places work differs."""
    for (confounded, _), some in sorted(grouped(found, lambda each: (each.confounded, id(each.kind))).items()):
        kind, most = some[0].kind, max(each.difference for each in some)
        columns = np.sort(np.concatenate([each.columns[each.heavy] for each in some]))
        ranks = tuple(timings.ranks[columns].tolist())
        places = distinct(np.concatenate([each.place[each.heavy] for each in some])) + 1
        where = f"{'place' if len(places) == 1 else 'places'} {joined(list(map(str, places.tolist())))} of {kind.size}"
        text = (
            f"{ranks_text(ranks)} are busier than those in other places, by up to {seconds_text(most)} a step"
            f" ({most / median(steps.duration) * 100:.0f} % of it), and have {where} in their groups"
            f"{f' of role {kind.role}' if kind.role else ''}"
        )
        machines = sorted({node for column in columns.tolist() if (node := timings.nodes[column])})
        if confounded:
            named = listed(machines, MAX_NAMED_MACHINES) if machines else "their machines"
            text += f"; no others run on {named}: it has more work by its place, or what these share is slow"
            node = machines[0] if len(machines) == 1 else None
            yield Note("place_or_machine", text, ranks=ranks[:MAX_NAMED_RANKS], node=node)
        else:
            text += ", in all of them: the work is divided so, as a sequence by context parallelism, and ranks are"
            yield Note("uneven_work", f"{text} compared within their places", ranks=ranks[:MAX_NAMED_RANKS])
