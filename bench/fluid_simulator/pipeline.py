"""The program of a rank of Megatron: tensor, context, data, expert and pipeline parallelism."""

import math

from fluid_simulator.conditions import Conditions
from fluid_simulator.data_parallel import weight_of
from fluid_simulator.groups import Group
from fluid_simulator.job import Job, Pipelined
from fluid_simulator.operations import Operation
from fluid_simulator.rank import Program, Rank
from fluid_simulator.schedules import Task, schedule
from fluid_simulator.step import StepFrame

ROUTING_SIGMA = 0.05
"""The standard deviation of the logarithm of the tokens that a rank's experts get, from one block to the next."""


def pipelined(rank: Rank, job: Job, conditions: Conditions) -> Program:
    """Megatron."""
    assert isinstance(job.work, Pipelined)
    stage = _Stage(rank, job, job.work, conditions)
    frame = StepFrame(rank, job, conditions)
    for step in range(job.steps):
        frame.begin(step)
        yield from stage.tasks()
        yield from stage.optimizer()
        yield from frame.end(step)


class _Stage:
    """A rank as its stage's tasks have it. `_sends`: by receiver and kind of task, the last send, whose buffer is given
    back before the next one; `_receives`: by the task's place, what was posted for it; `_reductions` of gradients that
    were begun within the backward."""

    def __init__(self, rank: Rank, job: Job, work: Pipelined, conditions: Conditions) -> None:
        self.rank, self.job, self.work, self.conditions = rank, job, work, conditions
        self.stage = rank.stage
        self.order = schedule(work.schedule, work.stages, self.stage, work.micros, work.chunks)
        self.split = work.schedule == "zb"
        peers = rank.groups.pp.ranks if rank.groups.pp else [rank.number]
        self.next, self.previous = peers[(self.stage + 1) % work.stages], peers[(self.stage - 1) % work.stages]
        self.layers = _Layers(rank, work, conditions)
        self._reset()

    def _reset(self) -> None:
        self._sends: dict[tuple[int, str], Operation] = {}
        self._receives: dict[int, Operation | None] = {}
        self._reductions: list[Operation] = []

    def tasks(self) -> Program:
        """All tasks of a step, with what they receive and send."""
        self._reset()
        for place, task in enumerate(self.order):
            self._post(place)
            received = self._receives.get(place)
            if received is not None:
                yield from self.rank.wait(received)
            if self.work.ahead:
                self._post(place + 1)
            yield from self._work(task)
            self._perhaps_reduce(task)
            receiver = self._receiver(task)
            if receiver is not None:
                yield from self._send(place, task, receiver)

    def _sender(self, task: Task) -> int | None:
        """Returns the rank that sends what the task needs."""
        return {"F": self._before(task), "B": self._behind(task)}.get(task.what)

    def _receiver(self, task: Task) -> int | None:
        """Returns the rank that gets what comes of the task."""
        return {"F": self._behind(task), "B": self._before(task)}.get(task.what)

    def _before(self, task: Task) -> int | None:
        return self.previous if (self.stage > 0 or task.chunk > 0) and self.work.stages > 1 else None

    def _behind(self, task: Task) -> int | None:
        work = self.work
        inner = self.stage < work.stages - 1 or task.chunk < work.chunks - 1
        return self.next if inner and work.stages > 1 else None

    def _post(self, place: int) -> None:
        """Posts the receive of the task at this place, once."""
        if place >= len(self.order) or place in self._receives:
            return
        task = self.order[place]
        sender = self._sender(task)
        self._receives[place] = None if sender is None else self._transfer("recv", sender, task.what)

    def _transfer(self, op: str, peer: int, what: str) -> Operation:
        assert self.rank.groups.pp is not None
        return self.rank.transfer(self.rank.groups.pp, op, peer, self.work.activation_size, (op, peer, what))

    def _send(self, place: int, task: Task, receiver: int) -> Program:
        rank, work = self.rank, self.work
        before = self._sends.pop((receiver, task.what), None)
        if before is not None:
            yield from rank.wait(before)
        send = self._transfer("send", receiver, task.what)
        if not (work.batched and work.schedule == "1f1b" and work.stages > 1):
            self._sends[(receiver, task.what)] = send
            return
        # Megatron's batched exchange: what comes back next is posted beside, and both are waited for.
        if place + 1 < len(self.order) and self._sender(self.order[place + 1]) == receiver:
            self._post(place + 1)
        yield from rank.wait(send)

    def _work(self, task: Task) -> Program:
        rank, job, work = self.rank, self.job, self.work
        weight, heavy = weight_of(rank, task.micro), work.stage_weights[self.stage]
        phase = "forward" if task.what == "F" else "backward"
        rank.begin(phase)
        if task.what == "W":
            rank.kernel(job.forward * heavy * weight)
        else:
            times = 1.0 if task.what == "F" or self.split else 2.0
            for _ in range(work.blocks):
                seconds = job.forward * heavy / work.chunks / work.blocks * times * weight
                yield from self.layers.block(seconds)
        rank.end(phase, task.micro)

    def _perhaps_reduce(self, task: Task) -> None:
        """Begins to reduce gradients, where the last micro-batch has left its own."""
        work, group = self.work, self.rank.groups.dp
        last = 0 if work.schedule == "gpipe" else work.micros - 1
        if task.what == ("W" if self.split else "B") and group is not None and task.micro == last and work.overlap:
            self._reductions.append(self._reduce(group, work.gradient_size / work.chunks))

    def _reduce(self, group: Group, size: float) -> Operation:
        op = "reduce_scatter" if self.work.sharded_optimizer else "all_reduce"
        return self.rank.collective(group, op, size, "dp")

    def optimizer(self) -> Program:
        """Waits for all gradients, and for their norm, and steps."""
        rank, work, group = self.rank, self.work, self.rank.groups.dp
        rank.begin("optimizer")
        if group is not None and not work.overlap:
            self._reductions += [self._reduce(group, work.gradient_size / 2) for _ in range(2)]
        for operation in (*self._reductions, *self._sends.values()):
            yield from rank.wait(operation)
        yield from rank.wait(rank.collective(self.job.world, "all_reduce", 4, "w"))
        rank.kernel(self.job.optimizer)
        if group is not None and work.sharded_optimizer:
            yield from rank.wait(rank.collective(group, "all_gather", work.gradient_size / 2, "dp"))
        rank.end("optimizer")


