"""Draws faults, and makes them as severe as they shall be."""

import math

import numpy as np
from numpy.typing import NDArray

from fluid_simulator.chance import Generator, pick, uniform
from fluid_simulator.cluster import adapter_ways, uplinks
from fluid_simulator.places import Place, Traffic
from fluid_simulator.plan import Fault, Plan
from fluid_simulator.run import Run

TARGETS, TARGET_SHARES = [0.05, 0.1, 0.2, 0.5, 1.0], [0.2, 0.25, 0.25, 0.2, 0.1]
"""The shares by which steps become longer, and how often each comes."""
KINDS_OF_PLACES = {
    "nic": ("nic", "node"),
    "pcie": ("nic",),
    "pair": ("pair",),
    "leaf": ("leaf",),
    "nvlink": ("v",),
    "netdead": ("nic", "pair"),
}
WORDS = {
    "gpu": ("slow GPU", "GPU's kernels take longer"),
    "host": ("slow host", "host launches slower, until the GPU runs dry"),
    "input": ("slow input", "loader delivers late"),
    "nic": ("slow adapter", "adapter at a share of its rate, both ways"),
    "pcie": ("slow PCIe", "a GPU's PCIe is narrow: its network traffic and copies from the host"),
    "pair": ("slow path", "path between two machines is slow"),
    "leaf": ("slow uplinks", "leaf switch lost uplinks"),
    "nvlink": ("slow NVLink", "a GPU's NVLink is slow"),
}
"""The fault's name, and what it is, by type."""
WHEN = {"always": "", "onset": ", onset", "wave": ", in waves"}
CALIBRATION_STEPS = 5
MAX_SEVERITY = 80.0
"""A link is slower by so much at most."""


def draw_place(rng: Generator, plan: Plan, kind: str, traffic: Traffic) -> Fault | None:
    """A fault of a type, at a random place. None: there is no such place in this job."""
    fault = Fault(kind)
    if kind == "gpu":
        _on_gpu(rng, plan, fault)
    elif kind == "host":
        rank = int(rng.integers(plan.cluster.world))
        fault.ranks = [rank] if rng.random() < 0.4 else plan.cluster.ranks_of(plan.cluster.machine(rank))
        fault.style = "pause" if rng.random() < 0.4 else ""
    elif kind == "input":
        reading = [rank for rank, stage in enumerate(plan.drawn.stages) if stage == 0]
        rank = reading[int(rng.integers(len(reading)))]
        on_machine = [other for other in reading if plan.cluster.machine(other) == plan.cluster.machine(rank)]
        fault.ranks = [rank] if rng.random() < 0.6 else on_machine
    else:
        place = _any_place(rng, kind, traffic)
        if place is None:
            return None
        _on_link(plan, fault, place)
    return fault


def _on_gpu(rng: Generator, plan: Plan, fault: Fault) -> None:
    """One GPU, all the time or in bursts, or all of a machine."""
    cluster = plan.cluster
    rank = int(rng.integers(cluster.world))
    fault.ranks = [rank]
    if rng.random() < 0.2 and cluster.machines >= 3:
        fault.ranks = cluster.ranks_of(cluster.machine(rank))
    elif rng.random() < 0.25:
        fault.style = "burst"


def _any_place(rng: Generator, kind: str, traffic: Traffic) -> Place | None:
    """Preferably one that stands out."""
    places = [place for place in traffic.places if place.kind in KINDS_OF_PLACES[kind]]
    if kind == "nvlink":
        shared = [place for place in places if any(_is_of_model(traffic, it) for it in traffic.at(place))]
        places = shared or places
    if not places:
        return None
    telling = [place for place in places if traffic.stands_out(place)]
    if telling and rng.random() < 0.85:
        places = telling
    return places[int(rng.integers(len(places)))]


def _is_of_model(traffic: Traffic, transfer: object) -> bool:
    """Whether it is a collective of a tensor or data group."""
    kind = traffic.kinds[transfer]
    return isinstance(kind, tuple) and kind[0] in ("tp", "dp")


def _on_link(plan: Plan, fault: Fault, place: Place) -> None:
    cluster, first = plan.cluster, place.at[0]
    fault.place = place
    if place.kind == "nic":
        adapter = (first, place.at[1])
        fault.resources, fault.ranks = list(adapter_ways(adapter)), cluster.ranks_at(adapter)
    elif place.kind == "node":
        every = [(first, adapter) for adapter in range(cluster.adapters)]
        fault.resources = [way for adapter in every for way in adapter_ways(adapter)]
        fault.ranks = cluster.ranks_of(first)
    elif place.kind == "pair":
        fault.resources = cluster.paths(*place.at)
    elif place.kind == "leaf":
        fault.resources = list(uplinks(first))
    else:
        fault.ranks = [first]


