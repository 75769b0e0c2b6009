"""What a healthy job's times are like: jitter, hiccups, GPUs that differ a little, an uneven network."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from simulator.programme import INPUT, Programme

Floats = npt.NDArray[np.float64]

WARM_UP_STEPS = 3  # of every job: kernels are compiled, caches are filled
WARM_UP_FACTORS = (3.0, 1.3, 1.1)


class Noise(NamedTuple):
    """`step`: of a rank's computing in one step; `item`: of each piece of it; `gpu`: fixed, between GPUs; `network`: of
    each transfer. All are standard deviations of factors. Hiccups come at a rate per rank and step, or per transfer."""

    step: float
    item: float = 0.005
    gpu: float = 0.004
    cpu: float = 0.08
    network: float = 0.04
    hiccup_rate: float = 0.003
    network_hiccup_rate: float = 0.002


def drawn_noise(generator: np.random.Generator) -> Noise:
    """Returns the noise of an ordinary job: 1 to 3 % a step."""
    return Noise(step=float(generator.uniform(0.01, 0.03)))


class Lasting(NamedTuple):
    """Noise that lasts, in standard deviations of logarithms: of each rank's computing (`sd`) and of the work in each
    replica's data (`lengths`), both correlated from step to step by `rho`; `data`: of the work in a replica's data, for
    good."""

    rho: float = 0.0
    sd: float = 0.0
    lengths: float = 0.0
    data: float = 0.0


def parse_lasting(text: str) -> Lasting:
    """Reads `rho=0.9,sd=0.02,lengths=0.08,data=0.08`, or a part of it. Raises ValueError with what is wrong."""
    words = dict(word.split("=", 1) if "=" in word else (word, "") for word in text.split(","))
    if unknown := set(words) - set(Lasting._fields):
        raise ValueError(f"{min(unknown)!r} is nothing that noise has: {', '.join(Lasting._fields)}")
    found = Lasting(**{name: float(value) for name, value in words.items()})
    if not (0 <= found.rho < 1 and all(0 <= value < np.inf for value in found)):
        raise ValueError(f"{text!r}: rho is at least 0 and below 1, and no standard deviation is below 0")
    return found


def wandering(draw: np.random.Generator, rho: float, sd: float, steps: int, count: int) -> Floats:
    """Draws [steps, count]: series with this standard deviation, each correlated from step to step by `rho` (AR(1))."""
    found = draw.standard_normal((steps, count))
    for step in range(1, steps):
        found[step] = rho * found[step - 1] + (1 - rho * rho) ** 0.5 * found[step]
    return sd * found


LOUD = Noise(step=0.05, item=0.02, gpu=0.008, cpu=0.25, network=0.12, hiccup_rate=0.02, network_hiccup_rate=0.01)
CALM = Noise(step=0.003, item=0.001, gpu=0.002, cpu=0.02, network=0.01, hiccup_rate=0.0002, network_hiccup_rate=0.0002)


class Healthy(NamedTuple):
    """Seconds of every item, (steps, items), by how much later than its joint each member ends, and seconds of the
    transfers, (steps, joints): `between` are the parts between nodes, without noise."""

    items: Floats
    late: Floats
    joints: Floats


def healthy(programme: Programme, steps: int, noise: Noise, generator: np.random.Generator) -> Healthy:
    """Draws a healthy job's durations."""
    layout = programme.layout
    ranks = layout.world_size
    gpus = 1 + noise.gpu * generator.standard_normal(ranks)
    by_step = 1 + noise.step * generator.standard_normal((steps, ranks))
    warm = np.ones((steps, ranks))
    for step, factor in enumerate(WARM_UP_FACTORS[:steps]):
        warm[step] = factor * (1 + 0.1 * (factor - 1) * generator.standard_normal(ranks))
    factors = np.clip(gpus * by_step * warm, 0.3, None)[:, programme.rank]
    factors *= 1 + noise.item * generator.standard_normal(factors.shape)
    spread = np.exp(noise.cpu * generator.standard_normal((steps, len(programme.items))))
    items = programme.seconds * np.where(programme.on_cpu, spread, factors)
    hiccups(programme, items, noise, generator)
    transfers = programme.latency + np.maximum(programme.inside, programme.between)
    joints = transfers * np.exp(noise.network * generator.standard_normal((steps, len(transfers))))
    rare = generator.random(joints.shape) < noise.network_hiccup_rate
    joints[rare] += 0.002 * generator.pareto(2.0, int(rare.sum()))
    late = np.abs(generator.normal(0.0, 8e-6, items.shape))
    return Healthy(items, late, joints)


def hiccups(programme: Programme, items: Floats, noise: Noise, generator: np.random.Generator) -> None:
    """Now and then something on a host holds one rank up, seldom for long: a heavy tail."""
    steps, ranks = len(items), programme.layout.world_size
    hit = np.argwhere(generator.random((steps, ranks)) < noise.hiccup_rate)
    lengths = np.minimum(0.004 * (1 + generator.pareto(1.6, len(hit))), 1.0)
    for (step, rank), seconds in zip(hit, lengths, strict=True):
        places = np.flatnonzero((programme.rank == rank) & programme.computes & (programme.phase >= INPUT))
        items[step, generator.choice(places)] += seconds
