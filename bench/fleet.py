"""A fleet of up to 16,384 nodes in front of one collector: are its verdicts right, what does it take, and what happens
when it is started anew, when agents are of two releases, and when half of the network is away?

    python bench/fleet.py --nodes 1024 4096
    python bench/fleet.py --nodes 4096 --measure verdicts partition --out fleet.json

The agents are a few processes that answer at as many addresses of 127.0.0.0/8; 1 % of them are away, 5 % lie or are
slow, and one of 200 is being started anew at a time (simulated_fleet/plan.py). Their reports are those of recorded
machines, their jobs are simulated. The collector is `laggard collector`, with its defaults. The agents' CPU time is
not in its own, but they share the machine.
"""

import argparse
import contextlib
import json
import math
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Set
from functools import partial
from pathlib import Path
from typing import Any, Final

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))

from simulated_fleet import answers as answering
from simulated_fleet.agents import Orders, agents, is_cut_off, targets
from simulated_fleet.answers import Answers
from simulated_fleet.collector import Collector
from simulated_fleet.judge import FALSE, MISSED, RIGHT, UNKNOWN, Judged, counts, judged, total, wrong
from simulated_fleet.plan import STOPS, Plan, made
from support.ports import free_port

LOOK_SECONDS: Final = 1.0
HUNG_SECONDS: Final = 75.0
"""The time after which a silent rank must be named: 60 s by the rule (docs/development/location.md), and a round."""

LONG_LOOK_SECONDS: Final = 10.0
"""The time between two looks at every culprit: each takes some hundred questions, which the collector answers."""

PARTITION_SECONDS: Final = 60.0
FRESH_ANSWERS: Final = 5
Found = dict[str, Any]


class Fleet:
    """The fleet while it runs, with its collector. `patience`: the seconds that anything may take; `rounds`: of how
    many it is measured what the collector takes."""

    def __init__(
        self, plan: Plan, orders: Orders, collector: Collector, zero: float, patience: float, rounds: int
    ) -> None:
        self.plan = plan
        self.orders = orders
        self.collector = collector
        self.patience = patience
        self.rounds = rounds
        self._zero = zero

    @property
    def now(self) -> float:
        return time.monotonic() - self._zero

    def judged(self) -> list[Judged]:
        """What the collector says of all jobs now: where it names somebody, whom."""
        verdicts = self.collector.verdicts()
        found = {key: {"verdict": verdict, "culprits": []} for key, verdict in verdicts.items()}
        failing = [key for key, verdict in verdicts.items() if verdict == "fail"]
        return judged(self.plan, found | {key: self.collector.location(key) for key in failing}, self.now)

    def wait(self, until: Callable[[], bool], seconds: float | None = None) -> float | None:
        """The seconds until it holds; None where it does not within the patience."""
        began = time.monotonic()
        while not until():
            if time.monotonic() - began > (seconds or self.patience):
                return None
            time.sleep(LOOK_SECONDS)
        return round(time.monotonic() - began, 1)

    def all_known(self) -> bool:
        """Whether there is a verdict, be it unknown, on every job whose agents are not all away or lie."""
        known = self.collector.verdicts()
        return all(job.key in known for job in self.plan.jobs if len(self.plan.unseen(job)) < job.nodes)

    def next_rounds(self, count: int) -> list[float]:
        """Waits for so many rounds that begin from now on; returns how long each took."""
        lengths: list[float] = []
        before = self.collector.age_seconds()
        at = time.monotonic()
        deadline = at + self.patience
        while len(lengths) <= count and time.monotonic() < deadline:
            time.sleep(min(LOOK_SECONDS, 0.5))
            age = self.collector.age_seconds()
            passed = time.monotonic() - at
            if age is not None and (before is None or age < before + passed - 0.4):
                lengths.append(self.collector.metric("laggard_collector_round_seconds"))
                before, at = age, time.monotonic()
        return lengths[1:]  # the first had begun already


