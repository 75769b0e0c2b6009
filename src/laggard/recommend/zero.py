"""What a ZeRO stage costs: the memory of a GPU, with what runs that fit or did not say about the activations, and
the communication in an optimizer step, and the time that it takes under the alpha-beta model. Pure.

Volumes are those of Rajbhandari and others, ZeRO (2020). DeepSpeed's stages 1 and 2 reduce gradients with all-reduces
(`use_multi_rank_bucket_allreduce`), so these stand here, not the reduce-scatters of the paper.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final, NamedTuple

WEIGHT_BYTES: Final = 2
"""The bytes of a weight in bf16 or fp16."""


class Collective(NamedTuple):
    """One operation on `size_bytes` (as nccl-tests counts size), `times` times in an optimizer step."""

    op: str
    size_bytes: float
    times: int


class Network(NamedTuple):
    """The facts of a cluster that alpha-beta needs. `bus_bandwidth`: bytes per second as nccl-tests has busbw, of large
    messages; `latency`: seconds of one step of a ring or a tree."""

    gpus: int
    bus_bandwidth: float
    latency: float = 5e-6
    nodes: int = 1


def stage_collectives(
    stage: int, parameters: float, grad_accum: int, gradient_bytes: float = WEIGHT_BYTES
) -> tuple[Collective, ...]:
    """Returns what an optimizer step of `grad_accum` micro-steps issues. Stages 0 and 1 reduce once, stage 2 in each
    micro-step, since no GPU keeps all gradients; stage 3 gathers the weights for forward and for backward as well."""
    gradients, weights = gradient_bytes * parameters, WEIGHT_BYTES * parameters
    if stage == 0:
        return (Collective("all_reduce", gradients, 1),)
    if stage == 1:
        return (Collective("all_reduce", gradients, 1), Collective("all_gather", weights, 1))
    if stage == 2:
        return (Collective("all_reduce", gradients, grad_accum), Collective("all_gather", weights, 1))
    return (Collective("all_gather", weights, 2 * grad_accum), Collective("reduce_scatter", gradients, grad_accum))


def ring_seconds(op: str, size_bytes: float, network: Network) -> float:
    """Returns the time of a ring: all-reduce passes the data round twice, the others once."""
    rounds = 2 if op == "all_reduce" else 1
    steps = network.gpus - 1
    return rounds * steps * (network.latency + size_bytes / network.gpus / network.bus_bandwidth)


def tree_seconds(size_bytes: float, network: Network) -> float:
    """Returns the time of a tree all-reduce between nodes, with a chain inside each: the latency grows with the
    logarithm of the nodes."""
    local = network.gpus // network.nodes - 1
    steps = 2 * math.ceil(math.log2(network.nodes)) + 2 * local if network.nodes > 1 else 2 * local
    return steps * network.latency + 2 * size_bytes / network.bus_bandwidth


def collective_seconds(op: str, size_bytes: float, network: Network) -> float:
    """Returns the time of the faster algorithm, as NCCL would choose."""
    ring = ring_seconds(op, size_bytes, network)
    return min(ring, tree_seconds(size_bytes, network)) if op == "all_reduce" else ring


def stage_seconds(
    stage: int, parameters: float, grad_accum: int, network: Network, gradient_bytes: float = WEIGHT_BYTES
) -> float:
    """Returns the communication of an optimizer step, when nothing hides it and each collective is one message."""
    if network.gpus < 2:
        return 0.0
    return sum(
        each.times * collective_seconds(each.op, each.size_bytes, network)
        for each in stage_collectives(stage, parameters, grad_accum, gradient_bytes)
    )


BUFFERS_BYTES: Final = 4e9
"""The bytes of CUDA's context, NCCL's buffers, buckets and what the allocator cannot use: what DeepSpeed jobs are seen
to need."""


class StateBytes(NamedTuple):
    """Bytes for each parameter. Adam in mixed precision keeps a master copy and two moments in fp32: 12."""

    weight: float = 2
    gradient: float = 2
    optimizer: float = 12


class MemoryPlan(NamedTuple):
    parameters: float
    gpus: int
    gpu_bytes: float
    state: StateBytes = StateBytes()
    resident_bytes: float = 0.0
    """The bytes that each GPU holds besides, such as the teacher of a distillation."""
    buffers_bytes: float = BUFFERS_BYTES


class Observation(NamedTuple):
    """A run that fitted, or ran out of memory."""

    stage: int
    micro_batch: int
    fitted: bool


class ActivationBounds(NamedTuple):
    """The bytes that one unit of micro-batch takes, as far as runs tell."""

    low: float
    """The bound by the runs that were out of memory; 0: none was."""
    high: float | None
    """The bound by the runs that fitted; None: none did."""

    @property
    def consistent(self) -> bool:
        return self.high is None or self.low < self.high and self.high > 0


def state_bytes(stage: int, plan: MemoryPlan) -> float:
    """Returns weights, gradients and optimizer states of one GPU: stage 1 divides the states among the GPUs, stage 2
    the gradients as well, stage 3 all."""
    shares = [1.0 / plan.gpus if divided else 1.0 for divided in (stage >= 3, stage >= 2, stage >= 1)]
    return plan.parameters * sum(
        each * share
        for each, share in zip((plan.state.weight, plan.state.gradient, plan.state.optimizer), shares, strict=True)
    )


def free_bytes(stage: int, plan: MemoryPlan) -> float:
    """Returns what is left for activations; below 0 where the states alone do not fit."""
    return plan.gpu_bytes - plan.resident_bytes - plan.buffers_bytes - state_bytes(stage, plan)


def activation_bounds(observations: Iterable[Observation], plan: MemoryPlan) -> ActivationBounds:
    """Returns the interval in which the activations must lie for all observations to come out as they did. An interval
    that is not consistent shows that the plan is wrong: other bytes per parameter, another number of GPUs."""
    seen = list(observations)
    low = max((free_bytes(each.stage, plan) / each.micro_batch for each in seen if not each.fitted), default=0.0)
    high = min((free_bytes(each.stage, plan) / each.micro_batch for each in seen if each.fitted), default=None)
    return ActivationBounds(max(0.0, low), high)
