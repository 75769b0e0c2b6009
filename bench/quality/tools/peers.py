"""What other tools do, written anew on recordings, with the thresholds that they ship. Each sees all ranks at once.

Where a tool measures something that a recording has in another form, the nearest is taken, and said. None is tuned."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import numpy.typing as npt

from quality.answer import Named
from quality.trace import Trace, read

Floats = npt.NDArray[np.float64]

NVRX_THRESHOLD = 0.75  # nvidia_resiliency_ext.attribution.straggler.reporting, relative GPU score
DLROVER_FACTOR = 2.0  # dlrover NetworkCheckRendezvousManager: slower than twice the median
TRACEML_IMPACT, TRACEML_CAUSE = 0.10, 0.80  # traceml diagnostics.step_time: warns from 10 % of the step, names a cause
LAST_SHARE = 0.5
TOGETHER_SECONDS = 1e-3
OWN_TIME_FACTOR = 1.1
COMPUTE = ("forward", "backward", "optimizer")


def medians(values: Floats) -> Floats:
    """Returns each rank's median over the steps, NaN where it has none."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # of a rank that has none
        return np.asarray(np.nanmedian(values, axis=0))


def nvrx(directory: Path) -> list[Named]:
    """NVRx's relative GPU score: for each kernel the fastest rank's median over this rank's, averaged by total time.
    Own times of phases stand for kernels; those that not every rank runs are left out, and collectives too."""
    trace = read(directory)
    kernels = [medians(trace.own(phase)) for phase in COMPUTE if phase in trace.spans]
    kernels = [kernel for kernel in kernels if np.isfinite(kernel).all() and kernel.min() > 0]
    if not kernels:
        return []
    weights = np.array(kernels)
    scores = (np.array([kernel.min() / kernel for kernel in kernels]) * weights).sum(axis=0) / weights.sum(axis=0)
    return [Named("slow_compute", (int(rank),)) for rank in np.flatnonzero(scores < NVRX_THRESHOLD)]


def dlrover(directory: Path) -> list[Named]:
    """DLRover's node check: computing and a collective summed, slow where over twice the median of the nodes. It runs
    before a job; here the forward pass stands for its matrix product, and the least time that a member of a collective
    spent in it for its all_reduce."""
    trace = read(directory)
    if "forward" not in trace.spans:
        return []
    computing = medians(trace.own("forward"))
    nodes = sorted(set(trace.nodes))
    place = np.array([nodes.index(node) for node in trace.nodes])
    transfers = transfer_of_ranks(trace)
    times = np.array([np.max((computing + transfers)[place == node]) for node in range(len(nodes))])
    slow = np.flatnonzero(times > DLROVER_FACTOR * np.median(times))
    return [Named("slow_host", tuple(np.flatnonzero(place == node).tolist())) for node in slow]


def transfer_of_ranks(trace: Trace) -> Floats:
    """Returns the median over each rank's collectives of what the member that came last spent in them."""
    calls = trace.collectives
    least = np.full(calls.key.max() + 1, np.inf) if len(calls.key) else np.zeros(0)
    np.fmin.at(least, calls.key, calls.end - calls.start)
    by_call = np.where(np.isfinite(least[calls.key]), least[calls.key], np.nan)
    return np.array(
        [
            np.nanmedian(by_call[calls.rank == rank]) if (calls.rank == rank).any() else 0.0
            for rank in range(trace.ranks)
        ]
    )


def traceml(directory: Path) -> list[Named]:
    """TraceML's step-time diagnosis: the rank with the shortest backward pass, waits included, keeps the others
    waiting, by the upper median less its own; from a tenth of the step on it is named, with the part that is longer
    than its peers' by most of that. Gradients that are reduced after the backward pass count as a part of it, as they
    are with DDP; where the forward pass waits for others, as with FSDP, it counts as well."""
    trace = read(directory)
    if not {"forward", "backward", "optimizer"} <= set(trace.begins):
        return []
    sharded = float(np.nanmedian(trace.waits["forward"])) > 0
    backward = medians(trace.begins["optimizer"] - trace.begins["forward" if sharded else "backward"])
    if not np.isfinite(backward).all():
        return []
    step = float(np.nanmedian(trace.lengths))
    culprit = int(np.argmin(backward))
    cost = float(np.sort(backward)[len(backward) // 2] - backward[culprit])
    if cost < TRACEML_IMPACT * step:
        return []
    for phase, kind in (("input", "slow_input"), ("forward", "slow_compute"), ("optimizer", "slow_compute")):
        if phase in trace.spans:
            seconds = medians(trace.spans[phase])
            if seconds[culprit] - np.nanmedian(seconds) >= TRACEML_CAUSE * cost:
                return [Named(kind, (culprit,), phase=phase, recoverable=cost / step)]
    return [Named("slow", (culprit,), recoverable=cost / step)]


def flight_recorder(directory: Path) -> list[Named]:
    """torch's fr_trace: in each group in which somebody's newest collective has not ended, the members that have not
    called it are missing. It does not follow a missing rank into the group that it waits in."""
    trace = read(directory)
    calls = trace.collectives
    pairs = np.isin(calls.op, [number for number, op in enumerate(trace.ops) if op in ("send", "recv")])
    missing: set[int] = set()
    for number, members in enumerate(trace.members):
        mine = (calls.group == number) & ~pairs
        pending = mine & np.isnan(calls.end)
        if not pending.any():
            continue
        counts = {rank: int((mine & (calls.rank == rank)).sum()) for rank in members}
        most = max(counts[int(rank)] for rank in calls.rank[pending])
        missing |= {rank for rank in members if counts[rank] < most}
    return [Named("hung", (rank,)) for rank in sorted(missing)]


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
    "NVRx relative GPU score": nvrx,
    "DLRover pair rule": dlrover,
    "TraceML step time": traceml,
    "torch fr_trace": flight_recorder,
    "most often last": most_often_last,
    "largest own time": largest_own_time,
}
