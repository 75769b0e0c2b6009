"""Finds the ranks whose processes died in the middle of a job, and which of them died first. Pure.

When one rank dies, its peers fail in their next collective or block there, and the launcher ends them with SIGTERM. So
deaths have an order: one explains another if the launcher killed that one after it, if it came first, or if that one
waited for it. Culprits are those that nothing explains. Where no death explains another, the whole job was ended. The
clocks of the nodes' agents order deaths, as far as they can tell them apart; where no end is recorded, how far
recordings reach does. A rank whose group finished a collective was alive then, whatever its recording holds: a death
needs that nobody got beyond it. The thresholds are our own choices.
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
from laggard.locate.hang.unfinished import finished_by_all, unfinished_operations
from laggard.locate.hang.wait_graph import (
    Arrivals,
    Departure,
    culprit_at,
    least_seconds,
    next_step,
    silence,
    stood_text,
)
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
_MAX_NOTES = 32
_WHO_TELLS = (
    "the launcher's log names the first that failed, the kernel's log who was out of memory, and with an agent on each "
    "node laggard tells it"
)
_BY_SIGTERM = ("SIGTERM", None, "", "")


class Why(enum.IntEnum):
    """What a rank's end says of why it died, from a cause to a victim."""

    BY_ITSELF = enum.auto()  # an exception, a status or a fault of its own
    KILLED = enum.auto()  # it is gone, or was killed, and no more is known
    WAITED = enum.auto()  # the same inside a collective, in which victims block
    FOR_OTHERS = enum.auto()  # an exception or a signal of a rank whose peer is gone


class Death(NamedTuple):
    """A rank's death between `earliest` and `latest`, Unix time. `last`: where it stood then, as it said itself, where
    it has no end. `stood`: it stood there long before the others ended."""

    column: int
    node: str | None
    earliest: float
    latest: float
    why: Why
    end: RankEnd | None
    last: LastBeat | None = None
    stood: bool = False

    @property
    def victim(self) -> bool:
        return self.why >= Why.WAITED

    @property
    def way(self) -> tuple[str, int | None, str, str]:
        end = self.end
        return (end.signal, end.exit_code, end.exception, end.cause) if end else ("", None, "", "")

    @property
    def quiet_seconds(self) -> float:
        """The time after its last step at which it still said where it stood."""
        return self.last.quiet_seconds if self.last else 0.0

    def precedes(self, other: Death, allowed_seconds: float = 0.0) -> bool:
        """Whether the clocks tell that it was before the other, by more than they may differ and `allowed_seconds`."""
        skew = 0.0 if self.node == other.node else CLOCK_SKEW_SECONDS
        return other.earliest > self.latest + skew + allowed_seconds


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


def dead_ranks(timings: JobTimings) -> PartialVerdict:
    """The ranks that died first, as culprits, and a note about each death. There is no culprit where what explains them
    all is none of them."""
    return _Deaths(timings).verdict()


