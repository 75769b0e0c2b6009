"""The verdict from NCCL Inspector's files: who is regularly the last to arrive. Pure.

They have neither steps nor phases: how much a late rank costs the job, and why it is late, they do not say.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import structs

from laggard.kit.words import counted, seconds_text
from laggard.locate.explanation import advice
from laggard.model import Culprit, Location, Note, Verdict, Window
from laggard.nccl.inspector import MIN_COLLECTIVES, Arrivals, LastArrival

CONFIDENCE = 0.6
"""The confidence that the rank which comes last is the cause. It comes last for its own work, or for what no collective
shows, as sends and receives in a pipeline."""


def locate_arrivals(arrivals: Arrivals, gaps: Iterable[str]) -> Location:
    """`gaps`: what of the files could not be used. Without a late rank the verdict is ok only where all of it was."""
    notes = [Note("lacks", text) for text in gaps]
    culprits = _culprits(arrivals.late)
    verdict = Verdict.FAIL if culprits else Verdict.UNKNOWN if notes else Verdict.OK
    if not culprits and arrivals.compared >= MIN_COLLECTIVES:
        text = f"no rank is regularly the last in {counted(arrivals.compared, 'collective')} of all their ranks"
        notes.append(Note("nobody_late", text))
    return Location(
        verdict=verdict,
        job_id=None,
        world_size=arrivals.ranks,
        ranks_seen=arrivals.ranks_seen,
        window=Window(),
        slowdown_ratio=None,
        culprits=culprits,
        notes=tuple(notes),
    )


def _culprits(late: Sequence[LastArrival]) -> tuple[Culprit, ...]:
    found = (
        Culprit(
            kind="slow_compute",
            ranks=(each.rank,),
            node=each.member.host,
            confidence=CONFIDENCE,
            evidence=tuple(_evidence(each)),
        )
        for each in late
    )
    return tuple(structs.replace(culprit, advice=advice(culprit)) for culprit in found)


def _evidence(late: LastArrival) -> Iterable[str]:
    lateness, running = seconds_text(late.late_microseconds / 1e6), seconds_text(late.running_microseconds / 1e6)
    own, peers = seconds_text(late.own_wait_microseconds / 1e6), seconds_text(late.peers_wait_microseconds / 1e6)
    yield (
        f"NCCL Inspector: the last of {counted(late.member.ranks, 'rank')} to come to {late.times_last} of "
        f"{counted(late.collectives, 'collective')} of communicator {late.member.communicator}, by {lateness}, in "
        f"which the others ran {running}"
    )
    yield f"it waits {own} in a collective, its peers {peers}"
    yield f"pid {late.member.pid}"
