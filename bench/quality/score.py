"""Compares what a tool named with the truth."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from quality.answer import Named

SLOW_KINDS = frozenset(("slow", "slow_compute", "slow_host", "slow_input"))
RIGHT, FALSE, TOLERATED = "right", "false", "tolerated"


class Found(NamedTuple):
    """How a culprit of the truth was answered. `kind` and `phase` tell whether they were right, None where the place
    was not; `recoverable_error` is in shares of the step time."""

    found: bool
    kind: bool | None = None
    phase: bool | None = None
    recoverable_error: float | None = None


class Score(NamedTuple):
    """`marks` are of the culprits named, in their order; `found` of the truth's culprits, in theirs."""

    marks: list[str]
    found: list[Found]


def score(truth: dict[str, Any], named: Sequence[Named]) -> Score:
    """Marks each culprit named and finds each culprit of the truth.

    A named culprit is right where its place is that of a culprit in the truth; a second one for the same place is
    tolerated. Several that together are just the ranks of a slow or dead node are right together. Naming what the truth
    does not require is tolerated. All else is false.
    """
    culprits = truth["culprits"]
    marks, found = [FALSE] * len(named), [Found(False)] * len(culprits)
    for place, culprit in enumerate(culprits):
        for index, one in enumerate(named):
            if marks[index] != FALSE or not is_there(truth, culprit, one):
                continue
            if not culprit["required"] or found[place].found:
                marks[index] = TOLERATED
            else:
                marks[index] = RIGHT
                found[place] = details(truth, culprit, one)
        parts = pieces(truth, culprit, named, marks)
        if parts and not found[place].found:
            for index in parts:
                marks[index] = RIGHT if culprit["required"] else TOLERATED
            found[place] = details(truth, culprit, named[parts[0]])._replace(recoverable_error=None)
    return Score(marks, found)


def node_of(truth: dict[str, Any], rank: int) -> str:
    return f"n{rank // truth['layout']['gpus_per_node']}"


def ranks_of(truth: dict[str, Any], one: Named) -> set[int]:
    """Returns the ranks that a tool accuses: those that it names, else all of its machine."""
    if one.ranks:
        return set(one.ranks)
    return {rank for rank in range(truth["layout"]["world_size"]) if node_of(truth, rank) in one.nodes}


def is_there(truth: dict[str, Any], culprit: dict[str, Any], one: Named) -> bool:
    accused, ranks, within = ranks_of(truth, one), set(culprit["ranks"]), set(culprit["within"])
    if not culprit["required"] and culprit["kind"] != "slow_link":
        return bool(accused) and accused <= within
    if culprit["kind"] != "slow_link":
        return accused == ranks
    partners = set(culprit.get("partners", ()))
    if not one.ranks:
        nodes = {node_of(truth, rank) for rank in within | partners}
        return bool(set(one.nodes) & set(culprit["nodes"])) and set(one.nodes) <= nodes
    return bool(accused & ranks) and accused <= within | (partners if len(accused) <= 2 else set())


def pieces(truth: dict[str, Any], culprit: dict[str, Any], named: Sequence[Named], marks: Sequence[str]) -> list[int]:
    """Returns which of those named are parts of a culprit of several ranks, if together they are all of it."""
    ranks = set(culprit["ranks"])
    if len(ranks) < 2 or culprit["kind"] == "slow_link":
        return []
    parts = [
        index
        for index, one in enumerate(named)
        if marks[index] == FALSE and ranks_of(truth, one) and ranks_of(truth, one) <= ranks
    ]
    covered = set().union(*(ranks_of(truth, named[index]) for index in parts)) if parts else set()
    return parts if covered == ranks else []


def details(truth: dict[str, Any], culprit: dict[str, Any], one: Named) -> Found:
    """Tells whether kind and phase are right. A recording without phases cannot tell input from computing."""
    sparse = truth["form"] == "sparse"
    kinds = set(culprit["kinds"])
    if kinds & SLOW_KINDS:
        kinds |= SLOW_KINDS if sparse else {"slow"}
    phase = one.phase in culprit["phases"] or (one.phase is None and sparse)
    error = None
    if one.recoverable is not None and "recoverable_ratio" in culprit:
        truths = (culprit["recoverable_ratio"], culprit["recoverable_ratio_since"])
        error = min(abs(one.recoverable - true) for true in truths)
    return Found(True, one.kind in kinds, phase, error)
