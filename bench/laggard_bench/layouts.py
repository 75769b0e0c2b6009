"""How jobs divide their work among ranks, and what each kind of engine does in a step. Pure."""

import dataclasses
from collections.abc import Callable, Sequence

from laggard_bench.cluster import Cluster
from laggard_bench.program import HOST, INPUT, Builder, Group, Program
from laggard_bench.schedules import chunks, schedule


@dataclasses.dataclass(frozen=True)
class Design:
    """What a job is by design. Times in seconds, sizes in bytes. `speed`: by rank, how long its GPU takes for the same
    work, over the usual GPU. `heavy_last`: how much more the last stage has to do; `heavy_parts`: the same for the
    ranks of an expert or context group, by their place in it. `unrecorded`: ranks that wait for one another in every
    block where nothing records it. `rank_zero`: seconds that rank 0 does alone, in the phase of that name.
    `lead_waits`: rank 0 waits for another job, and then broadcasts."""

    engine: str
    tp: int = 1
    pp: int = 1
    cp: int = 1
    ep: int = 1
    schedule: str = "1f1b"
    micros: int = 1
    blocks: int = 4
    forward: float = 0.1
    size: float = 2e8
    input: float = 0.004
    speed: dict[int, float] = dataclasses.field(default_factory=dict)
    heavy_last: float = 1.0
    heavy_parts: tuple[float, ...] = ()
    unrecorded: tuple[int, ...] = ()
    rank_zero: tuple[str, float] = ("", 0.0)
    lead_waits: bool = False
    island: int = 8

    @property
    def model_ranks(self) -> int:
        return self.tp * self.pp * self.cp


