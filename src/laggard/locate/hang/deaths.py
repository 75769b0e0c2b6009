"""Finds the ranks whose processes died in the middle of a job, and which of them died first. Pure.

When one rank dies, its peers fail in their next collective or block there, and the launcher ends them with SIGTERM. So
deaths have an order: one explains another if the launcher killed that one after it, if it came first, or if that one
waited for it. Culprits are those that nothing explains. Where no death explains another, the whole job was ended. The
clocks of the nodes' agents order deaths, as far as they can tell them apart; where no end is recorded, how far
recordings reach does. The thresholds are our own choices.
"""

from __future__ import annotations

import dataclasses
import enum
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from operator import attrgetter
from typing import NamedTuple

import numpy as np

from laggard.kit.constants import OPS
from laggard.kit.majority import grouped
from laggard.kit.words import ranks_text, seconds_text
from laggard.locate.collectives import NEEDS_ALL
from laggard.locate.hang.different_calls import DifferentCalls, beside_abort, different_calls
from laggard.locate.hang.hangs import HUNG_STEPS, MAY_TAKE_LONG, hung_before_the_end, left_early
from laggard.locate.hang.live_waits import Arrivals, Departure, flight_text, least_seconds
from laggard.locate.hang.unfinished import unfinished_operations
from laggard.locate.hang.wait_graph import culprit_at, next_step, silence
from laggard.locate.job_timings import JobTimings, LastBeat, RankState
from laggard.locate.medians import middle
from laggard.locate.partial_verdict import NOTHING_FOUND, PartialVerdict
from laggard.model import MAX_NAMED_RANKS, Culprit, Note, RankEnd
from laggard.wire.words import end_text, time_text

SAME_FAILURE_SECONDS = 1.0
"""The longest time after a victim's death at which the death of a rank that died of itself may still be the cause: the
kernel reports a death late."""
CLOCK_SKEW_SECONDS = 0.5
"""The largest difference that is assumed between the clocks of two nodes: chrony and NTP keep them far closer."""
_MIN_AFTER_SECONDS = 0.0005
"""The shortest time that is told of: less is 0 ms for people."""
_MAX_NOTES = 32
_WHO_TELLS = (
    "the launcher's log names the first that failed, the kernel's log who was out of memory, and with an agent on each "
    "node laggard tells it"
)


class Why(enum.IntEnum):
    """What a rank's end says of why it died, from a cause to a victim."""

    BY_ITSELF = enum.auto()  # an exception, a status or a fault of its own
    KILLED = enum.auto()  # it is gone, or was killed, and no more is known
    WAITED = enum.auto()  # the same inside a collective, in which victims block
    FOR_OTHERS = enum.auto()  # an exception or a signal of a rank whose peer is gone


class Death(NamedTuple):
    """A rank's death between `earliest` and `latest`, Unix time. `last`: where it stood then, as it said itself, where
    it has no end. `stood`: the same of one that stood there long before the others ended."""

    column: int
    node: str | None
    earliest: float
    latest: float
    why: Why
    end: RankEnd | None
    last: LastBeat | None = None
    stood: LastBeat | None = None

    @property
    def victim(self) -> bool:
        return self.why >= Why.WAITED

    @property
    def quiet_seconds(self) -> float:
        """The time after its last step at which it still said where it stood."""
        return self.last.quiet_seconds if self.last else 0.0

    def precedes(self, other: Death, allowed_seconds: float = 0.0) -> bool:
        """Whether the clocks tell that it was before the other, by more than they may differ and `allowed_seconds`."""
        skew = 0.0 if self.node == other.node else CLOCK_SKEW_SECONDS
        return other.earliest > self.latest + skew + allowed_seconds


