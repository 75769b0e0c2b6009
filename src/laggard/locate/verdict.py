"""The verdict on one job, a pure function of its timings: which ranks make the others wait.

In a synchronous job every rank's step is equally long; the slow rank is the one that waits least. So what is compared
is the time a rank was busy (own time, input included, collectives taken out), each step with the median of its peers
in the same step: durations on each rank's own clock, never one clock with another. Peers are ranks that do the same
work (positions.py).

- slow/ranks.py decides which ranks and machines are slow, by the one test of slow/tested.py; slow/culprits.py
  describes them, and computes what fixing them would save.
- links/network.py decides which links are slow, always, since a step or at times, by the time of transfers.
- partial_verdict.py decides whose parameters differ from those of its replicas, where digests of them are recorded.
- hang/hangs.py decides who is hung and who waits for whom, hang/unfinished.py does so by what ranks have yet to finish;
  hang/different_calls.py finds ranks that called different collectives, and hang/deaths.py who died first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from msgspec import structs

from laggard.kit.constants import SCRIPT_PHASES
from laggard.kit.words import joined, ranks_text
from laggard.locate.describe import WRONG
from laggard.locate.explanation import explained
from laggard.locate.hang.deaths import dead_ranks
from laggard.locate.hang.different_calls import different_calls, mismatched_collectives
from laggard.locate.hang.hangs import hung_before_the_end, hung_ranks, stopped_to_the_end
from laggard.locate.hang.unfinished import unfinished_operations
from laggard.locate.job_timings import JobTimings
from laggard.locate.links.network import SLOW_TRANSFERS, in_network
from laggard.locate.medians import middle
from laggard.locate.partial_verdict import NOTHING_FOUND, PAIR, PartialVerdict, corrupt_ranks
from laggard.locate.slow.by_place import by_place
from laggard.locate.slow.culprits import doubted_notes, is_excused, slow_culprits, stall_notes, stalls_beside
from laggard.locate.slow.doubts import (
    culprit_may_be_missing,
    least_wait_notes,
    missing_ranks_notes,
    slow_in_no_phase,
    unnamed_time_note,
    works_there,
)
from laggard.locate.slow.host_facts import with_host_facts
from laggard.locate.slow.ranks import slow_ranks
from laggard.locate.slow.steps import Steps, longest_stage_notes, steps_needed
from laggard.locate.slow.uneven_work import slow_at_their_own_experts
from laggard.model import MAX_NAMED_RANKS, Culprit, Location, Note, Verdict, Window

_UNDECIDED = (
    PAIR, SLOW_TRANSFERS, "first_unseen", "hidden_waits", "longest_stage", "no_steps", "no_waits", "place_or_machine",
    "slow_in_few_steps", "too_few_ranks", "too_few_steps", "two_speeds", "unseen_ranks", "unseen_waits",
)  # fmt: skip
"""The kinds of notes with which a job is not called healthy."""

_HOST_PHASES = ("input", "between_steps", *SCRIPT_PHASES)
"""The phases whose time is the host's own, whatever kernels wait for."""


def locate(timings: JobTimings) -> Location:
    """The verdict on one job. It names no culprit where the ranks differ by no more than healthy ones do."""
    steps = Steps.usable(timings)
    dead = stopped_to_the_end(timings)
    dead = dead_ranks(timings) if dead == NOTHING_FOUND else dead
    hung = NOTHING_FOUND if dead.culprits else _hung_ranks(timings, steps)
    slow = _slow_ranks(timings, steps) if steps else _SlowRanks(notes=_too_little_notes(timings, hung))
    corrupt = corrupt_ranks(timings)
    stopped = (*dead.culprits, *hung.culprits)
    culprits, before = _beside_stopped(stopped, slow.culprits) if stopped else (slow.culprits, ())
    culprits = (*culprits, *corrupt.culprits) if stopped else (*corrupt.culprits, *culprits)
    notes = [*missing_ranks_notes(timings), *dead.notes, *hung.notes, *before, *corrupt.notes, *slow.notes]
    is_wrong = culprits or any(note.kind in WRONG for note in notes)
    if steps and not is_wrong and (missing := culprit_may_be_missing(timings, steps)):
        notes.append(missing)
    is_open = hung.notes or slow.waited_for or any(note.kind in _UNDECIDED for note in notes)
    verdict = Verdict.FAIL if is_wrong else Verdict.UNKNOWN if is_open else Verdict.OK
    return Location(
        verdict=verdict,
        job_id=timings.job_id,
        world_size=timings.world_size,
        ranks_seen=len(timings.ranks),
        window=_window(steps, slow.step_seconds) if steps else Window(),
        slowdown_ratio=slow.slowdown_ratio,
        culprits=tuple(explained(culprit, timings) for culprit in culprits),
        notes=tuple(notes),
    )


