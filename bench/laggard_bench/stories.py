"""What befalls a job: each family of cases, how often it comes, and who may be named. Pure."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from laggard_bench.cluster import Cluster, Element
from laggard_bench.draw import Drawn, pick
from laggard_bench.faults import Fault, Part, machine, stands_out
from laggard_bench.program import Program
from laggard_bench.simulate import magnitude_for

MAX_TRIED = 8
"""The most links of which one is looked for that differs from others; where none does, it becomes slow in the run."""
SIZES = (0.01, 0.02, 0.05, 0.10, 0.20, 0.50)
"""The shares of the step by which faults are to make it longer; the truth has what they did."""


@dataclasses.dataclass(frozen=True)
class Story:
    """`instead`: culprits that no recording tells from the true ones. `tolerated`: culprits that are named with a
    reason though nothing is broken. `verdicts`: those that are right; empty: by the faults. `why`: the reason, where
    several answers are right. `told_hidden`: the ranks say that a library's waits are not seen."""

    faults: tuple[Fault, ...] = ()
    instead: tuple[dict[str, Any], ...] = ()
    tolerated: tuple[dict[str, Any], ...] = ()
    verdicts: tuple[str, ...] = ()
    why: str = ""
    told_hidden: bool = False


@dataclasses.dataclass(frozen=True)
class Scene:
    """What a story is told of."""

    rng: np.random.Generator
    drawn: Drawn
    cluster: Cluster
    program: Program
    steps: int

    def size(self) -> float:
        return float(pick(self.rng, *SIZES))

    def all_steps(self) -> NDArray[np.float64]:
        return np.ones(self.steps)

    def rank(self) -> int:
        return int(self.rng.integers(self.drawn.world))

    def node(self) -> int:
        return int(self.rng.integers(self.cluster.nodes))

    def part(self, how: str, target: float, ranks: Sequence[int] = (), element: Element | None = None) -> Part:
        part = Part(how, tuple(ranks), element)
        return magnitude_for(self.program, part, target)

    def onset(self) -> NDArray[np.float64]:
        """A slowness that comes slowly, from a step in the first half on."""
        begin, ramp = int(self.steps * self.rng.uniform(0.15, 0.45)), int(self.rng.integers(5, self.steps // 3))
        return np.clip((np.arange(self.steps) - begin) / ramp, 0.0, 1.0)

    def appears(self) -> NDArray[np.float64]:
        """A slowness that is there from one step in the run on."""
        return (np.arange(self.steps) >= int(self.steps * self.rng.uniform(0.3, 0.6))).astype(float)

    def by_turns(self) -> NDArray[np.float64]:
        """A slowness that comes and goes: bursts of 2 to 12 steps, a third of the time."""
        active, step = np.zeros(self.steps), int(self.rng.integers(5, 15))
        while step < self.steps:
            burst = int(self.rng.integers(2, 13))
            active[step : step + burst] = 1.0
            step += burst + int(self.rng.integers(8, 26))
        return active

    def used(self, kind: str) -> list[Element]:
        """The parts of the network of that kind that the program uses."""
        found: set[Element] = set()
        for members in {it.members for it in self.program.transfers}:
            pairs = zip(members, (*members[1:], members[0]), strict=True)
            found |= {part for a, b in pairs if a != b for part in self.cluster.elements(a, b) if part.kind == kind}
        return sorted(found)


def tell(
    rng: np.random.Generator,
    family: str,
    drawn: Drawn,
    cluster: Cluster,
    programs: Sequence[Program],
    steps: int,
) -> Story:
    scene = Scene(rng, drawn, cluster, max(programs, key=lambda program: len(program.calls)), steps)
    if drawn.design.engine == "diloco":
        scene = dataclasses.replace(scene, program=programs[0])
    return STORIES[family](scene)


def _healthy(scene: Scene) -> Story:
    return Story(verdicts=("ok", "unknown"))


def _uneven(scene: Scene) -> Story:
    return Story(verdicts=("ok", "unknown"), why="the work is uneven by design: nobody is at fault")


def _hetero_equal(scene: Scene) -> Story:
    ranks = tuple(scene.drawn.design.speed)
    slow = machine(scene.cluster, ranks, "compute")
    why = "half of the GPUs are of a slower model, and all have the same work: naming no others is no accusation"
    return Story(tolerated=(slow,), verdicts=("ok", "unknown", "slow"), why=why)


def _hot_expert(scene: Scene) -> Story:
    design = scene.drawn.design
    if not design.heavy_parts:
        return _healthy(scene)
    hot = int(np.argmax(design.heavy_parts))
    groups = [group for group in scene.program.groups.values() if group.role == "ep"]
    ranks = tuple(sorted(group.ranks[hot] for group in groups))
    if len(groups) > 1:
        return _uneven(scene)
    why = "one expert has more work in the only expert group: no recording tells this from a slow GPU"
    return Story(tolerated=(machine(scene.cluster, ranks, "compute"),), verdicts=("ok", "unknown", "slow"), why=why)


def _rank_zero(scene: Scene) -> Story:
    if scene.drawn.design.rank_zero[0] != "between_steps":
        return _uneven(scene)
    why = "rank 0 does more between the steps: the script's choice or a slow host, no recording tells"
    first = machine(scene.cluster, (0,), "host")
    return Story(tolerated=(first,), verdicts=("ok", "unknown", "slow"), why=why)


def _rl(scene: Scene) -> Story:
    if not scene.drawn.design.lead_waits:
        return Story(verdicts=("ok", "unknown"), why="all ranks wait for the other job alike")
    why = "rank 0 waits for the other job's rollouts as input, and broadcasts: its input is slow, its machine is not"
    first = machine(scene.cluster, (0,), "host")
    return Story(tolerated=(first,), verdicts=("ok", "unknown", "slow"), why=why)


def _gpu(scene: Scene, active: NDArray[np.float64] | None = None, name: str = "gpu") -> Story:
    part = scene.part("gpu", scene.size(), (scene.rank(),))
    return Story((Fault(name, "slow_compute", (part,), scene.all_steps() if active is None else active),))


def _of_node(scene: Scene, how: str, name: str) -> Story:
    part = scene.part(how, scene.size(), scene.cluster.ranks_of(scene.node()))
    return Story((Fault(name, "slow_host", (part,), scene.all_steps()),))


def _link(scene: Scene, kind: str, active: NDArray[np.float64] | None = None, name: str = "") -> Story:
    found = scene.used(kind)
    if not found:
        return _gpu(scene, active)
    tried = [found[place] for place in scene.rng.permutation(len(found))[:MAX_TRIED].tolist()]
    apart = next((each for each in tried if stands_out(scene.program, each)), None)
    if active is None:
        active = scene.all_steps() if apart else scene.appears()
    part = scene.part("link", scene.size(), element=apart or tried[0])
    fault = Fault(name or kind, "slow_link", (part,), active)
    why = "links that are slow in the same collectives of the same ranks are not told apart: each of them is right"
    return Story((fault,), why=why)


def _rack_ranks(scene: Scene) -> list[int]:
    racks = -(-scene.cluster.nodes // scene.cluster.nodes_per_rack)
    rack = int(scene.rng.integers(racks))
    nodes = range(rack * scene.cluster.nodes_per_rack, (rack + 1) * scene.cluster.nodes_per_rack)
    return [rank for node in nodes if node < scene.cluster.nodes for rank in scene.cluster.ranks_of(node)]


def _rack(scene: Scene, name: str, active: NDArray[np.float64]) -> Story:
    """A rack whose power is capped, or whose cooling fails: all GPUs of it."""
    ranks = _rack_ranks(scene)
    part = scene.part("gpu", scene.size(), ranks)
    return Story((Fault(name, "slow_compute", (part,), active),))


def _moving(scene: Scene) -> Story:
    """A straggler that moves: each of two or three ranks is slow for its part of the run."""
    count = int(scene.rng.integers(2, 4))
    ranks = scene.rng.choice(scene.drawn.world, count, replace=False)
    size = scene.size()
    parts = tuple(scene.part("gpu", size, (int(rank),)) for rank in ranks)
    turn = np.arange(scene.steps) * count // scene.steps
    shares = tuple((turn == place).astype(float) for place in range(count))
    return Story((Fault("moving", "slow_compute", parts, scene.all_steps(), shares),))


def _three(scene: Scene) -> Story:
    """Two GPUs and an adapter, or three GPUs, on different nodes."""
    nodes = scene.rng.permutation(scene.cluster.nodes)[:3].tolist()
    nodes += [scene.node() for _ in range(3 - len(nodes))]
    ranks = [int(scene.rng.choice(scene.cluster.ranks_of(node))) for node in nodes]
    faults = [
        Fault(f"gpu_{place}", "slow_compute", (scene.part("gpu", scene.size(), (rank,)),), scene.all_steps())
        for place, rank in enumerate(ranks)
    ]
    adapter = Element("node", (nodes[2],))
    if scene.rng.random() < 0.5 and adapter in scene.used("node"):
        part = scene.part("link", scene.size(), element=adapter)
        faults[2] = Fault("adapters", "slow_link", (part,), scene.all_steps())
    return Story(tuple(faults))


def _unrecorded(scene: Scene) -> Story:
    """One of the ranks that wait for each other where nobody sees it is slow: all of them look slow."""
    hidden = scene.drawn.design.unrecorded
    culprit = int(pick(scene.rng, *hidden))
    fault = Fault("unrecorded", "slow_compute", (scene.part("gpu", scene.size(), (culprit,)),), scene.all_steps())
    why = "they wait for one another within kernels, and nothing records it: any of them is right, and so is unknown"
    instead = (machine(scene.cluster, hidden, "compute"),)
    told = bool(scene.rng.random() < 0.5)
    fault = dataclasses.replace(fault, optional="who of them is slow is in no record")
    return Story((fault,), instead, verdicts=("slow", "unknown", "ok"), why=why, told_hidden=told)


def _stop(scene: Scene, kind: str, how: str, ranks: Sequence[int], name: str) -> Story:
    step = int(scene.steps * scene.rng.uniform(0.4, 0.9))
    ended = str(pick(scene.rng, "killed", "timeout")) if kind == "hang" else ""
    return Story((Fault(name, kind, (), np.zeros(scene.steps), (), tuple(ranks), step, how, ended),))


def _stopped_gpu(scene: Scene) -> Story:
    story = _stop(scene, "hang", "gpu", (scene.rank(),), "stopped_gpu")
    why = "where all hosts run ahead, whose GPU stands still is told by the Flight Recorder alone"
    return dataclasses.replace(story, verdicts=("hang", "unknown"), why=why)


def _death(scene: Scene) -> Story:
    how = str(pick(scene.rng, "killed", "killed", "exception", "node"))
    ranks = scene.cluster.ranks_of(scene.node()) if how == "node" and scene.cluster.nodes > 1 else [scene.rank()]
    story = _stop(scene, "death", how, ranks, f"death_{how}")
    return story


def _flap(scene: Scene) -> Story:
    """An adapter that loses its link for a moment, a few times: some steps take twice as long or more."""
    active = np.zeros(scene.steps)
    for at in scene.rng.choice(np.arange(5, scene.steps - 5), int(scene.rng.integers(3, 7)), replace=False).tolist():
        active[at : at + int(scene.rng.integers(1, 4))] = 1.0
    found = scene.used("node")
    if not found:
        return _gpu(scene)
    part = scene.part("link", float(scene.rng.uniform(1.0, 4.0)), element=pick(scene.rng, *found))
    return Story((Fault("nic_flap", "slow_link", (part,), active),))


FAMILIES = (
    ("balanced", 8),
    ("stages", 3),
    ("packing", 4),
    ("routing", 3),
    ("hot_expert", 2),
    ("context", 2),
    ("hetero_balanced", 3),
    ("hetero_equal", 2),
    ("rank_zero", 3),
    ("pauses", 2),
    ("fleet_slower", 2),
    ("storage", 2),
    ("rl", 2),
    ("quorum", 2),
    ("gpu", 10),
    ("host", 4),
    ("input", 3),
    ("node_nics", 5),
    ("port", 3),
    ("link", 5),
    ("leaf", 3),
    ("nvlink", 2),
    ("rack", 2),
    ("cooling", 2),
    ("onset", 3),
    ("moving", 3),
    ("intermittent", 3),
    ("three", 3),
    ("unrecorded", 2),
    ("stopped_gpu", 2),
    ("hang", 4),
    ("death", 4),
    ("nic_flap", 2),
)
"""The families, and how many of about a hundred cases each has; those above `gpu` have nothing wrong."""
HEALTHY = tuple(name for name, _ in FAMILIES[:14])

STORIES: dict[str, Callable[[Scene], Story]] = {
    **dict.fromkeys(HEALTHY, _uneven),
    "balanced": _healthy,
    "pauses": _healthy,
    "fleet_slower": _healthy,
    "storage": _healthy,
    "quorum": _healthy,
    "hot_expert": _hot_expert,
    "hetero_equal": _hetero_equal,
    "rank_zero": _rank_zero,
    "rl": _rl,
    "gpu": _gpu,
    "host": lambda scene: _of_node(scene, "host", "host"),
    "input": lambda scene: _of_node(scene, "input", "input"),
    "node_nics": lambda scene: _link(scene, "node"),
    "port": lambda scene: _link(scene, "nic"),
    "link": lambda scene: _link(scene, "link"),
    "leaf": lambda scene: _link(scene, "leaf"),
    "nvlink": lambda scene: _link(scene, "nvlink"),
    "rack": lambda scene: _rack(scene, "rack_power", scene.all_steps()),
    "cooling": lambda scene: _rack(scene, "cooling", scene.onset()),
    "onset": lambda scene: _gpu(scene, scene.onset(), "onset"),
    "moving": _moving,
    "intermittent": lambda scene: (
        _gpu(scene, scene.by_turns(), "intermittent_gpu")
        if scene.rng.random() < 0.5
        else _link(scene, "node", scene.by_turns(), "intermittent_nic")
    ),
    "three": _three,
    "unrecorded": _unrecorded,
    "stopped_gpu": _stopped_gpu,
    "hang": lambda scene: _stop(
        scene, "hang", how := str(pick(scene.rng, "code", "stopped")), (scene.rank(),), f"hang_{how}"
    ),
    "death": _death,
    "nic_flap": _flap,
}
