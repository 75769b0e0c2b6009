"""The table of the results."""

from __future__ import annotations

import collections
from pathlib import Path
from typing import Any

from common.resumed import results

from stack_jobs.cases import CASES, HEALTHY, Place
from stack_jobs.judge import judged


def table(out: Path) -> str:
    """The lines of each case, and how many answers are right, judged anew from those there are."""
    lines, counts = [], collections.Counter[tuple[str, str, str]]()
    all_done = results(out / "results.jsonl", str)
    for case in CASES:
        done = all_done.get(case.name)
        if done is None:
            continue
        lines_then = [Place(*place) for place in done["expected"]]
        expected = ", ".join(map(str, lines_then)) if case.kind != HEALTHY else "nothing"
        lines.append(f"{case.kind:8}{case.name:28}rank {case.victim}: {expected} ({befell(done)})")
        for way, one in judged(case, out / case.name, lines_then).items():
            counts[way, case.kind, one.mark] += 1
            lines.append(f"{'':8}{way:10}{one.mark:8}{one.why:32} {one.verdict}: {', '.join(one.culprits)}")
            lines += [f"{'':18}told: {text}" for text in (*one.told, *one.notes)]
    lines += [f"{way:9} {kind:8} {mark:7} {count}" for (way, kind, mark), count in sorted(counts.items())]
    return "\n".join(lines)


def befell(done: dict[str, Any]) -> str:
    return f"{done['how']}, {done['seconds']} s, load {done['load']}"