def _hung_ranks(timings: JobTimings, steps: Steps | None) -> PartialVerdict:
    """The ranks that others wait for: by the state of the processes, else by what a recording has that never ended.
    Where ranks called different collectives, who waits for whom follows from that."""
    step_seconds = _typical_step(timings, steps)
    found = hung_before_the_end(timings, step_seconds)
    found = hung_ranks(timings, step_seconds) if found == NOTHING_FOUND else found
    found = mismatched_collectives(timings) if found == NOTHING_FOUND else found
    found = unfinished_operations(timings) if found == NOTHING_FOUND else found
    if found == NOTHING_FOUND or any(culprit.stopped or culprit.kind == "dead" for culprit in found.culprits):
        return found
    different = different_calls(timings)
    waiting = (note for note in found.notes if note.kind == "waiting")
    return different.verdict((), waiting) if different else found


def _beside_stopped(stopped: Sequence[Culprit], slow: Sequence[Culprit]) -> PartialVerdict:
    """The culprits of a job in which ranks died or hang: these. That one was slow before stands in its evidence;
    who else was slow then is told in a note, since nothing is gained there any more."""
    told = list(stopped)
    notes = []
    for each in slow:
        was = f"slow{f' in {each.phase}'.replace('_', ' ') if each.phase else ''}"
        places = [place for place, other in enumerate(told) if each.ranks and set(each.ranks) <= set(other.ranks)]
        if places:
            evidence = (*told[places[0]].evidence, f"before that it was {was}")
            told[places[0]] = structs.replace(told[places[0]], evidence=evidence)
        else:
            who = ranks_text(each.ranks) or "a link"
            notes.append(Note("slow_before", f"before that, {who} {'were' if len(each.ranks) > 1 else 'was'} {was}"))
    return PartialVerdict(tuple(told), tuple(notes))


class _SlowRanks(NamedTuple):
    """The part that comparing the steps contributes. `waited_for`: whether others wait for a rank, in no phase, whose
    time there is not what scripts leave to one."""

    culprits: tuple[Culprit, ...] = ()
    notes: tuple[Note, ...] = ()
    slowdown_ratio: float | None = None
    step_seconds: float | None = None
    waited_for: bool = False


