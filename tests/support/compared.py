"""Two runs of one simulated job: as it was, and with one change for all of it or for a part."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from simulator.case import Case, Simulated, durations, healthy_job, programme_of, truth_document
from simulator.engine import run
from simulator.noise import Healthy
from simulator.programme import Programme
from simulator.recording import write

Plant = Callable[[Programme, Healthy], None]


def phase(number: int, factor: float, ranks: Any = None, one_layer: bool = False) -> Plant:
    """A phase that takes `factor` times as long, of `ranks` alone where they are given, and in one layer of many."""

    def plant(programme: Programme, base: Healthy) -> None:
        hit = (programme.phase == number) & programme.computes
        if ranks is not None:
            hit &= np.isin(programme.rank, ranks)
        if one_layer:
            for rank in range(programme.layout.world_size):
                own = np.flatnonzero(hit & (programme.rank == rank))
                hit[np.delete(own, np.s_[:: programme.layout.blocks])] = False
        base.items[:, hit] *= factor

    return plant


def transfers(op: str, factor: float) -> Plant:
    """All transfers of an operation that take `factor` times as long."""

    def plant(programme: Programme, base: Healthy) -> None:
        base.joints[:, np.array([joint.op == op for joint in programme.joints])] *= factor

    return plant


def checkpoints(seconds: float) -> Plant:
    """Each tenth step, all ranks write a checkpoint."""

    def plant(programme: Programme, base: Healthy) -> None:
        due = np.arange(len(base.items)) % 10 == 9
        base.items[np.ix_(due, programme.block == "checkpoint")] += seconds

    return plant


def record(
    folder: Path, layout: str, seed: int, *plants: Plant, steps: int = 60, form: str = "host", noise: str = ""
) -> Path:
    """Writes a run, and returns the folder of its recording. `noise`: `calm` or `loud`; else a draw for each seed."""
    case = Case(layout, form, seed=seed, steps=steps, innocents=(noise,) if noise else ())
    plan = programme_of(layout)
    base = healthy_job(case, plan)
    for plant in plants:
        plant(plan, base)
    times = run(plan, durations(base, []))
    truth = truth_document(case, plan, [], times.left.max(axis=1))
    write(Simulated(replace(case, seed=0), plan, times, truth, {}, frozenset(), "complete"), folder)
    return folder / "trace"
