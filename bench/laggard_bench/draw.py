"""Draws the jobs: layout, cluster, what is uneven by design, and how well it was recorded. Pure."""

import dataclasses
from typing import Any

import numpy as np

from laggard_bench.cluster import Cluster
from laggard_bench.layouts import Design
from laggard_bench.schedules import SCHEDULES
from laggard_bench.simulate import Noise

HUGE_WORLD = 4096
HUGE_EVERY = 150
"""One case of so many has HUGE_WORLD ranks."""
WORLDS = ((8, 0.15), (16, 0.25), (32, 0.27), (64, 0.21), (128, 0.07), (256, 0.03), (512, 0.02))
"""How many ranks jobs have, and how often."""
STRICT_FAMILIES = ("stages", "routing", "hot_expert", "context")
"""The families that need a certain layout."""


@dataclasses.dataclass(frozen=True)
class Drawn:
    """A job as drawn. `spread`: the standard deviation of the logarithm of batches' work; `fleet_slower`: by how much
    all GPUs become slower; `wait`: how much longer the input takes by turns; `lighter`: ranks that are given less;
    `leaver`: the replica that leaves or joins, at the share `change` of the steps; `every`: steps between two
    synchronisations of islands."""

    family: str
    world: int
    gpus_per_node: int
    domain_nodes: int
    design: Design
    noise: Noise
    quality: frozenset[str]
    spread: float = 0.0
    fleet_slower: float = 0.0
    wait: float = 0.0
    lighter: tuple[int, ...] = ()
    leaver: int = -1
    leaves: bool = True
    change: float = 0.5
    every: int = 10

    @property
    def words(self) -> dict[str, Any]:
        d = self.design
        own = {"engine": d.engine, "gpus_per_node": self.gpus_per_node, "nodes_per_nvlink_domain": self.domain_nodes}
        if d.engine == "megatron":
            dp = self.world // d.model_ranks
            own |= {"tp": d.tp, "pp": d.pp, "cp": d.cp, "ep": d.ep, "dp": dp, "schedule": d.schedule}
        return own | {"micro_batches": d.micros, "blocks": d.blocks}


def pick(rng: np.random.Generator, *values: Any) -> Any:
    return values[int(rng.integers(len(values)))]


def draw_design(rng: np.random.Generator, family: str, place: int) -> Drawn:
    world = int(rng.choice([size for size, _ in WORLDS], p=[share for _, share in WORLDS]))
    if family in ("quorum", "leaf", "rack", "cooling", "three", "hetero_equal", "host", "input"):
        world = max(world, 32)
    engine = _engine(rng, family)
    domain = 18 if rng.random() < 0.15 and world > 72 else 1
    gpus = 4 if domain > 1 else int(pick(rng, 8, 8, 8, 4))
    if place % HUGE_EVERY == HUGE_EVERY // 2 and family not in (*STRICT_FAMILIES, "quorum", "rl"):
        world, engine, domain, gpus = HUGE_WORLD, str(pick(rng, "ddp", "diloco")), 1, 8
    design = _design(rng, family, engine, world, gpus)
    noise = Noise(
        silicon=float(rng.uniform(0.002, 0.008)),
        event=float(rng.uniform(0.004, 0.015)),
        transfer=float(rng.uniform(0.02, 0.08)),
    )
    drawn = Drawn(family, world, gpus, domain, design, noise, _quality(rng, family))
    return _uneven(rng, drawn)


def _engine(rng: np.random.Generator, family: str) -> str:
    if family in STRICT_FAMILIES:
        return "megatron"
    fixed = {"quorum": "torchft", "rl": "rl"}
    if family in fixed:
        return fixed[family]
    names = ("megatron", "fsdp", "hsdp", "ddp", "zeropp", "diloco", "torchft")
    return str(rng.choice(names, p=(0.42, 0.16, 0.12, 0.12, 0.08, 0.05, 0.05)))


def _design(rng: np.random.Generator, family: str, engine: str, world: int, gpus: int) -> Design:
    forward = float(rng.uniform(0.03, 0.25))
    size = forward * float(rng.uniform(0.6, 2.5)) * 4e9
    if engine != "megatron":
        few = world >= 256
        blocks = int(pick(rng, 2, 3) if few else pick(rng, 3, 4, 6, 8))
        micros = 1 if few or engine in ("diloco", "torchft") else int(pick(rng, 1, 1, 2))
        return Design(engine, micros=micros, blocks=blocks, forward=forward, size=size, island=gpus)
    return _megatron(rng, family, world, gpus, forward, size)


