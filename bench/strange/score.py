"""Scores the answers of any tool on a set of cases. It knows the truth and the answers, and nothing of the tool.

    python bench/strange/score.py DIR ANSWERS.jsonl
    python bench/strange/score.py DIR ANSWERS.jsonl --misses          with the command for each case that is not right
    python bench/strange/score.py DIR ANSWERS.jsonl --format json

An answer is one line of JSON for each case, as answer.schema.json has it:

    {"case": "0007-gpu", "verdict": "slow", "culprits": [{"kind": "compute", "ranks": [17], "nodes": ["gpu0003"]}]}

`suspects`, in the same form, are those to whom a tool points without accusing them: a right one counts as near, and a
wrong one does no harm.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

VERDICTS = ("ok", "slow", "hang", "dead", "unknown")
MACHINE = ("compute", "host")
STOP = ("hang", "dead")
BUCKETS = ((0.005, "hidden"), (0.015, "1 %"), (0.035, "2 %"), (0.075, "5 %"), (0.15, "10 %"), (0.35, "20 %"))
"""Upper bounds of a fault's size, as the lengthening of the step, and what the tables call them."""
MAX_BROAD = 8
"""The most ranks that a culprit may name for one of them to count as near: those of a machine."""

RIGHT, NEAR, MISSED, OPTIONAL = "right", "near", "missed", "need not"


@dataclasses.dataclass(frozen=True)
class Judged:
    """One case with its answer. `faults`: the outcome of each, in the truth's order. `false`: the culprits that are
    none; `innocents`: how many ranks these name."""

    truth: dict[str, Any]
    answer: dict[str, Any]
    faults: tuple[str, ...]
    right: int
    near: int
    false: tuple[dict[str, Any], ...]
    innocents: int

    @property
    def verdict_right(self) -> bool:
        return self.answer["verdict"] in self.truth["verdicts"]

    @property
    def healthy(self) -> bool:
        return not self.truth["faults"]

    @property
    def alarmed(self) -> bool:
        """Whether somebody is accused, or the verdict says that something is wrong, where nothing is."""
        return bool(self.false) or (self.answer["verdict"] in ("hang", "dead") and not self.verdict_right)

    @property
    def clean(self) -> bool:
        return not self.alarmed and all(each in (RIGHT, OPTIONAL) for each in self.faults)


def judge(truth: dict[str, Any], answer: dict[str, Any]) -> Judged:
    accused = [each for each in answer.get("culprits", []) if each.get("kind") != "imbalance"]
    outcomes: list[str] = []
    used: dict[int, str] = {}
    for fault in truth["faults"]:
        grades = [grade(each, fault) for each in accused]
        for place, found in enumerate(grades):
            used[place] = min(used.get(place, MISSED), found, key=(RIGHT, NEAR, MISSED).index)
        pointed = [grade(each, fault) != MISSED for each in answer.get("suspects", [])]
        best = min([*grades, NEAR if any(pointed) else MISSED], key=(RIGHT, NEAR, MISSED).index)
        outcomes.append(OPTIONAL if fault["optional"] and best != RIGHT else best)
    for place, each in enumerate(accused):
        if used.get(place, MISSED) == MISSED and any(_is_machine(each, ok) for ok in truth["tolerated"]):
            used[place] = NEAR
    false = [each for place, each in enumerate(accused) if used.get(place, MISSED) == MISSED]
    return Judged(
        truth,
        answer,
        tuple(outcomes),
        sum(found == RIGHT for found in used.values()),
        sum(found == NEAR for found in used.values()),
        tuple(false),
        len({rank for each in false for rank in each.get("ranks", [])}),
    )


def grade(culprit: dict[str, Any], fault: dict[str, Any]) -> str:
    """Whether a culprit is the fault (right), is its place and not its kind, or one machine around it (near)."""
    entries = fault["accepted"] + fault["same_in_any_recording"]
    kind = culprit.get("kind")
    if fault["kind"] == "slow_link":
        if kind == "link":
            return RIGHT if is_link(culprit, entries) else MISSED
        ends = {node for entry in entries for node in entry["nodes"]}
        return NEAR if kind in MACHINE and set(_nodes(culprit)) and set(_nodes(culprit)) <= ends else MISSED
    ranks, truly = set(culprit.get("ranks", [])), {rank for entry in entries for rank in entry["ranks"]}
    kinds = STOP if fault["kind"] in ("hang", "death") else MACHINE
    inside = bool(ranks) and ranks <= truly
    if not ranks:
        nodes = set(_nodes(culprit))
        inside = bool(nodes) and nodes <= {node for entry in entries for node in entry["nodes"]}
    if inside:
        return RIGHT if kind in kinds else NEAR
    return NEAR if ranks & truly and len(ranks) <= MAX_BROAD and kind in kinds else MISSED


