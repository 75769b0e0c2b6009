"""Makes one case of the benchmark: a job with faults of stated sizes, and the truth about it."""

import zlib
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from simulator.engine import Durations, Times, run, step_ends
from simulator.faults import (
    SLOW,
    Effect,
    Fault,
    Place,
    Unlocatable,
    alternatives,
    choose_place,
    choose_rank,
    pauses,
    seconds_there,
    stop_item,
    stop_member,
    victims_items,
)
from simulator.innocents import INNOCENTS, NOISES, lasting_noise
from simulator.layout import Layout, parse_layout
from simulator.noise import CALM, LOUD, WARM_UP_STEPS, Healthy, Lasting, drawn_noise, healthy
from simulator.programme import PHASES, Programme
from simulator.schedules import programme

Floats = npt.NDArray[np.float64]

FORMS = ("host", "device", "sparse")
NETWORK_FAULTS = ("slow_nic", "slow_link", "slow_rail", "slow_nvlink")
SIZE_TOLERANCE = 0.002  # of the healthy step, by how much a fault's size may be missed
LARGEST_SEVERITY = 500.0  # a slower machine would not be called slow


@dataclass(frozen=True)
class Case:
    """What is simulated. The same case gives the same bytes."""

    layout: str
    form: str = "host"
    seed: int = 0
    steps: int = 40
    faults: tuple[Fault, ...] = ()
    innocents: tuple[str, ...] = ()
    clock_offset: float = 3.0  # seconds, and
    clock_drift: float = 15e-6  # by how much a node's clock is off at most
    lasting: Lasting | None = None

    def generator(self, purpose: str) -> np.random.Generator:
        """Returns the random numbers for one purpose: a fault changes none but its own."""
        return np.random.default_rng([self.seed, zlib.crc32(purpose.encode()), zlib.crc32(self.layout.encode())])


class Simulated(NamedTuple):
    """A case that has run. `dead_at` are ranks whose process ended by itself, and when."""

    case: Case
    programme: Programme
    times: Times
    truth: dict[str, Any]
    dead_at: dict[int, float]
    stopped: frozenset[int]  # ranks that never go on, and write nothing more
    ending: str  # how the recording ends: complete, exceptions, live, terminated


@lru_cache(maxsize=16)
def programme_of(layout: str) -> Programme:
    return programme(parse_layout(layout))


def simulate(case: Case) -> Simulated:
    """Runs a case. Raises Unlocatable where its faults cannot show in its layout or cannot have their size, ValueError
    where the case makes no sense."""
    if case.form not in FORMS:
        raise ValueError(f"no form {case.form!r}; there are {', '.join(FORMS)}")
    plan = programme_of(case.layout)
    base = healthy_job(case, plan)
    made = [make(case, plan, base, number) for number in range(len(case.faults))]
    return (
        slow_job(case, plan, base, made)
        if all(one.fault.kind in SLOW for one in made)
        else stopped_job(case, plan, base, made)
    )


def healthy_job(case: Case, plan: Programme) -> Healthy:
    draw = case.generator("noise")
    named = [name for name in case.innocents if name in NOISES]
    unknown = set(case.innocents) - set(INNOCENTS) - set(NOISES)
    if unknown:
        raise ValueError(f"no innocent {min(unknown)!r}; there are {', '.join((*INNOCENTS, *NOISES))}")
    noise = {"loud": LOUD, "calm": CALM}[named[0]] if named else drawn_noise(draw)
    base = healthy(plan, case.steps, noise, draw)
    for name in case.innocents:
        if name in INNOCENTS:
            INNOCENTS[name](plan, base, case.generator(name))
    if case.lasting:
        lasting_noise(plan, base, case.lasting, case.generator("lasting"))
    return base


class Made(NamedTuple):
    """A fault with everything drawn that it left open. `effect` is at the severity that gives it its size."""

    fault: Fault
    place: Place | None
    effect: Effect
    severity: float
    size: float


def taken_nodes(case: Case, plan: Programme, number: int) -> set[int]:
    """Returns the nodes, and as -1 - rank the ranks, of the faults before this one."""
    taken: set[int] = set()
    for earlier in range(number):
        rank = fault_rank(case, plan, earlier)
        taken |= {plan.layout.node(rank), -1 - rank}
    return taken


def fault_rank(case: Case, plan: Programme, number: int) -> int:
    draw = case.generator(f"fault {number}")
    return choose_rank(plan.layout, case.faults[number], draw, taken_nodes(case, plan, number))


