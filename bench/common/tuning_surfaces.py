"""Response surfaces for tuners: what a configuration takes, with noise, drift, traps and parameters that do nothing.

Two kinds, by turns of the seed. `nccl`: all-reduces between nodes by alpha-beta with the latencies of NCCL's own model
(src/graph/tuning.cc: Simple over the network, ring 14 us and tree 14 us; the tree's bandwidth 0.92 of the ring's).
`zero`: a DeepSpeed step, whose parts are fitted to the published table pmbs25_model2_step2.csv, with the memory model.
Every seed draws its own machine around these.
"""

from __future__ import annotations

import csv
import functools
import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from laggard.recommend.memory import MemoryPlan, free_bytes
from laggard.reports.runs import Run, by_platform, merge_repeats
from laggard.reports.step_model import StepModel, fit_step_model
from laggard.tune.plan import Configuration, Outcome, Parameter, Settings, Space, Status

TABLE = Path(__file__).resolve().parents[2] / "tests" / "data" / "tables" / "pmbs25_model2_step2.csv"
SIZES = tuple(1 << power for power in range(16, 31, 2))
GLOBAL_BATCH = 256


class Surface(NamedTuple):
    kind: str
    space: Space
    truth: Callable[[Configuration], Outcome]
    """Without noise. What is wrong only now and then is wrong here."""
    noise: float
    flaky: float
    """How often a wrong configuration shows it."""
    wrong_seconds: Callable[[Configuration], float]
    starts: tuple[Settings, ...]


class Machine:
    """A surface that is measured: noise, a slow drift, and now and then something else that runs on the machine."""

    def __init__(self, surface: Surface, seed: int) -> None:
        self.surface, self.measured = surface, 0
        self._random = random.Random(f"machine {seed}")
        self._level = 0.0
        self._drift = self._random.choice([0.0, 0.0, 0.001])

    def measure(self, configuration: Configuration) -> Outcome:
        self.measured += 1
        self._level += self._drift * self._random.random()
        found = self.surface.truth(configuration)
        seconds = found.seconds
        if found.status is Status.WRONG:
            if self._random.random() < self.surface.flaky:
                return found
            seconds = self.surface.wrong_seconds(configuration)
        if seconds is None:
            return found
        spike = self._random.choice([1.3, 2.0]) if self._random.random() < 0.02 else 1.0
        return Outcome(Status.OK, seconds * spike * math.exp(self._level + self._random.gauss(0, self.surface.noise)))


def surface(seed: int) -> Surface:
    return (_nccl if seed % 2 else _zero)(random.Random(f"surface {seed}"))


