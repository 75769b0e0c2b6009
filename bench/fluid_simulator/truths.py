"""The truth of a case: who is at fault, by how much, and whom no recording tells apart from them."""

import dataclasses
import json
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fluid_simulator.places import Traffic, entry_of
from fluid_simulator.plan import Entry, Fault, Plan

Times = NDArray[np.float64]
SMALLEST_SIZE = 0.02
"""The lengthening of steps below which nobody need be named."""
ACTING = 0.3
"""A fault acts in the steps where more than this share of it does."""
KINDS = {"gpu": ("slow_compute", "compute"), "host": ("slow_host", "host"), "input": ("slow_host", "host")}
"""The kinds of a machine's faults in truths, and in answers, by type."""


@dataclasses.dataclass
class Truth:
    """The parts of a laggard-bench truth: `verdicts` that are right, `faults`, `tolerated`, and `why`."""

    verdicts: list[str]
    faults: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    tolerated: list[Entry] = dataclasses.field(default_factory=list)
    why: str = ""


def innocent_truth(plan: Plan, traffic: Traffic) -> Truth | None:
    """Says who may be named though nothing is broken. None: the case would say nothing of what its family is about."""
    truth = base_truth(plan, traffic)
    if plan.family == "congestion":
        if not traffic.between:
            return None
        congested = _congested(plan, traffic)
        if congested:
            truth.why = "all transfers between machines go over it: no recording tells congestion from a slow link"
        truth.verdicts = ["ok", "slow"] if congested else ["ok"]
        truth.tolerated = congested + truth.tolerated
    elif truth.tolerated:
        truth.verdicts = ["ok", "slow"]
    return truth


def base_truth(plan: Plan, traffic: Traffic) -> Truth:
    """Says who may be named for what is uneven by design."""
    truth = Truth(["ok"], tolerated=list(plan.tolerated), why=plan.why)
    if plan.cluster.oversubscription > 1.01:
        leaves = [place for place in traffic.places if place.kind == "leaf" and traffic.stands_out(place)]
        alike = [traffic.at(leaf) for leaf in leaves]
        slow = [place for place in traffic.places if traffic.at(place) in alike]
        truth.tolerated += [entry_of(plan.cluster, place) for place in slow]
        if leaves:
            said = truth.why + " uplinks are oversubscribed by design: what crosses them is slower"
            truth.why = said.strip()
    return truth


def _congested(plan: Plan, traffic: Traffic) -> list[Entry]:
    """Places that all transfers between machines pass; if there are none, those beside which nothing is comparable."""
    passed_by_all = [place for place in traffic.places if traffic.between <= traffic.at(place)]
    alone = [place for place in traffic.places if place.kind != "v" and not traffic.stands_out(place)]
    return [entry_of(plan.cluster, place) for place in passed_by_all or alone]


def acting(fault: Fault) -> list[int]:
    """The steps in which the fault acts, without the first step, where others are left."""
    steps = [step for step, level in enumerate(fault.levels) if level > ACTING]
    return [step for step in steps if step > 0] or steps


def lengthening(with_fault: Times, without: Times, steps: list[int]) -> float:
    """Returns the share by which these steps are longer."""
    return float(with_fault[steps].sum() / without[steps].sum() - 1)


def fault_truth(
    plan: Plan, fault: Fault, traffic: Traffic, with_fault: Times, without: Times, alone: float
) -> dict[str, Any]:
    """`with_fault` and `without`: seconds of all steps. `alone`: by which share it would lengthen them by itself."""
    size = lengthening(with_fault, without, acting(fault))
    kind, accepted, optional = _of_link(plan, fault, traffic) if fault.of_link else _of_machine(plan, fault)
    if size < SMALLEST_SIZE and alone < SMALLEST_SIZE and not optional:
        optional = f"lengthens the step by {max(size, alone) * 100:.1f} % only"
    return {
        "name": fault.name,
        "kind": kind,
        "how": fault.how,
        "size": round(size, 4),
        "size_alone": round(alone, 4),
        "size_of_run": round(float(with_fault.sum() / without.sum() - 1), 4),
        "first_step": next((step for step, level in enumerate(fault.levels) if level > ACTING), 0),
        "accepted": accepted,
        "same_in_any_recording": _same(plan, fault, traffic, accepted[0]),
        "optional": optional,
    }


def _of_machine(plan: Plan, fault: Fault) -> tuple[str, list[Entry], str]:
    """Kind, who is right, and why nobody need be named."""
    stages, ranks = plan.drawn.stages, fault.ranks
    peers = [rank for rank, stage in enumerate(stages) if stage == stages[ranks[0]]]
    kind, answered = KINDS[fault.type]
    half = fault.mode == "always" and 2 * len(set(ranks) & set(peers)) >= len(peers)
    optional = "half or more of the ranks that do the same work are slow alike" if half else ""
    return kind, [plan.entry(answered, ranks)], optional


def _of_link(plan: Plan, fault: Fault, traffic: Traffic) -> tuple[str, list[Entry], str]:
    assert fault.place is not None
    cluster = plan.cluster
    accepted = [entry_of(cluster, fault.place)]
    machines = {cluster.machine(rank) for rank in fault.ranks}
    if fault.type in ("nic", "pcie", "nvlink") and machines:
        whole = [rank for rank in range(cluster.world) if cluster.machine(rank) in machines]
        accepted.append(plan.entry("link", whole))
    if fault.type == "pcie":
        accepted += [plan.entry("compute", fault.ranks), plan.entry("host", fault.ranks)]
    designed = "no transfer of the same kind avoids it: congestion, or the design, would look alike"
    return "slow_link", accepted, "" if traffic.stands_out(fault.place) else designed


def _same(plan: Plan, fault: Fault, traffic: Traffic, named: Entry) -> list[Entry]:
    """Other places that the very same transfers pass; each once."""
    found: dict[str, Entry] = {}
    for place in traffic.same(fault.place) if fault.place else ():
        entry = entry_of(plan.cluster, place)
        found.setdefault(json.dumps(entry, sort_keys=True), entry)
    found.pop(json.dumps(named, sort_keys=True), None)
    return list(found.values())