def measure_verdicts(fleet: Fleet) -> Found:
    """The verdicts of a collector that has just started, and what it takes."""
    first = fleet.wait(fleet.all_known)
    known = first is not None
    named = fleet.wait(lambda: _names_the_slow(fleet)) if known else None
    left = STOPS[1] + HUNG_SECONDS - fleet.now if any(job.stop < math.inf for job in fleet.plan.jobs) else 0.0
    if known and left > 0:
        time.sleep(left)
    began, before = time.monotonic(), fleet.collector.usage()
    lengths = fleet.next_rounds(fleet.rounds)
    after = fleet.collector.usage()
    share = 100 * (after.cpu - before.cpu) / (time.monotonic() - began)
    found = fleet.judged()
    fresh = [fleet.collector.fresh_seconds(fleet.plan.jobs[0].key) for _ in range(FRESH_ANSWERS)]
    return {
        "seconds to the first verdict on every job": first,
        "and until all slow ranks seen whole are named": None if named is None else round(named + (first or 0), 1),
        "CPU of a core, %": round(share, 1),
        "CPU seconds a round": round((after.cpu - before.cpu) / max(1, len(lengths)), 2),
        "resident memory, MiB": round(after.memory),
        "seconds of a fresh answer on the largest job": round(statistics.median(fresh), 2),
        "seconds a round": [round(each, 1) for each in lengths],
        **_outcomes(found),
        "defects": fleet.collector.defects(),
    }


def _names_the_slow(fleet: Fleet) -> bool:
    found = fleet.judged()
    return all(each.outcome == RIGHT for each in found if each.job.fault == "slow_gpu" and each.whole)


def _outcomes(found: list[Judged]) -> Found:
    names = (RIGHT, UNKNOWN, MISSED, FALSE)
    told: Found = {name: total(found, name) for name in names}
    told["machines named whose agents claim to be slow"] = sum(each.liars for each in found)
    return {**told, "jobs": counts(found), "wrong": wrong(found)}


def measure_herd(fleet: Fleet) -> Found:
    """The collector is killed and started again: what it asks at once, until when it knows all jobs, and its
    incidents."""
    fleet.next_rounds(1)
    before = {each["id"]: each for each in fleet.collector.open_incidents()}
    failing = {key for key, verdict in fleet.collector.verdicts().items() if verdict == "fail"}
    fleet.collector.kill()
    fleet.orders.forget_most()
    fleet.collector.start()
    known = fleet.wait(fleet.all_known)
    back = fleet.wait(lambda: failing <= _failing(fleet))
    fleet.next_rounds(1)
    after = {each["id"]: each for each in fleet.collector.open_incidents()}
    twice = len(after) - len({_what(each) for each in after.values()})
    return {
        "connections at once": fleet.orders.most_at_once(),
        "seconds to the first verdict on every job": known,
        "and until all that failed before fail again": None if back is None else round(back + (known or 0), 1),
        "open incidents before": len(before),
        "of these lost": len(before.keys() - after.keys()),
        "opened twice": twice,
        "opened anew": len(after.keys() - before.keys()),
        "resident memory, MiB": round(fleet.collector.usage().memory),
        "defects": fleet.collector.defects(),
    }


def _failing(fleet: Fleet) -> set[str]:
    return {key for key, verdict in fleet.collector.verdicts().items() if verdict == "fail"}


def _what(incident: Mapping[str, Any]) -> tuple[Any, ...]:
    culprit = incident["culprit"]
    return incident["owner"], incident["job_id"], culprit["kind"], tuple(culprit["ranks"])


def measure_upgrade(fleet: Fleet) -> Found:
    """Half of the agents, then all, and then none answer as those of the next release."""
    told: Found = {}
    for name, share in (("half", 0.5), ("all", 1.0), ("none again", 0.0)):
        fleet.orders.later[0] = share
        fleet.next_rounds(2)
        found = fleet.judged()
        told |= {f"{name}: {outcome}": total(found, outcome) for outcome in (RIGHT, UNKNOWN, MISSED, FALSE)}
        told |= {f"{name}: wrong": wrong(found)} if wrong(found) else {}
    return {**told, "defects": fleet.collector.defects()}


