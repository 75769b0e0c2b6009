"""Measures how long noise lasts: each rank's own time beside its peers', step by step, in recordings of healthy jobs.

    python bench/noise_memory.py out/real_runs             all recordings below folders, as a table
    python bench/noise_memory.py out/demo --each           and a line for each recording
    python bench/noise_memory.py out/real_runs --write     and puts the table into docs/benchmark.md

A recording with a truth.json beside it, as the benchmarks write it, counts without the ranks that a fault befell; of
others nobody knows, so give healthy ones. docs/benchmark.md says what the columns mean."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from common.figures import put_into
from common.refused import refuse
from numpy.typing import NDArray

from laggard.kit.errors import UsageError
from laggard.locate.job_timings import JobTimings
from laggard.locate.medians import MAD_TO_SIGMA, deviation, median
from laggard.locate.slow.steps import Steps
from laggard.recording.reader import read_recording

PAGE: Final = Path(__file__).resolve().parents[1] / "docs" / "benchmark.md"
LAGS: Final = (1, 2, 5, 10, 20, 50)
BLOCKS: Final = (2, 4, 8, 16, 32, 64)
MIN_BLOCKS: Final = 4
"""The fewest blocks whose means have a variance that is told, and the fewest times a lag that a series is long."""
MIN_STEPS: Final = 20
CLIP: Final = 5.0
"""What is so many standard deviations from the median, by the median absolute deviation, is taken to be as many: one
pause would else be most of the variance, and hide what the other steps have in common."""
Floats = NDArray[np.float64]


class Series(NamedTuple):
    """One rank's noise: the number of steps, their median length in seconds, the standard deviation of the logarithm of
    its own time over its peers' median, that of most steps (by the median absolute deviation), its median, and, with
    what is far out clipped, the autocorrelations at LAGS and the variances of the means of BLOCKS over those of white
    noise; nan where the series is too short."""

    steps: float
    seconds: float
    sd: float
    usual_sd: float
    for_good: float
    correlations: tuple[float, ...]
    blocks: tuple[float, ...]


def befallen(truth: Mapping[str, Any]) -> set[int]:
    """The ranks that a fault befell, by a real run's truth, by tests/simulator's or by laggard-bench's."""
    faults = [*truth.get("culprits", ()), *(it for fault in truth.get("faults", ()) for it in fault["accepted"])]
    return {*truth.get("victims", ()), *(rank for fault in faults for rank in fault["ranks"])}


def residuals(timings: JobTimings, without: set[int]) -> tuple[Floats, Floats]:
    """The logarithm of each rank's own time over the median of its peers in the same step, [S, R], nan where there is
    none, and the length of each step, [S]. The ranks `without` are left out, also as peers."""
    steps = Steps.usable(timings)
    if steps is None:
        return np.empty((0, 0)), np.empty(0)
    left_out = np.isin(timings.ranks, list(without))
    with np.errstate(divide="ignore", invalid="ignore"):
        found = np.log(steps.busy / steps.peers.medians(steps.busy, left_out)).astype(float)
    found[:, left_out] = np.nan
    found[~np.isfinite(found)] = np.nan
    return found, steps.duration.astype(float)


def series(noise: Floats, seconds: float) -> Series:
    """Measures one rank's noise, [S]. Steps that it lacks are passed over."""
    noise = noise[np.isfinite(noise)]
    centre, spread = median(noise), MAD_TO_SIGMA * deviation(noise)
    clipped = np.clip(noise - centre, -CLIP * spread, CLIP * spread)
    clipped -= clipped.mean()
    correlations = tuple(correlation(clipped, lag) for lag in LAGS)
    blocks = tuple(block_variance(clipped, length) for length in BLOCKS)
    return Series(len(noise), seconds, float(noise.std()), spread, centre, correlations, blocks)


def correlation(noise: Floats, lag: int) -> float:
    """The autocorrelation of a series about 0 at this lag."""
    if len(noise) < MIN_BLOCKS * lag:
        return np.nan
    return float((noise[lag:] * noise[:-lag]).mean() / (noise**2).mean())


def block_variance(noise: Floats, length: int) -> float:
    """The variance of the means of blocks of this many steps, over that of white noise of the same variance."""
    count = len(noise) // length
    if count < MIN_BLOCKS:
        return np.nan
    means = noise[: count * length].reshape(count, length).mean(axis=1)
    return float(length * means.var(ddof=1) / noise.var(ddof=1))


