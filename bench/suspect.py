"""`laggard ring --pairs --suspect` on real processes in network namespaces whose links have a rate: is a slow suspect
confirmed, and an innocent one acquitted?

    python bench/suspect.py                 20 runs of each case; goes on where it was
    python bench/suspect.py --runs 2        fewer
    python bench/suspect.py --minutes 10    as many as begin in that time; the next call goes on
    python bench/suspect.py --table         the table of the runs so far, into docs/measurements.md

Needs root and iproute2. The suspect and three peers are each `laggard ring` in a namespace of its own. What is slow has
a tenth of the rate. Who is what follows from the run's number.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from common.figures import put_into
from common.refused import refuse

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))
from support.namespaces import Namespaces, can_make

DOCUMENT = Path(__file__).parents[1] / "docs" / "measurements.md"
STATE = Path(__file__).parents[1] / "out" / "suspect.jsonl"
RATE, SLOW_RATE = "200mbit", "20mbit"
NODES = 4
LONG = 500.0


class Case(NamedTuple):
    """`outcome`: what is to come of the suspect. `shape`: makes the links of a run, by the suspect and the others."""

    outcome: str
    shape: Callable[[Namespaces, int, list[int]], None]


CASES = {
    "innocent: nothing is slow": Case("acquitted", lambda spaces, suspect, others: None),
    "innocent: its link to one peer is slow": Case(
        "acquitted", lambda spaces, suspect, others: spaces.shape_link(*sorted((suspect, others[0])), SLOW_RATE)
    ),
    "innocent: one of its peers is slow": Case(
        "acquitted", lambda spaces, suspect, others: spaces.shape(others[0], SLOW_RATE)
    ),
    "the suspect is slow": Case("confirmed", lambda spaces, suspect, others: spaces.shape(suspect, SLOW_RATE)),
    "the suspect is slow, and one of its peers": Case(
        "confirmed",
        lambda spaces, suspect, others: [spaces.shape(node, SLOW_RATE) for node in (suspect, others[0])] and None,
    ),
}


class Run(NamedTuple):
    case: str
    number: int
    suspect: int
    outcome: str
    right: bool
    ratio: float | None
    seconds: float
    load: float
    why: str


def run(case: str, number: int) -> Run:
    """One measurement of one suspect."""
    dice = random.Random(f"{case} {number}")
    suspect = dice.randrange(NODES)
    others = [node for node in range(NODES) if node != suspect]
    dice.shuffle(others)
    with Namespaces(NODES, RATE) as spaces:
        CASES[case].shape(spaces, suspect, others)
        began = time.monotonic()
        document = json.loads(_ring(spaces, suspect))
        seconds = time.monotonic() - began
    found = document["suspect"] or {"outcome": "none", "why": document["unknown"], "ratio": None}
    right = found["outcome"] == CASES[case].outcome
    load = os.getloadavg()[0]
    return Run(case, number, suspect, found["outcome"], right, found["ratio"], seconds, load, found["why"])


def _ring(spaces: Namespaces, suspect: int) -> str:
    """Runs the nodes, and returns what node 0 wrote."""
    words = ("ring", "--pairs", "--suspect", f"n{suspect}", "--format", "json", "--seconds", "300", "--deadline", "400")
    place = ("--rendezvous", f"{spaces.address(0)}:29400", "--nodes", str(spaces.count), "--device", "cpu")
    processes = []
    for node in range(spaces.count):
        command = [sys.executable, "-m", "laggard", *words, *place, "--join-seconds", "200", "--node-rank", str(node)]
        environ = {"LAGGARD_NODE": f"n{node}", "OMP_NUM_THREADS": "1"}
        pipe = subprocess.PIPE
        processes.append(spaces.start(node, command, environ, stdout=pipe, stderr=subprocess.DEVNULL))
    try:
        return [process.communicate(timeout=LONG)[0] for process in processes][0]
    finally:
        for process in processes:
            process.kill()
            process.wait()


def saved(state: Path) -> Iterator[Run]:
    """The runs so far; a line that was cut off is none."""
    for line in state.read_text().splitlines() if state.exists() else ():
        try:
            row: dict[str, Any] = json.loads(line)
        except ValueError:
            continue
        yield Run(**row)


def table(runs: list[Run]) -> str:
    lines = [
        "| the suspect | right | its rate, of the peers' (least, most) | seconds (the longest) |",
        "|---|---|---|---|",
    ]
    for case in CASES:
        own = [each for each in runs if each.case == case]
        if own:
            ratios = sorted(each.ratio for each in own if each.ratio is not None)
            seconds = sorted(each.seconds for each in own)
            right = f"{sum(each.right for each in own)} of {len(own)} {CASES[case].outcome}"
            shares = f"{100 * ratios[0]:.0f} %, {100 * ratios[-1]:.0f} %" if ratios else "not measured"
            lines.append(f"| {case} | {right} | {shares} | {seconds[len(own) // 2]:.0f} ({seconds[-1]:.0f}) |")
    return "".join(f"{line}\n" for line in lines)


def write_table(runs: list[Run]) -> None:
    DOCUMENT.write_text(put_into(DOCUMENT.read_text(), "bench/suspect.py", table(runs)))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--cases", nargs="*", default=list(CASES), choices=list(CASES))
    parser.add_argument("--minutes", type=float, default=math.inf, help="no run begins later than this")
    parser.add_argument("--state", type=Path, default=STATE, help="where runs are kept: one that is there stays")
    parser.add_argument("--table", action="store_true", help="run nothing; write the table into docs/measurements.md")
    arguments = parser.parse_args()
    if not arguments.table:
        if not can_make():
            refuse("needs root, and iproute2's network namespaces")
        _run_all(arguments)
    runs = list(saved(arguments.state))
    if arguments.table:
        write_table(runs)
    print(table(runs))
    return 0 if all(each.right for each in runs) else 1


def _run_all(arguments: argparse.Namespace) -> None:
    done = {(each.case, each.number) for each in saved(arguments.state)}
    arguments.state.parent.mkdir(parents=True, exist_ok=True)
    until = time.monotonic() + 60 * arguments.minutes
    for number in range(arguments.runs):
        for case in arguments.cases:
            if (case, number) not in done and time.monotonic() < until:
                each = run(case, number)
                said = f"{each.case}: {each.outcome} in {each.seconds:.0f} s, load {each.load:.1f}: {each.why}"
                print(f"{'right' if each.right else 'WRONG'}, {said}", file=sys.stderr)
                with arguments.state.open("a") as file:
                    file.write(json.dumps(each._asdict()) + "\n")


if __name__ == "__main__":
    raise SystemExit(main())