def _nodes(culprit: dict[str, Any]) -> list[str]:
    return list(culprit.get("between") or culprit.get("nodes") or [])


def _is_machine(culprit: dict[str, Any], allowed: dict[str, Any]) -> bool:
    ranks = set(culprit.get("ranks", []))
    return culprit.get("kind") in MACHINE and bool(ranks) and ranks <= set(allowed["ranks"])


def is_link(culprit: dict[str, Any], entries: Sequence[dict[str, Any]]) -> bool:
    """Whether a link is one of those that the truth has. An adapter's machine is one end of the link that is named; of
    links that no recording tells apart, all of them together are right as well."""
    named = set(_nodes(culprit))
    if not named:
        return False
    for entry in entries:
        ends = set(entry["nodes"])
        if "switch" in entry:
            if named <= ends or (len(named) == 2 and named & ends):
                return True
        elif named == ends or (len(ends) == 1 and len(named) <= 2 and ends <= named):
            return True
    whole = {node for entry in entries for node in entry["nodes"]}
    return len(entries) > 1 and named <= whole and any(set(entry["nodes"]) <= named for entry in entries)


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
        return fault["kind"]
    return f"{fault['kind']}, {'later' if fault['first_step'] else 'always'}"


def read(folder: Path, answers: Path) -> list[Judged]:
    """Raises ValueError where an answer is none."""
    given = {}
    for number, line in enumerate(answers.read_text(encoding="utf-8").splitlines(), 1):
        answer = json.loads(line) if line.strip() else None
        if answer is not None:
            if answer.get("verdict") not in VERDICTS:
                raise ValueError(f"{answers}:{number}: the verdict is one of {', '.join(VERDICTS)}")
            given[answer["case"]] = answer
    truths = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*/truth.json"))]
    nothing: dict[str, Any] = {"verdict": "unknown", "culprits": []}
    return [judge(truth, given.get(truth["case"], nothing)) for truth in truths]


def figures(judged: Sequence[Judged]) -> dict[str, Any]:
    """All counts, for tables and for programs."""
    outcomes = [
        (fault, outcome) for each in judged for fault, outcome in zip(each.truth["faults"], each.faults, strict=True)
    ]
    needed = [(fault, outcome) for fault, outcome in outcomes if not fault["optional"]]
    healthy = [each for each in judged if each.healthy]
    right, false = sum(each.right for each in judged), sum(len(each.false) for each in judged)
    return {
        "schema": "strange.score/1",
        "cases": len(judged),
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


def _grouped(outcomes: Sequence[tuple[dict[str, Any], str]], key: Any) -> Iterable[tuple[str, list[Any]]]:
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
        f"{found['cases']} cases: verdict right in {found['verdicts_right']}, all right in {found['clean']}; "
        f"{found['need_not']} faults need not be named",
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


def misses(judged: Sequence[Judged], count: int) -> Iterable[str]:
    """A line for each case that is not right, and how to make it again."""
    for each in judged:
        if each.clean:
            continue
        truth = each.truth
        sizes = [(fault["name"], fault["size"]) for fault in truth["faults"]]
        named = [(it["kind"], it.get("ranks", [])[:8], _nodes(it)[:4]) for it in each.answer.get("culprits", [])]
        yield f"{truth['case']}: {truth['ranks']} ranks, {truth['layout']}, recorded {truth['recorded'] or 'whole'}"
        yield f"    truth {sizes}, {[it for f in truth['faults'] for it in f['accepted'][:1]]}"
        yield f"    answer {each.answer['verdict']} {named}; {', '.join(each.faults)}; false {len(each.false)}"
        command = f"make.py --seed {truth['seed']} --count {count} --out DIR --case {truth['case']}"
        yield f"    python bench/strange/{command}"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, metavar="DIR", help="what make.py wrote")
    parser.add_argument("answers", type=Path, metavar="ANSWERS.jsonl")
    parser.add_argument("--format", choices=("text", "json"), default="text")
    parser.add_argument("--misses", action="store_true", help="show each case that is not right")
    flags = parser.parse_args(arguments)
    try:
        judged = read(flags.folder, flags.answers)
    except (OSError, ValueError, KeyError) as error:
        print(f"no answers can be read: {error}", file=sys.stderr)
        return 64
    found = figures(judged)
    print(json.dumps(found, indent=1) if flags.format == "json" else table(found))
    if flags.misses:
        print("\n".join(misses(judged, found["cases"])))
    return 0


if __name__ == "__main__":
    sys.exit(main())