def recordings(folders: Iterable[Path]) -> Iterator[Path]:
    """The folders of the recordings below folders; one that has no rank-N.jsonl may hold another kind, as a profile."""
    for folder in folders:
        yield from sorted({file.parent for file in folder.rglob("rank-*.jsonl")}) or [folder]


def measured(trace: Path) -> tuple[str, list[Series]]:
    """What befell the job of a recording, and the noise of the ranks that it did not befall. Raises UsageError."""
    file = trace.parent / "truth.json"
    truth = json.loads(file.read_text()) if file.exists() else {}
    without = befallen(truth)
    noise, seconds = residuals(read_recording([trace]).timings, without)
    what = "a fault of other ranks" if without else str(truth.get("what", "not known"))
    columns = [column for column in noise.T if np.isfinite(column).sum() >= MIN_STEPS]
    return what, [series(column, float(np.median(seconds))) for column in columns if deviation(column)]


def quartiles(values: Sequence[float], form: str = ".2f", factor: float = 1.0) -> str:
    known = factor * np.array([value for value in values if np.isfinite(value)])
    if not len(known):
        return "-"
    low, middle, high = np.quantile(known, (0.25, 0.5, 0.75))
    return f"{middle:{form}} ({low:{form}} to {high:{form}})"


def tables(by_cause: Mapping[str, Sequence[Sequence[Series]]]) -> str:
    """Tables with a row for what befell the jobs; of each cause a list of recordings."""
    heads = (
        ["recordings", "ranks", "steps", "a step, s", "sd, %", "usual sd, %", "for good, %"],
        [f"r({lag})" for lag in LAGS],
        [f"blocks of {length}" for length in BLOCKS],
    )
    lines: list[list[str]] = [[], [], []]
    for cause, each in sorted(by_cause.items()):
        found = [one for ranks in each for one in ranks]
        for body, cells in zip(lines, cells_of(len(each), found), strict=True):
            body.append(f"| {' | '.join([cause, *cells])} |")
    return "\n\n".join(
        "\n".join([f"| what befell the job | {' | '.join(head)} |", "|---" * (len(head) + 1) + "|", *body])
        for head, body in zip(heads, lines, strict=True)
    )


def cells_of(count: int, found: Sequence[Series]) -> tuple[list[str], list[str], list[str]]:
    """The cells of a row in each table, after `count` recordings."""
    percents = ([it.sd for it in found], [it.usual_sd for it in found], [abs(it.for_good) for it in found])
    steps, seconds = quartiles([it.steps for it in found], ".0f"), quartiles([it.seconds for it in found], ".3g")
    return (
        [str(count), str(len(found)), steps, seconds, *(quartiles(values, ".1f", 100) for values in percents)],
        [quartiles(values) for values in zip(*(it.correlations for it in found), strict=True)],
        [quartiles(values) for values in zip(*(it.blocks for it in found), strict=True)],
    )


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("folder", type=Path, nargs="+")
    made.add_argument("--each", action="store_true", help="print a row for each recording, too")
    made.add_argument("--write", action="store_true", help="put the table into docs/benchmark.md, too")
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    flags = parser().parse_args(arguments)
    by_cause: dict[str, list[list[Series]]] = {}
    untold = 0
    for trace in recordings(flags.folder):
        try:
            cause, found = measured(trace)
        except UsageError as why:
            print(f"noise_memory: left out: {why}", file=sys.stderr)
            continue
        untold += not found
        if found:
            by_cause.setdefault(cause, []).append(found)
        if found and flags.each:
            print(f"{trace}\n\n{tables({cause: [found]})}\n")
    if not by_cause:
        wanted = f"recordings of {MIN_STEPS} steps and more in which several ranks do the same work"
        refuse(f"nothing there can be measured: give {wanted}")
    command = f"python bench/noise_memory.py {' '.join(map(str, flags.folder))}"
    left_out = f"; {untold} more recordings have no ranks with peers, or too few steps" if untold else ""
    text = f"Medians and quartiles over ranks, by `{command}`{left_out}.\n\n{tables(by_cause)}\n"
    print(text)
    if flags.write:
        PAGE.write_text(put_into(PAGE.read_text(), "noise", text))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
