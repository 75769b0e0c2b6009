"""Explains slow ranks by the threads of their own process that run beside the training and hold Python's lock. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from msgspec import structs

from laggard.locate.job_timings import JobTimings
from laggard.locate.medians import middle
from laggard.locate.own_threads import OwnThreads
from laggard.model import Culprit
from laggard.text.words import seconds_text

BUSY_SHARE: Final = 0.1
"""The least share of the time that threads beside the training must run more than those of the peers to be the
cause."""

WAKE_DELAY_SECONDS: Final = 0.002
"""The delay, beyond the peers', with which a sleeping thread wakes where busy threads are the cause: Python's lock is
handed over after 5 ms at the earliest where somebody computes (sys.getswitchinterval)."""

_KINDS: Final = ("slow_compute", "slow_host", "slow_input")


def with_busy_threads(timings: JobTimings, culprits: Sequence[Culprit]) -> tuple[Culprit, ...]:
    """`culprits`; those that the threads of their own process hold up are of kind busy_threads, with the threads' names
    as their first evidence. No machine is at fault then."""
    told = dict(zip(timings.ranks.tolist(), timings.own_threads, strict=True)) if timings.own_threads else {}
    slow = {rank for culprit in culprits for rank in culprit.ranks}
    peers = [each for rank, each in told.items() if each is not None and rank not in slow]
    usual = OwnThreads(
        middle([it.busy for it in peers] or [0.0]), middle([it.late_seconds for it in peers] or [0.0]), ()
    )
    return tuple(_explained(culprit, told, usual) for culprit in culprits)


def _explained(culprit: Culprit, told: Mapping[int, OwnThreads | None], usual: OwnThreads) -> Culprit:
    found = [each for rank in culprit.ranks if (each := told.get(rank)) is not None]
    held = [each for each in found if _holds_up(each, usual)]
    if culprit.kind not in _KINDS or not held or len(held) < len(culprit.ranks):
        return culprit
    worst = max(held, key=lambda each: each.busy)
    evidence = (_evidence(worst, usual), *culprit.evidence)
    return structs.replace(culprit, kind="busy_threads", node=None, gpu=None, neighbours=None, evidence=evidence)


def _holds_up(found: OwnThreads, usual: OwnThreads) -> bool:
    return found.busy - usual.busy >= BUSY_SHARE and found.late_seconds - usual.late_seconds >= WAKE_DELAY_SECONDS


def _evidence(found: OwnThreads, usual: OwnThreads) -> str:
    names = f" ({', '.join(found.names)})" if found.names else ""
    return (
        f"threads of its own process{names} ran for {found.busy:.2f} s of each second beside the training, its peers' "
        f"for {usual.busy:.2f} s, and Python's lock (the GIL) came {seconds_text(found.late_seconds)} late, its peers' "
        f"{seconds_text(usual.late_seconds)}"
    )
