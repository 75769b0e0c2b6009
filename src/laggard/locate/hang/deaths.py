"""Finds the ranks whose processes died in the middle of a job, and which of them died first. Pure.

When one rank dies, its peers fail in their next collective or block there, and the launcher ends them with SIGTERM. So
deaths have an order: one explains another if the launcher killed that one after it, if it came first, or if that one
waited for it. Culprits are those that nothing explains. Where no death explains another, the whole job was ended. The
clocks of the nodes' agents order deaths, as far as they can tell them apart; where no end is recorded, how far
recordings reach does. A rank whose group finished a collective was alive then, whatever its recording holds: a death
needs that nobody got beyond it. The thresholds are our own choices.
"""

from __future__ import annotations

import enum
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from operator import attrgetter
from typing import NamedTuple

import numpy as np

from laggard.kit.majority import grouped
from laggard.kit.words import ranks_text, seconds_text
from laggard.locate.collectives import NEEDS_ALL
from laggard.locate.hang.different_calls import DifferentCalls, beside_abort, different_calls
from laggard.locate.hang.hangs import HUNG_STEPS, MAY_TAKE_LONG, as_last_said, hung_before_the_end, left_early
from laggard.locate.hang.unfinished import finished_by_all, unfinished_operations
from laggard.locate.hang.wait_graph import Arrivals, Departure, culprit_at, next_step, place_text, silence
from laggard.locate.job_timings import JobTimings, LastBeat
from laggard.locate.medians import middle
from laggard.locate.partial_verdict import NOTHING_FOUND, PartialVerdict
from laggard.model import MAX_NAMED_RANKS, Culprit, Note, RankEnd
from laggard.wire.job_words import end_text, time_text

SAME_TIME_SECONDS = 0.5
"""The time within which ends of two nodes, or of a victim and another, are taken to be at the same time. Our own
choice: the kernel reports a death late, once memory is freed, and chrony and NTP keep clocks closer."""
_MAX_NOTES = 32
_WHO_TELLS = "the launcher's log names who failed, the kernel's who was out of memory, and an agent on each node both"
_BY_SIGTERM = ("SIGTERM", None, "", "")


class Why(enum.IntEnum):
    """What a rank's end says of why it died, from a cause to a victim."""

    BY_ITSELF = enum.auto()  # an exception, a status or a fault of its own
    KILLED = enum.auto()  # it is gone, or was killed, and no more is known
    WAITED = enum.auto()  # the same inside a collective, in which victims block
    FOR_OTHERS = enum.auto()  # an exception or a signal of a rank whose peer is gone


class Death(NamedTuple):
    """A rank's death between `earliest` and `latest`, Unix time. `last`: where it stood then, as it said itself, where
    it has no end. `silence`: the seconds without a word that no wait explains. `lost`: for longer than that, others
    went on to say that they were in no collective."""

    column: int
    node: str | None
    earliest: float
    latest: float
    why: Why
    end: RankEnd | None
    last: LastBeat | None = None
    silence: float = 0.0
    lost: bool = False

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

    @property
    def waited_long(self) -> bool:
        return self.last is not None and self.last.in_flight is not None and self.quiet_seconds > self.silence

    @property
    def stood_seconds(self) -> float:
        """The time for which it stood where it said last; 0.0 where one rank may have worked alone."""
        if self.last and self.last.in_flight:
            return self.last.in_flight.seconds
        return self.quiet_seconds if self.last and self.last.phase not in MAY_TAKE_LONG else 0.0

    def precedes(self, other: Death) -> bool:
        """Whether it was before the other, by more than clocks may differ: a victim may be told of before its cause.
        Where neither has an end, ranks finish a step together, and it said nothing more when the other still did."""
        if self.last and other.last:
            return other.quiet_seconds - self.quiet_seconds > self.last.beat.interval_seconds
        alike = self.node == other.node and self.victim == other.victim
        return other.earliest > self.latest + (0.0 if alike else SAME_TIME_SECONDS)

    def explains(self, other: Death) -> bool:
        """Whether the other died of this one. A victim is after its cause, though that may be told of later. Of what
        ranks without an end said last, that one was in no collective and the other waited tells it, unless both said
        so for as long: that was only the last to come. Where all waited, hung_before_the_end() tells for whom."""
        if self.end is not None and not self.victim and other.waited_long:
            return True
        is_cause = self.why < other.why and not other.precedes(self)
        if self.last and other.last:
            return (is_cause and not self.quiet_seconds) or ((is_cause or self.lost) and self.precedes(other))
        return is_cause or self.precedes(other)