def _nccl(random: random.Random) -> Surface:
    nodes, local = random.choice([2, 4, 8, 16, 32, 64]), 8
    ranks = nodes * local
    bandwidth = random.choice([100e9, 200e9, 380e9]) * random.uniform(0.8, 1.0)
    latency = {"RING": 14e-6 * random.uniform(0.6, 1.6), "TREE": 14e-6 * random.uniform(0.6, 1.6)}
    inside = 1e-6 * random.uniform(0.5, 2.0)
    sizes = random.sample(SIZES, random.choice([1, 2, 3]))
    best_buffer = random.choice([1, 2, 4, 8, 16])
    half_channels = random.uniform(1, 6)
    crowd = random.uniform(0.001, 0.012)
    collisions = random.choice([0.0, 0.1, 0.35])
    cross = {0: random.uniform(0.9, 1.1), 1: random.uniform(0.9, 1.1), 2: 1.0}
    threads = {64: random.uniform(1.0, 1.3), 256: random.uniform(0.98, 1.05), 512: 1.0}
    trap, flaky = random.choice([("NCCL_CHUNK_SIZE", 1048576), ("NCCL_BUFFSIZE", 16)]), random.choice([1.0, 0.3])
    hangs = ("NCCL_IB_QPS_PER_CONNECTION", 16) if random.random() < 0.4 else None

    def seconds(own: Configuration) -> float:
        channels = own["NCCL_MAX_CTAS"] or 16
        assert isinstance(channels, int) and isinstance(own["NCCL_BUFFSIZE"], int)
        pairs = own["NCCL_IB_QPS_PER_CONNECTION"]
        assert isinstance(pairs, int)
        spread = 1 - 0.5 ** (pairs - 1)
        network = 1 - collisions * (1 - spread * (1.0 if own["NCCL_IB_SPLIT_DATA_ON_QPS"] else 0.6)) - 0.004 * pairs
        share = channels / (channels + half_channels) * (1 - crowd * channels / 4)
        ratio = abs(math.log2(own["NCCL_BUFFSIZE"] / best_buffer) - 0.5 * math.log2(channels / 16))
        speed = bandwidth * network * share / cross[own["NCCL_CROSS_NIC"]] / (1 + 0.03 * ratio**1.5)  # type: ignore[index]
        speed /= threads[own["NCCL_NTHREADS"]]  # type: ignore[index]
        return sum(_all_reduce(own["NCCL_ALGO"], size, speed, channels) for size in sizes)

    def _all_reduce(algorithm: object, size: int, speed: float, channels: int) -> float:
        start = 0.15e-6 * channels
        ring = 2 * (nodes - 1) * latency["RING"] + 2 * (ranks - nodes) * inside + 2 * size / speed
        tree = 2 * math.log2(nodes) * latency["TREE"] + 2 * (local - 1) * inside + 2 * size / (0.92 * 0.75 * speed)
        by_name = {"RING": ring, "TREE": tree}
        if algorithm is None:  # NCCL's model is right about most sizes, and has the wrong constants for some machines
            return start + (ring if size > 4 << 20 else tree)
        return start + by_name[str(algorithm)]

    def truth(own: Configuration) -> Outcome:
        if own[trap[0]] == trap[1]:
            return Outcome(Status.WRONG, None, "#wrong 4096")
        if hangs and own[hangs[0]] == hangs[1] and own["NCCL_ALGO"] == "TREE":
            return Outcome(Status.HUNG)
        if (own["NCCL_MAX_CTAS"] or 16) * own["NCCL_BUFFSIZE"] > 640:  # type: ignore[operator]
            return Outcome(Status.OUT_OF_MEMORY)
        return Outcome(Status.OK, seconds(own))

    parameters = (
        Parameter("NCCL_ALGO", (None, "RING", "TREE"), None, "algorithm"),
        Parameter("NCCL_MAX_CTAS", (None, 4, 8, 24, 32, 64), None, "channels"),
        Parameter("NCCL_BUFFSIZE", (1, 2, 4, 8, 16), 4, "channels"),
        Parameter("NCCL_NTHREADS", (64, 256, 512), 512, "channels"),
        Parameter("NCCL_IB_QPS_PER_CONNECTION", (1, 2, 4, 8, 16), 1, "network"),
        Parameter("NCCL_IB_SPLIT_DATA_ON_QPS", (0, 1), 0, "network", (("NCCL_IB_QPS_PER_CONNECTION", (2, 4, 8, 16)),)),
        Parameter("NCCL_CROSS_NIC", (0, 1, 2), 2, "network"),
        Parameter("NCCL_CHUNK_SIZE", (0, 1048576), 0, "chunks"),
        Parameter("NCCL_NET_SHARED_COMMS", (0, 1), 1, "chunks"),
        Parameter("NCCL_IB_PCI_RELAXED_ORDERING", (1, 2), 2, "chunks"),
    )
    noise = random.choice([0.005, 0.01, 0.02, 0.04])
    return Surface("nccl", Space(parameters), truth, noise, flaky, lambda own: seconds(own) / 7, ())


@functools.cache
def _published() -> dict[str, StepModel]:
    with TABLE.open() as file:
        rows = list(csv.DictReader(line for line in file if not line.startswith("#")))
    runs = [
        Run(line, row["platform"], int(row["stage"]), int(row["micro_batch"]), int(row["grad_accum"]), speed)
        for line, row in enumerate(rows)
        for speed in [None if row["samples_per_second"] == "OOM" else float(row["samples_per_second"])]
    ]
    models = {name: fit_step_model(own) for name, own in by_platform(merge_repeats(runs)).items()}
    return {name: model for name, model in models.items() if model}


