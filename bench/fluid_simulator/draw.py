"""Draws a job: its layout, and how much it does, so that communication takes a share of the step. Pure."""

import dataclasses
from typing import Any

from fluid_simulator.chance import Generator, chance, pick, uniform
from fluid_simulator.cluster import Cluster
from fluid_simulator.fabric import Settings
from fluid_simulator.groups import Group
from fluid_simulator.job import Drawn, Job, Memberships, Pipelined, Replicated, Sharded
from fluid_simulator.layouts import Layout, Places, layouts
from fluid_simulator.machines import draw_cluster, draw_settings
from fluid_simulator.megatron_sizes import draw_tasks, draw_work
from fluid_simulator.wish import Wish

FETCH_SECONDS = 0.0015
"""Seconds of the host for taking a batch out of the loader's queue; assumed."""


def draw_job(rng: Generator, wish: Wish) -> Drawn:
    """Draws what the family does not wish for."""
    cluster = draw_cluster(rng, wish)
    forward = uniform(rng, 0.06, 0.14) if wish.fast else uniform(rng, 0.08, 0.35)
    settings = draw_settings(rng, wish)
    drawing = _Drawing(rng, wish, cluster, settings, forward)
    drawing.common()
    {"ddp": drawing.replicated, "fsdp": drawing.fsdp, "hsdp": drawing.hsdp, "mega": drawing.pipelined}[wish.engine]()
    return drawing.finished()


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
        """Draws what jobs of all engines have."""
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
        tasks = draw_tasks(self.rng, layout, self.cluster.world)
        places = Places(layout, self.cluster, self.groups, self.memberships)
        places.add_groups(self.algorithm)
        self.positions, self.stages, self.replica = places.positions, places.stages, places.replica
        self.forward = self.forward / max(1, tasks.micros**0.6)
        self.step_seconds = self.forward * 3 * (tasks.micros + layout.pp - 1)
        self.work = draw_work(self.rng, self.cluster, layout, tasks, self.forward, self.step_seconds)
        self.words = {"engine": "megatron", "tp": layout.tp, "cp": layout.cp, "pp": layout.pp, "dp": layout.dp}
        self.words |= {"ep": layout.ep, "schedule": tasks.schedule, "micro_batches": tasks.micros}
        self.words |= {"chunks": tasks.chunks, "zero1": self.work.sharded_optimizer}

    def _any_layout(self) -> Layout:
        every = layouts(self.cluster.world)
        return every[int(self.rng.integers(len(every)))]

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
        return Drawn(self.cluster, job, self.groups, self.positions, self.stages, self.memberships, self.replica, words)

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
