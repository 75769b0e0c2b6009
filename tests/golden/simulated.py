"""The cases of the three simulators: every family and kind of fault, and healthy jobs. Each is made from its seed."""

import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[2] / "bench"))  # two of the simulators are the benches'
import fluid_simulator.cases as fluid
import laggard_bench.cases as benchmark
from fluid_simulator.families import FAMILIES as FLUID_FAMILIES
from quality.matrix import Entry, entries
from quality.run import first_possible
from simulator.recording import write

from golden.case import Case, Culprit, Made, Truth
from laggard.locate.job_timings import JobTimings

SEED = 7_001
"""The seed of the golden sets: one that no rule was made for."""
SIMULATED = (1, 3, 4)
"""The cases of each slow fault and size, of each way to stop, and of each innocent kind: 153."""
FLUID_SHARE, MIN_FLUID = 0.6, 2
"""The share of a family's cases in the fluid simulator's own set, and the fewest: 145."""
BENCHMARK_CASES = 150
"""The size of the set of laggard-bench."""
MAX_WORLD = 256
"""The most ranks of a job of the fluid simulator and of laggard-bench: larger ones take too long."""
FAR = 1000
"""The distance between the numbers that a case of the fluid simulator may have, of which the first small one is its."""
KINDS = {
    "compute": ("slow_compute", "slow_host"),
    "host": ("slow_host", "slow_input", "slow_compute", "busy_threads"),
    "link": ("slow_link",),
    "hang": ("hung", "dead"),
    "dead": ("dead", "hung"),
}
"""laggard's kinds of culprits that are right where a truth of laggard-bench's form has one of its kinds."""
VERDICTS = {"ok": "ok", "unknown": "unknown"}
"""laggard's verdicts by those of laggard-bench; all others are `fail`."""


def simulated(seed: int = SEED) -> Iterator[Case]:
    """The cases of tests/simulator."""
    seen: Counter[str] = Counter()
    for entry in entries(seed, *SIMULATED):
        family = re.sub(r"\W+", "_", entry.row.lower().replace("'s", ""))
        seen[family] += 1
        yield Case(f"simulator/{family}/{seen[family]}", partial(_make_simulated, entry))


def _make_simulated(entry: Entry, folder: Path) -> Made:
    made = first_possible(entry)
    if made is None:
        raise ValueError(f"no layout can have {entry.row} of {entry.size}")
    write(made, folder)
    culprits = tuple(
        Culprit(
            tuple(each["kinds"]),
            tuple(each["ranks"]),
            tuple(sorted({*each["within"], *each.get("partners", ())})),
            each.get("required", True),
        )
        for each in made.truth["culprits"]
    )
    truth = Truth(culprits, _verdicts(culprits))
    return Made(folder / "trace", lambda timings: truth)


def _verdicts(culprits: Iterable[Culprit]) -> tuple[str, ...]:
    found = list(culprits)
    if not found:
        return ("ok",)
    return ("fail",) if any(each.required for each in found) else ("fail", "ok", "unknown")


def fluid_cases(seed: int = SEED) -> Iterator[Case]:
    """The cases of the fluid simulator."""
    number = 0
    for family, cases in FLUID_FAMILIES.items():
        for place in range(max(MIN_FLUID, round(cases * FLUID_SHARE))):
            fitting = next(it for it in count(number, FAR) if _is_small(seed, it, family))
            yield Case(f"fluid/{family}/{place + 1}", partial(_make_fluid, seed, fitting, family))
            number += 1


def _is_small(seed: int, number: int, family: str) -> bool:
    _, plan = fluid.draw(seed, number, family)
    return plan is None or plan.cluster.world <= MAX_WORLD  # None: it is drawn once more


def _make_fluid(seed: int, number: int, family: str, folder: Path) -> Made:
    truth = fluid.make_case(seed, number, folder, family)
    return Made(folder / truth["case"] / "recording", partial(_truth_of_benchmark, truth))


def benchmark_cases(seed: int = SEED) -> Iterator[Case]:
    """The cases of laggard-bench."""
    seen: Counter[str] = Counter()
    for name in benchmark.names(seed, BENCHMARK_CASES):
        family = name.split("-", 1)[1]
        if benchmark.draw(seed, name)[0].world <= MAX_WORLD:
            seen[family] += 1
            yield Case(f"laggard_bench/{family}/{seen[family]}", partial(_make_benchmark, seed, name))


def _make_benchmark(seed: int, name: str, folder: Path) -> Made:
    truth = benchmark.make_case(seed, name, folder)
    return Made(folder / truth["case"] / "recording", partial(_truth_of_benchmark, truth))


def _truth_of_benchmark(truth: Mapping[str, Any], timings: JobTimings) -> Truth:
    """A truth of laggard-bench's form. Of links it may have the machines alone: their ranks are the recording's."""
    ranks_of: dict[str, set[int]] = {}
    for rank, node in zip(timings.ranks.tolist(), timings.nodes, strict=True):
        ranks_of.setdefault(node or "", set()).add(rank)

    def ranks(entries: Iterable[Mapping[str, Any]]) -> set[int]:
        return {
            rank
            for each in entries
            for rank in each["ranks"] or set().union(*(ranks_of.get(node, set()) for node in each["nodes"]))
        }

    def culprit(entries: Sequence[Mapping[str, Any]], same: Iterable[Mapping[str, Any]], required: bool) -> Culprit:
        kinds = dict.fromkeys(kind for each in entries for kind in KINDS[each["kind"]])
        own = ranks(entries)
        return Culprit(tuple(kinds), tuple(sorted(own)), tuple(sorted(own | ranks(same))), required)

    culprits = (culprit(it["accepted"], it["same_in_any_recording"], not it["optional"]) for it in truth["faults"])
    verdicts = {VERDICTS.get(each, "fail") for each in truth["verdicts"]}
    tolerated = (culprit([each], (), False) for each in truth["tolerated"])
    return Truth(tuple(culprits), tuple(sorted(verdicts)), tuple(tolerated))
