"""Real trainings of many engines, each in thirteen cases, and what laggard says of them: docs/development/engines.md.

    python bench/every_engine.py                           all that has no result yet; then the table
    python bench/every_engine.py --engine ddp --case sigkill
    python bench/every_engine.py --list
    python bench/every_engine.py --table                   writes docs/development/engines.md from the results there are

A run's result is a line in out/engines/ as soon as it is there, and what has a line is not run again: an interrupted
bench goes on where it was. Times are judged: leave the machine alone meanwhile.
"""

import argparse
import contextlib
import importlib.util
import json
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))
from common.refused import refuse
from common.resumed import results
from common.scratch import scratch
from engines import cases, catalogue
from engines.live import Live
from engines.page import page, score
from engines.processes import Servers
from engines.trial import Bench, run

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "out" / "engines" / "results.jsonl"
PAGE = ROOT / "docs" / "development" / "engines.md"
BARE = "bare"
"""In place of a case: the case of reference, without the hooks."""


class Run(NamedTuple):
    engine: str
    case: str


def wanted(engines: list[str], names: list[str]) -> Iterator[Run]:
    """The runs that were asked for, but those that cannot be: a case that an engine leaves out, a library that is not
    here."""
    for engine in catalogue.ENGINES:
        if engine.name not in engines or not is_here(engine):
            continue
        yield from (Run(engine.name, name) for name in names if name not in engine.leaves_out)


def is_here(engine: catalogue.Engine) -> bool:
    """Whether what the engine needs is installed: a module, or a program beside Python."""
    program = Path(sys.executable).with_name(engine.needs)
    return program.exists() or importlib.util.find_spec(engine.needs) is not None


def do(one: Run, bench: Bench, writing: threading.Lock, out: Path) -> None:
    """Runs it, and adds a line with its result."""
    engine = catalogue.BY_NAME[one.engine]
    case = cases.BY_NAME[cases.REFERENCE if one.case == BARE else one.case]
    result = run(bench, engine, case, catalogue.ENGINES.index(engine), hooks=one.case != BARE)
    load = " ".join(f"{each:.0f}" for each in os.getloadavg())
    line = json.dumps({"case": one, "load": load, "of_steps": bench.steps, **result})
    with writing, out.open("a") as file:
        print(line, file=file)
    print(told(one, result), flush=True)


def told(one: Run, result: dict[str, Any]) -> str:
    said = result.get("said", "without the hooks")
    return f"{one.engine} {one.case}: {result['seconds']:.0f} s, {result['statuses']}, {said}"


def run_all(todo: list[Run], options: argparse.Namespace) -> None:
    options.out.parent.mkdir(parents=True, exist_ok=True)
    writing = threading.Lock()
    with (
        tempfile.TemporaryDirectory(dir=scratch()) as name,
        contextlib.closing(Servers()) as servers,
        contextlib.closing(Live(Path(name))) as live,
        ThreadPoolExecutor(options.jobs) as pool,
    ):
        bench = Bench(servers, live, Path(name), options.steps)
        for done in [pool.submit(do, one, bench, writing, options.out) for one in todo]:
            done.result()


def main() -> int:
    every = [*(case.name for case in cases.CASES), BARE]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", action="append", choices=list(catalogue.BY_NAME), metavar="NAME")
    parser.add_argument("--case", action="append", choices=every, metavar="NAME", help=", ".join(every))
    parser.add_argument("--list", action="store_true", help="which engines there are, and whether they can run here")
    parser.add_argument("--jobs", type=int, default=1, help="how many jobs at once")
    parser.add_argument("--steps", type=int, default=80, help="of each job")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--table", action="store_true", help="run nothing; write the page")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(2))
    if options.list:
        for engine in catalogue.ENGINES:
            print(f"{engine.name:20} {'' if is_here(engine) else 'not here: ' + engine.needs}".rstrip())
        return 0
    runs = list(wanted(options.engine or list(catalogue.BY_NAME), options.case or every))
    if not runs:
        refuse(f"none of these can run here: {', '.join(options.engine or ())}; --list says what they need")
    began = time.monotonic()
    if not options.table:
        done = results(options.out, Run)
        run_all([one for one in runs if one not in done], options)
        print(f"{time.monotonic() - began:.0f} s", file=sys.stderr)
    found = {tuple(key): value for key, value in results(options.out, Run).items()}
    text = page(found)
    if options.table:
        PAGE.write_text(text)
    else:
        print(text)
    right, judged = score({key: value for key, value in found.items() if Run(*key) in runs})
    return 0 if right == judged and set(runs) <= set(found) else 1


if __name__ == "__main__":
    raise SystemExit(main())