class _Order:
    """The order of the deaths of a job. Where no end is recorded, it is by what ranks said last: steps of one job are
    finished together, so that for how long each could say that it finished none tells who outlived whom."""

    def __init__(self, timings: JobTimings) -> None:
        known = timings.step_seconds[np.isfinite(timings.step_seconds)]
        self.step_seconds = middle(known) if len(known) else None
        found = (_death(timings, column) for column, state in enumerate(timings.states) if state.state == "died")
        self.deaths = sorted(found, key=lambda death: death.latest)
        outside = (each for each in self.deaths if each.last and not (each.victim or each.last.in_flight))
        self._outside_until = max((each.quiet_seconds for each in outside), default=0.0)

    def first(self) -> list[Death]:
        """The deaths that none explains. Of each machine, and of all, those that can explain the most are asked."""
        everywhere = _strongest(self.deaths)
        here = {node: _strongest(its) for node, its in grouped(self.deaths, lambda death: death.node).items()}
        return [
            death
            for death in self.deaths
            if not any(self._explains(one, death) for one in (*everywhere, *here[death.node]))
        ]

    def _explains(self, one: Death, other: Death) -> bool:
        """Whether `one` explains that the other died."""
        if one.last and other.last:
            return self._is_silent_before(one, one.last, other)
        if one.end is not None and not one.victim and self._waited_long(other):
            return True
        if other.victim and not one.victim:  # a victim is after its cause, though that may be told of later
            return not other.precedes(one, SAME_FAILURE_SECONDS)
        if one.victim and not other.victim:
            return one.precedes(other, SAME_FAILURE_SECONDS)
        return one.precedes(other) or (one.why < other.why and not other.precedes(one))

    def _is_silent_before(self, one: Death, last: LastBeat, other: Death) -> bool:
        """Whether a rank said nothing more, `last` before, when the other still did. Who waited in a collective waited
        for who did not, unless that one said as late where it stood: then it was only the last to come. Else one that
        went on to say that it was in no collective tells of a silence; where all waited, hung_before_the_end() does."""
        after = other.quiet_seconds - one.quiet_seconds
        if one.why < other.why:
            return not one.quiet_seconds or after > last.beat.interval_seconds
        return after > 0.0 and self._outside_until - one.quiet_seconds > self._silence(last)

    def _waited_long(self, death: Death) -> bool:
        last = death.last if self.step_seconds is not None else None
        return last is not None and last.in_flight is not None and last.quiet_seconds > self._silence(last)

    def _silence(self, last: LastBeat) -> float:
        """The seconds without a word that no wait explains."""
        return silence(last.beat) + least_seconds(self.step_seconds)

    def stuck(self, first: Sequence[Death]) -> list[Death]:
        """The first deaths, if all of these ranks stood still for long, where none works alone for as long, and all
        others ended since their collectives had failed, by a timeout say. One that is stuck in the driver of a GPU that
        has stopped does not: the job hung long before somebody killed it. Else none."""
        others = [death for death in self.deaths if death not in first]
        told = bool(others) and all(death.why == Why.FOR_OTHERS for death in others)
        stood = [death._replace(stood=death.last) for death in first if self._stood_long(death)]
        return stood if told and len(stood) == len(first) else []

    def _stood_long(self, death: Death) -> bool:
        last = death.last
        if last is None or (last.in_flight is None and last.phase in MAY_TAKE_LONG):
            return False
        seconds = last.in_flight.seconds if last.in_flight else last.quiet_seconds
        return seconds > max(HUNG_STEPS * (self.step_seconds or 0.0), silence(last.beat))


def _strongest(deaths: Sequence[Death]) -> set[Death]:
    """Of each kind, the deaths that were the first by either bound, and the one that said nothing for the longest."""
    orders = (attrgetter("latest"), attrgetter("earliest"), attrgetter("quiet_seconds"))
    kinds = grouped(deaths, lambda death: (death.why, death.end is None)).values()
    return {min(alike, key=order) for alike in kinds for order in orders}


def _death(timings: JobTimings, column: int) -> Death:
    state, node = timings.states[column], timings.nodes[column]
    end, gone = state.end, Why.WAITED if state.in_flight is not None else Why.KILLED
    if end is None:
        # One that told of another's end at the very time of that end outlived it.
        earliest = -math.inf if state.alive_at is None else math.nextafter(state.alive_at, math.inf)
        last = timings.last_beats[column] if timings.last_beats else None
        return Death(column, node, earliest, math.inf, gone, None, last)
    if end.signal == "SIGTERM" or (end.others_failed and not end.cause):
        why = Why.FOR_OTHERS
    elif end.cause or end.exception or end.exit_code or end.signal not in ("", "SIGKILL"):
        why = Why.BY_ITSELF
    else:
        why = Why.KILLED if end.signal else gone
    return Death(column, node, end.at_seconds - end.uncertain_seconds, end.at_seconds, why, end)


