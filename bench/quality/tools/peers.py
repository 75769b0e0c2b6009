"""What other tools do that cannot run without GPUs or after the fact, written anew on recordings with the thresholds
that they ship, and two simple rules. Each sees all ranks at once. Tools that can run as they ship are in shipped/.

Where a tool measures something that a recording has in another form, the nearest is taken, and said. None is tuned."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import numpy.typing as npt

from quality.answer import Named
from quality.trace import Trace, read

Floats = npt.NDArray[np.float64]

DLROVER_FACTOR = 2.0  # dlrover NetworkCheckRendezvousManager: slower than twice the median
MIN_MEGATRON_SHARE = 0.10  # megatron/training/gpu_sniff_test.py, OUTLIER_MIN_DEVIATION_FRAC
LAST_SHARE = 0.5
TOGETHER_SECONDS = 1e-3
OWN_TIME_FACTOR = 1.1


def medians(values: Floats) -> Floats:
    """Returns each rank's median over the steps, NaN where it has none."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # of a rank that has none
        return np.asarray(np.nanmedian(values, axis=0))


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


def megatron_sniff_test(directory: Path) -> list[Named]:
    """Megatron-LM's sniff test: of each of its measures, whoever is off the ranks' median by more than the larger of
    one median deviation and a tenth of the median. It measures while training stands still; here the own time of a
    forward and of a backward pass stand for its matrix products, and the least time that a member of a collective of
    one kind and group size spent in it for its collectives, over each rank's calls. Who is faster than the median is
    not named, although it marks them, too."""
    trace = read(directory)
    named: dict[int, Named] = {}
    for phase in ("forward", "backward"):
        if phase in trace.spans:
            for rank in slower(medians(trace.own(phase))):
                named.setdefault(rank, Named("slow_compute", (rank,), phase=phase))
    for transfers in transfers_by_kind(trace):
        for rank in slower(transfers):
            named.setdefault(rank, Named("slow_link", (rank,)))
    return [named[rank] for rank in sorted(named)]


def slower(seconds: Floats) -> list[int]:
    """Returns the ranks that Megatron-LM's rule marks as slow; it goes by rates, which are one over the seconds."""
    rates = 1.0 / np.where(seconds > 0, seconds, np.nan)
    there = np.isfinite(rates)
    if there.sum() < 2:
        return []
    middle = float(np.median(rates[there]))
    deviation = float(np.median(np.abs(rates[there] - middle)))
    return np.flatnonzero(there & (middle - rates > max(deviation, MIN_MEGATRON_SHARE * middle))).tolist()


def transfers_by_kind(trace: Trace) -> list[Floats]:
    """Returns, for each operation and size of group, each rank's median over its calls of what the member that came
    last spent in them."""
    calls = trace.collectives
    if not len(calls.key):
        return []
    least = np.full(calls.key.max() + 1, np.inf)
    np.fmin.at(least, calls.key, calls.end - calls.start)
    members = np.array([len(ranks) for ranks in trace.members])[calls.group]
    found = []
    for op, size in sorted(set(zip(calls.op.tolist(), members.tolist(), strict=True))):
        mine = (calls.op == op) & (members == size) & np.isfinite(least[calls.key])
        of_ranks = [least[calls.key[mine & (calls.rank == rank)]] for rank in range(trace.ranks)]
        found.append(np.array([np.median(each) if len(each) else np.nan for each in of_ranks]))
    return found


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
    "DLRover pair rule": dlrover,
    "XPUTimer merged stacks": xputimer_stacks,
    "Megatron-LM sniff test": megatron_sniff_test,
    "most often last": most_often_last,
    "largest own time": largest_own_time,
}
