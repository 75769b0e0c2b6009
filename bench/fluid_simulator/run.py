"""One simulation of a job, with faults or without."""

import dataclasses
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fluid_simulator.collectives import SMALL_BYTES, algorithm
from fluid_simulator.conditions import Conditions
from fluid_simulator.data_parallel import replicated, sharded
from fluid_simulator.job import Pipelined, Replicated, Stop
from fluid_simulator.pipeline import pipelined
from fluid_simulator.places import Traffic, traffic_of
from fluid_simulator.plan import Fault, Plan
from fluid_simulator.rank import Rank
from fluid_simulator.simulation import Simulation

NEVER = 1e9
"""Seconds beyond which nothing ends."""


class Deadlock(Exception):
    """Ranks wait for one another though nothing is wrong: such a job cannot be."""


class Run:
    """Runs `steps` of the plan's job, up to the end or until nothing moves any more. `stop`: ranks that stop."""

    def __init__(
        self, plan: Plan, faults: Sequence[Fault], steps: int, all_on: bool = False, stop: Stop | None = None
    ) -> None:
        drawn = plan.drawn
        self.plan = plan
        job = dataclasses.replace(drawn.job, steps=steps)
        self.simulation = Simulation(drawn.cluster, job.settings, plan.seed)
        conditions = Conditions(plan, faults, self.simulation, all_on)
        follow = {Replicated: replicated, Pipelined: pipelined}.get(type(job.work), sharded)
        self.ranks = [
            Rank(self.simulation, number, drawn.memberships[number], drawn.stages[number])
            for number in range(drawn.cluster.world)
        ]
        for rank in self.ranks:
            if stop and rank.number in stop.ranks:
                rank.stop = stop
            rank.follow(follow(rank, job, conditions))
        self.simulation.agenda.run()

    @property
    def finished(self) -> bool:
        """Whether all ranks came to the end."""
        return all(rank.state == "end" for rank in self.ranks)

    def check_finished(self) -> None:
        """Raises Deadlock where some rank did not come to the end."""
        if not self.finished:
            raise Deadlock(f"{self.plan.drawn.words}: {[(r.number, r.state) for r in self.ranks if r.state != 'end']}")

    @property
    def last_time(self) -> float:
        """Seconds: when the last rank did something."""
        return max(rank.time() for rank in self.ranks if rank.gpu_time < NEVER)

    def durations(self) -> NDArray[np.float64]:
        """[S]: the seconds of each step, from end to end, on the average of the ranks."""
        ends = np.array([[step.end for step in rank.steps] for rank in self.ranks])
        found: NDArray[np.float64] = np.diff(np.concatenate([[0.0], ends.mean(axis=0)]))
        return found

    def traffic(self) -> Traffic:
        """Returns which transfers passed where."""
        collectives = {
            (record.group.index, algorithm(record.group, record.op, record.size), record.op)
            for rank in self.ranks
            for record in rank.records
            if record.op not in ("send", "recv") and record.size >= SMALL_BYTES
        }
        return traffic_of(self.plan.drawn, collectives, self.simulation.fabric.pairs)
