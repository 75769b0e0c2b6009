"""Measures how long localisation takes on arrays, how that grows with the ranks, and how much memory the process needs.

The job is synchronous with one slow rank: the most expensive of the ordinary cases, since a healthy job needs no
medians of peers. Each size runs in a process of its own, so that the peak of its memory is its own. The arrays are in
single precision, which the largest size needs: those of 131,072 ranks take half a gigabyte.
"""

import argparse
import resource
import subprocess
import sys
import time

import numpy as np
from common.figures import Figure, quartiles, show

from laggard.kit.constants import PHASES
from laggard.locate.job_timings import JobTimings, RankInfo, RankState, build_timings
from laggard.locate.verdict import locate

STEPS = 128
SIZES = (1024, 16_384, 131_072)
REPEATS = {1024: 15, 16_384: 9}
MIN_REPEATS = 5  # of other sizes
BUDGET_SECONDS = {16_384: 0.5, 131_072: 4.0}  # 0.5 s, and from there on in proportion
BUDGET_MIB = {131_072: 1024.0}
TYPICAL = (0.01, 0.05, 0.08, 0.02, 0.002, 0.0, 0.0, 0.0, 0.005)  # seconds in each phase
SYNC = 0.03  # seconds in collectives that cannot be saved


def job(ranks: int, slow: int | None) -> JobTimings:
    generator = np.random.default_rng(0)
    phases = np.empty((STEPS, ranks, len(PHASES)), dtype=np.float32)
    for phase, seconds in enumerate(TYPICAL):
        noise = generator.standard_normal((STEPS, ranks), dtype=np.float32)
        phases[:, :, phase] = np.float32(seconds) * (1 + np.float32(0.02) * noise)
    if slow is not None:
        phases[:, slow, 1] *= 1.8
    waited = phases.sum(axis=2)
    duration = waited.max(axis=1, keepdims=True) + np.float32(SYNC)
    np.subtract(duration, waited, out=waited)
    return JobTimings(
        job_id="bench",
        world_size=ranks,
        steps=np.arange(STEPS),
        ranks=np.arange(ranks),
        nodes=tuple(f"n{rank // 8}" for rank in range(ranks)),
        gpus=(None,) * ranks,
        step_seconds=np.repeat(duration, ranks, axis=1),
        phase_seconds=phases,
        waited_seconds=waited,
        states=(RankState("running", STEPS - 1, None, None),) * ranks,
        findings_by_node={},
    )


def measure(ranks: int) -> list[Figure]:
    figures = []
    for name, slow in (("healthy", None), ("a slow rank", ranks // 3)):
        timings = job(ranks, slow)
        times = []
        for _ in range(REPEATS.get(ranks, MIN_REPEATS) + 1):
            began = time.perf_counter()
            location = locate(timings)
            times.append(time.perf_counter() - began)
            assert [culprit.ranks for culprit in location.culprits] == ([] if slow is None else [(slow,)])
        figures.append(quartiles(f"locate, {ranks} ranks, {name}", times[1:], "s", BUDGET_SECONDS.get(ranks)))
        del timings
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    figures.append(Figure(f"the process at its peak, {ranks} ranks", peak, "MiB", peak, peak, BUDGET_MIB.get(ranks)))
    return figures


def measure_building(ranks: int) -> list[Figure]:
    """Measures building the arrays of a live window; a collector holds the steps of 8,192 ranks at most by default."""
    source = job(ranks, None)
    steps = np.arange(STEPS, dtype=np.float64)
    tables = {
        rank: np.column_stack(
            (steps, steps, steps + 0.2, np.full(STEPS, 0.01), np.zeros(STEPS), source.phase_seconds[:STEPS, rank])
        )
        for rank in range(ranks)
    }
    infos = {rank: rank_info(rank) for rank in range(ranks)}
    times = []
    for _ in range(6):
        began = time.perf_counter()
        build_timings("bench", ranks, infos, tables, {})
        times.append(time.perf_counter() - began)
    return [quartiles(f"build_timings, {ranks} ranks x {STEPS} steps", times[1:], "s")]


def rank_info(rank: int) -> RankInfo:
    return RankInfo(f"n{rank // 8}", None, RankState("running", STEPS - 1, None, None))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, nargs="+", default=SIZES)
    parser.add_argument("--one", type=int, metavar="RANKS", help="one size, in this process")
    options = parser.parse_args()
    if options.one:
        return 0 if show(f"locate, {STEPS} steps x {options.one} ranks", measure(options.one)) else 1
    own = [sys.executable, __file__, "--one"]
    statuses = [subprocess.run([*own, str(ranks)]).returncode for ranks in options.ranks]
    show("From rows to arrays", measure_building(min(1024, *options.ranks)))
    return int(any(statuses))


if __name__ == "__main__":
    raise SystemExit(main())
