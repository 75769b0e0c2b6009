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
tool that ends with an error, or takes too long, has refused: that is no answer. Beside other tools each job is dumped
once more, as their documentation asks for: by every rank, from the program's first record on. `--write` puts the tools'
tables into docs/benchmark.md."""

from __future__ import annotations

import argparse
import itertools
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))
from common.figures import put_into
from common.scratch import scratch
from quality.dumps import (
    HELD_OUT,
    REFUSED,
    Answer,
    Judged,
    answer_of,
    answer_of_tool,
    compared,
    failures,
    judge_answer,
    judge_tool,
    table,
)
from quality.report import OWN, run_as
from quality.scope import FOUND, WHOLE
from quality.tools.shipped.adapters import DUMPS, installed
from quality.tools.shipped.process import ANSWER_SECONDS, Shipped, close_all
from simulator.dump_cases import KINDS, DumpCase, dump_case, write_case

PAGE = Path(__file__).resolve().parents[1] / "docs" / "benchmark.md"
LAGGARD = "laggard"
EVERY_RECORD = 1_000_000
"""The size of a recorder's buffer in which every record of a run has room."""


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--seeds", type=int, default=20, help="cases of each kind")
    made.add_argument("--first", type=int, default=0, help="the first seed")
    made.add_argument("--held-out", action="store_true", help=f"the seeds from {HELD_OUT} on")
    made.add_argument("--kind", action="append", choices=KINDS)
    made.add_argument("--misses", action="store_true", help="show each answer that is wrong or unsure")
    made.add_argument("--tools", action="store_true", help="ask torch's fr_trace and NVRx about the same dumps, too")
    made.add_argument("--write", action="store_true", help="with --tools: put their tables into docs/benchmark.md")
    made.add_argument("--keep", type=Path, help="leave the dumps in this folder")
    return made


def plain(case: DumpCase) -> DumpCase:
    """The same case dumped by one torch, as pickles: what the tools of others read. Who left no dump left none."""
    return case._replace(dumping=tuple(replace(how, torch="2.13", form="pickle") for how in case.dumping))


def whole(case: DumpCase) -> DumpCase:
    """The same case as its tools' documentation would have it: a dump of each rank, from the program's first record."""
    dumping = tuple(replace(how, before=0, entries=EVERY_RECORD, counts=True) for how in plain(case).dumping)
    return case._replace(without=frozenset(), dumping=dumping)


def main(arguments: Sequence[str] | None = None) -> int:
    flags = parser().parse_args(arguments)
    first = HELD_OUT if flags.held_out else flags.first
    tools = installed(lambda tool: tool.dumps) if flags.tools else {}
    found: dict[str, list[Judged]] = {name: [] for name in (LAGGARD, *tools)}
    errors: dict[str, Counter[str]] = {name: Counter() for name in tools}
    for kind, seed in itertools.product(flags.kind or KINDS, range(first, first + flags.seeds)):
        case = dump_case(kind, seed)
        for state, made in ((FOUND, case), (WHOLE, whole(case)))[: 2 if tools else 1]:
            for name, said in answers(made, tools, flags.keep if state == FOUND else None).items():
                mark = judge_answer(made, said) if name == LAGGARD else judge_tool(made, said)
                found[name].append(Judged(kind, state, "pp=" in case.layout, mark))
                if mark == REFUSED and name in errors:
                    errors[name][error_of(said)] += 1
                if flags.misses and name == LAGGARD and mark != "right":
                    where = f"{kind} {seed}, dumps {state}, {case.layout} {case.place}"
                    print(f"{mark}: {where} at fault {sorted(case.culprits)}: {said}")
    close_all()
    print(table(Counter((one.kind, one.mark) for one in found[LAGGARD] if one.state == FOUND)))
    if tools:
        report = beside(found, errors, flags)
        print(f"\n{report}")
        if flags.write:
            PAGE.write_text(put_into(PAGE.read_text(), "dumps", report))
    return 0


def answers(case: DumpCase, tools: Mapping[str, Shipped], keep: Path | None) -> dict[str, Answer]:
    """What laggard says of a case's dumps, and what the others do of the same as they read them."""
    place = Path(tempfile.mkdtemp(prefix="laggard-dumps-", dir=scratch()))
    folder = place / DUMPS
    try:
        write_case(case, folder)
        said = {LAGGARD: answer_of(folder)}
        if keep:
            shutil.copytree(folder, keep / f"{case.kind}-{case.seed}", dirs_exist_ok=True)
        if tools:
            shutil.rmtree(folder)
            write_case(plain(case), folder)
        return said | {name: answer_of_tool(tool, place / "trace") for name, tool in tools.items()}
    finally:
        shutil.rmtree(place)


def error_of(said: Answer) -> str:
    """The kind of an error, without what is of one case alone."""
    return said.reasons[0].partition(":")[0]


def beside(found: Mapping[str, Sequence[Judged]], errors: Mapping[str, Counter[str]], flags: argparse.Namespace) -> str:
    """The tools beside each other, and how they were run, in Markdown."""
    words = ["python bench/dumps_quality.py", "--tools", f"--seeds {flags.seeds}"]
    words += ["--held-out"] if flags.held_out else [f"--first {flags.first}"] if flags.first else []
    words += [f"--kind {kind}" for kind in flags.kind or ()]
    jobs = sum(one.state == FOUND for one in found[LAGGARD])
    made = (
        f"{jobs} jobs, each dumped in two states, by `{' '.join(words)}`; a tool has {ANSWER_SECONDS:.0f} s for each."
    )
    how = {name: OWN if name == LAGGARD else run_as(name) for name in found}
    return "\n\n".join([made, compared(found, how), *(["\n".join(told)] if (told := failures(errors)) else [])])


if __name__ == "__main__":
    raise SystemExit(main())
