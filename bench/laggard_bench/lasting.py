"""Noise that lasts for some steps, or for good: an option that no case of a set has."""

import dataclasses
import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from laggard_bench.program import GPU, Program, Times
from laggard_bench.simulate import Shape

STREAM = 23
"""The word of seeds that says which numbers are drawn."""


@dataclasses.dataclass(frozen=True)
class Lasting:
    """Standard deviations of logarithms: `sd` of each rank's work, `lengths` of the work in each batch, both correlated
    from step to step by `rho`; `data` of the work in a batch's place, for good."""

    rho: float = 0.0
    sd: float = 0.0
    lengths: float = 0.0
    data: float = 0.0


def read(text: str) -> Lasting | None:
    """Reads `rho=0.9,sd=0.02,lengths=0.08,data=0.08`, or a part of it; None where it is empty. Raises ValueError with
    what is wrong."""
    given: dict[str, float] = {}
    for word in filter(None, text.split(",")):
        name, _, value = word.partition("=")
        if name not in Lasting.__dataclass_fields__:
            raise ValueError(f"noise has no {name!r}; it has rho, sd, lengths and data")
        given[name] = float(value)
    found = Lasting(**given)
    if not 0 <= found.rho < 1 or not all(0 <= sd < math.inf for sd in (found.sd, found.lengths, found.data)):
        raise ValueError(f"in {text!r}: rho is from 0 to below 1, the others are from 0 on")
    return found if given else None


class Walk:
    """`count` series of standard deviation `sd`, each an autoregression of order one with coefficient `rho`."""

    def __init__(self, rng: np.random.Generator, rho: float, sd: float, count: int) -> None:
        self._rng, self._rho, self._sd = rng, rho, sd
        self.now = rng.normal(0.0, sd, count)

    def go_on(self) -> None:
        fresh = self._rng.normal(0.0, self._sd, len(self.now))
        self.now = self._rho * self.now + math.sqrt(1.0 - self._rho**2) * fresh


def shape_with(
    shape: Shape, noise: Lasting, seed: list[int], world: int, batch_of: Callable[[Program], NDArray[np.int64]]
) -> Shape:
    """The job's own shape with lasting noise, which is to be asked once for each step, in order. `batch_of`: [N], by
    event, which batch it works on."""
    own = Walk(np.random.default_rng([*seed, STREAM, 0]), noise.rho, noise.sd, world)
    lengths = Walk(np.random.default_rng([*seed, STREAM, 1]), noise.rho, noise.lengths, world)
    for_good = np.random.default_rng([*seed, STREAM, 2]).normal(0.0, noise.data, world)
    known: dict[int, NDArray[np.int64]] = {}

    def with_noise(step: int, program: Program) -> Times | None:
        usual = shape(step, program)
        if step:
            own.go_on()
            lengths.go_on()
        if id(program) not in known:
            known[id(program)] = batch_of(program)
        longer = np.exp(own.now[program.owner] + (lengths.now + for_good)[known[id(program)]])
        factor = np.where(program.kind == GPU, longer, 1.0)
        return factor if usual is None else usual * factor

    return with_noise