def draw_levels(rng: Generator, mode: str, steps: int) -> list[float]:
    """Returns by step which share of a fault acts. `mode`: always, onset or wave."""
    if mode == "always":
        return [1.0] * steps
    if mode == "onset":
        first, ramp = int(rng.integers(steps // 3, steps // 2 + 1)), int(pick(rng, [1, 1, 4]))
        return [0.0 if step < first else min(1.0, (step - first + 1) / ramp) for step in range(steps)]
    levels: list[float] = []
    on = bool(rng.random() < 0.3)
    while len(levels) < steps:
        levels += [1.0 if on else 0.0] * int(rng.integers(2, 5))
        on = not on
    return levels[:steps]


def draw_severity(rng: Generator, plan: Plan, fault: Fault, mode: str, base: float) -> None:
    """Draws when the fault acts, and how much: so that steps, which take `base` seconds, become longer by a target, or
    as adapters fail. Names the fault."""
    fault.mode, fault.levels = mode, draw_levels(rng, mode, plan.steps)
    fault.target = float(rng.choice(TARGETS, p=TARGET_SHARES))
    if mode == "wave":
        fault.target = max(fault.target, 0.1)
    if fault.type in ("nic", "pcie") and rng.random() < 0.5:  # to half or a quarter of the rate, as links train down
        fault.fixed = float(pick(rng, [1.0, 3.0]))
    if mode == "wave" and fault.type in ("nic", "leaf") and rng.random() < 0.5:
        _flaps(rng, plan, fault)
    calibrate(plan, fault, base)
    name, how = WORDS[fault.type]
    fault.name = name + WHEN[mode]
    style = f" ({fault.style})" if fault.style else ""
    at = f"; at {fault.place}" if fault.place else ""
    fault.how = f"{how}{style}, by 1+{fault.severity:.2f}; target {fault.target}{at}"


def _flaps(rng: Generator, plan: Plan, fault: Fault) -> None:
    """Lets nearly nothing through in a few steps."""
    fault.fixed = uniform(rng, 8, 40)
    on = set(rng.choice(np.arange(1, plan.steps), 4, replace=False).tolist())
    fault.levels = [1.0 if step in on else 0.0 for step in range(plan.steps)]


def calibrate(plan: Plan, fault: Fault, base: float) -> None:
    """Finds the severity by which steps of `base` seconds become longer by about the fault's target."""
    fault.severity = _first_guess(plan, fault)
    if fault.fixed:
        fault.severity = fault.fixed
        return
    best = (fault.severity, 0.0)
    low = high = None
    for attempt in range(5 if plan.cluster.world >= 256 else 7):
        size = usual_step(plan, fault) / base - 1
        if attempt == 0 or _off(size, fault.target) < _off(best[1], fault.target):
            best = (fault.severity, size)
        if abs(size - fault.target) < 0.25 * fault.target:
            break
        tried = (fault.severity, size)
        low, high = (tried, high) if size < fault.target else (low, tried)
        fault.severity = _next_guess(fault, tried, low, high)
        if fault.of_link:
            if tried[0] >= MAX_SEVERITY and fault.severity >= MAX_SEVERITY:
                break
            fault.severity = min(fault.severity, MAX_SEVERITY)
    fault.severity = best[0]


def usual_step(plan: Plan, fault: Fault | None = None) -> float:
    """Seconds of a step after the first, with the fault in full, or without any."""
    found: NDArray[np.float64] = Run(plan, [fault] if fault else [], CALIBRATION_STEPS, all_on=True).durations()
    return float(found[1:].mean())


def _off(size: float, target: float) -> float:
    return abs(math.log(max(size, 1e-4) / target))


def _first_guess(plan: Plan, fault: Fault) -> float:
    target = fault.target
    if fault.style == "pause":
        return 1.0 + target
    launching = (1 + target) / plan.job.settings.host_share - 1
    guesses = {"gpu": target * 1.1, "host": launching, "input": target + 0.3, "nvlink": 2.0, "leaf": 6.0}
    return guesses.get(fault.type, 1.0)


def _next_guess(
    fault: Fault, tried: tuple[float, float], low: tuple[float, float] | None, high: tuple[float, float] | None
) -> float:
    """The next severity to try. `low` and `high`: a severity with its size below the target, and one above."""
    if low and high:
        share = (fault.target - max(low[1], 0)) / (high[1] - max(low[1], 0))
        return low[0] + (high[0] - low[0]) * min(0.8, max(0.2, share))
    return tried[0] * min(3.0, max(0.3, fault.target / max(tried[1], 1e-3)))
