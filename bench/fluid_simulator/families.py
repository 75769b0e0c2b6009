"""The families of cases: how often each comes, and what each wants of a job. Pure."""

import numpy as np

from fluid_simulator.chance import Generator, pick
from fluid_simulator.layouts import Layout, layouts
from fluid_simulator.wish import Wish

INNOCENT = {
    "plain": 44,
    "uneven_stage": 7,
    "packed": 7,
    "hot_experts": 5,
    "hetero": 6,
    "warmup": 4,
    "congestion": 6,
    "rank0": 5,
    "eval_ckpt": 4,
    "thermal_all": 3,
    "gc": 3,
    "input_all": 2,
}
"""Nothing is wrong; all but `plain` look as if something were."""
SLOW = {
    "gpu": 20,
    "host": 10,
    "input": 12,
    "nic": 12,
    "pcie": 6,
    "nvlink": 9,
    "pair": 7,
    "leaf": 7,
    "wave": 12,
    "onset": 11,
    "two": 10,
}
STOPS = {
    "hang_compute": 6,
    "hang_input": 4,
    "hang_gpu": 5,
    "stopped": 3,
    "dead": 5,
    "node_dead": 3,
    "net_dead": 2,
}
FAMILIES = INNOCENT | SLOW | STOPS
"""The number of cases of each family in a set."""
STEPS = {8: 24, 16: 24, 32: 20, 64: 18, 128: 14, 256: 11, 512: 9}
"""The number of steps, by ranks."""
WORLDS, WORLD_SHARES = [8, 16, 32, 64, 128, 256, 512], [0.14, 0.2, 0.24, 0.21, 0.12, 0.06, 0.03]
BETWEEN_MACHINES = ("nic", "pcie", "pair", "leaf", "congestion", "net_dead")
"""Families that need a network."""
CHANGING_STEPS = 22
"""The fewest steps of a case whose fault comes, or comes and goes."""


def families(seed: int) -> list[str]:
    """The families of a set's cases, in the order of their numbers; beyond its end it begins anew."""
    found = [name for name, count in FAMILIES.items() for _ in range(count)]
    np.random.default_rng([seed, 1]).shuffle(found)
    return found


def wish_of(rng: Generator, family: str) -> Wish:
    """Draws what the family wants of a job."""
    engine, smallest = _engine(rng, family)
    largest = 128 if family in STOPS or family in ("wave", "onset") else 512
    ranks = _world(rng, smallest, largest)
    if family == "node_dead":
        ranks = _world(rng, 16, 128)
    if family == "hot_experts":
        ranks = int(pick(rng, [16, 32, 64, 128]))
    wish = Wish(engine, ranks, STEPS[ranks])
    wish.layout = _layout(rng, family, wish)
    if family in BETWEEN_MACHINES or family == "nvlink":
        wish.gpus = _gpus(rng, family, ranks)
    wish.own_adapter = family == "pcie"
    if family in ("wave", "onset"):
        wish.steps = max(wish.steps, CHANGING_STEPS)
    if family in STOPS:
        wish.fast = True
        wish.blocking = bool(rng.random() < 0.35) if family not in ("hang_gpu", "net_dead") else False
        wish.steps = int(rng.integers(5, 13))
    return wish


def _engine(rng: Generator, family: str) -> tuple[str, int]:
    """The engine, and the fewest ranks."""
    engine, smallest = str(pick(rng, ["ddp", "fsdp", "hsdp", "mega", "mega", "mega"])), 8
    if family in ("uneven_stage", "hot_experts"):
        engine = "mega"
    if family in BETWEEN_MACHINES:
        smallest = 32 if family in ("pair", "leaf") else 16
        engine = str(pick(rng, ["mega"] * 7 + ["hsdp"] * 2 + ["fsdp", "ddp"]))
    if family == "nvlink":
        smallest, engine = 16, str(pick(rng, ["mega"] * 3 + ["hsdp"]))
    if family == "hetero" or engine == "hsdp":
        smallest = max(smallest, 16)
    return engine, smallest


def _world(rng: Generator, smallest: int, largest: int) -> int:
    while True:
        ranks = int(rng.choice(WORLDS, p=WORLD_SHARES))
        if smallest <= ranks <= largest:
            return ranks


def _layout(rng: Generator, family: str, wish: Wish) -> Layout | None:
    """One in which the family's matter can be seen; None: any."""
    every = layouts(wish.ranks)
    if family == "hot_experts":
        return next(layout for layout in every if layout.ep > 1)
    staged = [layout for layout in every if layout.pp > 1]
    if family == "uneven_stage":
        return _any(rng, staged)
    if wish.engine != "mega":
        return None
    if family == "nvlink":
        return _any(rng, [layout for layout in every if layout.tp > 1])
    if family in ("pair", "leaf", "nic", "pcie") and rng.random() < 0.8:
        return _any(rng, staged)
    return None


def _any(rng: Generator, values: list[Layout]) -> Layout:
    return values[int(rng.integers(len(values)))]


def _gpus(rng: Generator, family: str, ranks: int) -> int:
    """GPUs of a machine, so that there are several machines."""
    gpus = 4 if ranks <= 32 and (family in ("pair", "leaf") or rng.random() < 0.5) else 8
    return (4 if rng.random() < 0.7 else 8) if ranks == 16 else gpus