class _Deaths:
    """The deaths of a job, in their order, and the `first`, which no other explains. Where no end is recorded, the
    order is by what ranks said last: steps of one job are finished together, so that for how long each could say that
    it finished none tells who outlived whom."""

    def __init__(self, timings: JobTimings) -> None:
        self.timings = timings
        known = timings.step_seconds[np.isfinite(timings.step_seconds)]
        self.step_seconds = middle(known) if len(known) else None
        found = (_death(timings, column) for column, state in enumerate(timings.states) if state.state == "died")
        self.deaths = sorted(found, key=lambda death: death.latest)
        outside = (each for each in self.deaths if each.last and not (each.victim or each.last.in_flight))
        self._outside_until = max((each.quiet_seconds for each in outside), default=0.0)
        everywhere = _strongest(self.deaths)
        here = {node: _strongest(its) for node, its in grouped(self.deaths, lambda death: death.node).items()}
        self.first = [
            death
            for death in self.deaths
            if not any(self._explains(one, death) for one in (*everywhere, *here[death.node]))
        ]

    def _explains(self, one: Death, other: Death) -> bool:
        """Whether `one` explains that the other died. A victim is after its cause, though that may be told of later."""
        if one.last and other.last:
            return self._is_silent_before(one, one.last, other)
        if one.end is not None and not one.victim and self._waited_long(other):
            return True
        allowed = SAME_FAILURE_SECONDS if one.victim != other.victim else 0.0
        return one.precedes(other, allowed) or (one.why < other.why and not other.precedes(one, allowed))

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

    def verdict(self) -> PartialVerdict:
        if not self.deaths or self._hung_before():
            return NOTHING_FOUND
        left = self._left_before()
        if left:
            found = left_early(self.timings, left, self._notes())
            return found if found.culprits else PartialVerdict(self._culprits(self.first), found.notes)
        elsewhere = self._elsewhere()
        if elsewhere is not None:
            return PartialVerdict(notes=elsewhere)
        different = self._called_differently()
        if different is not None:
            return PartialVerdict(self._culprits(self._called_otherwise(different)), (different.note(), *self._notes()))
        self._tell_stuck()
        return PartialVerdict(self._culprits(self.first), self._notes())

    def _tell_stuck(self) -> None:
        """Tells of the first deaths that they stood long, if all of these ranks did, where none works alone for as
        long, and all others ended since their collectives had failed, by a timeout say. One that is stuck in the driver
        of a GPU that has stopped does not: the job hung long before somebody killed it."""
        others = [death for death in self.deaths if death not in self.first]
        told = others and all(death.why == Why.FOR_OTHERS for death in others)
        if told and all(map(self._stood_long, self.first)):
            self.first = [death._replace(stood=True) for death in self.first]
            self.deaths = [*self.first, *others]

    def _stood_long(self, death: Death) -> bool:
        last = death.last
        if last is None or (last.in_flight is None and last.phase in MAY_TAKE_LONG):
            return False
        seconds = last.in_flight.seconds if last.in_flight else last.quiet_seconds
        return seconds > max(HUNG_STEPS * (self.step_seconds or 0.0), silence(last.beat))

    def _elsewhere(self) -> tuple[Note, ...] | None:
        """The notes where all deaths are explained by what is none of them: somebody ended the whole job, it was over,
        they waited for a rank that did not die, or died for one that is not seen. None where they are not."""
        timings = self.timings
        if self._whole_job_ended():
            return self._ended_notes()
        alive = lived_until(timings)
        if self._was_over(alive):
            return tuple(self._over_note(death, alive[death.column]) for death in self.deaths)
        if not all(death.victim for death in self.deaths):
            return None
        awaited = {rank for culprit in unfinished_operations(timings).culprits for rank in culprit.ranks}
        if awaited and not awaited & {int(timings.ranks[death.column]) for death in self.deaths}:
            return self._notes()
        unknown = any(state.state == "unknown" for state in timings.states)
        if unknown or len(timings.states) < timings.world_size:
            text = (
                "the ranks that are seen died as ranks do when another is gone: the first may be one that is not seen"
            )
            return (Note("first_unseen", text), *self._notes())
        return None

    def _hung_before(self) -> bool:
        """Whether the other ranks finished, and all of these were killed after some of them had long waited for
        another: hung_before_the_end() tells for whom. What goes down, as a machine, has not waited before."""
        others = [state.state for state in self.timings.states if state.state != "died"]
        if not others or any(state != "finished" for state in others) or any(death.end for death in self.deaths):
            return False
        waited = [death.last for death in self.deaths if death.last and death.last.in_flight]
        if not any(last.quiet_seconds > silence(last.beat) for last in waited):
            return False
        return hung_before_the_end(self.timings, self.step_seconds) != NOTHING_FOUND

    def _left_before(self) -> tuple[Departure, ...]:
        """The ranks that left with status 0 before any died, where that explains the first deaths: each of these ranks
        had gone on to a collective that those never came to, and died as ranks do then."""
        found = Arrivals(_as_last_said(self.timings)).departures({death.column for death in self.deaths})
        before = tuple(each for each in found if self._ended_before(each.column, self.deaths[0]))
        explained = frozenset().union(*(each.waiting for each in before))
        return before if not self._caused and {death.column for death in self.first} <= explained else ()

    def _ended_before(self, column: int, death: Death) -> bool:
        end = self.timings.states[column].end
        allowance = 0.0 if self.timings.nodes[column] == death.node else CLOCK_SKEW_SECONDS
        return end is not None and end.at_seconds - end.uncertain_seconds <= death.latest + allowance

    @property
    def _caused(self) -> bool:
        """Whether the kernel tells why one of the first died."""
        return any(death.end and death.end.cause for death in self.first)

    def _called_differently(self) -> DifferentCalls | None:
        """The different calls that ranks died of: as recordings have them, else as gloo aborted one of the first and
        the others ended after it."""
        found = different_calls(self.timings)
        if found is not None or any(death.why == Why.BY_ITSELF for death in self.deaths if death not in self.first):
            return found
        return next(filter(None, (beside_abort(self.timings, death.column) for death in self.first)), None)

    def _called_otherwise(self, different: DifferentCalls) -> list[Death]:
        """The deaths of the ranks that called what fewer called, where that is why the first ones died: gloo aborts
        either side of calls that do not match. None where it is not known which side took another way. Else the
        first."""
        if self._caused or not {int(self.timings.ranks[death.column]) for death in self.first} <= set(different.ranks):
            return self.first
        odd = [death for death in self.deaths if int(self.timings.ranks[death.column]) in different.few]
        return odd if odd or not different.few else self.first

    def _whole_job_ended(self) -> bool:
        """Whether all processes were ended together, in the same way: by the user or the scheduler. A launcher kills
        all but the first, and signals tell no order of their own."""
        ways = {death.way for death in self.deaths}
        explained = any(death.end and (death.end.cause or death.end.exception) for death in self.deaths)
        if not len(self.deaths) == len(self.timings.states) > 1 or len(ways) > 1 or explained:
            return False
        return len(self.first) == len(self.deaths) or ways == {_BY_SIGTERM}

    def _was_over(self, alive: Sequence[int]) -> bool:
        """Whether all other ranks finished normally, none of them in a collective or a message of a further step, and
        none of those that died lacks a step or says how it died. `alive`: as of lived_until()."""
        others = {state.state for state in self.timings.states if state.state != "died"}
        last = max((state.step or 0 for state in self.timings.states), default=0)
        silent = all(not any(death.way) and alive[death.column] >= last for death in self.deaths)
        return others == {"finished"} and silent and not self._stayed(last)

    def _stayed(self, last: int) -> bool:
        """Whether a rank that did not die never finished what it began in a step after `last`."""
        collectives = self.timings.collectives
        if collectives is None:
            return False
        unfinished = np.isnan(collectives.end) & (collectives.step > last)
        return not {*collectives.column[unfinished].tolist()} <= {death.column for death in self.deaths}

    def _by_machine(self, first: Sequence[Death]) -> Iterator[tuple[Death, ...]]:
        """Each of the first deaths by itself, but one of each machine all ranks of which died in the same way and as
        early, with these: then the machine went down, and not one rank after the other. Where all machines of the job
        did, it was none of them."""
        sizes = Counter(self.timings.nodes)
        machines = grouped((death for death in self.deaths if death.node is not None), lambda death: death.node)
        down = {node: its for node, its in machines.items() if len(its) == sizes[node] > 1 and _died_as_one(its)}
        if down.keys() == {*self.timings.nodes}:
            down = {}
        told = set()
        for death in first:
            if death.node not in down:
                yield (death,)
            elif death.node not in told:
                told.add(death.node)
                yield tuple(down[death.node])

    def _culprits(self, first: Sequence[Death]) -> tuple[Culprit, ...]:
        together = list(self._by_machine(first))[:_MAX_NOTES]
        return tuple(self._culprit(each, first) for each in together)

    def _culprit(self, together: Sequence[Death], first: Sequence[Death]) -> Culprit:
        """The rank of a death; where its machine went down, all of its ranks together. Less sure where several may have
        been the first, and where the rank died as victims do, or was not seen to be stuck. Our own choice."""
        death, timings = together[0], self.timings
        state = timings.states[death.column]
        rivals = [each for each in first if each not in together[1:]]
        later = [each for each in self.deaths if each not in first and each not in together]
        sure = 0.5 if death.victim else 0.7 if death.stood else 0.95
        waiting = (column for column, other in enumerate(timings.states) if other.state != "finished")
        return culprit_at(
            timings,
            [each.column for each in together],
            death.last if death.stood else state,
            waiting,
            kind="hung" if state.doubted or death.stood else "dead",
            silent=state.doubted and not death.stood,
            device_stopped=death.stood and death.last is not None and death.last.in_flight is not None,
            confidence=round(sure / math.sqrt(len(rivals)), 2),
            evidence=tuple(self._evidence(together, rivals, later)),
            end=state.end,
        )

    def _evidence(self, together: Sequence[Death], rivals: Sequence[Death], later: Sequence[Death]) -> Iterator[str]:
        death = together[0]
        if len(together) > 1:
            yield f"all {len(together)} ranks of the machine died in the same way at the same time"
        if death.end:
            yield f"it ended at {time_text(death.end)} by its node's clock"
        if death.stood and death.last:
            others = "the others' processes ended when their collectives failed, and this one did not"
            yield f"it stood {stood_text(death.last)}, as it said last; {others}"
        else:
            yield f"it was {self._place_text(death)}"
        if death.end and death.end.kernel:
            yield f"the kernel: {death.end.kernel}"
        if len(rivals) > 1:
            yield f"{self._ranks(rivals)} ended too close together for their clocks: each may have been the first"
        if later and later[0].latest < math.inf:
            yield f"{self._ranks(later)} ended after it"
        if aborted := beside_abort(self.timings, death.column):
            yield aborted.text
        if death.victim:
            yield "ranks end so when another is gone: the cause may be elsewhere"

    def _notes(self) -> tuple[Note, ...]:
        """A note for each kind of death, in their order: a thousand ranks that are killed at once are told of once."""
        since = (self.first or self.deaths)[0].latest
        first = {death.column for death in self.first}
        ordered = [*self.first, *(death for death in self.deaths if death.column not in first)]
        alike = grouped(ordered, lambda each: self._told(each, 0.0 if each.column in first else each.latest - since))
        return tuple(self._note(told, those) for told, those in list(alike.items())[:_MAX_NOTES])

    def _note(self, told: str, deaths: Sequence[Death]) -> Note:
        ranks = tuple(sorted(int(self.timings.ranks[death.column]) for death in deaths))
        nodes = {death.node for death in deaths}
        node = nodes.pop() if len(nodes) == 1 else None
        where = f" on {node}" if node else f" on {len(nodes)} machines" if len(nodes) > 1 else ""
        return Note("rank_died", f"{ranks_text(ranks)}{where} {told}", ranks[:MAX_NAMED_RANKS], node)

    def _told(self, death: Death, after: float = 0.0) -> str:
        if death.stood and death.last:
            return f"recorded no end, and stood {stood_text(death.last)}"
        if self.timings.states[death.column].doubted:
            return f"recorded nothing more {self._place_text(death)}, and no end: stopped or killed"
        when = f", {seconds_text(after)} after the first" if 0.0 < round(after, 3) < math.inf else ""
        return f"died {self._place_text(death)}{when}: {end_text(death.end)}"

    def _over_note(self, death: Death, alive: int) -> Note:
        """The note on a rank without an end, though the job went on to its own."""
        step, rank = self.timings.states[death.column].step or 0, int(self.timings.ranks[death.column])
        if alive <= step:
            return self._note(self._told(death), [death])
        went_on = f"the rank went on: others finished collectives with it until step {alive}"
        return Note("lacks", f"the recording of rank {rank} stops in step {step}, and {went_on}", (rank,), death.node)

    def _ended_notes(self) -> tuple[Note, ...]:
        """The notes on a job that was ended as a whole. Where no rank has an end, one may have died of itself and the
        launcher have killed the others: a recording does not tell that from a job that was cancelled."""
        end, count = self.deaths[0].end, len(self.deaths)
        if any(self.timings.states[death.column].doubted for death in self.deaths):
            return (Note("ended", f"none of the {count} recordings has an end: the job was killed, or it still runs"),)
        how = f" by {end.signal}" if end and end.signal else ""
        ended = Note("ended", f"the job was ended: all {count} processes were killed{how}")
        if self.timings.live or end is not None:
            return (ended,)
        return Note("first_unseen", f"who died first is not recorded: {_WHO_TELLS}"), ended

    def _ranks(self, deaths: Sequence[Death]) -> str:
        return ranks_text(int(self.timings.ranks[each.column]) for each in deaths)

    def _place_text(self, death: Death) -> str:
        """The place where the rank died, for people: `in step 59, in all_reduce of dp:0-3`. A recording lacks the last
        tenth of a second of a process that did not end by itself."""
        state: RankState = self.timings.states[death.column]
        ended_by_itself = death.end is not None and bool(death.end.exit_code or death.end.exception)
        step = f"in step {next_step(state)}{'' if self.timings.live or ended_by_itself else ' or later'}"
        if state.in_flight:
            return f"{step}, in {state.in_flight.op} of {state.in_flight.group}"
        return f"{step}, in {state.phase}" if state.phase else step


