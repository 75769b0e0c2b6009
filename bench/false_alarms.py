"""Measures how often healthy jobs are accused where noise lasts, and what that costs in finding a slow rank.

    python bench/false_alarms.py                              everything, some twenty minutes on two idle cores
    python bench/false_alarms.py --quick                      a part of it, a minute
    python bench/false_alarms.py --ranks 8 --rho 0.95 --sd 0.02 --hours 20
    python bench/false_alarms.py --resume                     goes on where a run with the same seed was stopped
    python bench/false_alarms.py --write                      puts the tables into benchmark-tables.md, too

Live jobs go through the collector's own parts, round by round (bench/common/live_job.py). Recordings are healthy
jobs of the three simulators, with the same noise as each of them draws it. docs/development/benchmark.md says what
the tables mean."""

import argparse
import contextlib
import itertools
import json
import math
import multiprocessing
import random
import statistics
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))
import fluid_simulator.cases as fluid
import laggard_bench.cases as bench
import laggard_bench.lasting
import simulator.noise
from common.figures import put_into
from common.live_job import VICTIM, Job, Noise, rounds_of
from common.resumed import results
from common.scratch import scratch
from laggard_bench.figures import wilson
from quality.laggard import locate
from quality.run import progress
from simulator.case import Case, simulate
from simulator.recording import write

from laggard.model import Location

ROOT: Final = Path(__file__).resolve().parents[1]
RANKS: Final = (2, 8, 64)
STEP_SECONDS: Final = (0.25, 1.0, 10.0)
RHOS: Final = (0.0, 0.5, 0.9, 0.95, 0.98)
SDS: Final = (0.01, 0.02, 0.05)
DATA: Final = (Noise(0.93, 0.01, lengths=0.08), Noise(0.93, 0.01, data=0.08))
"""What ranks are given to work on differs: for some 14 steps, or for good."""
SLOWER: Final = (0.05, 0.2)
ONSET_MINUTES, AFTER_MINUTES = 10.0, 15.0
LAYOUTS: Final = ("dp8", "ddp16", "zero3_32", "moe32", "dp=4,tp=2,pp=2,schedule=1f1b,micro=4")
CASE_STEPS: Final = 120
"""The steps of tests/simulator's cases; the others' are as long as their sets' are."""
MAX_RANKS: Final = 64
"""The ranks of a recording's job at most: larger ones take most of the time, and tell no more of noise."""
HEALTHY: Final = "healthy"
SIMULATORS: Final = ("tests/simulator", "laggard-bench", "fluid_simulator")


class Unit(NamedTuple):
    """What is run at once, the `number`-th of its kind. `what`: HEALTHY, one of SLOWER or one of SIMULATORS; `ranks`,
    `step_seconds` and `minutes` are those of live jobs."""

    what: str
    number: int
    noise: Noise
    ranks: int = 0
    step_seconds: float = 0.0
    minutes: float = 0.0


def unit_of(what: str, number: int, noise: Sequence[float], *live: Any) -> Unit:
    return Unit(what, number, Noise(*noise), *live)


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--seed", type=int, default=1)
    made.add_argument("--hours", type=float, default=2.0, help="of healthy jobs, for each noise, size and step")
    made.add_argument("--jobs", type=int, default=2, help="with a slow rank, for each noise, size, step and slowness")
    made.add_argument("--cases", type=int, default=10, help="recordings of each simulator, for each noise")
    made.add_argument("--ranks", type=int, action="append", help="only live jobs of so many; may be given again")
    made.add_argument("--rho", type=float, action="append", help="only noise of this correlation from step to step")
    made.add_argument("--sd", type=float, action="append", help="only noise of this standard deviation")
    made.add_argument("--quick", action="store_true")
    made.add_argument("--processes", type=int, default=2)
    made.add_argument("--out", type=Path, default=ROOT / "out" / "false_alarms")
    made.add_argument("--resume", action="store_true", help="go on where a run with the same seed was stopped")
    made.add_argument("--minutes", type=float, help="stop after so many, and tell of what was done")
    made.add_argument("--write", action="store_true", help="put the tables into benchmark-tables.md, too")
    return made


