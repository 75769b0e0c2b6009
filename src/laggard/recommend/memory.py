"""The memory of a GPU under each ZeRO stage, and what runs that fit or did not say about the activations. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

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


def fits(stage: int, micro_batch: int, bounds: ActivationBounds, plan: MemoryPlan) -> bool | None:
    """Returns whether a run fits; None: the observations leave it open."""
    if bounds.high is not None and bounds.high * micro_batch <= free_bytes(stage, plan):
        return True
    return False if bounds.low * micro_batch > free_bytes(stage, plan) or free_bytes(stage, plan) < 0 else None
