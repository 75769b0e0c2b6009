"""Ranks that stop for good: in compute, in input, on the GPU, with their process or machine, or as the network dies."""

from typing import Any

import numpy as np

from fluid_simulator.chance import Generator, uniform
from fluid_simulator.faults import draw_place
from fluid_simulator.happened import Happened, Standstill
from fluid_simulator.job import Stop
from fluid_simulator.places import Traffic, entry_of
from fluid_simulator.plan import Fault, Plan
from fluid_simulator.run import Run
from fluid_simulator.truths import Truth

USUAL_STEPS = 4
"""The number of steps that are run to know what is usual."""
STOP_NAMES = {
    "hang_compute": "stuck in compute",
    "hang_input": "stuck in input",
    "hang_gpu": "GPU stopped",
    "stopped": "process stopped",
    "dead": "process dead",
    "node_dead": "machine dead",
    "net_dead": "path dead",
}
"""The fault's name, by family."""


def happen_stop(rng: Generator, plan: Plan) -> Happened | None:
    """Runs the plan up to where it stands still. None: this job has no place for it. Raises Deadlock."""
    plan.job.sync_every = 1
    usual = Run(plan, [], USUAL_STEPS)
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
    """Draws which ranks stop, and at which bunch of kernels. None: there are too few machines for one to die."""
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


def _stop_truth(plan: Plan, stop: Stop, run: Run, recorder: bool, traffic: Traffic, path: Fault | None) -> Truth:
    kind = "death" if plan.family in ("dead", "node_dead") else "hang"
    name, shown = STOP_NAMES[plan.family], "on" if recorder else "off"
    truth = Truth(_verdicts(plan))
    fault: dict[str, Any] = {
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
    truth.faults, truth.why = [fault], fault["optional"]
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


def _path_truth(plan: Plan, path: Fault, traffic: Traffic) -> dict[str, Any]:
    assert path.place is not None
    cluster = plan.cluster
    return {
        "accepted": [entry_of(cluster, path.place), *(plan.entry("hang", [rank]) for rank in path.ranks)],
        "same_in_any_recording": [entry_of(cluster, place) for place in traffic.same(path.place)],
        "optional": "a dead path and a stopped GPU at its end look alike",
    }