def _reached_steps(timings: JobTimings) -> list[int]:
    """The last step in which each rank is known to have lived: it finished it, or came to a collective in it that
    another member finished, which nobody does without all of them. A recording may stop before its process does. -1 of
    a rank that others missed: they never finished a later collective that it has to come to."""
    reached = [0 if state.step is None else state.step for state in timings.states]
    collectives = timings.collectives
    if collectives is None:
        return reached
    for_all = np.isin(collectives.op, tuple(NEEDS_ALL))
    lane = collectives.group.astype(np.int64) * len(OPS) + collectives.op
    done = for_all & np.isfinite(collectives.end)
    newest, steps = np.full((2, len(collectives.groups) * len(OPS)), -1, np.int64)
    np.maximum.at(newest, lane[done], collectives.seq[done])
    np.maximum.at(steps, lane[done], collectives.step[done])
    beyond = for_all & ~np.isfinite(collectives.end)
    beyond[beyond] = collectives.seq[beyond] > newest[lane[beyond]]
    missing = {*collectives.group[beyond].tolist()}
    columns = {int(rank): column for column, rank in enumerate(timings.ranks)}
    for place, group in enumerate(collectives.groups):
        step = int(steps[place * len(OPS) : (place + 1) * len(OPS)].max())
        for column in (columns[rank] for rank in group.ranks if rank in columns):
            missed = place in missing or reached[column] < 0
            reached[column] = -1 if missed else max(reached[column], step)
    return reached


def dead_ranks(timings: JobTimings) -> PartialVerdict:
    """The ranks that died first, as culprits, and a note about each death. There is no culprit where what explains them
    all is none of them."""
    order = _Order(timings)
    deaths, first = order.deaths, order.first()
    if not deaths or _hung_before(timings, order):
        return NOTHING_FOUND
    left = _left_before(timings, deaths, first)
    if left:
        found = left_early(timings, left, _notes(timings, deaths, first))
        return found if found.culprits else PartialVerdict(_culprits(timings, deaths, first), found.notes)
    elsewhere = _elsewhere(timings, deaths, first)
    if elsewhere is not None:
        return PartialVerdict(notes=elsewhere)
    different = _called_differently(timings, deaths, first)
    if different is not None:
        notes = different.note(), *_notes(timings, deaths, first)
        return PartialVerdict(_culprits(timings, deaths, _called_otherwise(timings, different, deaths, first)), notes)
    if stood := order.stuck(first):
        first, deaths = stood, [*stood, *(death for death in deaths if death not in first)]
    return PartialVerdict(_culprits(timings, deaths, first), _notes(timings, deaths, first))


def _elsewhere(timings: JobTimings, deaths: Sequence[Death], first: Sequence[Death]) -> tuple[Note, ...] | None:
    """The notes where all deaths are explained by what is none of them: somebody ended the whole job, it was over, they
    waited for a rank that did not die, or died for one that is not seen. None where they are not."""
    if _whole_job_ended(timings, deaths, first):
        return _ended_notes(timings, deaths)
    reached = _reached_steps(timings)
    if _was_over(timings, deaths, reached):
        return tuple(_over_note(timings, death, reached[death.column]) for death in deaths)
    if not all(death.victim for death in deaths):
        return None
    awaited = {rank for culprit in unfinished_operations(timings).culprits for rank in culprit.ranks}
    if awaited and not awaited & {int(timings.ranks[death.column]) for death in deaths}:
        return _notes(timings, deaths, first)
    unknown = any(state.state == "unknown" for state in timings.states)
    if unknown or len(timings.states) < timings.world_size:
        text = "the ranks that are seen died as ranks do when another is gone: the first may be one that is not seen"
        return (Note("first_unseen", text), *_notes(timings, deaths, first))
    return None


