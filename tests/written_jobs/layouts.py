"""Jobs of the usual layouts, with what a case changes in them."""

import math
import random
from collections.abc import Callable, Container, Iterable
from typing import Any

from written_jobs.job import Item, Job

Seconds = dict[str, float]
"""What a rank takes in each phase of a step."""
Change = Callable[[int, int, Seconds], None]
"""Changes what a rank takes in a step, in place."""

BASE: Seconds = {"input": 0.004, "forward": 0.03, "backward": 0.06, "optimizer": 0.006, "between_steps": 0.001}
LONG: Seconds = {phase: seconds * 900 for phase, seconds in BASE.items()}
PASSES = ("forward", "backward")
COMPUTING = (*PASSES, "optimizer")
EVERYWHERE = range(1 << 30)
BUCKET_BYTES = 50 << 20


def scale(seconds: Seconds, factor: float, phases: Iterable[str] = COMPUTING) -> None:
    for phase in phases:
        seconds[phase] *= factor


def slower(factor: float, *ranks: int, steps: Container[int] = EVERYWHERE, phases: Iterable[str] = COMPUTING) -> Change:
    """These ranks take `factor` times as long in these steps and phases."""

    def change(rank: int, step: int, seconds: Seconds) -> None:
        if rank in ranks and step in steps:
            scale(seconds, factor, phases)

    return change


def times(factor: Callable[[int, int], float], phases: Iterable[str] = COMPUTING) -> Change:
    """A rank takes `factor(rank, step)` times as long in these phases."""

    def change(rank: int, step: int, seconds: Seconds) -> None:
        scale(seconds, factor(rank, step), phases)

    return change


def more(seconds_more: float, phase: str, when: Callable[[int, int], bool]) -> Change:
    """A rank takes so much longer in a phase where `when(rank, step)`."""

    def change(rank: int, step: int, seconds: Seconds) -> None:
        if when(rank, step):
            seconds[phase] += seconds_more

    return change


def unchanged(rank: int, step: int, seconds: Seconds) -> None:
    pass


def data_parallel(group: str, seconds: Seconds, buckets: int = 3, micro: int = 1) -> list[Item]:
    """A step of DDP: buckets go out during the last microbatch's backward pass, and are waited for after it."""
    items: list[Item] = [("work", "between_steps", seconds["between_steps"])]
    for number in range(micro):
        items += [("work", "input", seconds["input"] / micro), ("work", "forward", seconds["forward"] / micro)]
        if number < micro - 1:
            items.append(("work", "backward", seconds["backward"] / micro))
    for bucket in range(buckets):
        items.append(("work", "backward", seconds["backward"] / micro / buckets))
        items.append(("issue", f"b{bucket}", group, "all_reduce", BUCKET_BYTES))
    items += [("wait", f"b{bucket}") for bucket in range(buckets)]
    return [*items, ("work", "optimizer", seconds["optimizer"]), ("work", "", seconds.get("other", 0.0))]


def ddp(
    steps: int | Iterable[int],
    change: Change = unchanged,
    *,
    ranks: int = 16,
    per_node: int = 8,
    base: Seconds = BASE,
    buckets: int = 3,
    micro: int = 1,
    work: Callable[[int, int], int] | None = None,
    after: Callable[[Job, int], None] | None = None,
    **more: Any,
) -> Job:
    """A job of one data-parallel group."""
    job = Job(ranks, per_node, {"world": ("dp", range(ranks))}, **more)

    def programme(rank: int, step: int) -> list[Item]:
        seconds = dict(base)
        change(rank, step, seconds)
        return data_parallel("world", seconds, buckets, micro)

    numbers = range(steps) if isinstance(steps, int) else steps
    return job.run(numbers, programme, work, (lambda step: after(job, step)) if after else None)


def elastic(steps: int, joins: int, change: Change, *, seed: int) -> Job:
    """Eight ranks, which as many join at a step, in a new group."""
    job = Job(16, 8, {"world8": ("dp", range(8)), "world16": ("dp", range(16))}, seed=seed)

    def programme(rank: int, step: int) -> list[Item] | None:
        if step < joins and rank >= 8:
            return None
        seconds = dict(BASE)
        change(rank, step, seconds)
        return data_parallel("world8" if step < joins else "world16", seconds)

    return job.run(range(steps), programme, after=lambda step: job.level() if step == joins - 1 else None)


