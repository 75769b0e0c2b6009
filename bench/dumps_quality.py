"""Measures how right a hang is told from Flight Recorder dumps: simulated jobs, dumped by torch 2.4 to 2.15.

    python bench/dumps_quality.py                         220 cases of the seeds to work with
    python bench/dumps_quality.py --held-out              as many that nobody has seen
    python bench/dumps_quality.py --held-out --tools      beside torch's fr_trace and NVRx's CollectiveAnalyzer
    python bench/dumps_quality.py --kind gpu_tp --seeds 5 --misses

An answer is `right` where every culprit named is at fault (or the very note that the case asks for), `narrowed` where
all at fault are among the ranks of one culprit or note that names a group, `wrong` where somebody else is named,
`unsure` where nobody is. Where nobody is at fault, `right` is to name nobody. Tools that name ranks alone are right
where they name none but those at fault, and narrowed where those are among others, but not all. They get each
case as pickles of one torch, which is what they read; laggard gets it as it came, of several versions or as JSON. A
tool that ends with an error has refused."""

from __future__ import annotations

import argparse
import shutil
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from quality.dumps import HELD_OUT, answer_of, answer_of_tool, judge_answer, judge_tool, table
from quality.run import scratch
from quality.tools.shipped.adapters import DUMPS, SHIPPED
from quality.tools.shipped.environments import install
from quality.tools.shipped.process import close_all
from simulator.dump_cases import KINDS, DumpCase, dump_case, write_case


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--seeds", type=int, default=20, help="cases of each kind")
    made.add_argument("--first", type=int, default=0, help="the first seed")
    made.add_argument("--held-out", action="store_true", help=f"the seeds from {HELD_OUT} on")
    made.add_argument("--kind", action="append", choices=KINDS)
    made.add_argument("--misses", action="store_true", help="show each answer that is wrong or unsure")
    made.add_argument("--tools", action="store_true", help="ask torch's fr_trace and NVRx about the same dumps, too")
    made.add_argument("--keep", type=Path, help="leave the dumps in this folder")
    return made


def plain(case: DumpCase) -> DumpCase:
    """The same case dumped by one torch, as pickles: what the tools of others read. Who left no dump left none."""
    return case._replace(dumping=tuple(replace(how, torch="2.13", form="pickle") for how in case.dumping))


def main(arguments: Sequence[str] | None = None) -> int:
    flags = parser().parse_args(arguments)
    first = HELD_OUT if flags.held_out else flags.first
    results: Counter[tuple[str, str]] = Counter()
    tools = {name: tool for name, tool in SHIPPED.items() if tool.dumps} if flags.tools else {}
    of_tools: dict[str, Counter[tuple[str, str]]] = {name: Counter() for name in tools}
    for tool in tools.values():
        install(tool.environment)
    for kind in flags.kind or KINDS:
        for seed in range(first, first + flags.seeds):
            case = dump_case(kind, seed)
            place = Path(tempfile.mkdtemp(prefix="laggard-dumps-", dir=scratch()))
            folder = place / DUMPS
            write_case(case, folder)
            answer = answer_of(folder)
            mark = judge_answer(case, answer)
            results[kind, mark] += 1
            if tools:
                shutil.rmtree(folder)
                write_case(plain(case), folder)
            for name, tool in tools.items():
                said = answer_of_tool(tool, place / "trace")
                of_tools[name][kind, judge_tool(case, said)] += 1
            if flags.misses and mark != "right":
                print(f"{mark}: {kind} {seed} {case.layout} {case.place} at fault {sorted(case.culprits)}: {answer}")
            if flags.keep:
                shutil.copytree(folder, flags.keep / f"{kind}-{seed}", dirs_exist_ok=True)
            shutil.rmtree(place)
    print(table(results))
    for name, found in of_tools.items():
        print(f"\n{name}, {tools[name].environment.version}\n\n{table(found)}")
    close_all()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
