"""What befalls a job, run and judged: nothing, something slow, or a stop."""

from __future__ import annotations

import dataclasses

import numpy as np

from fluid_simulator.draw import Generator, pick, uniform
from fluid_simulator.families import INNOCENT, STOPS
from fluid_simulator.faults import draw_place, draw_severity, usual_step
from fluid_simulator.job import Stop
from fluid_simulator.places import Traffic, entry_of
from fluid_simulator.plan import Fault, Plan
from fluid_simulator.run import Run
from fluid_simulator.truths import Times, Truth, acting, base_truth, fault_truth, innocent_truth, lengthening

WAVE_TYPES = ["gpu", "gpu", "gpu", "host", "input", "nic", "nvlink"]
ONSET_TYPES = ["gpu", "gpu", "gpu", "host", "input", "nic", "leaf", "nvlink"]
TWO_TYPES = (["gpu", "gpu", "input", "nvlink", "host"], ["gpu", "host", "input", "nic"])
HIDDEN_SHARE = 0.02
"""A single fault that lengthens steps by less is drawn anew, mostly: it hides behind work."""


@dataclasses.dataclass(frozen=True)
class Standstill:
    """How a job stood still, for the recording. `since`: seconds, when nothing moved any more; `ranks` that stopped, in
    `step`; `wait`: seconds until the launcher killed the job; `recorder`: whether torch's Flight Recorder was on;
    `by_exception`: the rank ended by an exception of its own."""

    family: str
    ranks: list[int]
    step: int
    since: float
    wait: float
    recorder: bool
    by_exception: bool


@dataclasses.dataclass(frozen=True)
class Happened:
    """`step_seconds`: of the job with nothing wrong."""

    run: Run
    truth: Truth
    step_seconds: float
    standstill: Standstill | None = None


def happen(rng: Generator, plan: Plan) -> Happened | None:
    """Runs the plan with what its family wants. None: this job has no place for it. Raises Deadlock."""
    if plan.family in STOPS:
        return _stop(rng, plan)
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
) -> dict[str, object]:
    """The truth of a fault, whose size is by how much steps are longer than with the others alone."""
    others = [other for other in faults if other is not fault]
    without = Run(plan, others, plan.steps).durations()
    alone = lengthening(Run(plan, [fault], plan.steps).durations(), without_any, acting(fault))
    found = fault_truth(plan, fault, traffic, run.durations(), without, alone)
    if found["size"] < HIDDEN_SHARE and not found["optional"]:
        found["optional"] = "the other fault hides it: without it the step would be as long"
    return found


def _stop(rng: Generator, plan: Plan) -> Happened | None:
    plan.job.sync_every = 1
    usual = Run(plan, [], 4)
    usual.check_finished()
    step = plan.steps - 1
    stop = _where(rng, plan, usual, step)
    if stop is None:
        return None
    faults = []
    if plan.family == "net_dead":
        fault = draw_place(rng, plan, "netdead", usual.traffic())
        if fault is None:
            return None
        fault.dead_from, fault.levels = step, [0.0] * plan.steps
        faults, stop = [fault], Stop(fault.ranks, step, stop.kernel, "network")
    run = Run(plan, faults, plan.steps, stop=None if faults else stop)
    if run.finished:
        return None
    since = max(run.last_time, run.simulation.agenda.now)
    for rank in run.ranks:
        rank.stand_still()
    recorder = bool(rng.random() < 0.6)
    truth = _stop_truth(plan, stop, run, recorder, usual.traffic(), faults[0] if faults else None)
    wait = uniform(rng, 20, 60)
    by_exception = plan.family == "dead" and bool(rng.random() < 0.3)
    if by_exception:
        truth.faults[0]["how"] += ", by an exception of its own"
    standstill = Standstill(plan.family, stop.ranks, step, since, wait, recorder, by_exception)
    return Happened(run, truth, float(np.median(usual.durations())), standstill)


def _where(rng: Generator, plan: Plan, usual: Run, step: int) -> Stop | None:
    """Which ranks stop, and at which bunch of kernels. None: there are too few machines for one to die."""
    family, cluster = plan.family, plan.cluster
    rank = int(rng.integers(cluster.world))
    if family == "hang_input":
        reading = [other for other, stage in enumerate(plan.drawn.stages) if stage == 0]
        rank = reading[int(rng.integers(len(reading)))]
    kernel = int(rng.integers(2, max(3, usual.ranks[rank].kernels)))
    ranks = [rank]
    if family == "node_dead":
        if cluster.machines < 3:
            return None
        ranks = cluster.ranks_of(int(rng.integers(cluster.machines)))
        kernel = min(kernel, min(usual.ranks[other].kernels for other in ranks))
    return Stop(ranks, step, kernel, {"hang_input": "input", "hang_gpu": "gpu"}.get(family, "host"))


STOP_NAMES = {
    "hang_compute": "stuck in compute",
    "hang_input": "stuck in input",
    "hang_gpu": "GPU stopped",
    "stopped": "process stopped",
    "dead": "process dead",
    "node_dead": "machine dead",
    "net_dead": "path dead",
}


def _stop_truth(plan: Plan, stop: Stop, run: Run, recorder: bool, traffic: Traffic, path: Fault | None) -> Truth:
    kind = "death" if plan.family in ("dead", "node_dead") else "hang"
    name, shown = STOP_NAMES[plan.family], "on" if recorder else "off"
    truth = Truth(_verdicts(plan))
    fault = {
        "name": name,
        "kind": kind,
        "how": f"{name} in step {stop.step}, kernel bunch {stop.kernel}, Flight Recorder {shown}",
        "size": None,
        "size_alone": None,
        "size_of_run": None,
        "first_step": stop.step,
        "accepted": [plan.entry("dead" if kind == "death" else "hang", stop.ranks)],
        "same_in_any_recording": [],
        "optional": "",
    }
    if plan.family == "node_dead":
        fault["accepted"] += [plan.entry("hang", stop.ranks)]
    if plan.family == "hang_gpu" and not _recorder_tells(run, stop.ranks[0], recorder):
        fault["optional"] = "hosts ran ahead of the stopped GPU, and no Flight Recorder count sets it apart"
        truth.verdicts = ["hang", "unknown"]
    if path is not None:
        fault |= _path_truth(plan, path, traffic)
    truth.faults, truth.why = [fault], str(fault["optional"])
    return truth


def _verdicts(plan: Plan) -> list[str]:
    if plan.family == "net_dead":
        return ["hang", "unknown"]
    if plan.family == "node_dead":
        return ["dead", "hang"]
    if plan.family in ("hang_compute", "hang_input") and plan.job.settings.blocking:
        return ["hang", "dead"]  # those that wait give up, and end
    return ["dead"] if plan.family == "dead" else ["hang"]


def _recorder_tells(run: Run, stopped: int, recorder: bool) -> bool:
    """Whether the stopped GPU began fewer collectives of all ranks than any other."""
    begun = [rank.started_of_world for rank in run.ranks]
    return recorder and all(count > begun[stopped] for rank, count in enumerate(begun) if rank != stopped)


def _path_truth(plan: Plan, path: Fault, traffic: Traffic) -> dict[str, object]:
    assert path.place is not None
    cluster = plan.cluster
    return {
        "accepted": [entry_of(cluster, path.place), *(plan.entry("hang", [rank]) for rank in path.ranks)],
        "same_in_any_recording": [entry_of(cluster, place) for place in traffic.same(path.place)],
        "optional": "a dead path and a stopped GPU at its end look alike",
    }
