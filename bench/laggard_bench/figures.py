"""Counts what was judged: shares with their intervals, for programs and as a table. Pure."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from laggard_bench.judge import NEAR, RIGHT, Judged

VERSION: Final = "1.1"
"""The first number is another where cases, truths or scores are: figures of one are not to be put beside those of
another. The second is another where they are not."""
REMARK: Final = (
    "The jobs are simulated. Simulator, truths and judge are of the project of laggard, one of the tools judged here."
)
"""Stands with the figures, wherever they stand."""
BUCKETS: Final = ((0.005, "hidden"), (0.015, "1 %"), (0.035, "2 %"), (0.075, "5 %"), (0.15, "10 %"), (0.35, "20 %"))
"""Upper bounds of a fault's size, as the lengthening of the step, and what the tables call them."""


def wilson(hits: int, count: int) -> tuple[float, float]:
    """The interval of 95 % of a share (Wilson, 1927)."""
    if not count:
        return 0.0, 1.0
    z, share = 1.959964, hits / count
    middle = (share + z * z / (2 * count)) / (1 + z * z / count)
    half = z * math.sqrt(share * (1 - share) / count + z * z / (4 * count * count)) / (1 + z * z / count)
    return max(0.0, middle - half), min(1.0, middle + half)


def bucket(fault: dict[str, Any]) -> str:
    """What the tables call its size; of several that hide one another, the size that it has alone."""
    if fault["size"] is None:
        return "stops"
    size = max(fault["size"], fault.get("size_alone") or 0.0)
    return next((name for bound, name in BUCKETS if size < bound), "50 %")


def begin(fault: dict[str, Any]) -> str:
    """Whether the fault was there from the first step on: what began later can be told by what was before."""
    if fault["size"] is None:
        return str(fault["kind"])
    return f"{fault['kind']}, {'later' if fault['first_step'] else 'always'}"


def figures(judged: Sequence[Judged], unanswered: int = 0) -> dict[str, Any]:
    """All counts, for tables and for programs. `unanswered`: how many of the cases have no answer."""
    outcomes = [
        (fault, outcome) for each in judged for fault, outcome in zip(each.truth["faults"], each.faults, strict=True)
    ]
    needed = [(fault, outcome) for fault, outcome in outcomes if not fault["optional"]]
    healthy = [each for each in judged if each.healthy]
    right, false = sum(each.right for each in judged), sum(len(each.false) for each in judged)
    return {
        "schema": "laggard-bench.score/1",
        "version": VERSION,
        "remark": REMARK,
        "cases": len(judged),
        "unanswered": unanswered,
        "verdicts_right": sum(each.verdict_right for each in judged),
        "clean": sum(each.clean for each in judged),
        "recall": _recall(needed),
        "by_kind": {name: _recall(part) for name, part in _grouped(needed, lambda fault: fault["name"])},
        "by_begin": {name: _recall(part) for name, part in _grouped(needed, begin)},
        "by_size": {name: _recall(part) for name, part in _grouped(needed, bucket)},
        "precision": _share(right, right + false) | {"near": sum(each.near for each in judged)},
        "healthy": {
            "cases": len(healthy),
            "accused": _share(sum(each.alarmed for each in healthy), len(healthy)),
            "ranks": sum(each.truth["ranks"] for each in healthy),
            "ranks_accused": sum(each.innocents for each in healthy),
            "by_family": dict(sorted(Counter(each.truth["family"] for each in healthy if each.alarmed).items())),
        },
        "innocents_in_faulty_cases": sum(each.innocents for each in judged if not each.healthy),
        "false_culprits_in_faulty_cases": sum(len(each.false) for each in judged if not each.healthy),
        "need_not": sum(bool(fault["optional"]) for fault, _ in outcomes),
    }


def _grouped(
    outcomes: Sequence[tuple[dict[str, Any], str]], key: Callable[[dict[str, Any]], str]
) -> Iterable[tuple[str, list[Any]]]:
    names = sorted({key(fault) for fault, _ in outcomes})
    return ((name, [each for each in outcomes if key(each[0]) == name]) for name in names)


def _share(hits: int, count: int) -> dict[str, Any]:
    low, high = wilson(hits, count)
    return {"hits": hits, "count": count, "low": round(low, 4), "high": round(high, 4)}


def _recall(outcomes: Sequence[tuple[dict[str, Any], str]]) -> dict[str, Any]:
    near = sum(outcome == NEAR for _, outcome in outcomes)
    return _share(sum(outcome == RIGHT for _, outcome in outcomes), len(outcomes)) | {"near": near}


def table(found: dict[str, Any]) -> str:
    def row(name: str, share: dict[str, Any]) -> str:
        percent = 100 * share["hits"] / share["count"] if share["count"] else 0.0
        near = f"  near {share['near']}" if share.get("near") else ""
        interval = f"[{100 * share['low']:5.1f}, {100 * share['high']:5.1f}]"
        return f"  {name:<21}{share['hits']:>5} of {share['count']:<5}{percent:6.1f} %  {interval}{near}"

    healthy = found["healthy"]
    lines = [
        f"laggard-bench {found['version']}. {found['remark']}",
        f"{found['cases']} cases: verdict right in {found['verdicts_right']}, all right in {found['clean']}; "
        f"{found['need_not']} faults need not be named, {found['unanswered']} cases have no answer",
        row("recall", found["recall"]),
        row("precision", found["precision"]),
        row("healthy accused", healthy["accused"]),
        f"  healthy ranks accused: {healthy['ranks_accused']} of {healthy['ranks']}; by family {healthy['by_family']}",
        f"  in faulty cases: {found['false_culprits_in_faulty_cases']} false culprits, "
        f"{found['innocents_in_faulty_cases']} innocent ranks",
        "recall by fault",
        *(row(name, share) for name, share in found["by_kind"].items()),
        "recall by kind and begin",
        *(row(name, share) for name, share in found["by_begin"].items()),
        "recall by size, the lengthening of the step",
        *(row(name, found["by_size"][name]) for name in _in_order(found["by_size"])),
    ]
    return "\n".join(lines)


def _in_order(names: Iterable[str]) -> list[str]:
    order = [name for _, name in BUCKETS] + ["50 %", "stops"]
    return sorted(names, key=order.index)
