"""Draws what is uneven in a job and nobody's fault: by design, by its data, by what it does now and then. Pure."""

import math
from collections.abc import Callable, Sequence

import numpy as np

from fluid_simulator.chance import Generator, pick, uniform
from fluid_simulator.draw import draw_job
from fluid_simulator.families import STOPS, wish_of
from fluid_simulator.job import Checkpoint, Evaluation, Logging, Pipelined
from fluid_simulator.plan import Collector, Plan, Work

MAX_OPERATIONS = 220_000
"""The most operations that a job has, about: the number of its steps is lowered for that, down to MIN_STEPS; who has
TOO_MANY_OPERATIONS even so is drawn anew."""
TOO_MANY_OPERATIONS = 330_000
MIN_STEPS, MIN_CHANGING_STEPS = 8, 16
PACKING_STREAM, WARMTH_STREAM, STORAGE_STREAM = 5, 6, 8
"""The words of seeds that say which numbers are drawn."""
TOLD_WARMTH = 0.01
"""A GPU that gets warmer than the median by so much may be named."""


def draw_plan(rng: Generator, seed: int, family: str) -> Plan | None:
    """Draws a job of the family, and what is uneven in it. None: it would be too large."""
    drawn = draw_job(rng, wish_of(rng, family))
    job, world = drawn.job, drawn.cluster.world
    if isinstance(job.work, Pipelined):
        per_step = _operations(job.work, drawn.words)
        if per_step * world * job.steps > MAX_OPERATIONS:
            fewest = MIN_CHANGING_STEPS if family in ("wave", "onset") else MIN_STEPS
            job.steps = max(fewest, int(MAX_OPERATIONS / per_step / world))
        if per_step * world * job.steps > TOO_MANY_OPERATIONS:
            return None
    silicon = np.clip(1 + rng.normal(0, 0.004, world), 0.99, 1.01).tolist()
    tokens = job.tokens * job.micros
    plan = Plan(drawn, seed, family, silicon, [1.0] * world, [1.0] * world, lambda replica, step: ([1.0], tokens))
    decoration = rng.random()
    if family in UNEVEN:
        UNEVEN[family](rng, plan)
    else:
        _decorate(rng, plan, decoration)
    if isinstance(job.work, Pipelined) and drawn.words["cp"] > 1 and rng.random() < 0.3:
        _uneven_context(plan)
    return plan


def _operations(work: Pipelined, words: dict[str, int]) -> int:
    """Returns about how many operations a rank has in a step."""
    tensor = 1 + work.sequence if words["tp"] > 1 else 0
    block = tensor + (2 if words["ep"] > 1 else 0) + 2 * (words["cp"] - 1)
    return work.micros * work.chunks * (work.blocks * 2 * block + (6 if work.stages > 1 else 2)) + 12


def _decorate(rng: Generator, plan: Plan, which: float) -> None:
    """Adds what half of the other jobs have as well: something that comes now and then, or slightly uneven work."""
    job, stops, step = plan.job, plan.family in STOPS, plan.job.step_seconds
    if which < 0.10:
        job.extras.evaluation = Evaluation(int(rng.integers(4, 8)), step * uniform(rng, 0.3, 0.8))
    elif which < 0.18:
        plan.work = packed(plan, uniform(rng, 0.03, 0.1), True)
    elif which < 0.24 and not stops:
        job.extras.logging = Logging(int(pick(rng, [5, 10])), step * uniform(rng, 0.02, 0.06))
    elif which < 0.40 and isinstance(job.work, Pipelined) and job.work.stages > 1:
        job.work.stage_weights[-1] = uniform(rng, 1.05, 1.25)
    elif which < 0.46 and not stops:
        every, seconds = int(rng.integers(5, 9)), step * uniform(rng, 0.3, 1.5)
        job.extras.checkpoint = Checkpoint(every, seconds, bool(rng.random() < 0.5))


