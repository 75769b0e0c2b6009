"""The communication of a ZeRO stage in an optimizer step, and the time that it takes under the alpha-beta model. Pure.

Volumes are those of Rajbhandari and others, ZeRO (2020). DeepSpeed's stages 1 and 2 reduce gradients with all-reduces
(`use_multi_rank_bucket_allreduce`), so these stand here, not the reduce-scatters of the paper.
"""

from __future__ import annotations

import math
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