def make(case: Case, plan: Programme, base: Healthy, number: int) -> Made:
    fault = replace(case.faults[number], rank=fault_rank(case, plan, number))
    draw = case.generator(f"effect {number}")
    steps, items, joints = case.steps, len(plan.items), len(plan.joints)
    hit = fault.when.steps(steps, draw)
    hit[:WARM_UP_STEPS] = False
    place = None
    effect = Effect(np.zeros((steps, items)), np.zeros((steps, items)), np.zeros((steps, joints)), hit)
    if fault.kind not in SLOW:
        return Made(fault, None, effect, 1.0, 0.0)
    if fault.kind in NETWORK_FAULTS:
        place = choose_place(plan, fault, fault.rank, draw)
        effect.joints[:] = np.outer(hit, place.slows(plan) * seconds_there(plan, place))
    elif fault.kind in ("pauses", "garbage"):
        effect.items[:] = pauses(plan, fault, fault.rank, hit, draw)
    else:
        effect.items[:] = hit[:, None] * victims_items(plan, fault, fault.rank) * base.items
    severity, size = calibrate(plan, base, effect, fault.size)
    scaled = effect._replace(items=effect.items * severity, joints=effect.joints * severity)
    return Made(fault, place, scaled, severity, size)


def durations(base: Healthy, effects: list[Effect]) -> Durations:
    zero = Effect(np.zeros_like(base.items), np.zeros_like(base.late), np.zeros_like(base.joints), np.zeros(0, bool))
    effects = effects or [zero]
    return Durations(
        base.items,
        sum(effect.items for effect in effects),  # type: ignore[arg-type]
        base.late + sum(effect.late for effect in effects),
        base.joints,
        sum(effect.joints for effect in effects),  # type: ignore[arg-type]
    )


def calibrate(plan: Programme, base: Healthy, effect: Effect, size: float) -> tuple[float, float]:
    """Returns the severity at which the steps that are hit become longer by `size`, and the size that it gives.

    The lengthening is convex in the severity: nothing until the slack is used up, then a straight line. Four severities
    are tried at once, within the bracket that the last four left.
    """
    if not effect.hit.any() or not (effect.items.any() or effect.joints.any()):
        raise Unlocatable("the fault hits nothing")
    work = durations(base, [effect])
    bare = step_ends(plan, work, np.zeros(1))[:, 0]
    lengths = np.diff(bare, prepend=0.0)
    usual = float(lengths[effect.hit].sum())

    def sizes(severities: Floats) -> Floats:
        return (step_ends(plan, work, severities)[-1] - bare[-1]) / usual

    added = effect.items.sum() + effect.joints.sum()
    low, high = 0.0, max(size * usual / added, 1e-6)
    at_high = float(sizes(np.array([high]))[0])
    while at_high < size:
        tries = high * np.array([2.0, 4.0, 16.0, 64.0])
        found = sizes(tries)
        reached = np.flatnonzero(found >= size)
        if len(reached):
            low = float(tries[reached[0] - 1]) if reached[0] else high
            high, at_high = float(tries[reached[0]]), float(found[reached[0]])
        else:
            low, high, at_high = float(tries[-2]), float(tries[-1]), float(found[-1])
        if low > LARGEST_SEVERITY or not len(reached) and high > LARGEST_SEVERITY:
            raise Unlocatable(f"no severity makes the step {size:.0%} longer")
    for _ in range(4):
        tries = np.linspace(low, high, 6)[1:-1]
        found = sizes(tries)
        values, levels = np.array([low, *tries, high]), np.array([-np.inf, *found, at_high])
        place = int(np.searchsorted(levels, size))
        low, high, at_high = float(values[place - 1]), float(values[place]), float(levels[place])
        if abs(at_high - size) < SIZE_TOLERANCE * size:
            break
    if high > LARGEST_SEVERITY:
        raise Unlocatable(f"a machine would have to be {high:.0f} times slower to make the step {size:.0%} longer")
    return high, at_high


def slow_job(case: Case, plan: Programme, base: Healthy, made: list[Made]) -> Simulated:
    everything = durations(base, [one.effect for one in made])
    times = run(plan, everything)
    ends = times.left.max(axis=1)
    without = [
        step_ends(plan, durations(base, [other.effect for other in made if other is not one]), np.ones(1))[:, 0]
        for one in made
    ]
    culprits = [culprit(case.form, plan, one, ends, bare) for one, bare in zip(made, without, strict=True)]
    truth = truth_document(case, plan, culprits, ends)
    if made:
        truth["slowdown_ratio"] = round(float(ends[-1] / step_ends(plan, everything, np.zeros(1))[-1, 0]), 5)
    return Simulated(case, plan, times, truth, {}, frozenset(), "complete")