def _death(timings: JobTimings, column: int, step_seconds: float | None) -> Death:
    state, node = timings.states[column], timings.nodes[column]
    end, gone = state.end, Why.WAITED if state.in_flight is not None else Why.KILLED
    if end is None:
        # One that told of another's end at the very time of that end outlived it.
        earliest = -math.inf if state.alive_at is None else math.nextafter(state.alive_at, math.inf)
        last = timings.last_beats[column] if timings.last_beats else None
        quiet = silence(last.beat, step_seconds) if last else 0.0
        found = Death(column, node, earliest, math.inf, gone, None, last, quiet)
        # It was as good as dead once it stood for long: others that gave up on it ended before it was killed.
        return found._replace(earliest=earliest - max(0.0, found.stood_seconds - quiet))
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
    """The deaths of a job, in their order. `first`: those that no other explains. `stuck`: the same, where these stood
    for long and all others ended since their collectives had failed: the job hung before somebody killed those, as in
    the driver of a GPU that has stopped. `down`: of each machine that went down, its ranks, which died as one; where
    all machines of the job did, it was none of them."""

    def __init__(self, timings: JobTimings) -> None:
        self.timings = timings
        known = timings.step_seconds[np.isfinite(timings.step_seconds)]
        self.step_seconds = step = middle(known) if len(known) else None
        found = (_death(timings, column, step) for column, state in enumerate(timings.states) if state.state == "died")
        deaths = sorted(found, key=lambda death: death.latest)
        outside = (each for each in deaths if each.last and not (each.victim or each.last.in_flight))
        until = max((each.quiet_seconds for each in outside), default=0.0)
        self.deaths = [each._replace(lost=until - each.quiet_seconds > each.silence) for each in deaths]
        everywhere = _strongest(self.deaths)
        machines = grouped(self.deaths, lambda death: death.node)
        here = {node: _strongest(its) for node, its in machines.items()}
        self.first = [
            death for death in self.deaths if not any(one.explains(death) for one in (*everywhere, *here[death.node]))
        ]
        self._first = frozenset(death.column for death in self.first)
        others = {death.why for death in self.deaths if death.column not in self._first}
        stood = all(each.stood_seconds > max(HUNG_STEPS * (step or 0.0), each.silence) for each in self.first)
        self.stuck = self._first if stood and others == {Why.FOR_OTHERS} else frozenset()
        sizes = Counter(timings.nodes)
        down = {node: its for node, its in machines.items() if len(its) == sizes[node] > 1 and _died_as_one(its)}
        self.down = {} if None in down or down.keys() == {*timings.nodes} else down

    def verdict(self) -> PartialVerdict:
        if not self.deaths or self._hung_before():
            return NOTHING_FOUND
        if left := self._left_before():
            found = left_early(self.timings, left, self._notes())
            return found if found.culprits else PartialVerdict(self._culprits(self.first), found.notes)
        elsewhere = self._elsewhere()
        if elsewhere is not None:
            return PartialVerdict(notes=elsewhere)
        different = self._called_differently()
        if different is not None:
            return different.verdict(self._culprits(self._called_otherwise(different)), self._notes())
        return PartialVerdict(self._culprits(self.first), self._notes())

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
            text = "all that are seen died as ranks do when another is gone: the first may be one that is not seen"
        elif len({it.node for it in self.first if it.why is Why.FOR_OTHERS}) > 1 and not self._called_differently():
            text = "collectives failed on several machines at once, none died of itself: look at what connects them"
        else:
            return None
        return (Note("first_unseen", text), *self._notes())

    def _hung_before(self) -> bool:
        """Whether the other ranks finished, and all of these were killed after some of them had long waited for
        another: hung_before_the_end() tells for whom. What goes down, as a machine, has not waited before."""
        others = {state.state for state in self.timings.states if state.state != "died"}
        if others != {"finished"} or any(death.end for death in self.deaths):
            return False
        waited = any(death.waited_long for death in self.deaths)
        return waited and hung_before_the_end(self.timings, self.step_seconds) != NOTHING_FOUND

    def _left_before(self) -> tuple[Departure, ...]:
        """The ranks that left with status 0 before any died, where that explains the first deaths: each of these ranks
        had gone on to a collective that those never came to, and died as ranks do then."""
        timings, earliest = self.timings, self.deaths[0]
        before = []
        for each in Arrivals(as_last_said(timings)).departures({death.column for death in self.deaths}):
            end, is_here = timings.states[each.column].end, timings.nodes[each.column] == earliest.node
            skew = 0.0 if is_here else SAME_TIME_SECONDS
            if end is not None and end.at_seconds - end.uncertain_seconds <= earliest.latest + skew:
                before.append(each)
        explained = frozenset().union(*(each.waiting for each in before))
        return tuple(before) if not self._caused and self._first <= explained else ()

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
        rank_of = self.timings.ranks.tolist()
        if self._caused or not {rank_of[column] for column in self._first} <= {*different.ranks}:
            return self.first
        odd = [death for death in self.deaths if rank_of[death.column] in different.few]
        return odd if odd or not different.few else self.first

    def _whole_job_ended(self) -> bool:
        """Whether all processes were ended together: by the user, the scheduler, or one error that all of them met. A
        launcher kills all but the first, and signals tell no order of their own; one that kills all takes a while."""
        ways = {death.way for death in self.deaths}
        if not len(self.timings.states) == len(self.deaths) > 1 or self._caused:
            return False
        together = all(each.earliest <= self.deaths[0].latest + SAME_TIME_SECONDS for each in self.deaths)
        at_once = len(ways) == 1 and len(self.first) > 1 and together and not any(way[2] for way in ways)
        told_to_end = {it.way for it in self.first if not (it.end and it.end.others_failed)} == {_BY_SIGTERM}
        return at_once or told_to_end or self._interrupted or self._met_one_error

    @property
    def _interrupted(self) -> bool:
        """Whether what nobody else's end explains is an interrupt, which comes from outside (Ctrl-C). A rank that is
        blocked in a collective may meet its peers' ends before it."""
        own = [death for death in self.deaths if death.why is Why.BY_ITSELF]
        ends = [death.end for death in own if death.end]
        return bool(own) and all(end.exception == "KeyboardInterrupt" or end.signal == "SIGINT" for end in ends)

    @property
    def _met_one_error(self) -> bool:
        """Whether most ranks ended in the same way, by themselves, and a launcher killed the others: the script's own
        error, or that of its settings."""
        own = [death for death in self.deaths if death.why is Why.BY_ITSELF]
        killed = [death for death in self.deaths if death.end and death.end.signal in ("SIGTERM", "SIGKILL")]
        alike = len({death.way for death in own}) == 1 and not any(death.end and death.end.signal for death in own)
        return alike and 1 < len(own) >= len(killed) and len(own) + len(killed) == len(self.deaths)

    def _was_over(self, alive: Sequence[int]) -> bool:
        """Whether all other ranks finished normally, none of them in a collective or a message of a further step, and
        none of those that died lacks a step or says how it died. `alive`: as of lived_until()."""
        timings, dead = self.timings, {death.column for death in self.deaths}
        last = max((state.step or 0 for state in timings.states), default=0)
        others = {state.state for column, state in enumerate(timings.states) if column not in dead}
        silent = all(not any(death.way) and alive[death.column] >= last for death in self.deaths)
        calls = timings.collectives
        stayed = calls.column[np.isnan(calls.end) & (calls.step > last)] if calls is not None else ()
        return others == {"finished"} and silent and dead.issuperset(stayed)

    def _culprits(self, first: Sequence[Death]) -> tuple[Culprit, ...]:
        """Each of the first deaths, with all ranks of its machine where that went down."""
        together = dict.fromkeys(tuple(self.down.get(death.node, (death,))) for death in first)
        return tuple(self._culprit(each, first) for each in [*together][:_MAX_NOTES])

    def _culprit(self, together: Sequence[Death], first: Sequence[Death]) -> Culprit:
        """The rank of a death; where its machine went down, all of its ranks together. Less sure where several may have
        been the first, and where the rank died as victims do, or was not seen to be stuck. Our own choice."""
        death, timings = together[0], self.timings
        state, stuck = timings.states[death.column], death.last if death.column in self.stuck else None
        rivals = [each for each in first if each not in together[1:]]
        sure = 0.5 if death.victim else 0.7 if stuck else 0.95
        return culprit_at(
            timings,
            [each.column for each in together],
            stuck or state,
            (column for column, other in enumerate(timings.states) if other.state != "finished"),
            kind="hung" if state.doubted or stuck else "dead",
            silent=state.doubted and not stuck,
            device_stopped=stuck is not None and stuck.in_flight is not None,
            confidence=round(sure / math.sqrt(max(1, len(rivals))), 2),
            evidence=tuple(self._evidence(together, first, rivals)),
            end=state.end,
        )

    def _evidence(self, together: Sequence[Death], first: Sequence[Death], rivals: Sequence[Death]) -> Iterator[str]:
        death, end = together[0], together[0].end
        if len(together) > 1:
            yield f"all {len(together)} ranks of the machine died in the same way at the same time"
        if end:
            yield f"it ended at {time_text(end)} by its node's clock"
        yield f"it {self._told(death)}"
        if death.last and death.column in self.stuck:
            yield f"it stood for {seconds_text(death.stood_seconds)} before, until the others' collectives had failed"
        if end and end.kernel:
            yield f"the kernel: {end.kernel}"
        if len(rivals) > 1:
            yield f"{self._ranks(rivals)} ended too close together for their clocks: each may have been the first"
        later = [each for each in self.deaths if each not in first and each not in together]
        if later and later[0].latest < math.inf:
            yield f"{self._ranks(later)} ended after it"
        if death.victim:
            yield "ranks end so when another is gone: the cause may be elsewhere"

    def _notes(self) -> tuple[Note, ...]:
        """A note for each kind of death, in their order: a thousand ranks that are killed at once are told of once."""
        ordered = sorted(self.deaths, key=lambda death: death.column not in self._first)
        return tuple(self._note(told, those) for told, those in list(grouped(ordered, self._told).items())[:_MAX_NOTES])

    def _note(self, told: str, deaths: Sequence[Death]) -> Note:
        ranks = tuple(sorted(int(self.timings.ranks[death.column]) for death in deaths))
        nodes = {death.node for death in deaths}
        node = nodes.pop() if len(nodes) == 1 else None
        where = f" on {node}" if node else f" on {len(nodes)} machines" if len(nodes) > 1 else ""
        return Note("rank_died", f"{ranks_text(ranks)}{where} {told}", ranks[:MAX_NAMED_RANKS], node)

    def _told(self, death: Death) -> str:
        """How the rank died, and where. A recording lacks the last tenth of a second of a process that did not end by
        itself."""
        state, end = self.timings.states[death.column], death.end
        is_whole = self.timings.live or (end is not None and bool(end.exit_code or end.exception))
        place = place_text(state, f"{next_step(state)}{'' if is_whole else ' or later'}")
        if state.doubted:
            return f"recorded nothing more {place}, and no end: stopped or killed"
        after = 0.0 if death.column in self._first else death.latest - (self.first or self.deaths)[0].latest
        when = f", {seconds_text(after)} after the first" if 0.0 < round(after, 3) < math.inf else ""
        return f"died {place}{when}: {end_text(end)}"

    def _over_note(self, death: Death, alive: int) -> Note:
        """The note on a rank without an end, though the job went on to its own."""
        step, rank = self.timings.states[death.column].step or 0, int(self.timings.ranks[death.column])
        text = f"the recording of rank {rank} stops in step {step}, and others finished in step {alive} with it"
        return Note("lacks", text, (rank,), death.node)

    def _ended_notes(self) -> tuple[Note, ...]:
        """The notes on a job that was ended as a whole. Where no rank has an end, one may have died of itself and the
        launcher have killed the others: a recording does not tell that from a job that was cancelled."""
        end, count = self.deaths[0].end, len(self.deaths)
        if any(self.timings.states[death.column].doubted for death in self.deaths):
            return (Note("ended", f"none of the {count} recordings has an end: the job was killed, or it still runs"),)
        how = f" by {end.signal}" if end and end.signal else ""
        text = f"the job was ended: all {count} processes were killed{how}"
        if self._interrupted:
            text = f"the job was interrupted, as by Ctrl-C (SIGINT), which ended its {count} processes"
        elif self._met_one_error:
            own = [death for death in self.deaths if death.why is Why.BY_ITSELF]
            text = (
                f"the job ended by one error: {len(own)} of {count} processes had {end_text(own[0].end)}: read the "
                "script's own message"
            )
        ended = Note("ended", text)
        if self.timings.live or end is not None:
            return (ended,)
        return Note("first_unseen", f"who died first is not recorded: {_WHO_TELLS}"), ended

    def _ranks(self, deaths: Sequence[Death]) -> str:
        return ranks_text(int(self.timings.ranks[each.column]) for each in deaths)