def _hung_before(timings: JobTimings, order: _Order) -> bool:
    """Whether the other ranks finished, and all of these were killed after some of them had long waited for another:
    hung_before_the_end() tells for whom. What goes down, as a machine, has not waited before."""
    others = [state.state for state in timings.states if state.state != "died"]
    if not others or any(state != "finished" for state in others) or any(death.end for death in order.deaths):
        return False
    waited = [death.last for death in order.deaths if death.last and death.last.in_flight]
    if not any(last.quiet_seconds > silence(last.beat) for last in waited):
        return False
    return hung_before_the_end(timings, order.step_seconds) != NOTHING_FOUND


def _left_before(timings: JobTimings, deaths: Sequence[Death], first: Sequence[Death]) -> tuple[Departure, ...]:
    """The ranks that left with status 0 before any died, where that explains the first deaths: each of these ranks had
    gone on to a collective that those never came to, and died as ranks do then."""
    found = Arrivals(_as_last_said(timings)).departures({death.column for death in deaths})
    before = tuple(each for each in found if _ended_before(timings, each.column, deaths[0]))
    explained = frozenset().union(*(each.waiting for each in before))
    caused = any(death.end and death.end.cause for death in first)
    return before if not caused and {death.column for death in first} <= explained else ()


def _ended_before(timings: JobTimings, column: int, death: Death) -> bool:
    end = timings.states[column].end
    allowance = 0.0 if timings.nodes[column] == death.node else CLOCK_SKEW_SECONDS
    return end is not None and end.at_seconds - end.uncertain_seconds <= death.latest + allowance


def _called_differently(timings: JobTimings, deaths: Sequence[Death], first: Sequence[Death]) -> DifferentCalls | None:
    """The different calls that ranks died of: as recordings have them, else as gloo aborted one of the first and the
    others ended after it."""
    found = different_calls(timings)
    if found is not None or any(death.why == Why.BY_ITSELF for death in deaths if death not in first):
        return found
    return next(filter(None, (beside_abort(timings, death.column) for death in first)), None)


def _called_otherwise(
    timings: JobTimings, different: DifferentCalls, deaths: Sequence[Death], first: Sequence[Death]
) -> list[Death]:
    """The deaths of the ranks that called what fewer called, where that is why the first ones died: gloo aborts either
    side of calls that do not match. None where it is not known which side took another way. Else `first`."""
    caused = any(death.end and death.end.cause for death in first)
    if caused or not {int(timings.ranks[death.column]) for death in first} <= set(different.ranks):
        return list(first)
    odd = [death for death in deaths if int(timings.ranks[death.column]) in different.few]
    return odd if odd or not different.few else list(first)


def _as_last_said(timings: JobTimings) -> JobTimings:
    """The job with its ranks where they stood, as those said last of which no end is recorded."""
    if not timings.last_beats:
        return timings
    states = tuple(
        state._replace(beat=last.beat, in_flight=last.in_flight or state.in_flight) if last else state
        for state, last in zip(timings.states, timings.last_beats, strict=True)
    )
    return dataclasses.replace(timings, states=states)


def _whole_job_ended(timings: JobTimings, deaths: Sequence[Death], first: Sequence[Death]) -> bool:
    """Whether all processes were ended together, in the same way: by the user or the scheduler. A launcher kills all
    but the first, and signals tell no order of their own."""
    ways = {_way(death.end) for death in deaths}
    explained = any(death.end and (death.end.cause or death.end.exception) for death in deaths)
    if not len(deaths) == len(timings.states) > 1 or len(ways) > 1 or explained:
        return False
    return len(first) == len(deaths) or ways == {("SIGTERM", None, "", "")}


def _was_over(timings: JobTimings, deaths: Sequence[Death], reached: Sequence[int]) -> bool:
    """Whether all other ranks finished normally, and of those that died none is missed, lacks a step or says how it
    died. `reached`: as of _reached_steps()."""
    died = {death.column for death in deaths}
    others = [state for column, state in enumerate(timings.states) if column not in died]
    last = max((state.step or 0 for state in timings.states), default=0)
    silent = all(_tells_nothing(death.end) and reached[death.column] >= last for death in deaths)
    return bool(others) and silent and all(state.state == "finished" for state in others)