def _strongest(deaths: Sequence[Death]) -> set[Death]:
    """Of each kind, the deaths that were the first by either bound, and the one that said nothing for the longest."""
    orders = (attrgetter("latest"), attrgetter("earliest"), attrgetter("quiet_seconds"))
    kinds = grouped(deaths, lambda death: (death.why, death.end is None)).values()
    return {min(alike, key=order) for alike in kinds for order in orders}


def _died_as_one(deaths: Sequence[Death]) -> bool:
    """Whether ranks died in the same way, none later than SAME_FAILURE_SECONDS after the first of them."""
    earliest = min(death.latest for death in deaths)
    as_early = all(death.earliest <= earliest + SAME_FAILURE_SECONDS for death in deaths)
    return len({death.way for death in deaths}) == 1 and as_early and not all(death.victim for death in deaths)


def lived_until(timings: JobTimings) -> list[int]:
    """The last step in which each rank is known to have lived: it finished it, or others finished a collective in it
    which nobody does without all of the group. A recording may stop before its process does. -1 of a rank that others
    missed: they never finished a later collective of its group."""
    reached = [0 if state.step is None else state.step for state in timings.states]
    collectives = timings.collectives
    if collectives is None:
        return reached
    rows = np.flatnonzero(np.isin(collectives.op, tuple(NEEDS_ALL)))
    lanes, groups = collectives.group[rows].astype(np.int64) * len(OPS) + collectives.op[rows], collectives.group[rows]
    done = np.isfinite(collectives.end[rows])
    beyond = ~done & (collectives.seq[rows] > finished_by_all(collectives, rows, lanes)[lanes])
    missing = {*groups[beyond].tolist()}
    steps = np.full(len(collectives.groups), -1, np.int64)
    np.maximum.at(steps, groups[done], collectives.step[rows][done])
    columns = {int(rank): column for column, rank in enumerate(timings.ranks)}
    for place, group in enumerate(collectives.groups):
        for column in (columns[rank] for rank in group.ranks if rank in columns):
            missed = place in missing or reached[column] < 0
            reached[column] = -1 if missed else max(reached[column], int(steps[place]))
    return reached


def _as_last_said(timings: JobTimings) -> JobTimings:
    """The job with its ranks where they stood, as those said last of which no end is recorded."""
    if not timings.last_beats:
        return timings
    states = tuple(
        state._replace(beat=last.beat, in_flight=last.in_flight or state.in_flight) if last else state
        for state, last in zip(timings.states, timings.last_beats, strict=True)
    )
    return dataclasses.replace(timings, states=states)
