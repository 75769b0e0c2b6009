"""Says of deaths who it was, where it stood and how it ended. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

from laggard.locate.hang.death import Death
from laggard.locate.hang.different_calls import aborted_call
from laggard.locate.hang.waits import flight_text
from laggard.locate.job_timings import JobTimings, LastBeat, RankState
from laggard.model import MAX_NAMED_RANKS, Culprit, Note
from laggard.text.rank_end import end_text, time_text
from laggard.text.words import ranks_text, seconds_text

_MIN_AFTER_SECONDS = 0.0005
"""The shortest time that is told of: less is 0 ms for people."""
MAX_NOTES = 32
WHO_TELLS = (
    "the launcher's log names the first that failed, the kernel's log who was out of memory, and with an agent on each "
    "node laggard tells it"
)


def death_culprit(
    timings: JobTimings,
    death: Death,
    first: Sequence[Death],
    deaths: Sequence[Death],
    of_machine: Sequence[Death],
) -> Culprit:
    """The rank of `death`; where its machine went down, all of the ranks `of_machine`."""
    state = timings.states[death.column]
    ranks = tuple(sorted(int(timings.ranks[each.column]) for each in of_machine))
    rivals = [each for each in first if each is death or each not in of_machine]
    last = death.stood or state
    flight = last.in_flight
    node = timings.nodes[death.column]
    return Culprit(
        kind="hung" if state.doubted or death.stood else "dead",
        silent=state.doubted and not death.stood,
        device_stopped=death.stood is not None and death.stood.in_flight is not None,
        ranks=ranks,
        node=node,
        gpu=timings.gpus[death.column] if len(ranks) == 1 else None,
        phase="collective" if flight else last.phase,
        group=flight.group if flight else None,
        since_step=_step_of_death(state),
        confidence=_confidence(death, rivals),
        evidence=_evidence(timings, death, first, deaths, of_machine),
        victims=_victims(timings, ranks),
        end=state.end,
    )


def _victims(timings: JobTimings, ranks: Sequence[int]) -> tuple[int, ...]:
    """All other ranks, without those that had ended well."""
    numbers = (
        int(rank) for rank, state in zip(timings.ranks, timings.states, strict=True) if state.state != "finished"
    )
    return tuple(rank for rank in numbers if rank not in ranks)[:MAX_NAMED_RANKS]


def _confidence(death: Death, first: Sequence[Death]) -> float:
    """Lower where several may have been the first, and where the rank died as victims do, or was not seen to be stuck.
    Our own choice."""
    return round((0.5 if death.victim else 0.7 if death.stood else 0.95) / math.sqrt(len(first)), 2)


def _evidence(
    timings: JobTimings,
    death: Death,
    first: Sequence[Death],
    deaths: Sequence[Death],
    of_machine: Sequence[Death],
) -> tuple[str, ...]:
    state = timings.states[death.column]
    lines = [f"it was {_place(timings, state)}"]
    if death.stood:
        others = "the others' processes ended when their collectives failed, and this one did not"
        lines = [f"it stood {_stood_text(death.stood)}, as it said last; {others}"]
    first = [each for each in first if each is death or each not in of_machine]
    deaths = [each for each in deaths if each is death or each not in of_machine]
    if state.end:
        lines.insert(0, f"it ended at {time_text(state.end)} by its node's clock")
        if state.end.kernel:
            lines.append(f"the kernel: {state.end.kernel}")
    if len(of_machine) > 1:
        lines.insert(0, f"all {len(of_machine)} ranks of the machine died in the same way at the same time")
    if len(first) > 1:
        ranks = ranks_text(int(timings.ranks[each.column]) for each in first)
        lines.append(f"{ranks} ended too close together for their clocks: each may have been the first")
    later = [each for each in deaths if each not in first]
    if later and later[0].latest < float("inf"):
        after = later[0].latest - first[0].latest
        when = f", the next {seconds_text(after)} later" if _MIN_AFTER_SECONDS <= after < float("inf") else ""
        ranks = ranks_text(int(timings.ranks[each.column]) for each in later)
        lines.append(f"{ranks} ended after it{when}")
    aborted = aborted_call(timings, death.column)
    if aborted:
        lines.append(aborted)
    if death.victim:
        lines.append("ranks end so when another is gone: the cause may be elsewhere")
    return tuple(lines)


def _stood_text(last: LastBeat) -> str:
    """Where a rank stood, for people: `in all_reduce of dp:0-3, number 63, for 86 s`, `in backward for 87 s`."""
    if last.in_flight:
        flight = last.in_flight
        return f"in {flight_text(flight)}, number {flight.seq}, for {seconds_text(flight.seconds)}"
    return f"in {last.phase} for {seconds_text(last.quiet_seconds)}" if last.phase else "outside of any phase"


def death_notes(timings: JobTimings, deaths: Sequence[Death], first: Sequence[Death]) -> tuple[Note, ...]:
    """A note for each kind of death, in their order: a thousand ranks that are killed at once are told of once."""
    alike: dict[str, list[Death]] = {}
    for death in deaths:
        alike.setdefault(_told(timings, death, first), []).append(death)
    return tuple(_note(timings, told, those) for told, those in list(alike.items())[:MAX_NOTES])


def _note(timings: JobTimings, told: str, deaths: Sequence[Death]) -> Note:
    ranks = tuple(sorted(int(timings.ranks[death.column]) for death in deaths))
    nodes = {death.node for death in deaths}
    node = nodes.pop() if len(nodes) == 1 else None
    where = f" on {node}" if node else f" on {len(nodes)} machines" if len(nodes) > 1 else ""
    return Note("rank_died", f"{ranks_text(ranks)}{where} {told}", ranks[:MAX_NAMED_RANKS], node)


def _told(timings: JobTimings, death: Death, first: Sequence[Death]) -> str:
    state = timings.states[death.column]
    if death.stood:
        return f"recorded no end, and stood {_stood_text(death.stood)}"
    if state.doubted:
        return f"recorded nothing more {_place(timings, state)}, and no end: stopped or killed"
    after = death.latest - first[0].latest if death not in first and death.latest < float("inf") else 0.0
    when = f", {seconds_text(after)} after the first" if after >= _MIN_AFTER_SECONDS else ""
    return f"died {_place(timings, state)}{when}: {end_text(state.end)}"


def ended_notes(timings: JobTimings, deaths: Sequence[Death]) -> tuple[Note, ...]:
    """The notes on a job that was ended as a whole. Where no rank has an end, one may have died of itself and the
    launcher have killed the others: a recording does not tell that from a job that was cancelled."""
    end = timings.states[deaths[0].column].end
    if any(timings.states[death.column].doubted for death in deaths):
        text = f"none of the {len(deaths)} recordings has an end: the job was killed, or it still runs"
        return (Note("ended", text),)
    how = f" by {end.signal}" if end and end.signal else ""
    ended = Note("ended", f"the job was ended: all {len(deaths)} processes were killed{how}")
    if timings.live or end is not None:
        return (ended,)
    return Note("first_unseen", f"no rank's end is recorded: {WHO_TELLS}"), ended


def _step_of_death(state: RankState) -> int:
    return 0 if state.step is None else state.step + 1


def _place(timings: JobTimings, state: RankState) -> str:
    """The place where the rank died, for people: `in step 59, in all_reduce of dp:0-3`. A recording lacks the last
    tenth of a second of a process that did not end by itself."""
    ended_by_itself = state.end is not None and bool(state.end.exit_code or state.end.exception)
    or_later = "" if timings.live or ended_by_itself else " or later"
    step = f"in step {_step_of_death(state)}{or_later}"
    if state.in_flight:
        return f"{step}, in {state.in_flight.op} of {state.in_flight.group}"
    return f"{step}, in {state.phase}" if state.phase else step
