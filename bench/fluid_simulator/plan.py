"""A case before it runs: a job, what is uneven in it by design or by chance, and what befalls it. Pure."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from fluid_simulator.cluster import Cluster, Resource
from fluid_simulator.job import Drawn, Job
from fluid_simulator.places import Place

Entry = dict[str, Any]
"""Somebody, as truths and answers name them."""
Work = Callable[[int, int], tuple[Sequence[float], int]]
"""The weights of a step's micro-batches, and the tokens in it, by replica and step."""
ON_MACHINES = ("gpu", "host", "input", "pcie")
"""The types of faults that make a rank slower, and not the network alone."""
ON_LINKS = ("nic", "pair", "leaf", "nvlink", "pcie", "netdead")


@dataclasses.dataclass
class Fault:
    """`type`: of ON_MACHINES or ON_LINKS. `severity`: 1.0 makes twice as slow; of an input, the share of a step by
    which batches come later. `levels`: by step, which share of it acts. `style`: burst (clocks fall at times) or pause
    (others have the core at times); else it acts evenly. `place` and `resources`: of a link. `fixed`: the severity,
    where it is not searched (0: it is). `target`: by which share steps shall become longer. `dead_from`: the step from
    which nothing passes any more."""

    type: str
    ranks: list[int] = dataclasses.field(default_factory=list)
    resources: list[Resource] = dataclasses.field(default_factory=list)
    place: Place | None = None
    style: str = ""
    severity: float = 0.0
    fixed: float = 0.0
    target: float = 0.0
    mode: str = "always"
    levels: list[float] = dataclasses.field(default_factory=list)
    dead_from: int = 0
    name: str = ""
    how: str = ""

    @property
    def of_link(self) -> bool:
        return self.type not in ("gpu", "host", "input")

    def level(self, step: int) -> float:
        return self.levels[step] if step < len(self.levels) else 0.0


@dataclasses.dataclass(frozen=True)
class Collector:
    """Python's collector: it takes `seconds` every so many steps, on each rank `stagger` steps apart."""

    every: int
    seconds: float
    stagger: int

    def due(self, rank: int, step: int) -> bool:
        return (step + self.stagger * rank) % self.every == self.every - 1


@dataclasses.dataclass
class Plan:
    """`silicon`: by rank, how long its GPU takes over the usual one; `heat` and `drift`: by rank and step, the
    same; `experts`: the share of tokens that its experts get; `context`: its share of the attention. `storage`: by rank
    and step, by which share of a step its batch comes later. `warm_up`: steps, and seconds of the first. `others`: by
    step, the share of the network that other jobs leave. `tolerated`: who may be named where nothing is broken, and
    `why`."""

    drawn: Drawn
    seed: int
    family: str
    silicon: list[float]
    experts: list[float]
    context: list[float]
    work: Work
    heat: Callable[[int, int], float] | None = None
    drift: Callable[[int, int], float] | None = None
    storage: Callable[[int, int], float] | None = None
    others: Callable[[int], float] | None = None
    warm_up: tuple[int, float] | None = None
    collector: Collector | None = None
    tolerated: list[Entry] = dataclasses.field(default_factory=list)
    why: str = ""
    note: str = ""

    @property
    def cluster(self) -> Cluster:
        return self.drawn.cluster

    @property
    def job(self) -> Job:
        return self.drawn.job

    @property
    def steps(self) -> int:
        return self.drawn.job.steps

    def entry(self, kind: str, ranks: Sequence[int]) -> Entry:
        """These ranks with their machines, as truths name them."""
        own = [int(rank) for rank in ranks]
        return {"kind": kind, "ranks": own, "nodes": self.cluster.names_of(own)}
