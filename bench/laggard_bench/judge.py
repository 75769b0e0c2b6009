"""Judges one answer by the truth of its case: which faults it found, and whom it accuses of nothing. Pure."""

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any, Final

MACHINE: Final = ("compute", "host")
STOP: Final = ("hang", "dead")
MAX_BROAD: Final = 8
"""The most ranks that a culprit may name for one of them to count as near: those of a machine."""

RIGHT, NEAR, MISSED, OPTIONAL = "right", "near", "missed", "need not"


@dataclasses.dataclass(frozen=True)
class Judged:
    """One case with its answer. `faults`: the outcome of each, in the truth's order. `near`: how many culprits are so;
    `false`: those that are none; `innocents`: how many ranks these name."""

    truth: dict[str, Any]
    answer: dict[str, Any]
    faults: tuple[str, ...]
    near: int
    false: tuple[dict[str, Any], ...]
    innocents: int

    @property
    def right(self) -> int:
        """How many faults were found: whoever names one in ten pieces, or ten times, found one."""
        return self.faults.count(RIGHT)

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
    accused = _distinct(each for each in answer.get("culprits", []) if each.get("kind") != "imbalance")
    per_node = truth["ranks"] / truth["nodes"]
    outcomes: list[str] = []
    used: dict[int, str] = {}
    for fault in truth["faults"]:
        grades = [grade(each, fault, per_node) for each in accused]
        for place, found in enumerate(grades):
            used[place] = min(used.get(place, MISSED), found, key=(RIGHT, NEAR, MISSED).index)
        pointed = [grade(each, fault, per_node) != MISSED for each in answer.get("suspects", [])]
        best = min([*grades, NEAR if any(pointed) else MISSED], key=(RIGHT, NEAR, MISSED).index)
        outcomes.append(OPTIONAL if fault["optional"] and best != RIGHT else best)
    for place, each in enumerate(accused):
        if used.get(place, MISSED) == MISSED and _is_tolerated(each, truth["tolerated"]):
            used[place] = NEAR
    false = [each for place, each in enumerate(accused) if used.get(place, MISSED) == MISSED]
    return Judged(
        truth,
        answer,
        tuple(outcomes),
        sum(found == NEAR for found in used.values()),
        tuple(false),
        len({rank for each in false for rank in each.get("ranks", [])}),
    )


def _distinct(culprits: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The culprits, each once."""
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    for each in culprits:
        places = (frozenset(each.get(name, ())) for name in ("ranks", "nodes", "between"))
        found.setdefault((each.get("kind"), *places), each)
    return list(found.values())


def grade(culprit: dict[str, Any], fault: dict[str, Any], per_node: float) -> str:
    """Whether a culprit is the fault (right), is its place and not its kind, or one machine around it (near).
    `per_node`: how many ranks a machine has. Who names machines and no ranks names all ranks of them."""
    entries = fault["accepted"] + fault["same_in_any_recording"]
    kind = culprit.get("kind")
    if fault["kind"] == "slow_link":
        if kind == "link":
            return RIGHT if is_link(culprit, entries) else MISSED
        ends = {node for entry in entries for node in entry["nodes"]}
        return NEAR if kind in MACHINE and set(named_nodes(culprit)) and set(named_nodes(culprit)) <= ends else MISSED
    ranks, truly = set(culprit.get("ranks", [])), {rank for entry in entries for rank in entry["ranks"]}
    kinds = STOP if fault["kind"] in ("hang", "death") else MACHINE
    if not ranks:
        nodes, faulty = set(named_nodes(culprit)), {node for entry in entries for node in entry["nodes"]}
        whole = len(truly) >= per_node * len(faulty)
        return MISSED if not nodes or not nodes <= faulty else RIGHT if whole and kind in kinds else NEAR
    if ranks <= truly:
        return RIGHT if kind in kinds else NEAR
    return NEAR if ranks & truly and len(ranks) <= MAX_BROAD and kind in kinds else MISSED


def named_nodes(culprit: dict[str, Any]) -> list[str]:
    return list(culprit.get("between") or culprit.get("nodes") or [])


def _is_tolerated(culprit: dict[str, Any], allowed: Sequence[dict[str, Any]]) -> bool:
    if culprit.get("kind") == "link":
        return is_link(culprit, [each for each in allowed if each["kind"] == "link"])
    ranks = set(culprit.get("ranks", []))
    return culprit.get("kind") in MACHINE and bool(ranks) and any(ranks <= set(each["ranks"]) for each in allowed)


def is_link(culprit: dict[str, Any], entries: Sequence[dict[str, Any]]) -> bool:
    """Whether a link is one of those that the truth has. An adapter's machine is one end of the link that is named; of
    links that no recording tells apart, all of them together are right as well."""
    named = set(named_nodes(culprit))
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
