"""What other tools do that cannot run without GPUs or after the fact, written anew on recordings with the thresholds
that they ship, and two simple rules. Each sees all ranks at once. Tools that can run as they ship are in shipped/.

Where a tool measures something that a recording has in another form, the nearest is taken, and said. None is tuned."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from quality.answer import Named
from quality.trace import Trace, medians, read

Floats = npt.NDArray[np.float64]

LAST_SHARE = 0.5
TOGETHER_SECONDS = 1e-3
OWN_TIME_FACTOR = 1.1


def xputimer_stacks(directory: Path) -> list[Named]:
    """XPUTimer's merged stacks of a hang: once work on a device stands, it takes the stacks of all ranks and draws them
    as one, in which whoever stands elsewhere than in the collective is seen. Its metrics of slow kernels have no
    threshold: they are a board. A rank stands in a collective where its newest call has not ended."""
    trace = read(directory)
    calls = trace.collectives
    inside = set(calls.rank[np.isnan(calls.end)].tolist())
    if len(inside) <= trace.ranks // 2:
        return []
    return [Named("hung", (rank,)) for rank in range(trace.ranks) if rank not in inside]


def aligned(trace: Trace) -> Floats:
    """Returns the collectives' starts with the clocks aligned by when each rank ended the largest group's collectives
    of the same step: they end for all at once."""
    calls = trace.collectives
    sizes = np.array([len(members) for members in trace.members])
    steps = calls.step.max() + 1
    largest = int(np.argmax(sizes))
    offsets = np.full((steps, trace.ranks), np.nan)
    mine = (calls.group == largest) & np.isfinite(calls.end) & (calls.step >= 0)
    offsets[calls.step[mine], calls.rank[mine]] = calls.end[mine]
    earliest = np.nan_to_num(offsets, nan=np.inf).min(axis=1, keepdims=True)  # inf: nobody ended one in this step
    return np.asarray(calls.start - np.nan_to_num(offsets - earliest, neginf=0.0)[calls.step, calls.rank])


def most_often_last(directory: Path) -> list[Named]:
    """The rank that comes last to most of its collectives, with the clocks aligned, is named where it is last in half
    of them at least. Collectives to which all come together, one right after another, have nobody who is last."""
    trace = read(directory)
    calls = trace.collectives
    if not len(calls.key):
        return []
    starts = aligned(trace)
    latest, earliest = np.full(calls.key.max() + 1, -np.inf), np.full(calls.key.max() + 1, np.inf)
    np.maximum.at(latest, calls.key, starts)
    np.minimum.at(earliest, calls.key, starts)
    apart = (latest - earliest)[calls.key] > TOGETHER_SECONDS
    last = apart & (starts == latest[calls.key])
    counts = np.bincount(calls.rank, weights=apart, minlength=trace.ranks)
    shares = np.bincount(calls.rank, weights=last, minlength=trace.ranks) / np.maximum(counts, 1)
    worst = int(np.argmax(shares))
    return [Named("slow", (worst,))] if shares[worst] >= LAST_SHARE else []


def largest_own_time(directory: Path) -> list[Named]:
    """The rank whose step, less what it waited in collectives, is the longest is named where it is a tenth longer than
    the median rank's. Without steps, from the end of one step's last collective to that of the next."""
    trace = read(directory)
    calls = trace.collectives
    if not len(calls.key):
        return []
    steps = calls.step.max() + 1
    waited = np.zeros((steps, trace.ranks))
    np.add.at(waited, (calls.step, calls.rank), calls.waited)
    lengths = trace.lengths[:steps]
    if np.isnan(lengths).all():
        ends = np.full((steps, trace.ranks), -np.inf)
        np.fmax.at(ends, (calls.step, calls.rank), np.nan_to_num(calls.end, nan=-np.inf))
        lengths = np.diff(np.where(np.isfinite(ends), ends, np.nan), axis=0, prepend=np.nan)
    own = medians(np.where(np.isfinite(lengths), lengths - waited, np.nan))
    if not np.isfinite(own).any():
        return []
    worst = int(np.nanargmax(own))
    return [Named("slow", (worst,))] if own[worst] > OWN_TIME_FACTOR * np.nanmedian(own) else []


PEERS = {
    "XPUTimer merged stacks": xputimer_stacks,
    "most often last": most_often_last,
    "largest own time": largest_own_time,
}
