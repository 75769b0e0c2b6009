"""`laggard tune zero` and `deepspeed` for real: DeepSpeed over gloo in network namespaces whose links have a rate, each
campaign killed half-way and resumed. Needs root and iproute2. Ranks are forks of a process that has imported DeepSpeed.

    python bench/tune_real.py --out DIR [--rates 50mbit 200mbit 2gbit] [--kinds zero deepspeed] [--trials 32] [--ab 4]

The same command goes on where it stopped: DIR has the studies, and a line of each campaign that ended.

The gain is that of the confirmation: interleaved pairs with the default, 95 %. `again` is `laggard tune ab` afterwards.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from common import programs
from common.refused import need, refuse
from common.resumed import results
from trainings.shaped_training import server

LAUNCHER = Path(__file__).parent / "trainings" / "shaped_training.py"
ALWAYS = {
    "steps_per_print": 1_000_000,
    "zero_allow_untested_optimizer": True,
    "zero_force_ds_cpu_optimizer": False,
}
ZERO = {"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 4, "zero_optimization": {"stage": 2}}
"""Stage 2 as DeepSpeed's tutorials have it; at one global batch."""
SWITCHES = {"train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 1, "zero_optimization": {"stage": 1}}
MIN_TRIALS = 24
WARM = f"tune-real-{os.getpid()}"
CONFIGS: dict[str, dict[str, Any]] = {"zero": ZERO, "deepspeed": SWITCHES}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    parser.add_argument("--rates", nargs="+", default=["50mbit", "200mbit", "2gbit"])
    parser.add_argument("--kinds", nargs="+", choices=list(CONFIGS), default=list(CONFIGS))
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--trials", type=int, default=32)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--samples", type=int, default=4, help="of a rank in a step")
    parser.add_argument("--ab", type=int, default=4, metavar="ROUNDS", help="0: none")
    parser.add_argument("--verbose", action="store_true")
    options = parser.parse_args()
    if options.trials < MIN_TRIALS:
        refuse(f"--trials {options.trials}: give {MIN_TRIALS} or more, as `laggard tune` takes")
    need("ip", "tc", root=True)
    warm = server(WARM)  # keeps it for all trials
    warm.run(["-c", "pass"])
    print("| tune | link | best | gain | again | trials | kept when killed | seconds |")
    print("|---|---|---|---|---|---|---|---|")
    lines = options.out / "campaigns.jsonl"
    there = results(lines, lambda kind, rate: (kind, rate))
    for kind in options.kinds:
        for rate in options.rates:
            if (kind, rate) not in there:
                row = campaign(kind, rate, options, options.out / f"{kind}-{rate}")
                with lines.open("a") as file:
                    file.write(json.dumps({"case": [kind, rate], "row": row}) + "\n")
                there[kind, rate] = {"row": row}
            print(there[kind, rate]["row"], flush=True)
    return 0


def campaign(kind: str, rate: str, options: argparse.Namespace, folder: Path) -> str:
    config = {**ALWAYS, **CONFIGS[kind]}
    config["gradient_accumulation_steps"] = options.samples // config["train_micro_batch_size_per_gpu"]
    folder.mkdir(parents=True, exist_ok=True)
    path, study = folder / "ds_config.json", folder / "study.db"
    path.write_text(json.dumps(config))
    training = [sys.executable, str(LAUNCHER), "--ranks", str(options.ranks), "--rate", rate, "--warm", WARM]
    command = f"{shlex.join(training)} --record {{recording}} {{config}} --width {options.width} --steps 7"
    words = ["tune", kind, "--config", str(path), "--gpus", str(options.ranks), "--study", str(study)]
    words += ["--trials", str(options.trials), "--rounds", "4", "--deadline", "120", "--command", command]
    words += ["--parameters", str(6 * options.width * (options.width + 1)), "--format", "json"]
    kept = killed_half_way(words, options.trials // 2)
    resumed = tune(words, options.verbose)
    found = json.loads(resumed.stdout)
    gain, again, best = "none", "", "the default"
    items = found["recommendation"]["items"]
    if items:
        best = ", ".join(f"`{each['key'].rpartition('.')[2]}` {json.dumps(each['recommended'])}" for each in items)
        gain = shown(items[0]["gain"])
        if options.ab:
            ab = tune(["tune", "ab", "--study", str(study), "--rounds", str(options.ab), "--format", "json"], False)
            again = shown(json.loads(ab.stdout))
    trials = found["trials"]
    return f"| {kind} | {rate} | {best} | {gain} | {again} | {len(trials)} | {kept} | {found['spent_seconds']:.0f} |"


def killed_half_way(words: list[str], trials: int) -> int:
    """Kills a campaign, with the trial that runs, after as many trials. Returns how many it had told of."""
    with subprocess.Popen(
        [sys.executable, "-m", "laggard", *words], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr
        told = 0
        for told, _ in enumerate(process.stderr, 1):  # a line a trial
            if told >= trials:
                break
        process.send_signal(signal.SIGINT)  # SIGKILL leaves the trial's namespaces to nobody
        process.stderr.read()
    return told


def tune(words: list[str], verbose: bool) -> subprocess.CompletedProcess[str]:
    errors = None if verbose else subprocess.PIPE
    done = programs.run([sys.executable, "-m", "laggard", *words], stdout=subprocess.PIPE, stderr=errors)
    if done.returncode:
        raise SystemExit(f"laggard {words[0]} {words[1]}: {(done.stderr or '')[-2000:]}")
    return done


def shown(gain: dict[str, Any]) -> str:
    return f"{gain['ratio']:.2f} ({gain['low']:.2f} to {gain['high']:.2f})"


if __name__ == "__main__":
    raise SystemExit(main())