class _Layers:
    """A block of layers: attention, over the ranks of a context group in turns, and the rest, by experts where there
    are any."""

    def __init__(self, rank: Rank, work: Pipelined, conditions: Conditions) -> None:
        self.rank, self.work = rank, work
        self.context_share = conditions.plan.context[rank.number]
        self.expert_share = conditions.plan.experts[rank.number]

    def block(self, seconds: float) -> Program:
        rank, work, groups = self.rank, self.work, self.rank.groups
        if groups.cp:
            yield from self._ring_attention(groups.cp, seconds)
            rank.kernel(seconds * (0.1 if groups.ep else 0.5))
        else:
            rank.kernel(seconds * (0.5 if groups.ep else 1.0))
        if groups.tp:
            op = "reduce_scatter" if work.sequence else "all_reduce"
            yield from rank.wait(rank.collective(groups.tp, op, work.tensor_size, "tp"))
        if groups.ep:
            yield from self._experts(groups.ep, seconds)
        if groups.tp and work.sequence:
            yield from rank.wait(rank.collective(groups.tp, "all_gather", work.tensor_size, "tp"))

    def _ring_attention(self, group: Group, seconds: float) -> Program:
        """Keys and values go round, while each rank computes with those that it has (Liu et al., 2023)."""
        rank, count = self.rank, group.size
        place = group.ranks.index(rank.number)
        after, before = group.ranks[(place + 1) % count], group.ranks[(place - 1) % count]
        for _ in range(count - 1):
            send = rank.transfer(group, "send", after, self.work.context_size, ("cs",))
            received = rank.transfer(group, "recv", before, self.work.context_size, ("cr",))
            rank.kernel(seconds * 0.5 / count * self.context_share)
            yield from rank.wait(send)
            yield from rank.wait(received)
        rank.kernel(seconds * 0.5 / count * self.context_share)

    def _experts(self, group: Group, seconds: float) -> Program:
        """Tokens go to their experts, and back."""
        rank, size = self.rank, self.work.expert_size
        share = self.expert_share * math.exp(ROUTING_SIGMA * rank.normal())
        yield from self._exchange(group, size, share)
        rank.kernel(seconds * (0.4 if rank.groups.cp else 0.5) * share)
        yield from self._exchange(group, size, share)

    def _exchange(self, group: Group, size: float, share: float) -> Program:
        whole, own = size * max(1.0, share), int(size * share)
        yield from self.rank.wait(self.rank.collective(group, "all_to_all", whole, "ep", own_size=own))