def packed(plan: Plan, sigma: float, told: bool) -> Work:
    """Micro-batches whose work differs, with this standard deviation of its logarithm. `told`: by the tokens; else the
    tokens are alike, and attention differs."""
    tokens, micros, seed = plan.job.tokens * plan.job.micros, plan.job.micros, plan.seed
    known: dict[tuple[int, int], tuple[Sequence[float], int]] = {}

    def work(replica: int, step: int) -> tuple[Sequence[float], int]:
        if (replica, step) not in known:
            rng = np.random.default_rng([seed, PACKING_STREAM, replica, step])
            weights = np.exp(rng.normal(0, sigma, micros) - sigma * sigma / 2)
            share = weights.mean() if told else 1 - 0.01 * rng.random()
            known[(replica, step)] = (weights.tolist(), int(tokens * share))
        return known[(replica, step)]

    return work


def _uneven_context(plan: Plan) -> None:
    """Causal attention in plain order: later places of a context group have more."""
    last = plan.drawn.words["cp"] - 1
    plan.context = [0.8 + 0.4 * position.get("cp", 0) / last for position in plan.drawn.positions]
    plan.note += "; " if plan.note else ""
    plan.note += "context parallelism uneven, later places have more"


def _uneven_stage(rng: Generator, plan: Plan) -> None:
    assert isinstance(plan.job.work, Pipelined)
    weights = plan.job.work.stage_weights
    if rng.random() < 0.7:
        weights[-1] = uniform(rng, 1.15, 1.5)
    else:
        weights[0] = uniform(rng, 1.1, 1.35)
    plan.note = f"stages weigh {weights}"


def _packed(rng: Generator, plan: Plan) -> None:
    sigma, told = uniform(rng, 0.08, 0.35), bool(rng.random() < 0.5)
    plan.work = packed(plan, sigma, told)
    how = "tokens tell" if told else "tokens alike, attention differs"
    plan.note = f"cost of samples varies, sigma {sigma:.2f}, {how}"


def _hot_experts(rng: Generator, plan: Plan) -> None:
    """Gives the experts of one place in each stage more tokens, and the others fewer."""
    drawn, words = plan.drawn, plan.drawn.words
    heat = uniform(rng, 1.3, 2.0)
    places = {stage: int(rng.integers(words["ep"])) for stage in range(words["pp"])}
    hot = []
    for rank, memberships in enumerate(drawn.memberships):
        group = memberships.ep
        if group and group.ranks.index(rank) == places[drawn.stages[rank]]:
            plan.experts[rank] = heat
            hot.append(rank)
        else:
            plan.experts[rank] = 1 - (heat - 1) / (words["ep"] - 1)
    plan.note = f"experts at place {places} of each group get {heat:.2f} of the mean"
    if words["dp"] == words["ep"]:
        plan.tolerated = [plan.entry("compute", [rank]) for rank in hot]
        plan.why = "one expert group a stage and tp index: a hot expert cannot be told from a slow GPU"