def _megatron(rng: np.random.Generator, family: str, world: int, gpus: int, forward: float, size: float) -> Design:
    """Sizes that fit the world: tensor parallelism within a node, and two replicas at least, where there is room."""
    tp = int(pick(rng, *[it for it in (1, 2, 4, 8) if it <= gpus and it * 4 <= world]))
    pp = int(pick(rng, *[it for it in (1, 2, 4, 8) if tp * it * 2 <= world]))
    if family == "stages":
        tp, pp = min(tp, world // 8), max(pp, 2)
    cp = 2 if family == "context" or (rng.random() < 0.2 and tp * pp * 4 <= world) else 1
    if family == "context":
        tp, pp = min(tp, max(1, world // 8)), min(pp, max(1, world // (8 * min(tp, max(1, world // 8)))))
    if family in ("routing", "hot_expert"):
        tp, pp = min(tp, 2), min(pp, max(1, world // 8))
    dp = world // (tp * pp * cp)
    ep = 1
    wants_experts = family in ("routing", "hot_expert") or (family != "context" and rng.random() < 0.25)
    if wants_experts and dp >= 2:
        ep = int(pick(rng, *[it for it in (2, 4, 8) if dp % it == 0 and it <= dp] or [dp]))
    name = str(pick(rng, *SCHEDULES)) if pp > 1 else "1f1b"
    micros = pp * (1 if world >= 256 or pp == 8 else int(pick(rng, 1, 2))) if pp > 1 else int(pick(rng, 1, 2, 4))
    if name == "interleaved" and world >= 256:
        name = "1f1b"
    # a step of a pipeline has all micro-batches
    return Design(
        "megatron", tp, pp, cp, ep, name, micros, forward=forward * 2 / max(1, micros / pp), size=size / 4, island=gpus
    )


def _quality(rng: np.random.Generator, family: str) -> frozenset[str]:
    """A quarter of the recordings lack something."""
    if rng.random() > 0.25 or family in ("quorum",):
        return frozenset()
    choice = str(rng.choice(("gaps", "lost_ranks", "clock_set", "no_steps"), p=(0.35, 0.3, 0.2, 0.15)))
    return frozenset((choice,))


def _uneven(rng: np.random.Generator, drawn: Drawn) -> Drawn:
    """What a family makes uneven by design."""
    design, family, world = drawn.design, drawn.family, drawn.world
    change: dict[str, Any] = {}
    nodes = -(-world // drawn.gpus_per_node)
    slower = range(nodes // 2 * drawn.gpus_per_node, world) if nodes > 1 else range(world // 2, world)
    step = 3 * design.forward * design.micros
    if family == "stages":
        design = dataclasses.replace(design, heavy_last=float(rng.uniform(1.12, 1.45)))
    elif family == "packing":
        change["spread"] = float(rng.uniform(0.04, 0.2))
    elif family == "routing":
        change["spread"] = float(rng.uniform(0.04, 0.15))
    elif family == "hot_expert" and design.ep > 1:
        heavy = [float(rng.uniform(1.1, 1.35))] + [float(x) for x in rng.uniform(0.93, 1.02, design.ep - 1)]
        design = dataclasses.replace(design, heavy_parts=tuple(rng.permutation(heavy).tolist()))
    elif family == "context":
        design = dataclasses.replace(design, heavy_parts=(0.85, 1.15), ep=1)
    elif family == "hetero_balanced":
        change["lighter"] = tuple(slower)
    elif family == "hetero_equal":
        design = dataclasses.replace(design, speed=dict.fromkeys(slower, float(rng.uniform(1.15, 1.5))))
        change["lighter"] = ()
    elif family == "rank_zero":
        phase = str(pick(rng, "logging", "checkpoint", "evaluation", "between_steps"))
        design = dataclasses.replace(design, rank_zero=(phase, float(rng.uniform(0.03, 0.12)) * step))
    elif family == "fleet_slower":
        change["fleet_slower"] = float(rng.uniform(0.05, 0.2))
    elif family in ("rl", "storage"):
        lead = family == "rl" and bool(rng.random() < 0.5)
        design = dataclasses.replace(design, lead_waits=lead, input=0.1 * step)
        change["wait"] = float(rng.uniform(0.5, 3.0))
    elif family == "quorum":
        replicas = world // design.island
        change |= {"leaver": int(rng.integers(1, replicas)), "leaves": bool(rng.random() < 0.5)}
        change["change"] = float(rng.uniform(0.3, 0.7))
    elif family == "unrecorded":
        design = _with_hidden(rng, drawn)
    if design.engine == "diloco":
        change["every"] = int(rng.integers(8, 25))
    return dataclasses.replace(drawn, design=design, **change)


def _with_hidden(rng: np.random.Generator, drawn: Drawn) -> Design:
    """Some ranks of the job wait for one another within their work: those of a node, or every so-many-th."""
    count = min(drawn.gpus_per_node, drawn.world // 2)
    first = int(rng.integers(drawn.world // count)) * count
    design = drawn.design
    if design.engine == "megatron":  # those of one stage, so that none waits for another stage
        per_stage = drawn.world // design.pp
        first = int(rng.integers(design.pp)) * per_stage
        count = min(count, per_stage // 2 or 1)
    return dataclasses.replace(design, unrecorded=tuple(range(first, first + count)))


def draw_cluster(rng: np.random.Generator, drawn: Drawn) -> Cluster:
    nodes = -(-drawn.world // drawn.gpus_per_node)
    leaf = int(pick(rng, 2, 4, 8)) if nodes > 3 else max(nodes, 1)
    if drawn.family == "leaf":
        leaf = max(1, min(leaf, nodes // 2))
    rack = drawn.domain_nodes if drawn.domain_nodes > 1 else int(pick(rng, 2, 4))
    return Cluster(
        drawn.world,
        drawn.gpus_per_node,
        leaf,
        rack,
        drawn.domain_nodes,
        float(pick(rng, 1.0, 1.0, 1.5, 2.0)),
        int(rng.integers(1, 800)),
    )
