"""Finds the ranks whose processes died in the middle of a job, and which of them died first. Pure.

When one rank dies, its peers fail in their next collective or block there, and the launcher ends them with SIGTERM.
Those are victims, and their deaths say nothing about the cause. Deaths are put in order by the clocks of the nodes'
agents, as far as these can tell them apart. The thresholds are our own choices.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np
from msgspec import structs

from laggard.kit.majority import grouped
from laggard.locate.hang.departures import (
    CLOCK_SKEW_SECONDS,
    MAX_NOTES,
    WHO_TELLS,
    Death,
    Departure,
    Departures,
    death_culprit,
    death_notes,
    ended_notes,
    extra_note,
    few,
    left_culprit,
)
from laggard.locate.hang.different_calls import DifferentCalls, beside_abort, different_calls
from laggard.locate.hang.hangs import HUNG_STEPS, MAY_TAKE_LONG, hung_ranks
from laggard.locate.hang.unfinished import unfinished_collectives
from laggard.locate.hang.waits import SILENT_BEATS, least_seconds
from laggard.locate.job_timings import JobTimings, LastBeat, RankState
from laggard.locate.medians import middle
from laggard.locate.partial_verdict import NOTHING_FOUND, PartialVerdict
from laggard.model import Note, RankEnd

# Finds who hung before a job was killed, by where its ranks stood as their recordings tell it last. Pure.
#
# A rank that finishes no step says again and again where it stands (docs/contracts.md), and a process that is stopped
# says nothing. No clock is compared with another's: ranks of one job finish a step within a step's time of each other,
# so who fell silent first is told by for how long each could still say that it finished none.


def hung_before_the_end(timings: JobTimings, step_seconds: float | None) -> PartialVerdict:
    """The ranks that others waited for when the job was killed; where it still runs, when it recorded its last.
    `step_seconds`: as of hung_ranks()."""
    told = [beat for beat in timings.last_beats if beat is not None]
    if timings.live or not told:
        return NOTHING_FOUND
    longest = max(beat.quiet_seconds for beat in told) - least_seconds(step_seconds)
    states = tuple(
        state if beat is None else _state(state, beat, max(0.0, longest - beat.quiet_seconds))
        for state, beat in zip(timings.states, timings.last_beats, strict=True)
    )
    ended = not any(state.state == "running" for state in timings.states)
    found = hung_ranks(dataclasses.replace(timings, states=states), step_seconds, ended)
    return _without_those_that_wait(timings, found)


def _without_those_that_wait(timings: JobTimings, found: PartialVerdict) -> PartialVerdict:
    """`found`, with a note in place of culprits that stood in a collective, where it cannot be told that they were the
    first to fall silent: they may have waited for a rank of which nothing is recorded, or, in the first step, have
    started later than the others."""
    unseen = len(timings.ranks) < timings.world_size
    first_step = any(state.step is None for state in timings.states)
    sure = tuple(culprit for culprit in found.culprits if culprit.phase != "collective")
    if not (unseen or first_step) or len(sure) == len(found.culprits):
        return found
    if sure:
        return PartialVerdict(sure, found.notes)
    missing = "the first to stop may be one of which nothing is recorded"
    late = "who stopped first cannot be told: no step was finished, and ranks start at different times"
    why = missing if unseen else late
    text = f"the ranks that are seen stood in a collective when their recordings ended; {why}"
    return PartialVerdict(notes=(Note("first_unseen", text), *found.notes))


def _state(state: RankState, last: LastBeat, age: float) -> RankState:
    """The rank as it was just before the end; `age`: for how long at least it had been silent."""
    asked = last.beat.groups_age_seconds
    beat = structs.replace(last.beat, age_seconds=age, groups_age_seconds=None if asked is None else asked + age)
    return RankState("running", state.step, last.phase, last.in_flight, state.stopped, beat)


# Finds the ranks that stood still long before their processes were killed, and alone did not end by themselves. Pure.
#
# Where a collective fails, as by its timeout, the processes that waited in it end. One that is stuck in the driver of a
# GPU that has stopped does not: somebody kills it later, and its recording has no end.


def stuck(timings: JobTimings, first: Sequence[Death], others: Sequence[Death]) -> list[Death]:
    """The `first` deaths with the places where they stood, if all of these ranks stood still for long, as they said
    last, and all `others` told that they ended since their collectives had failed: the job hung long before. Else
    none."""
    if not timings.last_beats or not others or not all(death.told for death in others):
        return []
    known = timings.step_seconds[np.isfinite(timings.step_seconds)]
    long = HUNG_STEPS * (middle(known) if len(known) else 0.0)
    stood = [death._replace(stood=timings.last_beats[death.column]) for death in first]
    ended = any(timings.states[death.column].end for death in first)
    return [] if ended or not all(each.stood and _is_long(each.stood, long) for each in stood) else stood


def _is_long(last: LastBeat, least: float) -> bool:
    """Whether a rank stood still for more than `least` seconds, where none works alone for as long."""
    seconds = last.in_flight.seconds if last.in_flight else last.quiet_seconds
    return seconds > max(least, silence(last)) and (last.in_flight is not None or last.phase not in MAY_TAKE_LONG)


def silence(last: LastBeat) -> float:
    """The seconds without a word after which the rank is silent."""
    return SILENT_BEATS * last.beat.interval_seconds + 1.0


SAME_FAILURE_SECONDS = 1.0
"""The longest time after a victim's death at which the death of a rank that died of itself may still be the cause: the
kernel reports a death late."""
_WRITE_SECONDS = 0.1
"""The interval at which the hooks write a recording."""
_NOT_RECORDED = f"ranks waited when all processes ended together, and who died first is not recorded: {WHO_TELLS}"


def dead_ranks(timings: JobTimings) -> PartialVerdict:
    """The ranks that died first, as culprits, and a note about each death. There is no culprit where the whole job was
    ended, where it was over already, or where whoever died first is not among the ranks that are seen."""
    silent = _silent_before_the_others(timings)
    deaths = sorted(
        (_death(timings, column, silent) for column, state in enumerate(timings.states) if state.state == "died"),
        key=lambda death: death.latest,
    )
    if not deaths or _killed_while_they_waited(timings, deaths):
        return NOTHING_FOUND
    first = _without_those_that_waited(timings, _explained(timings, _first(deaths)))
    left = _left_before(timings, deaths, first)
    if few(left):
        told = death_notes(timings, deaths, deaths[:1])
        return PartialVerdict(tuple(left_culprit(timings, each, deaths[0].latest) for each in left[:MAX_NOTES]), told)
    if _whole_job_ended(timings, deaths, first):
        return PartialVerdict(notes=ended_notes(timings, deaths))
    first = _recorded_least(timings, first)
    rest = [death for death in deaths if death not in first]
    notes = death_notes(timings, (*first, *rest), first)
    notes = (extra_note(timings, left), *notes) if left else notes
    if not left and (_was_over(timings, deaths) or _waited_for_another(timings, deaths)):
        return PartialVerdict(notes=notes)
    if all(death.victim for death in deaths) and _some_are_unseen(timings):
        text = "the ranks that are seen died as ranks do when another is gone: the first may be one that is not seen"
        return PartialVerdict(notes=(Note("first_unseen", text), *notes))
    if not silent and any(_spoke_to_the_end(timings, death) for death in first):
        return PartialVerdict(notes=(Note("first_unseen", _NOT_RECORDED), *notes))
    different = different_calls(timings)
    if different is None and all(_is_after(timings, death) for death in deaths if death not in first):
        different = next(filter(None, (beside_abort(timings, death.column) for death in first)), None)
        if different is not None and not different.few:  # which side took another way is not known
            return PartialVerdict(notes=(different.note(), *notes))
    if different is not None:
        first = _called_otherwise(timings, different, first, deaths)
        notes = (different.note(), *notes)
    elif not left and (stood := stuck(timings, first, rest)):
        first, deaths = stood, sorted((*stood, *rest), key=lambda death: death.latest)
        notes = death_notes(timings, deaths, first)
    culprits = [
        death_culprit(timings, death, first, deaths, together)
        for death, together in _by_machine(timings, first, deaths)
    ]
    return PartialVerdict(tuple(culprits[:MAX_NOTES]), notes)


def _called_otherwise(
    timings: JobTimings, different: DifferentCalls, first: Sequence[Death], deaths: Sequence[Death]
) -> list[Death]:
    """The deaths of the ranks that called what fewer called, where that is why the first ones died: gloo aborts either
    side of calls that do not match. Else `first`."""
    ranks = {int(timings.ranks[death.column]) for death in first}
    odd = [death for death in deaths if int(timings.ranks[death.column]) in different.few]
    ends = [timings.states[death.column].end for death in first]
    if not odd or not ranks <= set(different.ranks) or any(end and end.cause for end in ends):
        return list(first)
    return odd


def _left_before(timings: JobTimings, deaths: Sequence[Death], first: Sequence[Death]) -> tuple[Departure, ...]:
    """The ranks that left with status 0 before any died, where that explains the first deaths: each of these ranks had
    gone on to a collective that those never came to, and died as ranks do then."""
    found = Departures(timings).early({death.column for death in deaths})
    ends = [timings.states[death.column].end for death in first]
    if any(end and end.cause for end in ends):
        return ()
    before = tuple(each for each in found if _ended_before(timings, each.column, deaths[0]))
    explained = frozenset().union(*(each.waiting for each in before))
    return before if {death.column for death in first} <= explained else ()


def _ended_before(timings: JobTimings, column: int, death: Death) -> bool:
    end = timings.states[column].end
    allowance = 0.0 if timings.nodes[column] == death.node else CLOCK_SKEW_SECONDS
    return end is not None and end.at_seconds - end.uncertain_seconds <= death.latest + allowance


def _death(timings: JobTimings, column: int, silent: frozenset[int]) -> Death:
    state = timings.states[column]
    end = state.end
    if end is None:
        victim = column not in silent if silent else state.in_flight is not None
        # One that told of another's end at the very time of that end outlived it.
        earliest = -math.inf if state.alive_at is None else math.nextafter(state.alive_at, math.inf)
        return Death(column, timings.nodes[column], earliest, math.inf, victim)
    victim = told = end.signal == "SIGTERM" or (end.others_failed and not end.cause)
    if not (end.signal or end.exception or end.exit_code):  # gone: killed peers block in collectives
        victim = state.in_flight is not None
    return Death(column, timings.nodes[column], end.at_seconds - end.uncertain_seconds, end.at_seconds, victim, told)


def _silent_before_the_others(timings: JobTimings) -> frozenset[int]:
    """The ranks, of those without an end, that said nothing while one that did not wait went on to say where it stood:
    they died first, wherever they were. Where all others waited, who is silent is told by hung_before_the_end()."""
    told = {
        column: beat
        for column, beat in enumerate(timings.last_beats)
        if beat is not None and timings.states[column].state == "died" and timings.states[column].end is None
    }
    outside = [
        beat.quiet_seconds
        for column, beat in told.items()
        if timings.states[column].in_flight is None and beat.in_flight is None
    ]
    known = timings.step_seconds[np.isfinite(timings.step_seconds)]
    if not outside or not len(known):
        return frozenset()
    longest = max(outside) - least_seconds(middle(known))
    return frozenset(column for column, beat in told.items() if longest - beat.quiet_seconds > silence(beat))


def _killed_while_they_waited(timings: JobTimings, deaths: Sequence[Death]) -> bool:
    """Whether the other ranks finished, and all of these were killed after some of them had long waited for another:
    hung_before_the_end() tells for whom. What goes down, as a machine, has not waited before."""
    if not timings.last_beats or any(timings.states[death.column].end for death in deaths):
        return False
    died = {death.column for death in deaths}
    others = [state.state for column, state in enumerate(timings.states) if column not in died]
    if not others or any(state != "finished" for state in others):
        return False
    beats = (timings.last_beats[column] for column in sorted(died))
    waited = [beat for beat in beats if beat is not None and beat.in_flight is not None]
    if not any(beat.quiet_seconds > silence(beat) for beat in waited):
        return False
    known = timings.step_seconds[np.isfinite(timings.step_seconds)]
    return hung_before_the_end(timings, middle(known) if len(known) else None) != NOTHING_FOUND


def _spoke_to_the_end(timings: JobTimings, death: Death) -> bool:
    """Whether a rank of which no end is recorded still said where it stood as late as those that waited for it: what
    tells it from them is that it came last, not that it died first."""
    last = timings.last_beats[death.column] if timings.last_beats else None
    if last is None or timings.states[death.column].end is not None or not last.quiet_seconds:
        return False
    waited = [
        beat.quiet_seconds
        for state, beat in zip(timings.states, timings.last_beats, strict=True)
        if beat is not None and state.state == "died" and state.end is None and state.in_flight is not None
    ]
    return bool(waited) and max(waited) - last.quiet_seconds <= last.beat.interval_seconds


def _first(deaths: Sequence[Death]) -> list[Death]:
    """The deaths of which each may have been the first. `deaths`: in order. Where all died as victims, that is whose
    place alone says so: others do not fail as if a peer were gone before one is."""
    own = [death for death in deaths if not death.victim]
    near = [death for death in own if death.earliest <= deaths[0].latest + SAME_FAILURE_SECONDS]
    candidates = near or list(deaths)
    may_be = [death for death in candidates if death.may_precede(candidates[0])]
    return [death for death in may_be if not death.told] or may_be


def _explained(timings: JobTimings, first: Sequence[Death]) -> list[Death]:
    """`first` without those of whom nothing is known but that they were killed, where it is known of another why it
    ended, by the kernel or by itself: a launcher kills the others after it."""
    ends = [timings.states[death.column].end for death in first]
    if not any(end and (end.cause or _is_its_own(end)) for end in ends):
        return list(first)
    killed = [_is_only_killed(end) for end in ends]
    return [death for death, only_killed in zip(first, killed, strict=True) if not only_killed]


def _without_those_that_waited(timings: JobTimings, first: Sequence[Death]) -> list[Death]:
    """`first` without those that said for long that they waited, where of others an end is known, and these had said no
    such thing: they were gone by then. What became of those that waited is not recorded."""
    known = timings.step_seconds[np.isfinite(timings.step_seconds)]
    if not timings.last_beats or not len(known):
        return list(first)
    long = least_seconds(middle(known))
    beats = [timings.last_beats[death.column] for death in first]
    waited = [
        beat is not None and beat.in_flight is not None and beat.quiet_seconds > silence(beat) + long for beat in beats
    ]
    rest = [death for death, did in zip(first, waited, strict=True) if not did]
    gone = bool(rest) and all(timings.states[death.column].end for death in rest)
    return rest if gone else list(first)


def _recorded_least(timings: JobTimings, first: Sequence[Death]) -> list[Death]:
    """`first` without those whose recordings reach clearly further than another's, where all that is known of these
    ranks is that they are gone: a launcher kills the others after the first. Ranks of one job finish a step together,
    so the difference of their last steps is the time between the last writes of their recordings."""
    ends = [timings.states[death.column].end for death in first]
    known = timings.step_seconds[np.isfinite(timings.step_seconds)]
    beats = [timings.last_beats[death.column] for death in first if timings.last_beats]
    if timings.live or any(ends) or any(beat and beat.quiet_seconds for beat in beats) or not len(known):
        return list(first)
    last = [timings.states[death.column].step or 0 for death in first]
    near = max(1.0, _WRITE_SECONDS / 2 / middle(known))
    return [death for death, step in zip(first, last, strict=True) if step - min(last) <= near]


def _is_its_own(end: RankEnd) -> bool:
    """Whether the rank itself ended so, and not for another that is gone."""
    return bool(end.exception or end.exit_code) and not (end.others_failed or end.signal)


def _is_after(timings: JobTimings, death: Death) -> bool:
    """Whether a rank ended as ranks do after another: by an error of the network, or killed by the launcher."""
    return death.told or _is_only_killed(timings.states[death.column].end)


def _is_only_killed(end: RankEnd | None) -> bool:
    if end is None or _tells_nothing(end):
        return True
    return end.signal == "SIGKILL" and not (end.cause or end.exception)


def _by_machine(
    timings: JobTimings, first: Sequence[Death], deaths: Sequence[Death]
) -> Iterator[tuple[Death, tuple[Death, ...]]]:
    """Each of the first deaths by itself, but one of each machine all ranks of which died in the same way and as
    early, with these: then the machine went down, and not one rank after the other. Where all machines of the job did,
    it was none of them."""
    machines = grouped((death for death in deaths if death.node is not None), lambda death: death.node)
    sizes = Counter(timings.nodes)
    down = {
        node: tuple(sorted(its, key=lambda death: death.column))
        for node, its in machines.items()
        if len(its) == sizes[node] > 1 and _died_as_one(timings, its)
    }
    down = down if set(down) != set(timings.nodes) else {}
    told = set()
    for death in first:
        if death.node not in down:
            yield death, (death,)
        elif death.node not in told:
            told.add(death.node)
            yield death, down[death.node]


def _died_as_one(timings: JobTimings, deaths: Sequence[Death]) -> bool:
    """Whether ranks died in the same way, none later than SAME_FAILURE_SECONDS after the first of them."""
    ways = {_way(timings.states[death.column].end) for death in deaths}
    earliest = min(death.latest for death in deaths)
    as_early = all(death.earliest <= earliest + SAME_FAILURE_SECONDS for death in deaths)
    return len(ways) == 1 and as_early and not all(death.victim for death in deaths)


def _way(end: RankEnd | None) -> tuple[str, int | None, str, str]:
    return (end.signal, end.exit_code, end.exception, end.cause) if end else ("", None, "", "")


def _whole_job_ended(timings: JobTimings, deaths: Sequence[Death], first: Sequence[Death]) -> bool:
    """Whether all processes were ended together, in the same way: by the user or the scheduler."""
    if not len(deaths) == len(timings.states) > 1:
        return False
    ends = [timings.states[death.column].end for death in deaths]
    ways = {_way(end) for end in ends}
    explained = any(end.cause or end.exception for end in ends if end)
    if len(ways) > 1 or explained:
        return False
    return len(first) == len(deaths) or ways == {("SIGTERM", None, "", "")}


def _was_over(timings: JobTimings, deaths: Sequence[Death]) -> bool:
    """Whether all other ranks finished normally, and none of those that died lacks a step or says how it died. Others
    that stayed in a collective after the last step did not finish."""
    died = {death.column for death in deaths}
    others = [state for column, state in enumerate(timings.states) if column not in died]
    last = max((state.step or 0 for state in timings.states), default=0)
    silent = all(_tells_nothing(timings.states[column].end) for column in died)
    complete = all((timings.states[column].step or 0) == last for column in died)
    finished = all(state.state == "finished" for state in others) and not _some_stayed(timings, died, last)
    return bool(others) and silent and complete and finished


def _waited_for_another(timings: JobTimings, deaths: Sequence[Death]) -> bool:
    """Whether all that died were waiting for a rank that did not: one that left, as by an exception, for which the
    launcher ended the others."""
    if not all(death.victim for death in deaths):
        return False
    died = {int(timings.ranks[death.column]) for death in deaths}
    awaited = {rank for culprit in unfinished_collectives(timings).culprits for rank in culprit.ranks}
    return bool(awaited) and not awaited & died


def _some_stayed(timings: JobTimings, died: set[int], last_step: int) -> bool:
    """Whether a rank that did not die never finished a collective of a step after the last."""
    collectives = timings.collectives
    if collectives is None:
        return False
    unfinished = ~np.isfinite(collectives.end) & (collectives.step > last_step)
    return bool((unfinished & ~np.isin(collectives.column, sorted(died))).any())


def _tells_nothing(end: RankEnd | None) -> bool:
    return end is None or not (end.signal or end.exit_code or end.exception or end.cause)


def _some_are_unseen(timings: JobTimings) -> bool:
    unknown = any(state.state == "unknown" for state in timings.states)
    return unknown or len(timings.states) < timings.world_size