def truth_document(case: Case, plan: Programme, culprits: list[dict[str, Any]], ends: Floats) -> dict[str, Any]:
    done = ends[np.isfinite(ends)]
    lasting = {"lasting": case.lasting._asdict()} if case.lasting else {}
    return {
        "schema": "laggard.case/1",
        "layout": plan.layout.as_document(),
        "form": case.form,
        "seed": case.seed,
        "steps": case.steps,
        "innocents": list(case.innocents),
        **lasting,
        "verdict": "fail" if culprits else "ok",
        "step_seconds": round(float(done[-1] / len(done)), 5) if len(done) else None,
        "slowdown_ratio": 1.0,
        "culprits": culprits,
    }


def saved(ends: Floats, bare: Floats, first: int) -> float:
    """Returns the share of the time from step `first` on that passes only because of the fault."""
    begin, bare_begin = (float(ends[first - 1]), float(bare[first - 1])) if first else (0.0, 0.0)
    return float(1 - (bare[-1] - bare_begin) / (ends[-1] - begin))


def culprit(form: str, plan: Programme, one: Made, ends: Floats, bare: Floats) -> dict[str, Any]:
    """Returns the truth about one slow machine or link, and what is acceptable where nobody could know better."""
    hit = np.flatnonzero(one.effect.hit)
    share = len(hit) / max(len(one.effect.hit) - int(hit[0]), 1)
    since = int(hit[0]) if hit[0] > WARM_UP_STEPS else 0
    persistence = "persistent" if share > 0.9 else "intermittent"
    place = network_place(plan, one) if one.place else machine_place(plan, one)
    if form == "sparse" and persistence == "intermittent" and place["ranks"] == [0]:
        place["required"] = False  # no phase tells it from logging, which is rank 0's work
    return {
        "fault": one.fault.kind,
        **place,
        "size": round(one.size, 5),
        "asked_size": one.fault.size,
        "severity": round(one.severity, 6),
        "since_step": since,
        "steps_hit": [int(step) for step in hit],
        "persistence": persistence,
        "recoverable_ratio": round(saved(ends, bare, WARM_UP_STEPS), 5),
        "recoverable_ratio_since": round(saved(ends, bare, int(hit[0])), 5),
    }


def machine_place(plan: Programme, one: Made) -> dict[str, Any]:
    layout, fault = plan.layout, one.fault
    node = layout.node(fault.rank)
    whole = fault.kind in ("slow_host", "slow_cpu")
    ranks = layout.ranks_of_node(node) if whole else (fault.rank,)
    kind, kinds, phases = {
        "slow_gpu": ("slow_compute", ["slow_compute"], [fault.phase] if fault.phase else ["forward", "backward"]),
        "slow_host": ("slow_host", ["slow_host"], ["forward", "backward", "optimizer", "input"]),
        "slow_cpu": ("slow_host", ["slow_host", "slow_input"], ["input"]),
        "slow_input": ("slow_input", ["slow_input"], ["input"]),
        "pauses": ("slow_compute", ["slow_compute", "slow_input"], ["forward", "backward", "optimizer", "input"]),
        "garbage": ("slow_compute", ["slow_compute"], ["forward"]),
    }[fault.kind]
    onset_shows = bool(one.fault.when.onset) and layout.nodes > 1
    alone = whole and any(not peers_elsewhere(layout, rank) for rank in ranks) and not onset_shows
    return {
        "kind": kind,
        "kinds": kinds,
        "ranks": list(ranks),
        "within": list(ranks),
        "nodes": [f"n{node}"],
        "link": None,
        "phase": phases[0],
        "phases": phases,
        # Where a node holds every rank of a position, its slowness is that of an uneven stage, and where it holds all
        # ranks that of a warmer room: naming it is no mistake, and not naming it is none either.
        "required": not alone,
    }


def peers_elsewhere(layout: Layout, rank: int) -> bool:
    return any(layout.node(peer) != layout.node(rank) for peer in layout.group(rank, "dp").ranks)


