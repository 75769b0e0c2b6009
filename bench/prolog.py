"""How long SLURM's prolog takes that asks the agent: alone, beside 50 others that start at the same moment, and 200 at
once with an agent, without one, and as it was before (each starts Python). `--runs N`, `--storm N`, `--others N`.

The scripts of deploy/slurm run as they are shipped, with a real agent and a real laggard, on this machine.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from common.refused import need

BUDGET_SECONDS = 0.05
"""The budget of the 99th percentile, beside the others, on two cores."""

READY_SECONDS = 120.0
PROGRAM = "laggard-prolog"
REPOSITORY = Path(__file__).resolve().parents[1]

TIMED = """\
for ((n = 0; n < $2; n++)); do
    began=${EPOCHREALTIME/./}
    said=$("$1" 2>&1)
    status=$?
    printf '%s\\t%s\\t%s\\n' "$((${EPOCHREALTIME/./} - began))" "$status" "${said//$'\\n'/ }"
done
"""
"""A shell that runs the prolog so many times, and prints how long each took, in microseconds, with what it said."""


class Prolog(NamedTuple):
    seconds: float
    status: int
    said: str

    @property
    def way(self) -> str:
        if "no answer within" in self.said:
            return "no answer in time"
        if "for several jobs" in self.said:
            return "by another's check"
        return "by the agent" if "nothing critical (the agent, " in self.said else "by its own check"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=100, help="how many prologs alone, and how many bursts")
    parser.add_argument("--others", type=int, default=50, help="how many others run beside the one that is timed")
    parser.add_argument("--storm", type=int, default=200, help="how many start at the same moment")
    asked = parser.parse_args()
    need("cc")  # for laggard-ask
    with tempfile.TemporaryDirectory(prefix="laggard-bench-") as name:
        folder = Path(name)
        lay_out(folder)
        with agent(folder):
            first_pass(folder)
            alone = at_once(folder, 1, asked.runs)
            beside = [run for _ in range(max(1, asked.runs // 10)) for run in at_once(folder, asked.others + 1)]
            without_shell = [
                run for _ in range(max(1, asked.runs // 10)) for run in at_once(folder, asked.others + 1, 1, PROGRAM)
            ]
            storms = {f"{asked.storm} at once, with an agent": at_once(folder, asked.storm)}
        storms[f"{asked.storm} at once, without one"] = at_once(folder, asked.storm)
        with (folder / "slurm/gate.conf").open("a") as file:
            file.write("QUICK=off\nFLOCK=/nowhere\nASK=/nowhere\n")
        storms[f"{asked.storm} at once, each with its own check"] = at_once(folder, asked.storm)
    print("\nprolog, start to exit\n\n| what | p50 | p90 | p99 | budget of p99 | |\n|---|---|---|---|---|---|")
    fits = row("alone", alone, BUDGET_SECONDS)
    row(f"beside {asked.others} others", beside, None)
    fits &= row(f"laggard-prolog beside {asked.others} others", without_shell, BUDGET_SECONDS)
    for what, runs in storms.items():
        row(what, runs, None)
    print("\n| many at once | let in, and by which way |\n|---|---|")
    for what, runs in {"prolog.sh beside others": beside, "laggard-prolog": without_shell, **storms}.items():
        ways = Counter(run.way for run in runs)
        told = ", ".join(f"{count} {way}" for way, count in ways.most_common())
        print(f"| {what} | {sum(run.status == 0 for run in runs)} of {len(runs)}: {told} |")
    return 0 if fits else 1


def lay_out(folder: Path) -> None:
    """The scripts and laggard-ask, and what stands for /run/laggard."""
    shutil.copytree(REPOSITORY / "deploy/slurm", folder / "slurm")
    source = str(folder / "slurm/laggard-ask.c")
    for name in ("laggard-ask", PROGRAM):
        words = ("-O2", f'-DRUN="{folder}/run"', "-o", str(folder / "slurm" / name), source)
        subprocess.run(["cc", *words], check=True)
    (folder / "run/agent").mkdir(parents=True)
    for path in (folder, folder / "run", folder / "run/agent"):
        path.chmod(0o755)
    laggard = folder / "laggard"
    laggard.write_text(f'#!/bin/bash\nPYTHONPATH={REPOSITORY}/src exec {sys.executable} -m laggard "$@"\n')
    laggard.chmod(0o755)
    with (folder / "slurm/gate.conf").open("a") as file:
        file.write(f"LAGGARD={laggard}\nDISABLED={folder}/disabled\nRUN={folder}/run\n")
    for path in (laggard, folder / "slurm/gate.conf"):
        os.utime(path, (time.time() - 100, time.time() - 100))  # older than the ticket
    (folder / "agent.yaml").write_text(
        f"gate_socket: {folder}/run/agent/gate.sock\nlisten_address: 127.0.0.1:0\nras_interval_seconds: 0\n"
    )


@contextmanager
def agent(folder: Path) -> Iterator[None]:
    command = [str(folder / "laggard"), "agent", "--config", str(folder / "agent.yaml")]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.terminate()
        process.wait(60)


def first_pass(folder: Path) -> None:
    """Waits until the agent vouches for this machine."""
    deadline = time.monotonic() + READY_SECONDS
    while (run := at_once(folder, 1)[0]).way != "by the agent":
        if time.monotonic() > deadline:
            sys.exit(f"the agent does not vouch for this machine: {run.said}")
        time.sleep(0.5)


def at_once(folder: Path, count: int, runs: int = 1, script: str = "prolog.sh") -> list[Prolog]:
    """Starts `count` shells at the same moment, each with so many prologs one after the other."""
    go = folder / "go"
    os.mkfifo(go)
    waits = f"read -r _ <{go}\n{TIMED}"
    words = ["bash", "-c", waits, "bash", str(folder / "slurm" / script), str(runs)]
    shells = [subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env={}) for _ in range(count)]
    time.sleep(0.5 + count / 100)  # until each waits at the pipe
    descriptor = os.open(go, os.O_WRONLY)
    os.write(descriptor, b"go\n" * count)
    os.close(descriptor)
    printed = [shell.communicate()[0] for shell in shells]
    go.unlink()
    return [parsed(line) for text in printed for line in text.splitlines()]


def parsed(line: str) -> Prolog:
    microseconds, status, said = line.split("\t", 2)
    return Prolog(int(microseconds) / 1e6, int(status), said)


def row(name: str, runs: Sequence[Prolog], budget: float | None) -> bool:
    """Prints the percentiles, in milliseconds. Returns whether the 99th is within the budget."""
    seconds = [run.seconds for run in runs]
    cuts = statistics.quantiles(seconds, n=100, method="inclusive") if len(seconds) > 1 else seconds * 99
    told = " | ".join(f"{cuts[place - 1] * 1000:.1f} ms" for place in (50, 90, 99))
    fits = budget is None or cuts[98] <= budget
    mark = "" if budget is None else f"{budget * 1000:g} ms | {'ok' if fits else 'OVER'}"
    print(f"| {name} | {told} | {mark or ' |'} |")
    return fits


if __name__ == "__main__":
    raise SystemExit(main())