def units(flags: argparse.Namespace) -> Iterator[Unit]:
    """Everything that is to be run."""
    asked = itertools.product(flags.rho or RHOS, flags.sd or SDS)
    noises = [Noise(rho, sd) for rho, sd in asked] + list(() if flags.rho or flags.sd else DATA)
    for noise in noises:
        for live in itertools.product(flags.ranks or RANKS, STEP_SECONDS):
            for number in range(max(1, round(flags.hours))):
                yield Unit(HEALTHY, number, noise, *live, 60 * min(1.0, flags.hours))
            for share, number in itertools.product(SLOWER, range(flags.jobs)):
                yield Unit(str(share), number, noise, *live, ONSET_MINUTES + AFTER_MINUTES)
        for name, number in itertools.product(SIMULATORS, range(flags.cases)):
            yield Unit(name, number, noise)


def run_unit(task: tuple[int, Unit]) -> tuple[Unit, dict[str, Any]]:
    seed, unit = task
    if unit.what in SIMULATORS:
        return unit, recorded(seed, unit)
    slower = 0.0 if unit.what == HEALTHY else float(unit.what)
    job = Job(unit.ranks, unit.step_seconds, unit.noise, unit.minutes, slower, ONSET_MINUTES if slower else 0.0)
    rng = np.random.default_rng([seed, zlib.crc32(repr(unit).encode())])
    return unit, with_a_slow_rank(job, rng) if slower else healthy(job, rng)


def ranks_named(location: Location) -> set[int]:
    return {rank for culprit in location.culprits for rank in culprit.ranks}


def healthy(job: Job, rng: np.random.Generator) -> dict[str, Any]:
    """Counts of a healthy job: rounds, verdicts that were drawn, those that accuse, rounds that told an accusation, and
    incidents."""
    found = dict.fromkeys(("rounds", "drawn", "false", "told", "incidents"), 0)
    for each in rounds_of(job, rng):
        found["rounds"] += 1
        found["drawn"] += each.drawn is not None
        found["false"] += bool(each.drawn and each.drawn.culprits)
        found["told"] += bool(each.told.culprits)
        found["incidents"] += each.opened
    return found


def with_a_slow_rank(job: Job, rng: np.random.Generator) -> dict[str, Any]:
    """Counts of the verdicts that are drawn once the rank is slow: all, those that name it alone, and those that name
    an innocent. `seconds`: when the first of them named it alone, after it became slow; None: none did."""
    found: dict[str, Any] = {"drawn": 0, "alone": 0, "innocent": 0, "seconds": None}
    for each in rounds_of(job, rng):
        after = each.now - 60 * job.onset_minutes
        if after < 0 or each.drawn is None:
            continue
        named = ranks_named(each.drawn)
        found["drawn"] += 1
        found["alone"] += named == {VICTIM}
        found["innocent"] += bool(named - {VICTIM})
        if named == {VICTIM} and found["seconds"] is None:
            found["seconds"] = after
    return found


def recorded(seed: int, unit: Unit) -> dict[str, Any]:
    """Whether anybody is named in a healthy recording, and how many ranks and steps it has."""
    with tempfile.TemporaryDirectory(dir=scratch()) as folder:
        trace, ranks, steps = simulated(seed, unit, Path(folder))
        return {"accused": bool(locate(trace)), "ranks": ranks, "steps": steps}


def simulated(seed: int, unit: Unit, folder: Path) -> tuple[Path, int, int]:
    """Has the unit's simulator write a healthy case, another one for each noise, or else one that happens to be drawn
    far off would count for each. Returns where its recording is, and its ranks and steps."""
    seed = zlib.crc32(repr((seed, unit.noise)).encode()) % 1_000_000
    if unit.what == "tests/simulator":
        layout = LAYOUTS[unit.number % len(LAYOUTS)]
        noise = simulator.noise.Lasting(*unit.noise)
        case = simulate(Case(layout, seed=1000 * seed + unit.number, steps=CASE_STEPS, lasting=noise))
        write(case, folder)
        return folder / "trace", case.programme.layout.world_size, CASE_STEPS
    if unit.what == "laggard-bench":
        name = nth(unit.number, (f"{it:04d}-balanced" for it in itertools.count()), lambda it: bench_ranks(seed, it))
        truth = bench.make_case(seed, name, folder, laggard_bench.lasting.Lasting(*unit.noise))
    else:
        number = nth(unit.number, itertools.count(), lambda it: fluid_ranks(seed, it))
        truth = fluid.make_case(seed, number, folder, "plain", laggard_bench.lasting.Lasting(*unit.noise))
    return folder / truth["case"] / "recording", truth["ranks"], truth["steps"]