def measure_partition(fleet: Fleet) -> Found:
    """Half of the agents answer nothing for a minute. A job whose agents are all away is to be unknown, no other is to
    be accused; then all come back."""
    fleet.next_rounds(1)
    before = fleet.judged()
    falsely = {each.job.key for each in before if each.outcome == FALSE}
    lost = {job.key for job in fleet.plan.jobs if is_cut_off(job.first, fleet.plan.nodes)}
    fleet.orders.partition[0], began = 1.0, time.monotonic()
    unknown, oldest = None, 0.0
    accused: set[str] = set()
    looked = began
    while (passed := time.monotonic() - began) < fleet.patience and (unknown is None or passed < PARTITION_SECONDS):
        time.sleep(LOOK_SECONDS)
        oldest = max(oldest, fleet.collector.age_seconds() or 0.0)
        if unknown is None and _are_unknown(fleet, lost):
            unknown = round(time.monotonic() - began, 1)
        if time.monotonic() - looked > LONG_LOOK_SECONDS:
            accused |= {each.job.key for each in fleet.judged() if each.outcome == FALSE} - falsely
            looked = time.monotonic()
    fleet.orders.partition[0] = 0.0
    were = fleet.collector.verdicts()
    right = {each.job.key for each in before if each.outcome == RIGHT}
    back = fleet.wait(lambda: right <= {each.job.key for each in fleet.judged() if each.outcome == RIGHT})
    return {
        "jobs that are away": len(lost),
        "seconds until all of them are unknown": unknown,
        "of them unknown at the end": sum(were.get(key, "unknown") == "unknown" for key in lost),
        "the oldest that was shown, seconds": round(oldest, 1),
        "accused falsely meanwhile": len(accused),
        "seconds until the verdicts are as before": back,
        "not as before": [each.said for each in fleet.judged() if each.job.key in right and each.outcome != RIGHT],
        "defects": fleet.collector.defects(),
    }


def _are_unknown(fleet: Fleet, lost: Set[str]) -> bool:
    verdicts = fleet.collector.verdicts()
    return all(verdicts.get(key, "unknown") == "unknown" for key in lost)


MEASURES: Final[Mapping[str, Callable[[Fleet], Found]]] = {
    "verdicts": measure_verdicts,
    "herd": measure_herd,
    "upgrade": measure_upgrade,
    "partition": measure_partition,
}


@contextlib.contextmanager
def running(options: argparse.Namespace, nodes: int) -> Iterator[Fleet]:
    with tempfile.TemporaryDirectory(prefix="laggard-fleet-") as name:
        folder = Path(name)
        machines = answering.reports(folder / "machines")
        plan = made(nodes, options.jobs, options.seed, answering.ILL)
        orders, port = Orders.made(options.processes), free_port()
        zero = time.monotonic()
        with agents(partial(Answers, plan, zero, machines), orders, options.processes, port):
            collector = Collector(folder, targets(plan, port), json.loads(options.settings))
            try:
                yield Fleet(plan, orders, collector, zero, options.patience, options.rounds)
            finally:
                collector.end()


def show(results: Mapping[int, Mapping[str, Found]]) -> None:
    """One table for each measurement, with a column for each size."""
    for measure in dict.fromkeys(name for found in results.values() for name in found):
        sizes = [size for size in results if measure in results[size]]
        print(f"\n{measure}\n\n| nodes | {' | '.join(f'{size:,}' for size in sizes)} |\n|---{'|---' * len(sizes)}|")
        for row in dict.fromkeys(key for size in sizes for key in results[size][measure]):
            values = [results[size][measure].get(row, "") for size in sizes]
            if not any(isinstance(value, dict) for value in values):
                print(f"| {row} | {' | '.join(_text(value) for value in values)} |")


def _text(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    return "not within the patience" if value is None else str(value)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, nargs="+", default=[16_384])
    parser.add_argument("--jobs", type=int, default=500, help="beside the largest one")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--processes", type=int, default=1, help="that answer as agents")
    parser.add_argument("--measure", nargs="+", choices=MEASURES, default=list(MEASURES))
    parser.add_argument("--patience", type=float, default=300.0, help="seconds that anything may take")
    parser.add_argument("--rounds", type=int, default=3, help="for which is measured what the collector takes")
    parser.add_argument("--settings", default="{}", help="of the collector, as JSON")
    parser.add_argument("--out", type=Path, help="a file for all figures, as JSON")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that nothing that was started is left behind
    results: dict[int, dict[str, Found]] = {}
    for nodes in options.nodes:
        with running(options, nodes) as fleet:
            for name in options.measure:
                results.setdefault(nodes, {})[name] = MEASURES[name](fleet)
                print(f"{nodes} nodes, {name}: {json.dumps(results[nodes][name])}", file=sys.stderr, flush=True)
    show(results)
    if options.out:
        options.out.write_text(json.dumps(results, indent=1) + "\n")
    return 1 if any(found.get(FALSE) for each in results.values() for found in each.values()) else 0


if __name__ == "__main__":
    raise SystemExit(main())