class Places:
    """Where a rank stands: tensor, context, data and pipeline index, tensor fastest, as Megatron orders them."""

    def __init__(self, design: Design, ranks: Sequence[int]) -> None:
        self.design, self.ranks = design, tuple(ranks)
        self.dp = max(1, len(self.ranks) // design.model_ranks)

    def rank(self, pp: int, dp: int, cp: int, tp: int) -> int:
        d = self.design
        return self.ranks[((pp * self.dp + dp) * d.cp + cp) * d.tp + tp]

    def data_index(self, rank: int) -> int:
        """Which batch the rank works on."""
        d = self.design
        return self.ranks.index(rank) // (d.tp * d.cp) % self.dp


def build(design: Design, cluster: Cluster, ranks: Sequence[int], outer: bool = False) -> Program:
    """A step. `outer`: one that synchronises islands, of an engine that does so rarely."""
    builder = Builder(cluster, ranks, lambda rank: design.speed.get(rank, 1.0))
    ENGINES[design.engine](builder, design, outer)
    return Program(builder)


def _opening(b: Builder, d: Design) -> None:
    """The script's own work between the steps, and the input."""
    begun = b.begun(b.ranks)
    b.compute(b.ranks, 0.003, HOST)
    b.phase(b.ranks, "between_steps", begun)
    name, seconds = d.rank_zero
    if name:
        begun = b.begun(b.ranks[:1])
        b.compute(b.ranks[:1], seconds, HOST)
        b.phase(b.ranks[:1], name, begun)
    begun = b.begun(b.ranks)
    b.compute(b.ranks[:1] if d.lead_waits else b.ranks, d.input, INPUT)
    b.phase(b.ranks, "input", begun)
    if d.lead_waits:
        b.sync(_world(b, d), "broadcast", 4e6)


def _world(b: Builder, d: Design) -> Group:
    """The default group. Engines that divide the data among all ranks use it for that, too."""
    return b.group("dp" if d.engine in ("ddp", "fsdp", "rl", "zeropp") else "world", b.ranks)


def _closing(b: Builder, d: Design) -> None:
    """The norm of the gradients, and the optimizer."""
    begun = b.begun(b.ranks)
    b.sync(_world(b, d), "all_reduce", 8)
    b.compute(b.ranks, 0.04 * d.forward * d.micros)
    b.phase(b.ranks, "optimizer", begun)


def _work(b: Builder, d: Design, seconds: float, micro: int, ranks: Sequence[int] | None = None) -> None:
    """A block's work, and what its kernels wait for where nobody sees it."""
    b.compute(b.ranks if ranks is None else ranks, seconds, micro=micro)
    hidden = [rank for rank in d.unrecorded if ranks is None or rank in ranks]
    if len(hidden) > 1:
        b.silent(b.group("hidden", hidden))


def _ddp(b: Builder, d: Design, outer: bool) -> None:
    world = _world(b, d)
    _opening(b, d)
    for micro in range(d.micros):
        begun = b.begun(b.ranks)
        _work(b, d, d.forward, micro)
        b.phase(b.ranks, "forward", begun, micro)
        begun = b.begun(b.ranks)
        handles = []
        for _ in range(d.blocks):
            _work(b, d, 2 * d.forward / d.blocks, micro)
            if micro == d.micros - 1:
                handles.append(b.launch(world, "all_reduce", d.size / d.blocks))
        last_gradient = b.begun(b.ranks)  # as the hooks record DDP's own collectives
        for handle in handles:
            b.wait(handle, last_gradient)
        b.phase(b.ranks, "backward", begun, micro)
    _closing(b, d)


def _by_node(b: Builder, width: int) -> list[Group]:
    whole = [b.ranks[i : i + width] for i in range(0, len(b.ranks), width)]
    return [b.group("dp", ranks, "_shard") for ranks in whole]


def _across(b: Builder, groups: Sequence[Group]) -> list[Group]:
    return [b.group("dp", ranks, "_replicate") for ranks in zip(*(group.ranks for group in groups), strict=True)]


def _sharded(b: Builder, d: Design, outer: bool) -> None:
    """FSDP2 with prefetch; in the engine `hsdp` it shards within an island and reduces across them."""
    shards = [_world(b, d)] if d.engine in ("fsdp", "rl") else _by_node(b, d.island)
    replicas = _across(b, shards) if len(shards) > 1 else []
    _opening(b, d)
    for micro in range(d.micros):
        _gathered(b, d, micro, "forward", shards, [])
        _gathered(b, d, micro, "backward", shards, replicas if micro == d.micros - 1 else [])
    _closing(b, d)


def _gathered(
    b: Builder, d: Design, micro: int, phase: str, shards: Sequence[Group], replicas: Sequence[Group]
) -> None:
    """Gathers each block's parameters one block ahead; in the backward reduces the gradients behind it."""
    begun = b.begun(b.ranks)
    share = d.forward / d.blocks * (1 if phase == "forward" else 2)
    ahead = [b.launch(group, "all_gather", d.size / d.blocks) for group in shards]
    reduced = []
    for block in range(d.blocks):
        here = ahead
        ahead = []
        if block + 1 < d.blocks:
            ahead = [b.launch(group, "all_gather", d.size / d.blocks) for group in shards]
        for handle in here:
            b.wait(handle)
        _work(b, d, share, micro)
        if phase == "backward":
            reduced += [b.launch(group, "reduce_scatter", d.size / d.blocks) for group in shards]
            part = d.size / d.blocks / max(len(shards[0].ranks), 1)
            reduced += [b.launch(group, "all_reduce", part) for group in replicas]
    for handle in reduced:
        b.wait(handle)
    b.phase(b.ranks, phase, begun, micro)


def _zeropp(b: Builder, d: Design, outer: bool) -> None:
    """ZeRO++: parameters quantised and gathered over all, in the backward within the node; gradients exchanged within
    the node, and then across nodes (Wang et al., 2023)."""
    width = min(d.island, len(b.ranks))
    nodes = _by_node(b, width)
    rails = _across(b, nodes) if len(nodes) > 1 else []
    world = _world(b, d)
    _opening(b, d)
    for micro in range(d.micros):
        begun = b.begun(b.ranks)
        for _ in range(d.blocks):
            b.sync(world, "all_gather", d.size / 2 / d.blocks)
            _work(b, d, d.forward / d.blocks, micro)
        b.phase(b.ranks, "forward", begun, micro)
        begun = b.begun(b.ranks)
        for _ in range(d.blocks):
            for group in nodes:
                b.sync(group, "all_gather", d.size / d.blocks)
            _work(b, d, 2 * d.forward / d.blocks, micro)
            for group in nodes:
                b.sync(group, "all_to_all", d.size / 4 / d.blocks)
            for group in rails:
                b.sync(group, "all_to_all", d.size / 4 / d.blocks / width)
        b.phase(b.ranks, "backward", begun, micro)
    _closing(b, d)


def _diloco(b: Builder, d: Design, outer: bool) -> None:
    """Islands that train by themselves, and synchronise every so many steps (Douillard et al., 2023)."""
    islands = _by_node(b, d.island)
    _opening(b, d)
    begun = b.begun(b.ranks)
    _work(b, d, d.forward, 0)
    b.phase(b.ranks, "forward", begun)
    begun = b.begun(b.ranks)
    for _ in range(d.blocks):
        _work(b, d, 2 * d.forward / d.blocks, 0)
        for group in islands:
            b.sync(group, "all_reduce", d.size / d.blocks)
    b.phase(b.ranks, "backward", begun)
    begun = b.begun(b.ranks)
    b.compute(b.ranks, 0.04 * d.forward)
    for group in _across(b, islands) if outer else ():
        b.sync(group, "all_reduce", d.size * 4)
    b.phase(b.ranks, "optimizer", begun)


def _quorum(b: Builder, d: Design, outer: bool) -> None:
    """torchft: replicas that shard within themselves, and average over those that are in the quorum of the step."""
    replicas = _by_node(b, d.island)
    lanes = _across(b, replicas) if len(replicas) > 1 else []
    _opening(b, d)
    _gathered(b, d, 0, "forward", replicas, [])
    _gathered(b, d, 0, "backward", replicas, [])
    begun = b.begun(b.ranks)
    for group in lanes:
        b.sync(group, "all_reduce", d.size / d.island)
    b.compute(b.ranks, 0.04 * d.forward)
    b.phase(b.ranks, "optimizer", begun)


class _Megatron:
    """Tensor, pipeline, context, expert and data parallelism, by any schedule."""

    def __init__(self, b: Builder, d: Design) -> None:
        self.b, self.d, self.places = b, d, Places(d, b.ranks)
        self.stages = d.pp * chunks(d.schedule)
        p, dp = self.places, range(self.places.dp)
        self.stage = [[p.rank(s, i, c, t) for i in dp for c in range(d.cp) for t in range(d.tp)] for s in range(d.pp)]
        self.tensor = self._groups("tp", lambda s, i, c, t: (s, i, c))
        self.context = self._groups("other", lambda s, i, c, t: (s, i, t), "_cp")
        self.data = self._groups("dp", lambda s, i, c, t: (s, t), "_cp" if d.cp > 1 else "")
        self.experts = self._groups("ep", lambda s, i, c, t: (s, i // max(d.ep, 1), c, t))
        self.pipes = {rank: group for group in self._all(lambda s, i, c, t: (i, c, t), "pp") for rank in group.ranks}
        self.there: dict[tuple[str, int, int], dict[int, int]] = {}
        self.message = d.size / 16

    def _all(self, key: Callable[[int, int, int, int], tuple[int, ...]], role: str, suffix: str = "") -> list[Group]:
        d = self.d
        found: dict[tuple[int, ...], list[int]] = {}
        for s in range(d.pp):
            for i in range(self.places.dp):
                for c in range(d.cp):
                    for t in range(d.tp):
                        found.setdefault(key(s, i, c, t), []).append(self.places.rank(s, i, c, t))
        return [self.b.group(role, ranks, suffix) for ranks in found.values()]

    def _groups(
        self, role: str, key: Callable[[int, int, int, int], tuple[int, ...]], suffix: str = ""
    ) -> list[list[Group]]:
        """By stage, those of more than one rank."""
        groups = [group for group in self._all(key, role, suffix) if len(group.ranks) > 1]
        return [[group for group in groups if group.ranks[0] in stage] for stage in map(set, self.stage)]

    def run(self) -> None:
        _opening(self.b, self.d)
        queues = [schedule(self.d.schedule, s, self.d.pp, self.d.micros) for s in range(self.d.pp)]
        while any(queues):
            moved = False
            for s, queue in enumerate(queues):
                while queue and self._possible(s, queue[0].what, queue[0].micro, queue[0].chunk):
                    task = queue.pop(0)
                    self._task(s, task.what, task.micro, task.chunk)
                    moved = True
            if not moved:
                raise ValueError(f"the schedule {self.d.schedule} stands still")
        self._reduce()
        _closing(self.b, self.d)
        for groups in self.data:
            for group in groups:
                self.b.sync(group, "all_gather", self.d.size / self.d.pp / self.d.tp)

    def _virtual(self, stage: int, chunk: int) -> int:
        return chunk * self.d.pp + stage

    def _possible(self, stage: int, what: str, micro: int, chunk: int) -> bool:
        place = self._virtual(stage, chunk)
        if what == "F":
            return place == 0 or ("F", place - 1, micro) in self.there
        return what == "W" or place == self.stages - 1 or ("B", place + 1, micro) in self.there

    def _task(self, stage: int, what: str, micro: int, chunk: int) -> None:
        ranks, place = self.stage[stage], self._virtual(stage, chunk)
        begun = self.b.begun(ranks)
        source = place - 1 if what == "F" else place + 1
        if what != "W" and (what, source, micro) in self.there:
            self._receive(stage, source % self.d.pp, self.there.pop((what, source, micro)))
        self._block(stage, what, micro, place)
        target = place + 1 if what == "F" else place - 1
        if what != "W" and 0 <= target < self.stages:
            self._send(stage, target % self.d.pp, (what, place, micro))
        self.b.phase(ranks, "forward" if what == "F" else "backward", begun, micro)

    def _peer(self, rank: int, stage: int, other: int) -> int:
        return self.stage[other][self.stage[stage].index(rank)]

    def _receive(self, stage: int, source: int, there: dict[int, int]) -> None:
        for rank in self.stage[stage]:
            peer = self._peer(rank, stage, source)
            self.b.recv(self.pipes[rank], peer, rank, self.message, there[rank])

    def _send(self, stage: int, target: int, key: tuple[str, int, int]) -> None:
        found = {}
        for rank in self.stage[stage]:
            peer = self._peer(rank, stage, target)
            found[peer] = self.b.send(self.pipes[rank], rank, peer, self.message)
        self.there[key] = found

    def _block(self, stage: int, what: str, micro: int, place: int) -> None:
        d = self.d
        zero = d.schedule == "zero_bubble"
        whole = {"F": 1.0, "B": 1.0 if zero else 2.0, "W": 1.0}[what] * d.forward / self.stages
        whole *= d.heavy_last if place == self.stages - 1 else 1.0
        parts = 1 if what == "W" else 2
        for part in range(parts):
            if what != "W":
                for group in self.context[stage]:
                    self.b.sync(group, "all_gather", d.size / 32)
                for group in self.experts[stage] if part == 1 else ():
                    self.b.sync(group, "all_to_all", d.size / 8)
            self._uneven(stage, whole / parts, micro, part == parts - 1)
            if what != "W":
                for group in self.experts[stage] if part == 1 else ():
                    self.b.sync(group, "all_to_all", d.size / 8)
                for group in self.tensor[stage]:
                    self.b.sync(group, "all_reduce", d.size / 8)

    def _uneven(self, stage: int, seconds: float, micro: int, last: bool) -> None:
        """The work of a part: equal, or as the design gives more to some places of an expert or context group."""
        ranks = self.stage[stage]
        groups = (self.experts[stage] or self.context[stage]) if last and self.d.heavy_parts else []
        if not groups:
            _work(self.b, self.d, seconds, micro, ranks)
            return
        for group in groups:
            for rank, share in zip(group.ranks, self.d.heavy_parts, strict=True):
                self.b.compute((rank,), seconds * share, micro=micro)

    def _reduce(self) -> None:
        begun = self.b.begun(self.b.ranks)
        for groups in self.data:
            for group in groups:
                self.b.sync(group, "reduce_scatter", self.d.size / self.d.pp / self.d.tp)
        self.b.phase(self.b.ranks, "backward", begun, self.d.micros)


def _megatron(b: Builder, d: Design, outer: bool) -> None:
    _Megatron(b, d).run()


ENGINES: dict[str, Callable[[Builder, Design, bool], None]] = {
    "ddp": _ddp,
    "fsdp": _sharded,
    "rl": _sharded,
    "hsdp": _sharded,
    "zeropp": _zeropp,
    "diloco": _diloco,
    "torchft": _quorum,
    "megatron": _megatron,
}