def nth(number: int, names: Iterable[Any], ranks_of: Callable[[Any], float]) -> Any:
    """The name of the `number`-th case that has no more than MAX_RANKS."""
    return next(itertools.islice((name for name in names if ranks_of(name) <= MAX_RANKS), number, None))


def bench_ranks(seed: int, name: str) -> float:
    return bench.draw(seed, name)[0].world


def fluid_ranks(seed: int, number: int) -> float:
    plan = fluid.draw(seed, number, "plain")[1]
    return plan.cluster.world if plan else math.inf


def run(flags: argparse.Namespace) -> dict[Unit, dict[str, Any]]:
    """Runs the units that have no result yet, in random order, and adds each result to a file at once."""
    flags.out.mkdir(parents=True, exist_ok=True)
    journal = flags.out / f"results-{flags.seed}.jsonl"
    if not flags.resume:
        journal.unlink(missing_ok=True)
    asked = list(units(flags))
    found = {unit: document for unit, document in results(journal, unit_of).items() if unit in set(asked)}
    todo = [(flags.seed, unit) for unit in asked if unit not in found]
    random.Random(flags.seed).shuffle(todo)
    until = time.monotonic() + 60 * flags.minutes if flags.minutes else math.inf
    with contextlib.ExitStack() as closing, journal.open("a") as file:
        each = map(run_unit, todo)
        if flags.processes > 1:
            pool = closing.enter_context(multiprocessing.get_context("spawn").Pool(flags.processes))
            each = pool.imap_unordered(run_unit, todo)
        for unit, document in progress(each, len(todo)):
            found[unit] = document
            print(json.dumps({"case": unit, **document}), file=file, flush=True)
            if time.monotonic() > until:
                break
    return found


Results = Mapping[Unit, Mapping[str, Any]]


def told_of(noise: Noise) -> str:
    """The noise in the first cell of a row."""
    if noise.lengths:
        return f"lengths, {100 * noise.lengths:g} %, rho {noise.rho:g}"
    if noise.data:
        return f"data for good, {100 * noise.data:g} %"
    return f"rho {noise.rho:g}, {100 * noise.sd:g} %"


def in_order(noise: Noise) -> tuple[float, ...]:
    """A key by which noise of ranks comes before that of what they work on."""
    return (noise.data, noise.lengths, *noise)


def share(hits: int, count: int) -> str:
    """A share with its interval of 95 %, in per cent."""
    if not count:
        return "-"
    low, high = (100 * bound for bound in wilson(hits, count))
    return f"{hits} of {count} ({low:.0f} to {high:.0f} %)"


def total(documents: Iterable[Mapping[str, Any]], key: str) -> int:
    return sum(each[key] for each in documents)


def rows(head: Sequence[str], body: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *body]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def by_noise(found: Results, what: str) -> dict[Noise, dict[Unit, Mapping[str, Any]]]:
    """The results of one kind, by their noise, in the order of the noises."""
    kept = {unit: found[unit] for unit in sorted(found, key=lambda it: (in_order(it.noise), it)) if unit.what == what}
    return {noise: dict(each) for noise, each in itertools.groupby(kept.items(), lambda it: it[0].noise)}


def incidents_table(found: Results) -> str:
    """Incidents an hour of healthy live jobs, by noise, ranks and length of a step."""
    columns = sorted({(unit.ranks, unit.step_seconds) for unit in found if unit.what == HEALTHY})
    body = []
    for noise, each in by_noise(found, HEALTHY).items():
        cells = []
        for column in columns:
            here = {unit: one for unit, one in each.items() if (unit.ranks, unit.step_seconds) == column}
            hours = sum(unit.minutes for unit in here) / 60
            cells.append(f"{total(here.values(), 'incidents') / hours:.1f}" if hours else "-")
        accused = share(sum(one["incidents"] > 0 for one in each.values()), len(each))
        false, drawn, told, seen = (total(each.values(), key) for key in ("false", "drawn", "told", "rounds"))
        body.append([told_of(noise), *cells, accused, f"{false} of {drawn}", f"{100 * told / seen:.1f} %"])
    head = [f"{ranks} ranks, {seconds:g} s" for ranks, seconds in columns]
    return rows(["noise", *head, "jobs with an incident", "verdicts that accuse", "rounds that tell so"], body)