def _zero(random: random.Random) -> Surface:
    model = random.choice(list(_published().values()))
    part = {each.name: each.value * math.exp(random.gauss(0, 0.35)) for each in model.parameters}
    sample = max(part["a sample"], 1e-3)
    micro_step = max(part["a micro-step"], 0.02)
    exposed = {stage: max(part.get(f"stage {stage} a micro-step", 0.0), 0.05) for stage in (2, 3)}
    once = {stage: max(part.get(f"stage {stage} a step", 0.0), 0.1) for stage in (1, 2, 3)} | {0: 0.3}
    hidden = random.uniform(0.0, 0.7)
    contention = random.uniform(0.0, 0.06)
    best_bucket = random.choice([5e7, 1e8, 2e8, 5e8, 1e9])
    multi = random.uniform(0.8, 1.3)
    memory = MemoryPlan(8e9 * random.uniform(0.5, 1.2), 64, 80e9, resident_bytes=16e9 * random.random())
    activations = random.uniform(0.12e9, 0.24e9)
    trap = ("round_robin_gradients", True) if random.random() < 0.3 else None

    def seconds(own: Configuration) -> float:
        stage, micro = own["stage"], own["micro_batch"]
        assert isinstance(stage, int) and isinstance(micro, int)
        steps = GLOBAL_BATCH // micro
        bucket = float(own["reduce_bucket_size"] or 5e8)
        size = 1 + 0.06 * abs(math.log10(bucket / best_bucket)) ** 1.5
        reduce = (1.0 if own["use_multi_rank_bucket_allreduce"] or stage not in (1, 2) else multi) * size
        communication = once[stage] * reduce + (exposed.get(stage, 0.0) * steps * (reduce if stage == 2 else 1.0))
        overlap = bool(own["overlap_comm"])
        computing = sample * GLOBAL_BATCH * (1 + (contention if overlap else 0.0)) + micro_step * steps
        return computing + communication * (1 - (hidden if overlap else 0.0))

    def truth(own: Configuration) -> Outcome:
        stage, micro = own["stage"], own["micro_batch"]
        assert isinstance(stage, int) and isinstance(micro, int)
        if activations * micro > free_bytes(stage, memory):
            return Outcome(Status.OUT_OF_MEMORY)
        if trap and own[trap[0]] == trap[1]:
            return Outcome(Status.WRONG, None, "the loss is nan")
        return Outcome(Status.OK, seconds(own))

    sizes = [16, 32, 64, 128, 256]
    stages = (0, 1, 2, 3)
    fitting = [(s, m) for s in stages for m in sizes if activations * m <= free_bytes(s, memory)]
    default = max(fitting, key=lambda each: (each[0] == 1, each[1], -each[0])) if fitting else (3, 16)
    parameters = (
        Parameter("stage", stages, default[0], "batch"),
        Parameter("micro_batch", tuple(sizes), default[1], "batch"),
        Parameter("overlap_comm", (False, True), False, "switches"),
        Parameter("reduce_bucket_size", tuple(map(int, (5e7, 1e8, 2e8, 5e8, 1e9))), int(5e8), "switches"),
        Parameter("use_multi_rank_bucket_allreduce", (False, True), True, "switches", (("stage", (1, 2)),)),
        Parameter("contiguous_gradients", (False, True), True, "switches"),
        Parameter("round_robin_gradients", (False, True), False, "switches"),
    )
    if not fitting:
        activations = 0.0
    noise = random.choice([0.003, 0.01, 0.02, 0.03])
    space = Space(parameters, needs_as_much_memory=_more_memory)
    return Surface("zero", space, truth, noise, 1.0, lambda own: seconds(own) / 2, ())


def _more_memory(one: Configuration, other: Configuration) -> bool:
    return one["stage"] <= other["stage"] and one["micro_batch"] >= other["micro_batch"]  # type: ignore[operator]
