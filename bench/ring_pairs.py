"""`laggard ring --pairs` on real processes in network namespaces whose links have a rate: who is named?

    python bench/ring_pairs.py                     10 runs of each case at 8 and 16 nodes; goes on where it was
    python bench/ring_pairs.py --runs 1 --nodes 8  fewer
    python bench/ring_pairs.py --minutes 10        as many as begin in that time; the next call goes on
    python bench/ring_pairs.py --table             the table of the runs so far, into docs/rings.md

Needs root, iproute2 and a cgroup of CPUs. Each node is `laggard ring --pairs` in a namespace of its own. A slow node
has a tenth of the rate, as a slow link has; a node that computes slowly has a tenth of one CPU. Which node it is
follows from the run's number.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import resource
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

DOCUMENT = Path(__file__).parents[1] / "docs" / "rings.md"
STATE = Path(__file__).parents[1] / "out" / "ring_pairs.jsonl"
RATE, SLOW_RATE = "200mbit", "20mbit"
SLOW_CPU = 0.1
BUDGET_SECONDS = 60.0
LONG = 900.0


class Fault(NamedTuple):
    """What is wrong in a run, by nodes' numbers."""

    nodes: tuple[int, ...] = ()
    link: tuple[int, int] | None = None
    compute: int | None = None


CASES: dict[str, Callable[[random.Random, int], Fault]] = {
    "no fault": lambda dice, count: Fault(),
    "one slow node": lambda dice, count: Fault(nodes=(dice.randrange(count),)),
    "two slow nodes": lambda dice, count: Fault(nodes=tuple(sorted(dice.sample(range(count), 2)))),
    "one slow link": lambda dice, count: Fault(link=tuple(sorted(dice.sample(range(count), 2)))),  # type: ignore[arg-type]
    "one node computes slowly": lambda dice, count: Fault(compute=dice.randrange(count)),
}


class Run(NamedTuple):
    case: str
    nodes: int
    number: int
    fault: Fault
    named: Fault
    """Who was named, in the same form."""
    right: bool
    rounds: int
    seconds: float
    """From the first process to the last one's end."""
    cpu_seconds: float
    status: int
    text: str


def run(case: str, count: int, number: int) -> Run:
    """One ring with one fault."""
    fault = CASES[case](random.Random(f"{case} {count} {number}"), count)
    with Namespaces(count, RATE) as spaces:
        for node in fault.nodes:
            spaces.shape(node, SLOW_RATE)
        if fault.link is not None:
            spaces.shape_link(*fault.link, SLOW_RATE)
        began, cpu = time.monotonic(), _cpu_seconds()
        outputs = _ring(spaces, fault)
        seconds = time.monotonic() - began
    document = json.loads(outputs[0])
    named = _named(document)
    right = named == fault and document["verdict"] == ("ok" if fault == Fault() else "fail")
    status = {"ok": 0, "fail": 1}.get(document["verdict"], 2)
    rounds = document["pairs"]["rounds"] if document["pairs"] else 0
    return Run(case, count, number, fault, named, right, rounds, seconds, _cpu_seconds() - cpu, status, _text(document))