def _tells_nothing(end: RankEnd | None) -> bool:
    return end is None or not (end.signal or end.exit_code or end.exception or end.cause)


def _way(end: RankEnd | None) -> tuple[str, int | None, str, str]:
    return (end.signal, end.exit_code, end.exception, end.cause) if end else ("", None, "", "")


def _by_machine(timings: JobTimings, first: Sequence[Death], deaths: Sequence[Death]) -> Iterator[tuple[Death, ...]]:
    """Each of the first deaths by itself, but one of each machine all ranks of which died in the same way and as
    early, with these: then the machine went down, and not one rank after the other. Where all machines of the job did,
    it was none of them."""
    machines = grouped((death for death in deaths if death.node is not None), lambda death: death.node)
    sizes = Counter(timings.nodes)
    down = {node: its for node, its in machines.items() if len(its) == sizes[node] > 1 and _died_as_one(its)}
    down = down if set(down) != set(timings.nodes) else {}
    alone = [(death,) for death in first if death.node not in down]
    together = {death.node: tuple(down[death.node]) for death in first if death.node in down}
    yield from sorted(
        (*alone, *together.values()), key=lambda each: first.index(next(it for it in each if it in first))
    )


def _died_as_one(deaths: Sequence[Death]) -> bool:
    """Whether ranks died in the same way, none later than SAME_FAILURE_SECONDS after the first of them."""
    earliest = min(death.latest for death in deaths)
    as_early = all(death.earliest <= earliest + SAME_FAILURE_SECONDS for death in deaths)
    return len({_way(death.end) for death in deaths}) == 1 and as_early and not all(death.victim for death in deaths)


def _culprits(timings: JobTimings, deaths: Sequence[Death], first: Sequence[Death]) -> tuple[Culprit, ...]:
    machines = list(_by_machine(timings, first, deaths))[:_MAX_NOTES]
    return tuple(_culprit(timings, together, first, deaths) for together in machines)


def _culprit(
    timings: JobTimings, together: Sequence[Death], first: Sequence[Death], deaths: Sequence[Death]
) -> Culprit:
    """The rank of a death; where its machine went down, all of its ranks together. Less sure where several may have
    been the first, and where the rank died as victims do, or was not seen to be stuck. Our own choice."""
    death = together[0]
    state = timings.states[death.column]
    rivals = [each for each in first if each not in together[1:]]
    later = [each for each in deaths if each not in first and each not in together]
    sure = 0.5 if death.victim else 0.7 if death.stood else 0.95
    waiting = (column for column, other in enumerate(timings.states) if other.state != "finished")
    return culprit_at(
        timings,
        [each.column for each in together],
        death.stood or state,
        waiting,
        kind="hung" if state.doubted or death.stood else "dead",
        silent=state.doubted and death.stood is None,
        device_stopped=death.stood is not None and death.stood.in_flight is not None,
        since_step=next_step(state),
        confidence=round(sure / math.sqrt(len(rivals)), 2),
        evidence=tuple(_evidence(timings, together, rivals, later)),
        end=state.end,
    )


def _evidence(
    timings: JobTimings, together: Sequence[Death], rivals: Sequence[Death], later: Sequence[Death]
) -> Iterator[str]:
    death = together[0]
    if len(together) > 1:
        yield f"all {len(together)} ranks of the machine died in the same way at the same time"
    if death.end:
        yield f"it ended at {time_text(death.end)} by its node's clock"
    if death.stood:
        others = "the others' processes ended when their collectives failed, and this one did not"
        yield f"it stood {_stood_text(death.stood)}, as it said last; {others}"
    else:
        yield f"it was {_place_text(timings, timings.states[death.column])}"
    if death.end and death.end.kernel:
        yield f"the kernel: {death.end.kernel}"
    if len(rivals) > 1:
        yield f"{_ranks(timings, rivals)} ended too close together for their clocks: each may have been the first"
    if later and later[0].latest < math.inf:
        yield f"{_ranks(timings, later)} ended after it"
    if aborted := beside_abort(timings, death.column):
        yield aborted.text
    if death.victim:
        yield "ranks end so when another is gone: the cause may be elsewhere"