def _strongest(deaths: Sequence[Death]) -> set[Death]:
    """Of each kind, the deaths that were the first by either bound, and the one that said nothing for the longest."""
    orders = (attrgetter("latest"), attrgetter("earliest"), attrgetter("quiet_seconds"))
    kinds = grouped(deaths, lambda death: (death.why, death.end is None)).values()
    return {min(alike, key=order) for alike in kinds for order in orders}


def _died_as_one(deaths: Sequence[Death]) -> bool:
    """Whether ranks died in the same way, none later than SAME_TIME_SECONDS after the first of them."""
    earliest = min(death.latest for death in deaths)
    as_early = all(death.earliest <= earliest + SAME_TIME_SECONDS for death in deaths)
    return len({death.way for death in deaths}) == 1 and as_early and not all(death.victim for death in deaths)


def lived_until(timings: JobTimings) -> list[int]:
    """The last step in which each rank is known to have lived: it finished it, or others finished a collective in it
    which nobody does without all of the group. A recording may stop before its process does. -1 of a rank that others
    missed: they never finished a later collective of its group."""
    reached = [0 if state.step is None else state.step for state in timings.states]
    calls = timings.collectives
    if calls is None:
        return reached
    rows = np.flatnonzero(np.isin(calls.op, tuple(NEEDS_ALL)))
    groups, done = calls.group[rows].astype(np.int64), np.isfinite(calls.end[rows])
    lanes = calls.lanes(timings.ranks)[rows]
    missing = {*groups[~done & (calls.seq[rows] > finished_by_all(calls, rows, lanes)[lanes])].tolist()}
    steps = np.full(len(calls.groups), -1, np.int64)
    np.maximum.at(steps, groups[done], calls.step[rows][done])
    for place, group in enumerate(calls.groups):
        for column in (timings.column_of[rank] for rank in group.ranks if rank in timings.column_of):
            missed = place in missing or reached[column] < 0
            reached[column] = -1 if missed else max(reached[column], int(steps[place]))
    return reached
