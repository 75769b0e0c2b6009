"""Draws a job: its cluster, its layout, and how much it does, so that communication takes a share of the step. Pure.

Rates are what nccl-tests' busbw comes to on such machines, in round figures: adapters of 100, 200 and 400 Gb/s less
headers, and NVLink from A100 to H100 as a ring sees it.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from fluid_simulator.cluster import Cluster
from fluid_simulator.fabric import Settings
from fluid_simulator.groups import Group
from fluid_simulator.job import Drawn, Job, Memberships, Pipelined, Replicated, Sharded
from fluid_simulator.layouts import Layout, Places, layouts

Generator = np.random.Generator
ADAPTER_RATES = [12e9, 22e9, 23e9, 44e9]
NVLINK_RATES = [120e9, 200e9, 330e9]
LAUNCH_SECONDS = 12e-6
FETCH_SECONDS = 0.0015
HUGE_WORLD = 256
"""From so many ranks on, jobs have fewer micro-batches and blocks."""
FEW_TASKS = 9
"""Below so many micro-batches and chunks, a stage may have two blocks."""


@dataclasses.dataclass
class Wish:
    """What a family wants of a job; None: what chance gives. `engine`: ddp, fsdp, hsdp or mega. `fast`: short steps, at
    whose end the host asks the GPU. `own_adapter`: each GPU has one."""

    engine: str
    ranks: int
    steps: int
    gpus: int | None = None
    own_adapter: bool = False
    fast: bool = False
    blocking: bool | None = None
    layout: Layout | None = None


def pick(rng: Generator, values: list[Any]) -> Any:
    return rng.choice(values)


def chance(rng: Generator, share: float) -> bool:
    return bool(rng.random() < share)


def uniform(rng: Generator, low: float, high: float) -> float:
    return float(rng.uniform(low, high))


def draw_job(rng: Generator, wish: Wish) -> Drawn:
    cluster = _cluster(rng, wish)
    forward = uniform(rng, 0.06, 0.14) if wish.fast else uniform(rng, 0.08, 0.35)
    settings = _settings(rng, wish)
    drawing = _Drawing(rng, wish, cluster, settings, forward)
    drawing.common()
    {"ddp": drawing.replicated, "fsdp": drawing.fsdp, "hsdp": drawing.hsdp, "mega": drawing.pipelined}[wish.engine]()
    return drawing.finished()


def _cluster(rng: Generator, wish: Wish) -> Cluster:
    gpus = 8 if wish.ranks >= 32 or rng.random() < 0.6 else 4
    gpus = min(gpus if wish.gpus is None else wish.gpus, wish.ranks)
    machines = wish.ranks // gpus
    adapters = gpus if rng.random() < 0.75 else gpus // 2
    adapters = gpus if wish.own_adapter else adapters
    adapter_rate, nvlink_rate = float(pick(rng, ADAPTER_RATES)), float(pick(rng, NVLINK_RATES))
    leaf = max(1, min(machines // 2, int(pick(rng, [2, 4, 8])))) if machines >= 4 else max(1, machines)
    oversubscription = float(pick(rng, [1.0, 1.0, 1.0, 2.0])) if machines // leaf >= 2 else 1.0
    names = _names(rng, machines)
    return Cluster(machines, gpus, adapters, adapter_rate, nvlink_rate, leaf, oversubscription, names)


def _names(rng: Generator, machines: int) -> tuple[str, ...]:
    """Names of machines, in order, or as a scheduler gave them out."""
    prefix = str(pick(rng, ["gpu-", "node", "h100-", "ip-10-3-", "c42-", "pool-a-"]))
    first = int(rng.integers(0, 400))
    places = rng.permutation(machines * 2)[:machines] if rng.random() < 0.3 else range(machines)
    return tuple(f"{prefix}{first + int(place):03d}" for place in places)


def _settings(rng: Generator, wish: Wish) -> Settings:
    host_share = uniform(rng, 0.25, 0.6)
    blocking = wish.engine == "ddp" and chance(rng, 0.15)
    return Settings(
        launch=LAUNCH_SECONDS,
        host_share=host_share,
        gpu_sigma=uniform(rng, 0.004, 0.015),
        network_sigma=uniform(rng, 0.02, 0.06),
        latency=uniform(rng, 8e-6, 20e-6),
        eager=chance(rng, 0.4),
        blocking=blocking if wish.blocking is None else wish.blocking,
    )


class _Drawing:
    """A job that is being drawn, part after part. `rate`: bytes a second that leave a machine, or go between its GPUs
    where it is the only one."""

    def __init__(self, rng: Generator, wish: Wish, cluster: Cluster, settings: Settings, forward: float) -> None:
        self.rng, self.wish, self.cluster, self.settings, self.forward = rng, wish, cluster, settings, forward
        ranks = range(cluster.world)
        self.groups: list[Group] = []
        self.world = self._group("world", list(ranks))
        self.memberships = [Memberships(self.world) for _ in ranks]
        self.positions = [{"dp": rank} for rank in ranks]
        self.stages, self.replica = [0] * cluster.world, list(ranks)
        several = cluster.machines > 1
        self.rate = cluster.adapter_rate * cluster.adapters if several else cluster.nvlink_rate
        self.work: Replicated | Sharded | Pipelined
        self.words: dict[str, Any]
        self.step_seconds = 0.0

    def _group(self, role: str, ranks: list[int], algorithm: str = "ring") -> Group:
        self.groups.append(Group(len(self.groups), role, ranks, self.cluster, algorithm))
        return self.groups[-1]

    def common(self) -> None:
        """What jobs of all engines have."""
        rng, wish = self.rng, self.wish
        self.workers, self.prefetched = int(pick(rng, [2, 4, 8])), int(pick(rng, [2, 4]))
        self.copy = uniform(rng, 0.0008, 0.003)
        self.loss_every = int(pick(rng, [0, 1, 5]))
        self.sync_every = 1 if wish.fast else int(pick(rng, [1, 1, 1, 2]))
        self.optimizer = self.forward * uniform(rng, 0.04, 0.12)
        self.tokens = int(pick(rng, [4096, 8192, 16384]))
        self.algorithm = "tree" if chance(rng, 0.4) and self.cluster.machines >= 8 else "ring"

    def replicated(self) -> None:
        rng = self.rng
        buckets, accumulation = int(rng.integers(3, 7)), int(pick(rng, [1, 1, 2]))
        size = 2 * self.forward * uniform(rng, 0.35, 1.05) * self.rate / 2 / buckets
        self.work = Replicated(buckets, accumulation, not self.settings.blocking, size)
        self.world.algorithm = self.algorithm
        self.words = {
            "engine": "ddp",
            "dp": self.cluster.world,
            "buckets": buckets,
            "accumulation": accumulation,
            "algorithm": self.algorithm,
        }
        self.step_seconds = self.forward * 3 * accumulation

    def _sharded(self) -> Sharded:
        rng = self.rng
        return Sharded(
            blocks=int(rng.integers(3, 6)),
            accumulation=int(pick(rng, [1, 1, 2])),
            gathers_behind=chance(rng, 0.5),
            reshard=chance(rng, 0.7),
            scatter_stream=str(pick(rng, ["ag", "rs"])),
            in_flight=int(pick(rng, [2, 3])),
            clip=chance(rng, 0.7),
            no_sync=chance(rng, 0.3),
            block_size=0.0,
        )

    def _of_blocks(self, work: Sharded, size: float, words: dict[str, Any]) -> None:
        self.work = dataclasses.replace(work, block_size=size)
        more = {"blocks": work.blocks, "accumulation": work.accumulation, "reshard": work.reshard}
        self.words = words | more
        self.step_seconds = self.forward * 3 * work.accumulation

    def fsdp(self) -> None:
        work = self._sharded()
        size = self.forward / work.blocks * uniform(self.rng, 0.35, 0.95) * self.rate
        self._of_blocks(work, size, {"engine": "fsdp", "dp": self.cluster.world})

    def hsdp(self) -> None:
        """Shards within a machine, replicas across."""
        work, cluster = self._sharded(), self.cluster
        shard, world = cluster.gpus, cluster.world
        shards = [self._group("dp", list(range(first, first + shard))) for first in range(0, world, shard)]
        replicas = [self._group("other", list(range(first, world, shard)), self.algorithm) for first in range(shard)]
        for rank in range(world):
            self.positions[rank] = {"dp": rank % shard}
            self.memberships[rank] = Memberships(self.world, shards[rank // shard], replicas[rank % shard])
        outside = shard * cluster.adapter_rate * cluster.adapters / cluster.gpus * 0.9
        share = uniform(self.rng, 0.35, 0.8)
        size = self.forward / work.blocks * share * min(cluster.nvlink_rate, outside)
        self._of_blocks(work, size, {"engine": "hsdp", "shard": shard, "replicas": world // shard})

    def pipelined(self) -> None:
        layout = self.wish.layout or self._any_layout()
        schedule, micros, blocks = self._schedule(layout)
        places = Places(layout, self.cluster, self.groups, self.memberships)
        places.add_groups(self.algorithm)
        self.positions, self.stages, self.replica = places.positions, places.stages, places.replica
        self.forward = self.forward / max(1, micros**0.6)
        self.step_seconds = self.forward * 3 * (micros + layout.pp - 1)
        self.work = _MegatronSizes(self, layout, schedule, micros, blocks).work()
        self.words = {
            "engine": "megatron",
            "tp": layout.tp,
            "cp": layout.cp,
            "pp": layout.pp,
            "dp": layout.dp,
            "ep": layout.ep,
            "schedule": schedule,
            "micro_batches": micros,
            "chunks": self.work.chunks,
            "zero1": self.work.sharded_optimizer,
        }

    def _any_layout(self) -> Layout:
        every = layouts(self.cluster.world)
        return every[int(self.rng.integers(len(every)))]

    def _schedule(self, layout: Layout) -> tuple[str, int, int]:
        """A schedule that the stages allow, and numbers of micro-batches and of blocks."""
        rng, huge = self.rng, self.cluster.world >= HUGE_WORLD
        name = str(pick(rng, ["1f1b", "1f1b", "interleaved", "zb", "gpipe"]))
        if layout.pp == 1 or (layout.pp < 4 and name == "interleaved"):
            name = "1f1b"
        several = layout.pp > 1
        micros = int(max(2, pick(rng, [1, 2]) * layout.pp)) if several else int(pick(rng, [1, 2, 4]))
        micros = max(2, layout.pp) if huge else micros
        one = layout.ep > 1 or huge or micros * _chunks(name) >= FEW_TASKS
        return name, micros, 1 if one else int(pick(rng, [1, 2]))

    def finished(self) -> Drawn:
        load = self.step_seconds * uniform(self.rng, 0.2, 0.7) * self.workers
        job = Job(
            engine=self.wish.engine,
            settings=self.settings,
            world=self.world,
            work=self.work,
            workers=self.workers,
            load=load,
            fetch=FETCH_SECONDS,
            prefetched=self.prefetched,
            copy=self.copy,
            loss_every=self.loss_every,
            sync_every=self.sync_every,
            forward=self.forward,
            optimizer=self.optimizer,
            tokens=self.tokens,
            step_seconds=self.step_seconds,
            steps=self.wish.steps,
        )
        words = self.words | self._cluster_words()
        return Drawn(
            self.cluster, job, self.groups, self.positions, self.stages, self.memberships, self.replica, words
        )

    def _cluster_words(self) -> dict[str, Any]:
        cluster = self.cluster
        return {
            "nodes": cluster.machines,
            "gpus_per_node": cluster.gpus,
            "nics_per_node": cluster.adapters,
            "leaf_nodes": cluster.leaf_machines,
            "oversubscription": cluster.oversubscription,
            "run_ahead": not self.settings.blocking,
            "sync_every": self.sync_every,
        }


def _chunks(schedule: str) -> int:
    return 2 if schedule == "interleaved" else 1


class _MegatronSizes:
    """How much a rank of Megatron sends: shares of what its GPU takes meanwhile, at the rate of the way that is taken."""

    def __init__(self, drawing: _Drawing, layout: Layout, schedule: str, micros: int, blocks: int) -> None:
        self.drawing, self.layout, self.schedule = drawing, layout, schedule
        self.micros, self.blocks, self.chunks = micros, blocks, _chunks(schedule)
        cluster = drawing.cluster
        self.nvlink, self.adapter = cluster.nvlink_rate, cluster.adapter_rate
        self.of_rank = cluster.adapter_rate / (cluster.gpus // cluster.adapters)
        self.gpus, self.adapters = cluster.gpus, cluster.adapters

    def _draw(self, low: float, high: float) -> float:
        return uniform(self.drawing.rng, low, high)

    def work(self) -> Pipelined:
        rng, layout = self.drawing.rng, self.layout
        task = self.drawing.forward / self.chunks
        block = task / self.blocks
        work = Pipelined(
            stages=layout.pp,
            chunks=self.chunks,
            micros=self.micros,
            blocks=self.blocks,
            schedule=self.schedule,
            batched=chance(rng, 0.6),
            ahead=chance(rng, 0.45),
            sequence=chance(rng, 0.4),
            sharded_optimizer=chance(rng, 0.6),
            overlap=chance(rng, 0.6),
            stage_weights=[1.0] * layout.pp,
            activation_size=task * self._draw(0.04, 0.2) * (self.of_rank if self._stages_apart() else self.adapter),
            tensor_size=block * self._draw(0.08, 0.3) * self._tensor_rate() / 2,
            expert_size=block * self._draw(0.1, 0.3) * self._rate(layout.ep * layout.tp),
            context_size=block * self._draw(0.2, 0.5) / 2 / max(1, layout.cp) * self._rate(layout.tp * layout.cp),
            gradient_size=0.0,
        )
        work.gradient_size = self._gradient_size()
        return work

    def _rate(self, span: int) -> float:
        """A rank's share of its adapter where a group spans so many ranks, more than a machine has; else NVLink's."""
        return self.of_rank if span > self.gpus else self.nvlink

    def _tensor_rate(self) -> float:
        return self.nvlink if self.layout.tp <= self.gpus else self.adapter * self.adapters

    def _stages_apart(self) -> bool:
        """Whether stages that follow each other lie on different machines."""
        cluster, layout = self.drawing.cluster, self.layout
        per_stage = layout.tp * layout.cp * layout.dp
        machines = [cluster.machine(stage * per_stage) for stage in range(layout.pp)]
        return len(set(machines)) > 1

    def _gradient_size(self) -> float:
        layout = self.layout
        members = layout.dp * layout.cp
        share = self._draw(0.06, 0.3)
        apart = layout.tp * members > self.gpus
        on_machine = max(1, self.gpus // layout.tp) if apart else 1
        rails = min(on_machine, self.adapters) if apart and members > 1 else 1
        rate = self.of_rank if apart and members > 1 else self.nvlink
        return self.drawing.step_seconds * share * rate / 2 * rails
