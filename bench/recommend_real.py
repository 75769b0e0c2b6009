"""Badly configured jobs of real DeepSpeed, repaired as `laggard recommend` says: is what is wrong named, and does the
change gain what was said? DeepSpeed over gloo in network namespaces, a node a rank. Needs root and iproute2.

    python bench/recommend_real.py [--ranks 2] [--pairs 3] [--only NAME]

Each job runs under `laggard run --record`; the recording and the configuration are what `recommend` is given. The one
change that is judged is made in the job's configuration alone, and both configurations run in turns. An interval holds
where the measured ratio lies in it, within a tie (1 %). Gains of which `recommend` says no upper end are judged by the
lower one.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from common import programs
from common.refused import need

from laggard.recording.reader import read_recording
from laggard.tune.statistics import TIE, compare
from laggard.tune.training import step_seconds

LAUNCHER = Path(__file__).parent / "trainings" / "shaped_training.py"
STEPS = 12
ALWAYS = {
    "steps_per_print": 1_000_000,
    "zero_allow_untested_optimizer": True,
    "zero_force_ds_cpu_optimizer": False,
}


class SetUp(NamedTuple):
    name: str
    what: str
    wrong: str
    """The key that `recommend` has to name."""
    micro_batch: int
    accumulation: int
    zero: Mapping[str, Any]
    rate: str
    model: tuple[str, ...] = ("--width", "256")


SET_UPS = (
    SetUp("stage", "stage 2 with accumulation 8", "zero_optimization.stage", 1, 8, {"stage": 2}, "200mbit"),
    SetUp(
        "accumulation",
        "stage 2, micro-batch 1, accumulation 8",
        "gradient_accumulation_steps",
        1,
        8,
        {"stage": 2},
        "200mbit",
    ),
    SetUp(
        "bucket",
        "buckets of 1000 elements",
        "zero_optimization.reduce_bucket_size",
        8,
        1,
        {"stage": 1, "reduce_bucket_size": 1000},
        "1gbit",
        ("--width", "48", "--layers", "64"),
    ),
    SetUp("overlap", "no overlap_comm", "zero_optimization.overlap_comm", 8, 1, {"stage": 2}, "200mbit"),
    SetUp("micro", "stage 3 with micro-batch 1", "gradient_accumulation_steps", 1, 4, {"stage": 3}, "200mbit"),
    SetUp("collective", "an all-reduce in stage 1", "LAGGARD_REDUCE_SCATTER", 8, 1, {"stage": 1}, "200mbit"),
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--only", action="append", choices=[each.name for each in SET_UPS])
    options = parser.parse_args()
    need("ip", "tc", root=True)
    print("| what is wrong | link | change | said | measured | holds |")
    print("|---|---|---|---|---|---|")
    held = True
    for own in SET_UPS:
        if not options.only or own.name in options.only:
            with tempfile.TemporaryDirectory() as folder:
                good, row = judge(own, options.ranks, options.pairs, Path(folder))
            held &= good
            print(row, flush=True)
    return int(not held)


def judge(own: SetUp, ranks: int, pairs: int, folder: Path) -> tuple[bool, str]:
    bad = {
        **ALWAYS,
        "train_micro_batch_size_per_gpu": own.micro_batch,
        "gradient_accumulation_steps": own.accumulation,
        "zero_optimization": dict(own.zero),
    }
    first = run(own, bad, {}, ranks, folder / "first")
    items = recommended(folder / "first")
    item = next((each for each in items if each["key"] == own.wrong), None)
    if item is None:
        named = ", ".join(each["key"] for each in items) or "nothing"
        return False, f"| {own.what} | {own.rate} | NOT NAMED: {named} | | | no |"
    good, environ = changed(bad, item)
    times: tuple[list[float], list[float]] = ([first], [])
    for turn in range(pairs):
        times[1].append(run(own, good, environ, ranks, folder / f"good{turn}"))
        if turn + 1 < pairs:
            times[0].append(run(own, bad, {}, ranks, folder / f"bad{turn}"))
    found = compare(*times)
    gain = item["gain"]
    low, high = gain["low"] or 0.0, gain["high"] or float("inf")
    holds = low * (1 - TIE) <= found.ratio <= high * (1 + TIE)
    upper = "" if gain["high"] is None else f" to {gain['high']:.2f}"
    middle = "" if gain["ratio"] is None else f"{gain['ratio']:.2f}, "
    ratios = [before / after for before, after in zip(*times, strict=True)]
    change = f"`{own.wrong.rpartition('.')[2]}`: {json.dumps(item['current'])} to {json.dumps(item['recommended'])}"
    return holds, (
        f"| {own.what} | {own.rate} | {change} | {middle}{low:.2f}{upper}, {gain['basis']} "
        f"| {found.ratio:.2f} (pairs {min(ratios):.2f} to {max(ratios):.2f}) | {'yes' if holds else 'NO'} |"
    )


def changed(config: Mapping[str, Any], item: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """Returns the configuration with the change, and the variables that it sets. Fewer micro-steps are larger ones: the
    global batch stays, as the item says."""
    after = copy.deepcopy(dict(config))
    if item["target"] != "deepspeed":
        return after, {item["key"]: str(item["recommended"])}
    *sections, name = item["key"].split(".")
    inner = after
    for section in sections:
        inner = inner.setdefault(section, {})
    inner[name] = item["recommended"]
    if name == "gradient_accumulation_steps":
        after["train_micro_batch_size_per_gpu"] *= item["current"] // item["recommended"]
    return after, {}


def run(own: SetUp, config: Mapping[str, Any], environ: Mapping[str, str], ranks: int, folder: Path) -> float:
    """Returns the median step of the slowest rank, in seconds. The folder has the configuration and the recording."""
    folder.mkdir()
    path = folder / "ds_config.json"
    path.write_text(json.dumps(config))
    training = [sys.executable, str(LAUNCHER), "--ranks", str(ranks), "--rate", own.rate, str(path), *own.model]
    words = [
        sys.executable,
        "-m",
        "laggard",
        "run",
        "--record",
        str(folder / "recording"),
        *training,
        "--steps",
        str(STEPS),
    ]
    done = programs.run(words, env={**os.environ, **environ}, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    seconds = None if done.returncode else step_seconds(folder / "recording")
    if seconds is not None:
        recorded = len(read_recording([folder / "recording"]).timings.step_seconds)
        if recorded > STEPS:
            raise SystemExit(f"{own.name}: {recorded} steps recorded of {STEPS}: the engine is not hooked")
    if seconds is None:
        raise SystemExit(f"{own.name} did not run:\n{(done.stdout + done.stderr)[-2000:]}")
    return seconds


def recommended(folder: Path) -> list[dict[str, Any]]:
    files = [str(folder / "ds_config.json"), str(folder / "recording")]
    words = [sys.executable, "-m", "laggard", "recommend", *files, "--format", "json"]
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"recommend: {done.stderr}")
    found: list[dict[str, Any]] = json.loads(done.stdout)["items"]
    return found


if __name__ == "__main__":
    raise SystemExit(main())
