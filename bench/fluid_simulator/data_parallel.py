"""The programs of ranks that hold the whole model, or shards of it: DDP, FSDP2, HSDP."""

from fluid_simulator.conditions import Conditions
from fluid_simulator.groups import Group
from fluid_simulator.job import Job, Replicated, Sharded
from fluid_simulator.operations import Operation
from fluid_simulator.rank import Program, Rank
from fluid_simulator.step import StepFrame


def replicated(rank: Rank, job: Job, conditions: Conditions) -> Program:
    """DDP."""
    assert isinstance(job.work, Replicated)
    work, frame = job.work, StepFrame(rank, job, conditions)
    for step in range(job.steps):
        frame.begin(step)
        for micro in range(work.accumulation):
            weight = weight_of(rank, micro)
            rank.begin("forward")
            for _ in range(work.buckets):
                rank.kernel(job.forward / work.buckets * weight)
            rank.end("forward", micro)
            yield from _replicated_backward(rank, job, work, micro, weight)
        rank.begin("optimizer")
        rank.kernel(job.optimizer)
        rank.end("optimizer")
        yield from frame.end(step)


def weight_of(rank: Rank, micro: int) -> float:
    """Returns how much work the micro-batch is, over the usual one."""
    return rank.factors.work[micro % len(rank.factors.work)]


def _replicated_backward(rank: Rank, job: Job, work: Replicated, micro: int, weight: float) -> Program:
    """Each bucket is reduced as soon as its gradients are there; the step waits for all at the end."""
    rank.begin("backward")
    reductions = []
    for _ in range(work.buckets):
        rank.kernel(2 * job.forward / work.buckets * weight)
        if micro == work.accumulation - 1:
            reductions.append(rank.collective(job.world, "all_reduce", work.bucket_size, "dp"))
    last_gradient = rank.gpu_time if work.from_last_gradient else None
    for reduction in reductions:
        yield from rank.wait(reduction, last_gradient)
    rank.end("backward", micro)


def sharded(rank: Rank, job: Job, conditions: Conditions) -> Program:
    """FSDP2, and HSDP, which also reduces over replicas."""
    assert isinstance(job.work, Sharded)
    blocks, frame = _Blocks(rank, job, job.work), StepFrame(rank, job, conditions)
    for step in range(job.steps):
        frame.begin(step)
        for micro in range(job.work.accumulation):
            weight = weight_of(rank, micro)
            yield from blocks.forward(micro, weight)
            yield from blocks.backward(micro, weight)
        rank.begin("optimizer")
        if job.work.clip:
            yield from rank.wait(rank.collective(job.world, "all_reduce", 4, "w"))
        rank.kernel(job.optimizer)
        rank.end("optimizer")
        yield from frame.end(step)


class _Blocks:
    """A rank's blocks: each is gathered while the one before computes."""

    def __init__(self, rank: Rank, job: Job, work: Sharded) -> None:
        self.rank, self.job, self.work = rank, job, work
        self.shard: Group = rank.groups.shard or job.world
        self.replicas: Group | None = rank.groups.replicas

    def _gather(self, behind_kernels: bool = True) -> Operation:
        return self.rank.collective(self.shard, "all_gather", self.work.block_size, "ag", behind_kernels)

    def forward(self, micro: int, weight: float) -> Program:
        rank, work = self.rank, self.work
        rank.begin("forward")
        gathered = self._gather()
        for block in range(work.blocks):
            current = gathered
            if block + 1 < work.blocks:
                gathered = self._gather(work.gathers_behind)
            yield from rank.wait(current)
            rank.kernel(self.job.forward / work.blocks * weight)
        rank.end("forward", micro)

    def backward(self, micro: int, weight: float) -> Program:
        rank, work = self.rank, self.work
        rank.begin("backward")
        last = micro == work.accumulation - 1
        gathered = self._gather() if work.reshard else None
        scattered: list[Operation] = []
        for block in reversed(range(work.blocks)):
            if gathered is not None:
                current = gathered
                if block:
                    gathered = self._gather(work.gathers_behind)
                yield from rank.wait(current)
            rank.kernel(2 * self.job.forward / work.blocks * weight)
            if last or not work.no_sync:
                scattered += self._reduce(last)
                while len(scattered) > work.in_flight:
                    yield from rank.wait(scattered.pop(0))
        for reduction in scattered:
            yield from rank.wait(reduction)
        rank.end("backward", micro)

    def _reduce(self, last: bool) -> list[Operation]:
        """A block's gradients are scattered, and, behind that in the same stream, reduced over the replicas."""
        rank, work, stream = self.rank, self.work, self.work.scatter_stream
        found = [rank.collective(self.shard, "reduce_scatter", work.block_size, stream)]
        if self.replicas is not None and last:
            found.append(rank.collective(self.replicas, "all_reduce", work.block_size / self.shard.size, stream))
        return found
