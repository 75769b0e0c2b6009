"""The timings of a synchronous job, as arrays."""

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from laggard.kit.constants import PHASES
from laggard.locate.job_timings import JobTimings, RankInfo, RankState, build_timings

BUSY = (0.01, 0.09, 0.15, 0.03, 0.0, 0.0, 0.0, 0.0, 0.005)
SYNC = 0.03

Slow = tuple[Sequence[int], float]  # ranks, and by which share of the step they are slower


def job(ranks: int = 64, steps: int = 20, slow: Sequence[Slow] = (), seed: int = 0, **options: Any) -> JobTimings:
    """A synchronous job with 2 % noise in each phase and step, and 0.4 % between GPUs. `load` [R]: how much each rank
    has to do by design. `phase`: in which the slow ones are slow."""
    generator = np.random.default_rng(seed)
    load = np.asarray(options.pop("load", np.ones(ranks)))
    phase, since = PHASES.index(options.pop("phase", "forward")), options.pop("since", 0)
    per_node, first = options.pop("per_node", 8), options.pop("first_step", 2)
    timed = np.flatnonzero(BUSY)
    phases = np.zeros((steps, ranks, len(PHASES)))
    noise = generator.normal(1, 0.02, (steps, ranks, len(timed)))
    phases[:, :, timed] = np.array(BUSY)[timed] * load[:, None] * noise
    phases *= generator.normal(1, 0.004, ranks)[:, None]
    whole = sum(BUSY) * load.max() + SYNC
    for columns, share in slow:
        phases[since:, list(columns), phase] += share * whole
    busy = phases.sum(axis=2)
    duration = np.repeat(busy.max(axis=1, keepdims=True) + SYNC, ranks, axis=1)
    values: dict[str, Any] = dict(
        job_id="job",
        world_size=ranks,
        steps=np.arange(first, first + steps),
        ranks=np.arange(ranks),
        nodes=tuple(f"n{rank // per_node}" for rank in range(ranks)),
        gpus=(None,) * ranks,
        step_seconds=duration,
        phase_seconds=phases,
        waited_seconds=duration - busy,
        states=(RankState("running", first + steps - 1, None, None),) * ranks,
        findings_by_node={},
    )
    return JobTimings(**{**values, **options})


def of_states(states: Iterable[RankState], world: int = 0, nodes: Sequence[str] = (), **changes: Any) -> JobTimings:
    """Of ranks that are in these states, on one node or on `nodes`, and have no steps."""
    info = {rank: RankInfo(nodes[rank] if nodes else "n0", None, state) for rank, state in enumerate(states)}
    return dataclasses.replace(build_timings("j", world or len(info), info, {}, {}), **changes)


def with_phases(timings: JobTimings, phases: np.ndarray | None = None, sync: float = SYNC) -> JobTimings:
    """The same job with these phases, or its own where they were changed: all ranks wait for each step's slowest."""
    phases = timings.phase_seconds if phases is None else phases
    busy = phases.sum(axis=2)
    duration = np.repeat(busy.max(axis=1, keepdims=True) + sync, phases.shape[1], axis=1)
    return dataclasses.replace(timings, step_seconds=duration, phase_seconds=phases, waited_seconds=duration - busy)


def scaled(timings: JobTimings, factor: float) -> JobTimings:
    """The same job with steps of `factor` times the length."""
    times = ("step_seconds", "phase_seconds", "waited_seconds")
    return dataclasses.replace(timings, **{name: getattr(timings, name) * factor for name in times})
