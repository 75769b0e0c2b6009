"""Runs and judges what befalls a job: nothing, something slow, or a stop."""

from typing import Any

import numpy as np

from fluid_simulator.chance import Generator, pick
from fluid_simulator.families import INNOCENT, STOPS
from fluid_simulator.faults import draw_place, draw_severity, usual_step
from fluid_simulator.happened import Happened
from fluid_simulator.places import Traffic
from fluid_simulator.plan import Fault, Plan
from fluid_simulator.run import Run
from fluid_simulator.stops import happen_stop
from fluid_simulator.truths import Times, Truth, acting, base_truth, fault_truth, innocent_truth, lengthening

WAVE_TYPES = ["gpu", "gpu", "gpu", "host", "input", "nic", "nvlink"]
ONSET_TYPES = ["gpu", "gpu", "gpu", "host", "input", "nic", "leaf", "nvlink"]
TWO_TYPES = (["gpu", "gpu", "input", "nvlink", "host"], ["gpu", "host", "input", "nic"])
HIDDEN_SHARE = 0.02
"""A single fault that lengthens steps by less is drawn anew, mostly: it hides behind work."""


def happen(rng: Generator, plan: Plan) -> Happened | None:
    """Runs the plan with what its family wants. None: this job has no place for it. Raises Deadlock."""
    if plan.family in STOPS:
        return happen_stop(rng, plan)
    usual = Run(plan, [], plan.steps)
    usual.check_finished()
    seconds = float(np.median(usual.durations()))
    if plan.family in INNOCENT:
        truth = innocent_truth(plan, usual.traffic())
        return None if truth is None else Happened(usual, truth, seconds)
    return _slow(rng, plan, usual, seconds)


def _slow(rng: Generator, plan: Plan, usual: Run, seconds: float) -> Happened | None:
    traffic, without = usual.traffic(), usual.durations()
    faults = _faults(rng, plan, traffic)
    if not faults:
        return None
    run = Run(plan, faults, plan.steps)
    truth = base_truth(plan, traffic)
    if len(faults) > 1:
        truth.faults = [_one_of_several(plan, fault, faults, traffic, run, without) for fault in faults]
    else:
        alone = lengthening(run.durations(), without, acting(faults[0]))
        if alone < HIDDEN_SHARE and (not faults[0].of_link or rng.random() < 0.8):
            return None
        truth.faults = [fault_truth(plan, faults[0], traffic, run.durations(), without, alone)]
    required = [fault for fault in truth.faults if not fault["optional"]]
    truth.verdicts = ["slow"] if required else ["slow", "ok", "unknown"]
    truth.why += " " + "; ".join(sorted(_reasons(truth)))
    return Happened(run, truth, seconds)


def _reasons(truth: Truth) -> set[str]:
    reasons = {fault["optional"] for fault in truth.faults if fault["optional"]}
    if any(fault["same_in_any_recording"] for fault in truth.faults):
        reasons.add("links in the very same transfers")
    return reasons


def _faults(rng: Generator, plan: Plan, traffic: Traffic) -> list[Fault]:
    """The faults, as severe as they shall be; none where the job has no place for one."""
    mode = plan.family if plan.family in ("onset", "wave") else "always"
    found: list[Fault] = []
    types = _types(rng, plan.family)
    base = usual_step(plan)
    for kind in types:
        fault = draw_place(rng, plan, kind, traffic)
        if fault is None or (found and _overlap(plan, fault, found[0])):
            return []
        draw_severity(rng, plan, fault, mode, base)
        found.append(fault)
    return found


def _types(rng: Generator, family: str) -> list[str]:
    if family == "two":
        return [str(pick(rng, types)) for types in TWO_TYPES]
    if family in ("onset", "wave"):
        return [str(pick(rng, WAVE_TYPES if family == "wave" else ONSET_TYPES))]
    return [family]


def _overlap(plan: Plan, fault: Fault, other: Fault) -> bool:
    """Whether two faults are at the same ranks, or begin on the same machine of several."""
    if not fault.ranks or not other.ranks:
        return False
    machine = plan.cluster.machine
    together = machine(fault.ranks[0]) == machine(other.ranks[0]) and plan.cluster.machines > 1
    return bool(set(fault.ranks) & set(other.ranks)) or together


def _one_of_several(
    plan: Plan, fault: Fault, faults: list[Fault], traffic: Traffic, run: Run, without_any: Times
) -> dict[str, Any]:
    """The truth of a fault, whose size is by how much steps are longer than with the others alone."""
    others = [other for other in faults if other is not fault]
    without = Run(plan, others, plan.steps).durations()
    alone = lengthening(Run(plan, [fault], plan.steps).durations(), without_any, acting(fault))
    found = fault_truth(plan, fault, traffic, run.durations(), without, alone)
    if found["size"] < HIDDEN_SHARE and not found["optional"]:
        found["optional"] = "the other fault hides it: without it the step would be as long"
    return found
