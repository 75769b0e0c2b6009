"""Draws a job's machines, and how they behave. Pure.

Rates are what nccl-tests' busbw comes to on such machines, in round figures: adapters of 100, 200 and 400 Gb/s less
headers, and NVLink from A100 to H100 as a ring sees it.
"""

from fluid_simulator.chance import Generator, chance, pick, uniform
from fluid_simulator.cluster import Cluster
from fluid_simulator.fabric import Settings
from fluid_simulator.wish import Wish

ADAPTER_RATES = [12e9, 22e9, 23e9, 44e9]
NVLINK_RATES = [120e9, 200e9, 330e9]
LAUNCH_SECONDS = 12e-6


def draw_cluster(rng: Generator, wish: Wish) -> Cluster:
    gpus = 8 if wish.ranks >= 32 or rng.random() < 0.6 else 4
    gpus = min(gpus if wish.gpus is None else wish.gpus, wish.ranks)
    machines = wish.ranks // gpus
    adapters = gpus if rng.random() < 0.75 else gpus // 2
    adapters = gpus if wish.own_adapter else adapters
    adapter_rate, nvlink_rate = float(pick(rng, ADAPTER_RATES)), float(pick(rng, NVLINK_RATES))
    leaf = max(1, min(machines // 2, int(pick(rng, [2, 4, 8])))) if machines >= 4 else max(1, machines)
    oversubscription = float(pick(rng, [1.0, 1.0, 1.0, 2.0])) if machines // leaf >= 2 else 1.0
    names = _names(rng, machines)
    return Cluster(machines, gpus, adapters, adapter_rate, nvlink_rate, leaf, oversubscription, names)


def _names(rng: Generator, machines: int) -> tuple[str, ...]:
    """Names of machines, in order, or as a scheduler gave them out."""
    prefix = str(pick(rng, ["gpu-", "node", "h100-", "ip-10-3-", "c42-", "pool-a-"]))
    first = int(rng.integers(0, 400))
    places = rng.permutation(machines * 2)[:machines] if rng.random() < 0.3 else range(machines)
    return tuple(f"{prefix}{first + int(place):03d}" for place in places)


def draw_settings(rng: Generator, wish: Wish) -> Settings:
    host_share = uniform(rng, 0.25, 0.6)
    blocking = wish.engine == "ddp" and chance(rng, 0.15)
    return Settings(
        launch=LAUNCH_SECONDS,
        host_share=host_share,
        gpu_sigma=uniform(rng, 0.004, 0.015),
        network_sigma=uniform(rng, 0.02, 0.06),
        latency=uniform(rng, 8e-6, 20e-6),
        eager=chance(rng, 0.4),
        blocking=blocking if wish.blocking is None else wish.blocking,
    )
