"""Measures the ledger: whether what it says that incidents cost is what was planted, and how fast it answers.

    python bench/cost.py                      200 simulated weeks, and the answers' times
    python bench/cost.py --weeks 20 --seed 7  fewer of them, others
    python bench/cost.py --shares             how wrong verdicts' shares of the step time are: the ledger's intervals
    python bench/cost.py --answers            only the answers' times, on a database of 100,000 incidents

The weeks' truth is made second by second from the plan (cost_weeks/planted.py), which uses nothing of laggard. Verdicts
on them have the errors that the real localisation has on simulated jobs of a fresh seed
(cost_weeks/measured_shares.py)."""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path.append(str(REPOSITORY / "tests"))

from cost_weeks.answers import answer_times  # noqa: E402
from cost_weeks.measured_shares import Share, measured  # noqa: E402
from cost_weeks.planted import WEEK, true_gpu_hours, week  # noqa: E402
from cost_weeks.watched import MONDAY, watched  # noqa: E402
from figures import show  # noqa: E402

from laggard.collector.ledger.interval import share_error  # noqa: E402
from laggard.collector.ledger.ledger import ledger  # noqa: E402

FRESH_SEED = 31415
"""The seed of the weeks and of the cases whose errors their verdicts have; the ledger's own constant is of seed 1."""

COVERAGE = 0.95


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--weeks", type=int, default=200)
    made.add_argument("--seed", type=int, default=FRESH_SEED)
    made.add_argument("--each", type=int, default=2, help="cases of each fault and size")
    made.add_argument("--shares", action="store_true")
    made.add_argument("--answers", action="store_true")
    made.add_argument("--incidents", type=int, default=100_000, help="in the database")
    made.add_argument("--list", action="store_true", help="print each week")
    made.add_argument("--processes", type=int, default=2)
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    flags = parser().parse_args(arguments)
    good = True
    if flags.shares:
        return 0 if tell_shares(measured(flags.seed, flags.each, flags.processes)) else 1
    if not flags.answers:
        good = tell_weeks(flags)
    with tempfile.TemporaryDirectory(prefix="laggard-cost-") as folder:
        figures = answer_times(Path(folder), flags.incidents)
    return 0 if show(f"answers from {flags.incidents} incidents", figures) and good else 1


def tell_shares(shares: Sequence[Share]) -> bool:
    """Prints how far verdicts' shares are off; returns whether 95 % are within what the ledger takes them to be."""
    named = [it for it in shares if it.said > 0 and it.row != "two at once"]
    off = [abs(it.said - it.true) for it in named]
    within = sum(error <= share_error(it.said) for it, error in zip(named, off, strict=True)) / len(named)
    bias = statistics.fmean(it.said - it.true for it in named)
    cuts = statistics.quantiles(off, n=20)
    print(f"{len(named)} of {len(shares)} cases named, one culprit each")
    print(f"off by {cuts[9]:.4f} in the median, {cuts[17]:.4f} in 9 of 10, {cuts[18]:.4f} in 19 of 20")
    print(f"off by {bias:+.4f} on average")
    print(f"within the ledger's interval: {within:.1%}")
    return within >= COVERAGE


_SHARES: list[Share] = []
"""The measured cases, for the processes that simulate weeks."""


def one_week(seed: tuple[int, int]) -> tuple[float, float, float, float]:
    """The planted GPU-hours, and those that the ledger says: likely, at least and at most, in GPU-hours."""
    jobs = week(np.random.default_rng([*seed, 1]))
    seen = watched(jobs, _SHARES, np.random.default_rng([*seed, 2]))
    found = ledger(seen.losses, seen.runs, MONDAY, MONDAY + WEEK)
    return true_gpu_hours(jobs), found.total.likely, found.total.least, found.total.most


def tell_weeks(flags: argparse.Namespace) -> bool:
    """Prints in how many weeks the truth is in the ledger's interval."""
    _SHARES[:] = measured(flags.seed, flags.each, flags.processes)
    with multiprocessing.get_context("fork").Pool(flags.processes) as pool:
        weeks = pool.map(one_week, [(flags.seed, number) for number in range(flags.weeks)], chunksize=2)
    if flags.list:
        for number, (true, likely, least, most) in enumerate(weeks):
            mark = "" if least <= true <= most else "  OUTSIDE"
            print(f"week {number}: planted {true:.1f}, said {likely:.1f} ({least:.1f} to {most:.1f}){mark}")
    inside = sum(least <= true <= most for true, _, least, most in weeks) / len(weeks)
    ratios = [likely / true for true, likely, _, _ in weeks if true > 0]
    widths = [(most - least) / likely for _, likely, least, most in weeks if likely > 0]
    print(f"{len(weeks)} weeks, {sum(true for true, *_ in weeks):,.0f} GPU-hours planted, seed {flags.seed}")
    print(f"the truth is in the interval in {inside:.1%} of the weeks (wanted: {COVERAGE:.0%})")
    print(f"said over planted: {statistics.median(ratios):.3f} in the median, {min(ratios):.3f} to {max(ratios):.3f}")
    print(f"width of the interval over the figure: {statistics.median(widths):.2f} in the median")
    return inside >= COVERAGE


if __name__ == "__main__":
    raise SystemExit(main())