def slow_table(found: Results) -> str:
    """What becomes of a rank that is really slower, by noise and slowness."""
    body = [
        [
            told_of(noise),
            *(cell for slower in SLOWER for cell in slow_cells(by_noise(found, str(slower)).get(noise, {}))),
        ]
        for noise in by_noise(found, str(SLOWER[0]))
    ]
    head = [f"{name}, {100 * slower:g} % slower" for slower in SLOWER for name in ("named alone", "after", "verdicts")]
    return rows(["noise", *head], body)


def slow_cells(each: Mapping[Unit, Mapping[str, Any]]) -> list[str]:
    """In how many jobs the rank is named alone; the median seconds until then, of those, by length of a step; and the
    shares of the verdicts that name it alone, and an innocent."""
    if not each:
        return ["-"] * 3
    by_step: dict[float, list[float]] = {unit.step_seconds: [] for unit in sorted(each, key=lambda it: it.step_seconds)}
    for unit, one in each.items():
        if one["seconds"] is not None:
            by_step[unit.step_seconds].append(one["seconds"])
    seconds = " / ".join(f"{statistics.median(times):.0f}" if times else "-" for times in by_step.values())
    alone, innocent, drawn = (total(each.values(), key) for key in ("alone", "innocent", "drawn"))
    percents = f"{100 * alone / drawn:.0f} / {100 * innocent / drawn:.0f} %" if drawn else "-"
    return [share(sum(map(len, by_step.values())), len(each)), f"{seconds} s", percents]


def recordings_table(found: Results) -> str:
    """In how many healthy recordings somebody is accused, by noise and simulator."""
    by_simulator = {name: by_noise(found, name) for name in SIMULATORS}
    noises = sorted({noise for each in by_simulator.values() for noise in each}, key=in_order)
    counts = [[list(by_simulator[name].get(noise, {}).values()) for name in SIMULATORS] for noise in noises]
    cells = [[share(total(each, "accused"), len(each)) for each in row] for row in counts]
    return rows(["noise", *SIMULATORS], ([told_of(noise), *row] for noise, row in zip(noises, cells, strict=True)))


def document(found: Results, command: str) -> str:
    """The tables, and what made them."""
    hours = sum(unit.minutes for unit in found if unit.what == HEALTHY) / 60
    slow = sum(unit.what in map(str, SLOWER) for unit in found)
    recordings = sum(unit.what in SIMULATORS for unit in found)
    steps = " / ".join(f"{it:g}" for it in STEP_SECONDS)
    return f"""{hours:.3g} hours of healthy live jobs, {slow} live jobs with a slow rank and {recordings} healthy
recordings, by `{command}`.

**Incidents an hour of healthy live jobs**

{incidents_table(found)}

**A rank that becomes slower, in the same noise: within {AFTER_MINUTES:g} minutes**

`after`: the median seconds to the first verdict that names it alone, where one did, in steps of {steps} s.
`verdicts`: those since it is slow that name it alone / that name anybody else.

{slow_table(found)}

**Healthy recordings in which somebody is accused**

{recordings_table(found)}
"""


def main(arguments: Sequence[str] | None = None) -> int:
    flags = parser().parse_args(arguments)
    if flags.quick:
        flags.hours, flags.jobs, flags.cases = 0.5, 1, 2
        flags.ranks, flags.rho, flags.sd = flags.ranks or [8], flags.rho or [0.5, 0.95], flags.sd or [0.02]
    words = [f"--seed {flags.seed} --hours {flags.hours:g} --jobs {flags.jobs} --cases {flags.cases}"]
    words += [f"--{name} {value:g}" for name in ("ranks", "rho", "sd") for value in getattr(flags, name) or ()]
    text = document(run(flags), f"python bench/false_alarms.py {' '.join(words)}")
    print(text)
    if flags.write:
        page = ROOT / "docs" / "development" / "benchmark-tables.md"
        page.write_text(put_into(page.read_text(), "false alarms", text))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
