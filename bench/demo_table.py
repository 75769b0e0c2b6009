"""Thirty demos: does the verdict name what was injected, and nothing where nothing was? Writes docs/demo-table.md."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from common import programs

TABLE = Path(__file__).resolve().parents[1] / "docs" / "demo-table.md"
BUDGET_SECONDS = 60.0
HEAD = """# Does the demo name the slowed rank?

`make demo-table` made this table: {slowed} demos with a random rank slowed by 0.1 s a step in a random phase, then
{calm} with none, the ZeRO stage each in turn; 2 nodes (network namespaces), 4 ranks, {cores} cores. A run is right
where the verdict names the injected rank and phase and no other, or nothing where nothing was injected.

**{right_slowed} of {slowed} slowed runs and {right_calm} of {calm} calm runs are right.**

| run | ZeRO | injected | verdict | slowdown | wall time | |
|---|---|---|---|---|---|---|
"""


def run(stage: int, slowed: bool) -> dict[str, Any]:
    words = ["--slow-rank", "random" if slowed else "none", "--slow-phase", "random", "--zero", str(stage)]
    began = time.monotonic()
    command = [sys.executable, "-m", "laggard", "demo", "--format", "json", *words]
    done = programs.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    answer: dict[str, Any] = json.loads(done.stdout)
    return {**answer, "stage": stage, "seconds": time.monotonic() - began, "right": done.returncode == 0}


def row(number: int, result: dict[str, Any]) -> str:
    injected = result.get("injected")
    told = f"rank {injected['rank']}, {injected['phase']}" if injected else "none"
    culprits = [f"rank {each['ranks'][0]}, {each['phase']}" for each in result.get("culprits", ())]
    verdict = "; ".join(culprits) or result.get("verdict") or result["error"]
    ratio = result.get("slowdown_ratio") or 0.0
    mark = "right" if result["right"] else "WRONG"
    return f"| {number} | {result['stage']} | {told} | {verdict} | {ratio:.2f} | {result['seconds']:.0f} s | {mark} |\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--slowed", type=int, default=20)
    parser.add_argument("--calm", type=int, default=10)
    parser.add_argument("--no-write", action="store_true", help="print the table and leave docs/ alone")
    options = parser.parse_args()
    results = []
    for number in range(options.slowed + options.calm):
        results.append(run(number % 4, slowed=number < options.slowed))
        print(row(number + 1, results[-1]), end="", flush=True)
    slowed, calm = results[: options.slowed], results[options.slowed :]
    text = HEAD.format(
        slowed=len(slowed),
        calm=len(calm),
        cores=os.cpu_count(),
        right_slowed=sum(each["right"] for each in slowed),
        right_calm=sum(each["right"] for each in calm),
    )
    if not options.no_write:
        TABLE.write_text(text + "".join(row(number, result) for number, result in enumerate(results, 1)))
    in_time = statistics.median(each["seconds"] for each in results) <= BUDGET_SECONDS
    right = sum(each["right"] for each in slowed) >= 0.95 * len(slowed) and all(each["right"] for each in calm)
    return 0 if right and in_time else 1


if __name__ == "__main__":
    raise SystemExit(main())