def network_place(plan: Programme, one: Made) -> dict[str, Any]:
    """The ranks of a network's fault are those that speak through its NICs; `within` are the ranks of every place that
    slows just the same groups, so that no tool could tell which of them it is."""
    layout, place = plan.layout, one.place
    assert place is not None
    same = [place, *alternatives(plan, place)]

    def ranks_of(where: Place) -> set[int]:
        if where.kind == "slow_nvlink":
            return set(layout.ranks_of_node(where.nics[0][0]))
        return {rank for nic in where.nics for rank in layout.ranks_of_nic(nic)}

    ranks, within = ranks_of(place), set().union(*(ranks_of(where) for where in same))
    slowed = [plan.joints[number].group.ranks for number in np.flatnonzero(place.slows(plan))]
    partners = {rank for group in slowed if len(group) == 2 and ranks & set(group) for rank in group}
    local = place.kind == "slow_nvlink"
    return {
        "kind": "slow_link",
        "kinds": ["slow_link", "slow_host"] if local else ["slow_link"],
        "ranks": sorted(ranks),
        "within": sorted(within),
        "partners": sorted(partners - ranks),
        "nodes": sorted({f"n{layout.node(rank)}" for rank in ranks}),
        "link": [{"node": f"n{node}", "device": number} for node, number in place.nics] if not local else None,
        "phase": "collective",
        "phases": ["collective"],
        "required": len(within) <= layout.world_size // 2,
    }


def stopped_job(case: Case, plan: Programme, base: Healthy, made: list[Made]) -> Simulated:
    """Runs a job in which something stops for good. Other faults before it slow the job as they would."""
    (stop,) = [one for one in made if one.fault.kind not in SLOW]
    draw = case.generator("stop")
    step = int(draw.integers(case.steps // 2, case.steps - 3))
    fault, rank = stop.fault, stop.fault.rank
    layout = plan.layout
    effect, gone = stop.effect, [rank]
    if fault.kind == "death_node":
        gone = list(layout.ranks_of_node(layout.node(rank)))
        if len(gone) == layout.world_size:
            raise Unlocatable("the whole job is gone")
    if fault.kind in ("hang_collective", "hang_network", "death_collective"):
        item = stop_member(plan, rank, draw)
        joint = plan.items[item].joint
        assert joint is not None
        group = plan.joints[joint].group
        if fault.kind == "hang_collective":
            effect.late[step, item] = np.inf
        else:
            effect.joints[step, joint] = np.inf
        phase, members = "collective", list(group.ranks)
    else:
        item = stop_item(plan, fault, rank, draw)
        phase, members = PHASES[plan.phase[item]], [rank]
        for one in gone:
            effect.items[step, stop_item(plan, fault, one, draw) if one != rank else item] = np.inf
    times = run(plan, durations(base, [one.effect for one in made]))
    return stopped_truth(case, plan, times, made, StopPoint(fault, step, item, phase, gone, members), draw)


class StopPoint(NamedTuple):
    fault: Fault
    step: int
    item: int
    phase: str | None
    gone: list[int]
    members: list[int]


def stopped_truth(
    case: Case, plan: Programme, times: Times, made: list[Made], stop: StopPoint, draw: np.random.Generator
) -> Simulated:
    kind = stop.fault.kind
    dead = kind.startswith("death")
    network = kind == "hang_network"
    moment = float(times.ready[stop.step, stop.item])
    if dead and kind != "death_collective":
        moment += float(draw.uniform(0.0, 1.0)) * float(plan.seconds[stop.item])
    document = truth_document(case, plan, [], times.left.max(axis=1))
    document["verdict"] = "fail"
    document["culprits"] = [
        {
            "fault": kind,
            "kind": "dead" if dead else "hung",
            "kinds": ["dead", "hung"]
            if dead or kind == "hang_compute"
            else ["hung", "slow_link"]
            if network
            else ["hung"],
            "ranks": stop.gone if not network else stop.members,
            "within": stop.gone if not network else stop.members,
            "nodes": sorted({f"n{plan.layout.node(rank)}" for rank in stop.gone}),
            "link": None,
            "phase": stop.phase,
            "phases": [stop.phase],
            "since_step": stop.step,
            # All came and nobody finished: which of them it was, no record tells.
            "required": not network,
        }
    ]
    ending = "exceptions" if draw.random() < 0.6 else "live"
    if kind == "death_exception":
        ending = "terminated"
    stuck = frozenset([] if network or dead else stop.gone)
    return Simulated(case, plan, times, document, dict.fromkeys(stop.gone, moment) if dead else {}, stuck, ending)