def tensor_by_data(
    dp: int, tp: int, change: Change = unchanged, *, steps: int = 120, per_node: int = 8, **more: Any
) -> Job:
    """Replicas across, tensor groups side by side: these reduce after each of four blocks, and gradients last."""
    size, blocks = dp * tp, 4
    groups = {f"tp:{d}": ("tp", range(d * tp, d * tp + tp)) for d in range(dp)}
    groups |= {f"dp:{t}": ("dp", range(t, size, tp)) for t in range(tp)}
    job = Job(size, per_node, groups, position=lambda rank: {"tp": rank % tp, "dp": rank // tp}, **more)

    def programme(rank: int, step: int) -> list[Item]:
        seconds = {"input": 0.002, "forward": 0.03, "backward": 0.06, "optimizer": 0.006}
        change(rank, step, seconds)
        items: list[Item] = [("work", "input", seconds["input"])]
        for phase in PASSES:
            reduce = ("coll", f"tp:{rank // tp}", "all_reduce", 8 << 20)
            items += [("work", phase, seconds[phase] / blocks), reduce] * blocks
        return [
            *items,
            ("coll", f"dp:{rank % tp}", "all_reduce", 100 << 20),
            ("work", "optimizer", seconds["optimizer"]),
        ]

    return job.run(range(steps), programme)


def experts(own: Callable[[int], float], *, seed: int) -> Job:
    """Two groups of eight experts. How hot an expert is drifts slowly, the same in both groups; `own(rank)` times as
    long does a rank take for all."""
    count, size = 8, 16
    groups: dict[str, Any] = {f"ep:{g}": ("ep", range(g * count, (g + 1) * count)) for g in range(2)}
    groups["world"] = ("dp", range(size))
    job = Job(size, 8, groups, seed=seed, position=lambda rank: {"ep": rank % count, "dp": rank // count})
    rng, heat = random.Random(seed), [0.0] * count

    def programme(rank: int, step: int) -> list[Item]:
        if rank == 0:
            heat[:] = [0.97 * each + rng.gauss(0, 0.05) for each in heat]
        hot = math.exp(heat[rank % count] + rng.gauss(0, 0.03))
        exchange = ("coll", f"ep:{rank // count}", "all_to_all", 4 << 20)
        items: list[Item] = [("work", "input", 0.002)]
        for phase, seconds in (("forward", 0.01), ("backward", 0.02)):
            dense, sparse = seconds * own(rank) / 3, seconds * own(rank) * hot / 3
            items += [("work", phase, dense), exchange, ("work", phase, sparse), exchange] * 3
        return [*items, ("coll", "world", "all_reduce", BUCKET_BYTES), ("work", "optimizer", 0.005 * own(rank))]

    return job.run(range(150), programme)


def sharded(**more: Any) -> Job:
    """Four nodes of four: shard groups of one rank a node, a gather before each pass of a block, a reduce-scatter
    after."""
    groups = {f"shard:{k}": ("fsdp", range(k, 16, 4)) for k in range(4)}
    groups |= {f"replica:{n}": ("replicate", range(n * 4, n * 4 + 4)) for n in range(4)}

    def programme(rank: int, step: int) -> list[Item]:
        shard = f"shard:{rank % 4}"
        gather, scatter = (("coll", shard, op, 20 << 20) for op in ("all_gather", "reduce_scatter"))
        return [
            ("work", "input", 0.002),
            *([gather, ("work", "forward", 0.03 / 3)] * 3),
            *([gather, ("work", "backward", 0.06 / 3), scatter] * 3),
            ("coll", f"replica:{rank // 4}", "all_reduce", 5 << 20),
            ("work", "optimizer", 0.004),
        ]

    return Job(16, 4, groups, **more).run(range(100), programme)


def pipeline(
    dp: int,
    pp: int,
    tp: int,
    change: Change = unchanged,
    *,
    per_node: int = 8,
    stages: tuple[float, ...] | None = None,
    **more: Any,
) -> Job:
    """1F1B with six microbatches; rank = tensor + TP * (replica + DP * stage). `stages`: how many times as long each
    takes."""
    shape, micro = _Pipeline(dp, pp, tp), 6
    job = Job(dp * pp * tp, per_node, shape.groups(), position=shape.position, **more)

    def programme(rank: int, step: int) -> list[Item]:
        at = shape.position(rank)
        stage = at["pp"]
        seconds = {"forward": 0.006, "backward": 0.012, "optimizer": 0.008, "input": 0.001}
        scale(seconds, stages[stage] if stages else 1.0, PASSES)
        change(rank, step, seconds)
        forward, backward = shape.passes(rank, seconds)
        warm = min(micro, pp - 1 - stage)
        items = forward * warm + (forward + backward) * (micro - warm) + backward * warm
        if dp > 1:
            items.append(("coll", f"dp:{stage}.{at['tp']}", "all_reduce", 60 << 20))
        return [*items, ("work", "optimizer", seconds["optimizer"])]

    return job.run(range(80), programme)


class _Pipeline:
    """The ranks of a pipeline and who speaks to whom."""

    def __init__(self, dp: int, pp: int, tp: int) -> None:
        self.dp, self.pp, self.tp = dp, pp, tp

    def rank(self, d: int, p: int, t: int) -> int:
        return t + self.tp * (d + self.dp * p)

    def position(self, rank: int) -> dict[str, int]:
        return {"tp": rank % self.tp, "dp": rank // self.tp % self.dp, "pp": rank // self.tp // self.dp}

    def groups(self) -> dict[str, tuple[str, list[int]]]:
        dp, pp, tp, rank = range(self.dp), range(self.pp), range(self.tp), self.rank
        found = {f"pp:{d}.{t}": ("pp", [rank(d, p, t) for p in pp]) for d in dp for t in tp}
        for p in pp:
            if self.tp > 1:
                found |= {f"tp:{p}.{d}": ("tp", [rank(d, p, t) for t in tp]) for d in dp}
            if self.dp > 1:
                found |= {f"dp:{p}.{t}": ("dp", [rank(d, p, t) for d in dp]) for t in tp}
        return found

    def passes(self, rank: int, seconds: Seconds) -> tuple[list[Item], list[Item]]:
        """A microbatch's forward and backward pass of a rank."""
        at, beside = self.position(rank), self.tp * self.dp
        before, after = rank - beside, rank + beside
        first, last, size = at["pp"] == 0, at["pp"] == self.pp - 1, 4 << 20
        reduce: list[Item] = [("coll", f"tp:{at['pp']}.{at['dp']}", "all_reduce", 2 << 20)] if self.tp > 1 else []
        begin: Item = ("work", "input", seconds["input"]) if first else ("recv", before, size)
        forward = [begin, ("work", "forward", seconds["forward"]), *reduce]
        backward = [("work", "backward", seconds["backward"]), *reduce]
        if not last:
            forward, backward = [*forward, ("send", after, size)], [("recv", after, size), *backward]
        return forward, backward if first else [*backward, ("send", before, size)]
