"""Real trainings on gloo that something befalls from outside, and what is said of them: docs/development/benchmark.md.

    python bench/real_quality.py                            all that have no result yet, about forty minutes; as root
    python bench/real_quality.py --job ddp --fault quota    one of them
    python bench/real_quality.py --again                    judges the recordings that are there anew
    python bench/real_quality.py --write                    puts the table into benchmark-tables.md, too

Each run leaves a case in out/real_runs: `trace`, a recording for each rank, and truth.json, which no tool reads. Its
result is a line in results.jsonl there; a run that has one is not run again, so that an interrupted bench goes on where
it was. Processes are slowed and times are judged: leave the machine alone meanwhile."""

import argparse
import contextlib
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))
from common.figures import put_into
from common.refused import refuse
from common.resumed import results
from common.scratch import scratch
from engines.processes import Servers
from quality.laggard import locate
from real_runs.catalogue import FAULT_OF, JOBS, Run, runs
from real_runs.judge import judge
from real_runs.report import said, table
from real_runs.trial import Bench, Failed, record

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "development" / "benchmark-tables.md"
STEPS = 110


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--job", action="append", choices=JOBS)
    made.add_argument("--fault", action="append", choices=list(FAULT_OF))
    made.add_argument("--steps", type=int, default=STEPS, help="of each job")
    made.add_argument("--out", type=Path, default=ROOT / "out" / "real_runs")
    made.add_argument("--again", action="store_true", help="run nothing; judge what is there anew")
    made.add_argument("--minutes", type=float, help="begin no run after so many")
    made.add_argument("--write", action="store_true", help="put the table into benchmark-tables.md, too")
    return made


def answer(case: Path) -> dict[str, Any]:
    """What laggard says of a case's recording, and what that is worth."""
    truth = json.loads((case / "truth.json").read_text())
    named = [{"kind": one.kind, "ranks": list(one.ranks)} for one in locate(case / "trace")]
    return {"named": named, "worth": judge(truth, named)}


def make(todo: Sequence[Run], options: argparse.Namespace) -> None:
    """Runs what is to be run, one after another, and adds a line for each."""
    began = time.monotonic()
    with (
        tempfile.TemporaryDirectory(dir=scratch()) as memory,
        tempfile.TemporaryDirectory(dir=options.out) as disk,
        contextlib.closing(Servers()) as servers,
    ):
        for number, run in enumerate(todo, 1):
            if options.minutes and time.monotonic() - began > 60 * options.minutes:
                return
            place = disk if run.fault == "disk" else memory  # memory has no disk to be slow
            result = one(Bench(servers, Path(place), options.steps), run, options.out)
            left = (time.monotonic() - began) / number * (len(todo) - number) / 60
            print(f"{number} of {len(todo)}, {left:.0f} min left: {run.job}, {run.fault}: {told(result)}", flush=True)


def one(bench: Bench, run: Run, out: Path) -> dict[str, Any]:
    case = out / f"{run.job}-{run.fault}"
    shutil.rmtree(case, ignore_errors=True)
    try:
        result = record(bench, run, case) | answer(case)
    except Failed as why:
        result = {"failed": str(why)}
    load = round(os.getloadavg()[0], 1)
    with (out / "results.jsonl").open("a") as file:
        print(json.dumps({"case": run, "load": load, **result}), file=file)
    return result


def told(result: dict[str, Any]) -> str:
    if "failed" in result:
        return f"no run: {result['failed']}"
    return f"{result['worth']} in {result['seconds']:.0f} s, steps {result['steps']}: names {said(result['named'])}"


def anew(out: Path) -> Iterator[tuple[tuple[str, str], dict[str, Any]]]:
    """What is said now of the recordings, beside what was measured when they were made."""
    kept = results(out / "results.jsonl", Run)
    for run in runs():
        case = out / f"{run.job}-{run.fault}"
        if (case / "truth.json").exists():
            yield (run.job, run.fault), {**kept.get(run, {}), **answer(case)}


def main(arguments: Sequence[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(2))
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / "results.jsonl"
    wanted = [run for run in runs() if run.job in (options.job or JOBS) and run.fault in (options.fault or FAULT_OF)]
    if not wanted:
        refuse(f"there is no run of {', '.join(options.job)} with {', '.join(options.fault)}")
    if options.again:
        found: dict[tuple[str, str], dict[str, Any]] = dict(anew(options.out))
    else:
        done = results(path, Run)
        make([run for run in wanted if run not in done], options)
        found = {tuple(key): value for key, value in results(path, Run).items()}
    text = table(found)
    print(text)
    if options.write:
        PAGE.write_text(put_into(PAGE.read_text(), "real runs", text))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