def _ring(spaces: Namespaces, fault: Fault) -> list[str]:
    """Runs a ring's nodes, and returns what each wrote."""
    tasks = None if fault.compute is None else spaces.slow_cpu(fault.compute, SLOW_CPU)
    place = ("--rendezvous", f"{spaces.address(0)}:29400", "--nodes", str(spaces.count), "--device", "cpu")
    processes = []
    for node in range(spaces.count):
        command = [
            sys.executable,
            "-m",
            "laggard",
            "ring",
            "--pairs",
            "--format",
            "json",
            "--deadline",
            "800",
            "--join-seconds",
            "300",
        ]
        environ = {"LAGGARD_NODE": f"n{node}", "OMP_NUM_THREADS": "1"}
        command = [*command, *place, "--node-rank", str(node)]
        group = tasks if node == fault.compute else None
        processes.append(spaces.start(node, command, environ, group, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL))
    try:
        return [process.communicate(timeout=LONG)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()


def _named(document: dict[str, Any]) -> Fault:
    """Whom the findings accuse: on CPUs, slow pairs of a node that computes slowly are no second fault."""
    pairs = document["pairs"] or {"slow_nodes": (), "slow_links": (), "slow_compute": ()}
    computing = pairs["slow_compute"]
    compute = (computing[0] if len(computing) == 1 else -1) if computing else None
    nodes = tuple(node for node in pairs["slow_nodes"] if node not in pairs["slow_compute"])
    links = [tuple(link) for link in pairs["slow_links"] if not set(link) & set(computing)]
    return Fault(nodes, (links[0] if len(links) == 1 else None) if len(links) < 2 else (-1, -1), compute)


def _text(document: dict[str, Any]) -> str:
    return "; ".join(
        [*(f"{found['device']} {found['summary']}" for found in document["findings"]), document["unknown"]]
    )


def _cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def saved(state: Path) -> Iterator[Run]:
    """The runs so far; a line that was cut off is none."""
    for line in state.read_text().splitlines() if state.exists() else ():
        try:
            row = json.loads(line)
        except ValueError:
            continue
        yield Run(**{**row, "fault": _fault(row["fault"]), "named": _fault(row["named"])})


def _fault(row: list[Any]) -> Fault:
    nodes, link, compute = row
    return Fault(tuple(nodes), None if link is None else tuple(link), compute)  # type: ignore[arg-type]


def table(runs: list[Run]) -> str:
    lines = [
        "| fault | nodes | named right | rounds | seconds (the longest) | CPU seconds |",
        "|---|---|---|---|---|---|",
    ]
    for count in sorted({each.nodes for each in runs}):
        for case in CASES:
            own = [each for each in runs if (each.case, each.nodes) == (case, count)]
            if own:
                lines.append(_row(case, count, own))
    return "".join(f"{line}\n" for line in lines)


def _row(case: str, count: int, runs: list[Run]) -> str:
    def middle(values: list[float]) -> float:
        return sorted(values)[len(values) // 2]

    seconds = [each.seconds for each in runs]
    return (
        f"| {case} | {count} | {sum(each.right for each in runs)} of {len(runs)} "
        f"| {middle([each.rounds for each in runs]):.0f} | {middle(seconds):.0f} ({max(seconds):.0f}) "
        f"| {middle([each.cpu_seconds for each in runs]):.0f} |"
    )


def write_table(runs: list[Run]) -> None:
    DOCUMENT.write_text(put_into(DOCUMENT.read_text(), "bench/ring_pairs.py", table(runs)))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--nodes", type=int, nargs="*", default=[8, 16])
    parser.add_argument("--cases", nargs="*", default=list(CASES), choices=list(CASES))
    parser.add_argument("--minutes", type=float, default=math.inf, help="no run begins later than this")
    parser.add_argument(
        "--state", type=Path, default=STATE, help="where runs are kept: one that is there is not repeated"
    )
    parser.add_argument("--table", action="store_true", help="run nothing; write the table into docs/rings.md")
    arguments = parser.parse_args()
    if not arguments.table:
        if not can_make():
            refuse("needs root, and iproute2's network namespaces")
        _run_all(arguments)
    runs = list(saved(arguments.state))
    if arguments.table:
        write_table(runs)
    print(table(runs))
    slowest = max((each.seconds for each in runs if (each.case, each.nodes) == ("one slow node", 16)), default=0.0)
    print(f"16 nodes with one slow: {slowest:.0f} s at most, budget {BUDGET_SECONDS:.0f} s")
    return 0 if all(each.right for each in runs) and slowest <= BUDGET_SECONDS else 1


def _run_all(arguments: argparse.Namespace) -> None:
    done = {(each.case, each.nodes, each.number) for each in saved(arguments.state)}
    arguments.state.parent.mkdir(parents=True, exist_ok=True)
    until = time.monotonic() + 60 * arguments.minutes
    for number in range(arguments.runs):
        for count in arguments.nodes:
            for case in arguments.cases:
                if (case, count, number) not in done and time.monotonic() < until:
                    each = run(case, count, number)
                    print(_line(each), file=sys.stderr)
                    with arguments.state.open("a") as file:
                        file.write(json.dumps(each._asdict()) + "\n")


def _line(each: Run) -> str:
    right, load = "right" if each.right else "WRONG", os.getloadavg()[0]
    what = f"{each.case}, {each.nodes} nodes, {tuple(each.fault)}"
    return f"{right} {each.seconds:.0f} s, load {load:.1f}: {what}: {each.text}"


if __name__ == "__main__":
    raise SystemExit(main())
