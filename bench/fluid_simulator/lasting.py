"""Noise that lasts, which a plan may have: ranks that are slower for a while, and data that are more work. Pure."""

import dataclasses
import math

import numpy as np
from laggard_bench.lasting import Lasting

from fluid_simulator.plan import Plan

RANKS_STREAM, LENGTHS_STREAM, DATA_STREAM = 31, 32, 33
"""The words of seeds that say which numbers are drawn."""


class Drift:
    """Values by step, each of a normal distribution with deviation `sd`, of which `rho` is left in the next step."""

    def __init__(self, seed: list[int], rho: float, sd: float, count: int) -> None:
        self._rng, self._count, self._rho, self._sd = np.random.default_rng(seed), count, rho, sd
        self._steps = [self._fresh(sd)]

    def _fresh(self, sd: float) -> list[float]:
        found: list[float] = self._rng.normal(0, sd, self._count).tolist()
        return found

    def at(self, step: int, place: int) -> float:
        while len(self._steps) <= step:
            before, fresh = self._steps[-1], self._fresh(self._sd * math.sqrt(1 - self._rho * self._rho))
            self._steps.append([self._rho * old + new for old, new in zip(before, fresh, strict=True)])
        return self._steps[step][place]


def add_lasting(plan: Plan, noise: Lasting) -> None:
    """Gives the plan such noise, beside what it has."""
    world, usual = plan.cluster.world, plan.work
    own = Drift([plan.seed, RANKS_STREAM], noise.rho, noise.sd, world)
    lengths = Drift([plan.seed, LENGTHS_STREAM], noise.rho, noise.lengths, world)
    data = np.random.default_rng([plan.seed, DATA_STREAM]).normal(0, noise.data, world).tolist()

    def work(replica: int, step: int) -> tuple[list[float], int]:
        weights, tokens = usual(replica, step)
        factor = math.exp(lengths.at(step, replica) + data[replica])
        return [weight * factor for weight in weights], tokens

    plan.work = work
    plan.drift = lambda rank, step: math.exp(own.at(step, rank))
    told = ", ".join(f"{name} {value:g}" for name, value in dataclasses.asdict(noise).items())
    plan.note += f"{'; ' if plan.note else ''}noise that lasts: {told}"