def _older_gpus(rng: Generator, plan: Plan) -> None:
    """The last machines have older GPUs: half of them, or a quarter, which is given less work."""
    cluster, job = plan.cluster, plan.job
    half = rng.random() < 0.6 or isinstance(job.work, Pipelined)
    factor = uniform(rng, 1.1, 1.3)
    machines = max(1, cluster.machines // (2 if half else 4))
    older = {rank for rank in range(cluster.world) if cluster.machine(rank) >= cluster.machines - machines}
    for rank in older:
        plan.silicon[rank] *= factor
    plan.note = f"{machines} of {cluster.machines} machines have older GPUs, {factor:.2f} as slow"
    if half:
        plan.tolerated = [plan.entry("compute", sorted(older))]
        plan.why = "half of the GPUs are slower by design: no recording tells them from slow ones"
        return
    tokens = job.tokens * job.micros
    less, usual = ([1.0 / factor], int(tokens / factor)), ([1.0], tokens)
    plan.work = lambda replica, step: less if replica in older else usual
    plan.note += ", and less work"


def _warm_up(rng: Generator, plan: Plan) -> None:
    plan.warm_up = (int(rng.integers(2, 4)), uniform(rng, 0.5, 2.0) * plan.job.step_seconds)
    plan.note = "compilation in the first steps"


def _congestion(rng: Generator, plan: Plan) -> None:
    remains, length = uniform(rng, 0.3, 0.7), int(rng.integers(2, 5))
    phase, half = int(rng.integers(0, 5)), plan.steps // 2
    waves = rng.random() < 0.5

    def others(step: int) -> float:
        return remains if ((step + phase) % (2 * length) < length if waves else step >= half) else 1.0

    plan.others = others
    how = "in waves" if waves else "from the middle on"
    plan.note = f"other jobs' traffic on all links {how}, {remains:.2f} remains"


def _rank_zero_logs(rng: Generator, plan: Plan) -> None:
    every = int(pick(rng, [1, 1, 5]))
    plan.job.extras.logging = Logging(every, plan.job.step_seconds * uniform(rng, 0.03, 0.12))
    plan.note = f"rank 0 logs, every {every}"


def _evaluation_and_checkpoints(rng: Generator, plan: Plan) -> None:
    extras, step = plan.job.extras, plan.job.step_seconds
    extras.evaluation = Evaluation(int(rng.integers(4, 8)), step * uniform(rng, 0.5, 1.5))
    every, seconds = int(rng.integers(5, 9)), step * uniform(rng, 0.5, 3)
    extras.checkpoint = Checkpoint(every, seconds, bool(rng.random() < 0.5))
    plan.note = "evaluation and checkpoints"


def _all_get_warm(rng: Generator, plan: Plan) -> None:
    """All GPUs get slower as they warm up, some by more than others."""
    world, steps = plan.cluster.world, plan.steps
    slower = uniform(rng, 0.04, 0.12)
    warmth = np.random.default_rng([plan.seed, WARMTH_STREAM]).uniform(0.8, 1.2, world)
    plan.heat = lambda rank, step: float(1 + slower * (1 - math.exp(-3 * step / steps)) * warmth[rank])
    warmer = [rank for rank in range(world) if slower * (warmth[rank] - np.median(warmth)) > TOLD_WARMTH]
    if warmer:
        plan.tolerated = [plan.entry("compute", warmer)]
        plan.why = "some GPUs get warmer than the median and are 1 to 2.5 % slower at the end"
    plan.note = f"all GPUs get {slower:.2f} slower as they warm up"


def _collector(rng: Generator, plan: Plan) -> None:
    plan.collector = Collector(int(rng.integers(4, 9)), uniform(rng, 0.05, 0.2), int(rng.integers(1, 5)))
    plan.note = "Python's collector, on each rank at another step"


def _shared_storage(rng: Generator, plan: Plan) -> None:
    share, later = uniform(rng, 0.05, 0.2), uniform(rng, 0.1, 0.4)
    world, seed = plan.cluster.world, plan.seed
    drawn: dict[int, np.ndarray[tuple[int], np.dtype[np.float64]]] = {}

    def storage(rank: int, step: int) -> float:
        if step not in drawn:
            drawn[step] = np.random.default_rng([seed, STORAGE_STREAM, step]).random(world)
        return later if drawn[step][rank] < share else 0.0

    plan.storage = storage
    plan.note = "shared storage: now one, now another waits for its batch"


UNEVEN: dict[str, Callable[[Generator, Plan], None]] = {
    "uneven_stage": _uneven_stage,
    "packed": _packed,
    "hot_experts": _hot_experts,
    "hetero": _older_gpus,
    "warmup": _warm_up,
    "congestion": _congestion,
    "rank0": _rank_zero_logs,
    "eval_ckpt": _evaluation_and_checkpoints,
    "thermal_all": _all_get_warm,
    "gc": _collector,
    "input_all": _shared_storage,
}
"""The innocent families but `plain`."""
