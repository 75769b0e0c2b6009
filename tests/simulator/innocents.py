"""What makes a healthy job look slow somewhere: none of it has a culprit."""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from simulator.noise import Healthy, Lasting, wandering
from simulator.programme import BACKWARD, FORWARD, Programme

Floats = npt.NDArray[np.float64]
Draw = np.random.Generator


def positions(programme: Programme, axis: str) -> npt.NDArray[np.int64]:
    """Returns each item's place along an axis of its layout."""
    by_rank = np.array([programme.layout.position(rank).get(axis, 0) for rank in range(programme.layout.world_size)])
    return by_rank[programme.rank]


def model_work(programme: Programme) -> npt.NDArray[np.bool_]:
    """Tells which items compute the model's layers."""
    return programme.computes & np.isin(programme.phase, (FORWARD, BACKWARD))


def stage_imbalance(programme: Programme, durations: Healthy, draw: Draw) -> None:
    """The first stage embeds, the last one has the vocabulary's matrix and the loss; the others are not quite even."""
    stages = programme.layout.pp
    factors = 1 + 0.04 * draw.standard_normal(stages)
    factors[0] += draw.uniform(0.02, 0.15)
    factors[-1] += draw.uniform(0.1, 0.5)
    durations.items[:] *= np.where(model_work(programme), factors[positions(programme, "pp")], 1.0)


def sequence_lengths(programme: Programme, durations: Healthy, draw: Draw) -> None:
    """Each replica's microbatches are longer or shorter, differently in every step."""
    steps, layout = len(durations.items), programme.layout
    spread = draw.uniform(0.06, 0.2)
    lengths = np.exp(spread * draw.standard_normal((steps, layout.dp, layout.micro)))
    factors = lengths[:, positions(programme, "dp"), programme.micro]
    durations.items[:] *= np.where(model_work(programme), factors, 1.0)


def hot_experts(programme: Programme, durations: Healthy, draw: Draw) -> None:
    """The router prefers some experts for a while, in every replica alike."""
    steps, layout = len(durations.items), programme.layout
    load = np.empty((steps, layout.ep))
    for step in range(steps):
        if step == 0 or draw.random() < 0.15:
            level = np.exp(0.3 * draw.standard_normal(layout.ep))
        load[step] = level * np.exp(0.05 * draw.standard_normal(layout.ep))
    factors = load[:, positions(programme, "ep")]
    durations.items[:] *= np.where(programme.block == "expert", factors, 1.0)


def congestion(programme: Programme, durations: Healthy, draw: Draw) -> None:
    """Other jobs load the network, and all of this one's transfers between nodes alike."""
    steps = len(durations.items)
    load = np.empty(steps)
    level = draw.uniform(0.3, 1.5)
    for step in range(steps):
        level = max(0.0, 0.8 * level + draw.normal(0.2, 0.3))
        load[step] = level
    durations.joints[:] *= 1 + np.outer(load, programme.between > programme.inside)


def thermal(programme: Programme, durations: Healthy, draw: Draw) -> None:
    """A warm room: every GPU slows down in the course of the run."""
    steps = len(durations.items)
    begin, end = sorted(draw.uniform(0, steps, 2))
    ramp = 1 + draw.uniform(0.08, 0.25) * np.clip((np.arange(steps) - begin) / max(end - begin, 1), 0, 1)
    durations.items[:] *= np.where(programme.computes & ~programme.on_cpu, ramp[:, None], 1.0)


def evaluation(programme: Programme, durations: Healthy, draw: Draw) -> None:
    """Every few steps all ranks evaluate the model, for longer than a step."""
    steps, ranks = len(durations.items), programme.layout.world_size
    often, length = int(draw.integers(5, 13)), draw.uniform(0.3, 1.2)
    each = length * (1 + 0.02 * draw.standard_normal((steps, ranks)))
    due = (np.arange(steps) % often == often - 1)[:, None]
    durations.items[:] += np.where(programme.block == "evaluation", due * each[:, programme.rank], 0.0)


def checkpoint(programme: Programme, durations: Healthy, draw: Draw) -> None:
    """Every rank writes its part of a checkpoint, as fast as the storage lets it."""
    steps, ranks = len(durations.items), programme.layout.world_size
    often, length = int(draw.integers(10, 20)), draw.uniform(0.5, 3.0)
    each = length * np.exp(0.2 * draw.standard_normal((steps, ranks)))
    due = (np.arange(steps) % often == often - 1)[:, None]
    durations.items[:] += np.where(programme.block == "checkpoint", due * each[:, programme.rank], 0.0)


def logging(programme: Programme, durations: Healthy, draw: Draw) -> None:
    """Rank 0 writes a log line every few steps, and a checkpoint now and then, while all others wait."""
    steps = np.arange(len(durations.items))
    often, seldom = int(draw.integers(4, 11)), int(draw.integers(12, 20))
    seconds = (steps % often == often - 1) * draw.uniform(0.002, 0.012)
    seconds = seconds + (steps % seldom == seldom - 1) * draw.uniform(0.3, 2.0)
    mine = (programme.block == "checkpoint") & (programme.rank == 0)
    durations.items[:] += np.outer(seconds, mine)


def garbage_collection(programme: Programme, durations: Healthy, draw: Draw) -> None:
    """Every rank collects garbage as often as the others, each at its own time."""
    steps, ranks = len(durations.items), programme.layout.world_size
    often, length = int(draw.integers(6, 14)), draw.uniform(0.01, 0.05)
    due = (np.arange(steps)[:, None] + draw.integers(0, often, ranks)[None, :]) % often == 0
    first = np.array(
        [np.flatnonzero((programme.rank == rank) & (programme.phase == FORWARD))[0] for rank in range(ranks)]
    )
    durations.items[:, first] += due * length * (1 + 0.1 * draw.standard_normal((steps, ranks)))


def warm_up(programme: Programme, durations: Healthy, draw: Draw) -> None:
    """The first steps take several times as long, on some ranks more than on others."""
    length, ranks = int(draw.integers(3, 7)), programme.layout.world_size
    for step in range(min(length, len(durations.items))):
        factors = 1 + draw.uniform(0.5, 3.0) * (1 - step / length) * np.exp(0.4 * draw.standard_normal(ranks))
        durations.items[step] *= np.where(programme.computes, factors[programme.rank], 1.0)


def lasting_noise(programme: Programme, durations: Healthy, noise: Lasting, draw: Draw) -> None:
    """Ranks are slower for some steps, and replicas' data more work, for some steps or for good. No record tells of
    data: they are as many elements as others."""
    steps, layout = len(durations.items), programme.layout
    own = wandering(draw, noise.rho, noise.sd, steps, layout.world_size)
    data = wandering(draw, noise.rho, noise.lengths, steps, layout.dp) + noise.data * draw.standard_normal(layout.dp)
    computing = programme.computes & ~programme.on_cpu
    durations.items[:] *= np.where(computing, np.exp(own[:, programme.rank]), 1.0)
    durations.items[:] *= np.where(model_work(programme), np.exp(data[:, positions(programme, "dp")]), 1.0)


INNOCENTS: dict[str, Callable[[Programme, Healthy, Draw], None]] = {
    "stage_imbalance": stage_imbalance,
    "sequence_lengths": sequence_lengths,
    "hot_experts": hot_experts,
    "congestion": congestion,
    "thermal": thermal,
    "evaluation": evaluation,
    "checkpoint": checkpoint,
    "logging": logging,
    "garbage_collection": garbage_collection,
    "warm_up": warm_up,
}
NOISES = ("loud", "calm")  # these are innocents, too: how noisy the job is