def _notes(timings: JobTimings, deaths: Sequence[Death], first: Sequence[Death]) -> tuple[Note, ...]:
    """A note for each kind of death, in their order: a thousand ranks that are killed at once are told of once."""
    since = (first or deaths)[0].latest
    ordered = [*first, *(death for death in deaths if death not in first)]
    alike = grouped(ordered, lambda death: _told(timings, death, 0.0 if death in first else death.latest - since))
    return tuple(_note(timings, told, those) for told, those in list(alike.items())[:_MAX_NOTES])


def _note(timings: JobTimings, told: str, deaths: Sequence[Death]) -> Note:
    ranks = tuple(sorted(int(timings.ranks[death.column]) for death in deaths))
    nodes = {death.node for death in deaths}
    node = nodes.pop() if len(nodes) == 1 else None
    where = f" on {node}" if node else f" on {len(nodes)} machines" if len(nodes) > 1 else ""
    return Note("rank_died", f"{ranks_text(ranks)}{where} {told}", ranks[:MAX_NAMED_RANKS], node)


def _told(timings: JobTimings, death: Death, after: float) -> str:
    state = timings.states[death.column]
    if death.stood:
        return f"recorded no end, and stood {_stood_text(death.stood)}"
    if state.doubted:
        return f"recorded nothing more {_place_text(timings, state)}, and no end: stopped or killed"
    when = f", {seconds_text(after)} after the first" if _MIN_AFTER_SECONDS <= after < math.inf else ""
    return f"died {_place_text(timings, state)}{when}: {end_text(state.end)}"


def _over_note(timings: JobTimings, death: Death, reached: int) -> Note:
    """The note on a rank without an end, though the job went on to its own."""
    state, rank = timings.states[death.column], int(timings.ranks[death.column])
    step = state.step or 0
    if reached <= step:
        return _note(timings, _told(timings, death, 0.0), [death])
    text = f"the recording of rank {rank} stops in step {step}, and the rank went on: others finished collectives with"
    return Note("lacks", f"{text} it until step {reached}", (rank,), death.node)


def _ended_notes(timings: JobTimings, deaths: Sequence[Death]) -> tuple[Note, ...]:
    """The notes on a job that was ended as a whole. Where no rank has an end, one may have died of itself and the
    launcher have killed the others: a recording does not tell that from a job that was cancelled."""
    end = deaths[0].end
    if any(timings.states[death.column].doubted for death in deaths):
        text = f"none of the {len(deaths)} recordings has an end: the job was killed, or it still runs"
        return (Note("ended", text),)
    how = f" by {end.signal}" if end and end.signal else ""
    ended = Note("ended", f"the job was ended: all {len(deaths)} processes were killed{how}")
    if timings.live or end is not None:
        return (ended,)
    return Note("first_unseen", f"who died first is not recorded: {_WHO_TELLS}"), ended


def _ranks(timings: JobTimings, deaths: Sequence[Death]) -> str:
    return ranks_text(int(timings.ranks[each.column]) for each in deaths)


def _stood_text(last: LastBeat) -> str:
    """Where a rank stood, for people: `in all_reduce of dp:0-3, number 63, for 86 s`, `in backward for 87 s`."""
    if last.in_flight:
        flight = last.in_flight
        return f"in {flight_text(flight)}, number {flight.seq}, for {seconds_text(flight.seconds)}"
    return f"in {last.phase} for {seconds_text(last.quiet_seconds)}" if last.phase else "outside of any phase"


def _place_text(timings: JobTimings, state: RankState) -> str:
    """The place where the rank died, for people: `in step 59, in all_reduce of dp:0-3`. A recording lacks the last
    tenth of a second of a process that did not end by itself."""
    ended_by_itself = state.end is not None and bool(state.end.exit_code or state.end.exception)
    or_later = "" if timings.live or ended_by_itself else " or later"
    step = f"in step {next_step(state)}{or_later}"
    if state.in_flight:
        return f"{step}, in {state.in_flight.op} of {state.in_flight.group}"
    return f"{step}, in {state.phase}" if state.phase else step
