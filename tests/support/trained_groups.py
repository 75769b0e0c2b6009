"""Jobs made of steps and of collectives of groups, whose transfers take as long as a test wants."""

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np

from laggard.locate.collectives import ProcessGroup
from laggard.locate.job_timings import JobTimings
from support.collective_rows import Row, collectives
from support.timings import job

NODES, PER_NODE, STEPS, BEGIN = 4, 4, 60, 32
RANKS = NODES * PER_NODE
ALL = tuple(range(RANKS))
ACROSS = tuple(tuple(range(local, RANKS, PER_NODE)) for local in range(PER_NODE))
RING = tuple((PER_NODE * node, PER_NODE * ((node + 1) % NODES)) for node in range(NODES))
TRANSFER = 0.02  # seconds

Longer = Callable[[int, tuple[int, ...]], float]
"""By how many seconds the transfer of a step, by its number, and group takes longer."""


def trained(groups: Sequence[tuple[int, ...]], longer: Longer, seed: int = 0, size: int = 1000) -> JobTimings:
    """A job with a collective of each group in each step, whose ranks come up to 50 ms apart, on clocks of their own.
    Steps are as much longer as the longest of these transfers. From BEGIN on they have `size` bytes, 1000 before."""
    generator = np.random.default_rng(seed)
    offset = generator.uniform(-1000, 1000, RANKS)
    timings = job(RANKS, STEPS, per_node=PER_NODE, seed=seed)
    rows: list[Row] = []
    for step in timings.steps.tolist():
        more = {members: longer(step, members) for members in groups}
        timings.step_seconds[step - 2] += max(more.values())
        timings.waited_seconds[step - 2] += max(more.values())
        for number, members in enumerate(groups):
            arrival = 10.0 * step + generator.uniform(0, 0.05, len(members))
            over = arrival.max() + TRANSFER * generator.normal(1, 0.02) + more[members]
            for place, rank in enumerate(members):
                times = arrival[place] + offset[rank], over + offset[rank]
                rows.append(Row(rank, step, number, "all_reduce", step, *times, size=1000 if step < BEGIN else size))
    known = [ProcessGroup(f"dp:{number}", "dp", members) for number, members in enumerate(groups)]
    return dataclasses.replace(timings, collectives=collectives(rows, known))
