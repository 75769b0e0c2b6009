"""How long SLURM's prolog takes that asks the agent, by curl and by Python: alone, beside 50 others that start at the
same moment, and 200 at once; and 200 at once without an agent. `--runs N`, `--storm N`, `--others N`.

The scripts of deploy/slurm run as they are shipped, with a real agent and a real laggard, on this machine.
"""

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

ALONE_SECONDS, BESIDE_SECONDS = 0.025, 0.3
"""The budgets with curl, on two cores: of the median alone, and of the 99th percentile beside the others."""

READY_SECONDS = 120.0
WAYS = {"curl": "CURL=/usr/bin/curl\n", "Python": f"CURL=/nowhere\nPYTHON={sys.executable}\n"}
"""What asks the agent, and the lines of gate.conf for it."""

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
    need("curl")
    beside, storm = f"beside {asked.others} others", f"{asked.storm} at once"
    done: dict[str, list[Prolog]] = {}
    with tempfile.TemporaryDirectory(prefix="laggard-bench-") as name:
        folder = Path(name)
        lay_out(folder)
        with agent(folder):
            for way in WAYS:
                ask_by(folder, way)
                first_pass(folder)
                done[f"alone, {way}"] = at_once(folder, 1, asked.runs)
                bursts = [at_once(folder, asked.others + 1) for _ in range(max(1, asked.runs // 10))]
                done[f"{beside}, {way}"] = [run for burst in bursts for run in burst]
                done[f"{storm}, {way}"] = at_once(folder, asked.storm)
        done[f"{storm}, without an agent"] = at_once(folder, asked.storm)
    print("\nprolog, start to exit\n\n| what | p50 | p90 | p99 | budget | |\n|---|---|---|---|---|---|")
    budgets = {"alone, curl": (50, ALONE_SECONDS), f"{beside}, curl": (99, BESIDE_SECONDS)}
    fits = [row(what, runs, budgets.get(what)) for what, runs in done.items()]
    print("\n| many at once | let in, and by which way |\n|---|---|")
    for what, runs in done.items():
        ways = Counter(run.way for run in runs)
        told = ", ".join(f"{count} {way}" for way, count in ways.most_common())
        print(f"| {what} | {sum(run.status == 0 for run in runs)} of {len(runs)}: {told} |")
        fits.append(not ways["no answer in time"])
    return 0 if all(fits) else 1


def lay_out(folder: Path) -> None:
    """The scripts, and what stands for /run/laggard."""
    shutil.copytree(REPOSITORY / "deploy/slurm", folder / "slurm")
    (folder / "run/agent").mkdir(parents=True)
    for path in (folder, folder / "run", folder / "run/agent"):
        path.chmod(0o755)
    laggard = folder / "laggard"
    laggard.write_text(f'#!/bin/bash\nPYTHONPATH={REPOSITORY}/src exec {sys.executable} -m laggard "$@"\n')
    laggard.chmod(0o755)
    with (folder / "slurm/gate.conf").open("a") as file:
        file.write(f"LAGGARD={laggard}\nDISABLED={folder}/disabled\nRUN={folder}/run\n")
    os.utime(laggard, (time.time() - 100, time.time() - 100))  # older than the ticket
    (folder / "agent.yaml").write_text(
        f"gate_socket: {folder}/run/agent/gate.sock\nlisten_address: 127.0.0.1:0\nras_interval_seconds: 0\n"
    )


def ask_by(folder: Path, way: str) -> None:
    conf = folder / "slurm/gate.conf"
    with conf.open("a") as file:
        file.write(WAYS[way])
    os.utime(conf, (time.time() - 100, time.time() - 100))


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


def at_once(folder: Path, count: int, runs: int = 1) -> list[Prolog]:
    """Starts `count` shells at the same moment, each with so many prologs one after the other."""
    go = folder / "go"
    os.mkfifo(go)
    waits = f"read -r _ <{go}\n{TIMED}"
    words = ["bash", "-c", waits, "bash", str(folder / "slurm/prolog.sh"), str(runs)]
    # As slurmd, next to nothing: by the one variable that is kept, a test finds what is left behind.
    kept = {name: value for name, value in os.environ.items() if name == "LAGGARD_BENCH_RUN"}
    shells = [subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=kept) for _ in range(count)]
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


def row(name: str, runs: Sequence[Prolog], budget: tuple[int, float] | None) -> bool:
    """Prints the percentiles, in milliseconds. Returns whether the one with a budget is within it."""
    seconds = [run.seconds for run in runs]
    cuts = statistics.quantiles(seconds, n=100, method="inclusive") if len(seconds) > 1 else seconds * 99
    told = " | ".join(f"{cuts[place - 1] * 1000:.1f} ms" for place in (50, 90, 99))
    if budget is None:
        print(f"| {name} | {told} | | |")
        return True
    place, most = budget
    fits = cuts[place - 1] <= most
    print(f"| {name} | {told} | p{place}: {most * 1000:g} ms | {'ok' if fits else 'OVER'} |")
    return fits


if __name__ == "__main__":
    raise SystemExit(main())