def _slow_ranks(timings: JobTimings, steps: Steps) -> _SlowRanks:
    if not timings.waits_recorded:
        text = "nothing recorded says when a rank waited, so that its work cannot be told from waiting for others"
        return _SlowRanks(notes=(Note("no_waits", text),))
    if timings.unseen_waits:
        return _SlowRanks(notes=(_unseen_waits_note(timings),))
    steps, placed = by_place(timings, steps)
    compared = slow_ranks(steps, timings.nodes)
    found = compared.slow
    if not found:
        steps, found = slow_at_their_own_experts(timings, steps)
    in_no_phase = [] if found else slow_in_no_phase(timings, steps)
    excused = [each for each in in_no_phase if is_excused(timings, steps, each, in_no_phase)]
    working = [each for each in in_no_phase if each not in excused and works_there(timings, steps, each)]
    if working:
        steps, found, in_no_phase = steps.with_other(), working, []
    culprits, ratio, uneven = slow_culprits(timings, steps, found)
    culprits = with_host_facts(timings, culprits)
    network = in_network(timings, steps, bool(found), culprits)
    culprits, links = (*culprits, *network.hosts), network.links
    stalls = stall_notes(steps, found)
    typical = float(steps.duration[~stalls_beside(steps, found)].mean()) if stalls else None
    stages = () if culprits or links else longest_stage_notes(timings, steps)
    undecided = () if culprits or links or in_no_phase else doubted_notes(timings, steps, compared)
    unnamed = (unnamed_time_note(timings, each) for each in in_no_phase)
    notes = (*placed, *unnamed, *uneven, *stalls, *stages, *undecided, *network.notes)
    by_cost = sorted((*culprits, *links), key=lambda culprit: -(culprit.recoverable_ratio or 0.0))
    told = _SlowRanks(tuple(by_cost), notes, round(ratio, 3), typical, len(in_no_phase) > len(excused))
    return _without_hidden(timings, told) if timings.hidden_by else told


def _without_hidden(timings: JobTimings, slow: _SlowRanks) -> _SlowRanks:
    """What the host does alone, where kernels wait for other ranks by themselves."""
    seen = tuple(culprit for culprit in slow.culprits if culprit.phase in _HOST_PHASES)
    doubted = tuple(sorted({rank for culprit in slow.culprits if culprit not in seen for rank in culprit.ranks}))
    text = (
        f"kernels of {joined(timings.hidden_by)} wait for other ranks by themselves, which no hook sees: what the host"
        " does is compared, and time on GPUs is not"
    )
    if doubted:
        text += f" ({ranks_text(doubted)} took the longest there, and may have waited)"
    notes = (*slow.notes, Note("hidden_waits", text, ranks=doubted[:MAX_NAMED_RANKS]))
    return slow._replace(culprits=seen, notes=notes, slowdown_ratio=slow.slowdown_ratio if seen else None)


def _unseen_waits_note(timings: JobTimings) -> Note:
    """The note that no rank is compared: one that waits for a slow one, in its tensor-parallel group say, looks slow
    itself."""
    text = (
        f"{ranks_text(timings.unseen_waits)}: no hook sees who waits for collectives, as in compiled graphs, where C++"
        " does: work cannot be told from waiting for others"
    )
    return Note("unseen_waits", text, ranks=timings.unseen_waits[:MAX_NAMED_RANKS])


def _too_little_notes(timings: JobTimings, hung: PartialVerdict) -> tuple[Note, ...]:
    """The notes on why no verdict can be drawn from the steps. From a source that has none, nothing was expected of
    them."""
    count, needed = len(timings.steps), steps_needed(timings)
    if not timings.steps_recorded:
        text = "no rank stands in a collective that others have not come to; how long steps took is not recorded"
        return () if hung != NOTHING_FOUND else (Note("no_steps", text),)
    if count >= needed and len(timings.ranks) < 2:
        found = Note("too_few_ranks", "one rank seen, two are needed: a rank is slow compared with its peers")
    else:
        seen = f"{count} steps seen" if count < needed else f"{count} steps seen, too few of them of half of the ranks"
        found = Note("too_few_steps", f"{seen}: {needed} are needed for a verdict")
    return (found, *least_wait_notes(timings))


def _typical_step(timings: JobTimings, steps: Steps | None) -> float | None:
    """The seconds that a step of the job usually takes. While there are too few to tell, the longest of them: as a rule
    the first, with all that is set up and compiled in it. None where no step is known."""
    if steps is not None:
        return middle(steps.duration)
    known = timings.step_seconds[np.isfinite(timings.step_seconds)]
    return float(known.max()) if len(known) else None


def _window(steps: Steps, step_seconds: float | None) -> Window:
    seconds = round(float(np.nansum(steps.duration) * steps.each), 3)
    typical = None if step_seconds is None else round(step_seconds, 6)
    return Window(int(steps.numbers[0]), int(steps.numbers[-1]), seconds, typical)
