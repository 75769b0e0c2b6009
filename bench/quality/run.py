"""Runs the benchmark's cases: simulates each, asks the tool, and scores its answers, several cases at once."""

import json
import multiprocessing
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from common.scratch import scratch
from simulator.case import Case, Simulated, simulate
from simulator.faults import Fault, Unlocatable
from simulator.recording import write

from quality.answer import Named, Tool
from quality.matrix import Entry
from quality.score import FALSE, score

One = TypeVar("One")

TRUNCATED = (8, 10, 12, 14, 16, 18, 20, 25, 30, 40)  # steps seen since the fault began
SMALLEST_TIMED = 0.1  # the size from which on the steps to the verdict are counted


class Result(NamedTuple):
    """What came out of one case. `answer` has the tool's marks and what it found, as plain values; `steps` is how many
    steps after the fault's first it needs, where that was counted."""

    row: str
    size: float
    case: dict[str, Any]
    command: str
    expects_culprit: bool
    rank_seconds: float
    answer: dict[str, Any]
    steps: int | None


def run_entry(entry: Entry, tool: Tool, timed: bool) -> Result | None:
    """Runs one case; None where no layout can have it. `timed`: the steps to the verdict are counted."""
    simulated = first_possible(entry)
    if simulated is None:
        return None
    folder = Path(tempfile.mkdtemp(prefix="laggard-case-", dir=scratch()))
    try:
        write(simulated, folder)
        answer = ask(tool, folder / "trace", simulated.truth)
        steps = None
        if timed and entry.size >= SMALLEST_TIMED and all(one["found"] for one in answer["found"]):
            steps = steps_to_verdict(simulated, tool, folder / "part")
    finally:
        shutil.rmtree(folder)
    truth = simulated.truth
    ranks = truth["layout"]["world_size"]
    return Result(
        entry.row,
        entry.size,
        {key: truth[key] for key in ("form", "seed", "steps", "innocents")} | {"layout": simulated.case.layout},
        command(simulated.case),
        bool(truth["culprits"]),
        ranks * (truth["step_seconds"] or 0.0) * truth["steps"],
        answer,
        steps,
    )


def first_possible(entry: Entry) -> Simulated | None:
    for case in entry.cases():
        try:
            simulated = simulate(case)
        except Unlocatable:
            continue
        culprits = simulated.truth["culprits"]
        if not case.faults or entry.size == 0 or any(culprit["required"] for culprit in culprits):
            return simulated
    return None


def ask(tool: Tool, trace: Path, truth: dict[str, Any]) -> dict[str, Any]:
    """Returns a tool's answer with its score. A tool that fails has found nobody, and says why."""
    began = time.perf_counter()
    error, named = None, list[Named]()
    try:
        named = tool(trace)
    except Exception as problem:
        error = f"{type(problem).__name__}: {problem}"
    result = score(truth, named)
    return {
        "seconds": round(time.perf_counter() - began, 3),
        "error": error,
        "named": [one._asdict() for one in named],
        "marks": result.marks,
        "found": [
            one._asdict() for one, culprit in zip(result.found, truth["culprits"], strict=True) if culprit["required"]
        ],
    }


def steps_to_verdict(simulated: Simulated, tool: Tool, folder: Path) -> int | None:
    """Returns how many steps of a fault the tool must see until it names all culprits and nobody else, by halving."""
    first = min(culprit["steps_hit"][0] for culprit in simulated.truth["culprits"])
    choices = [count for count in TRUNCATED if first + count < simulated.case.steps]

    def right(count: int) -> bool:
        write(simulated, folder, first + count)
        answer = ask(tool, folder / "trace", simulated.truth)
        shutil.rmtree(folder)
        return all(one["found"] for one in answer["found"]) and FALSE not in answer["marks"]

    low, high = 0, len(choices)
    while low < high:
        middle = (low + high) // 2
        if right(choices[middle]):
            high = middle
        else:
            low = middle + 1
    return choices[low] if low < len(choices) else simulated.case.steps - first


def command(case: Case) -> str:
    """Returns the command that makes this case again."""
    words = ["python bench/simulate.py OUT", f"--layout {case.layout}", f"--form {case.form}", f"--seed {case.seed}"]
    words += [f"--fault {fault_text(fault)}" for fault in case.faults]
    words += [f"--innocent {name}" for name in case.innocents]
    return " ".join(words)


def fault_text(fault: Fault) -> str:
    parts = [fault.kind]
    if fault.size:
        parts.append(f"size={fault.size!r}")
    if fault.phase:
        parts.append(f"phase={fault.phase}")
    when = fault.when
    parts += [f"onset={when.onset}"] if when.onset else []
    parts += [f"every={when.every!r}"] if when.every != 1 else []
    parts += [f"share={when.share!r}"] if when.share != 1 else []
    return ",".join(parts)


class Job(NamedTuple):
    entry: Entry
    tool: Tool
    timed: bool


def work(job: Job) -> tuple[int, Result | None]:
    return job.entry.seed, run_entry(*job)


def run(
    entries: Sequence[Entry],
    tool: Tool,
    timed: bool,
    processes: int,
    journal: Path,
    minutes: float | None = None,
) -> list[Result]:
    """Runs all cases of which `journal` has no result yet, for so many `minutes` at most, and shows how far it is on
    standard error. Each result is added to the journal at once: a run that was stopped goes on where it was. The order
    is random, so that the cases of a run that was stopped are no worse a sample for it."""
    done = read_journal(journal)
    jobs = [Job(entry, tool, timed) for entry in entries if entry.seed not in done]
    random.Random(len(entries)).shuffle(jobs)
    until = time.monotonic() + 60 * minutes if minutes else float("inf")
    context = multiprocessing.get_context("spawn")
    with context.Pool(processes) as pool, open(journal, "a") as file:
        for seed, result in progress(pool.imap_unordered(work, jobs), len(jobs)):
            done[seed] = result
            line = {"seed": seed, "result": result._asdict() if result else None}
            print(json.dumps(line), file=file, flush=True)
            if time.monotonic() > until:
                break
    found = [one for entry in entries if (one := done.get(entry.seed)) is not None]
    return sorted(found, key=lambda one: (one.row, one.size, one.command))


def read_journal(journal: Path) -> dict[int, Result | None]:
    """Returns the results of an earlier run by the seed of their case; a line that was cut off is none."""
    found: dict[int, Result | None] = {}
    for line in journal.read_text().splitlines() if journal.exists() else ():
        try:
            read = json.loads(line)
        except ValueError:
            continue
        found[read["seed"]] = Result(**read["result"]) if read["result"] else None
    return found


def progress(results: Iterable[One], count: int) -> Iterator[One]:
    """The results, told of on standard error: how many there are, and how long it takes."""
    began = time.monotonic()
    for number, result in enumerate(results, 1):
        if sys.stderr.isatty() or number % 25 == 0 or number == count:
            left = (time.monotonic() - began) / number * (count - number)
            bar = "#" * (30 * number // count)
            print(f"\r[{bar:30}] {number} of {count} cases, {left / 60:.0f} min left", end="", file=sys.stderr)
        yield result
    print(file=sys.stderr)
