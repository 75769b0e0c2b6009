"""The space that a DeepSpeed training may try: ZeRO's stage and the micro-batch at a constant global batch, and the
switches of its communication. Pure.

Names and defaults are those of DeepSpeed 0.19 (deepspeed/runtime/zero/config.py). Switches that a stage does not read
are left out.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from laggard.deepspeed_config import parse_config
from laggard.environment import ENV_REDUCE_SCATTER
from laggard.errors import UsageError
from laggard.recommend.communication import Network, stage_seconds
from laggard.recommend.memory import MemoryPlan, free_bytes
from laggard.tune.search.plan import Settings
from laggard.tune.space import Configuration, Constraint, Parameter, Space, allowed

_STAGES: Final = (0, 1, 2, 3)
_BUCKETS: Final = (5_000_000, 50_000_000, 100_000_000, 200_000_000, 500_000_000, 1_000_000_000)
"""Elements, around DeepSpeed's default of 5e8; small models have smaller ones."""
_MAX_STARTS: Final = 3


class Training(NamedTuple):
    document: Mapping[str, Any]
    """The DeepSpeed configuration."""
    ranks: int
    """The ranks that share a batch."""
    parameters: float | None = None
    gpu_bytes: float | None = None
    bus_bandwidth: float | None = None
    """Bytes per second, as nccl-tests has busbw."""
    nodes: int = 1
    reduce_scatter: bool = False
    """True where the job has LAGGARD_REDUCE_SCATTER now."""


def global_batch(training: Training) -> int:
    """Returns the samples of an optimizer step. Raises UsageError where the configuration does not say."""
    own = parse_config(training.document)
    if own.micro_batch is None:
        raise UsageError("the DeepSpeed configuration lacks train_micro_batch_size_per_gpu: it is the default to beat")
    if own.grad_accum is None and own.train_batch is None:
        raise UsageError("the DeepSpeed configuration lacks gradient_accumulation_steps and train_batch_size: give one")
    whole = own.train_batch or own.micro_batch * (own.grad_accum or 1) * training.ranks
    if whole % (own.micro_batch * training.ranks):
        raise UsageError(
            f"a global batch of {whole} is no multiple of micro-batch {own.micro_batch} times {training.ranks} ranks"
        )
    return whole


def zero_space(training: Training) -> Space:
    own = parse_config(training.document)
    share = global_batch(training) // training.ranks
    sizes = tuple(size for size in range(1, share + 1) if share % size == 0 and _is_power(size)) or (1,)
    sizes = tuple(sorted({*sizes, own.micro_batch or 1}))
    constraints = []
    if training.parameters and training.gpu_bytes:
        plan = MemoryPlan(training.parameters, training.ranks, training.gpu_bytes)
        constraints = [
            Constraint("weights, gradients and optimizer states fit", lambda each: free_bytes(_stage(each), plan) > 0)
        ]
    parameters = (Parameter("stage", _STAGES, own.stage), Parameter("micro_batch", sizes, own.micro_batch))
    return Space(parameters, tuple(constraints), _needs_as_much)


def zero_starts(training: Training, space: Space) -> tuple[Settings, ...]:
    """Returns what volumes and bandwidth let one expect to communicate least; empty where they are not known."""
    if not training.parameters or not training.bus_bandwidth:
        return ()
    network = Network(training.ranks, training.bus_bandwidth, nodes=training.nodes)
    share = global_batch(training) // training.ranks
    rows: list[tuple[float, int, int]] = []
    for parameter in space.parameters[1:]:
        for micro in map(int, (each for each in parameter.choices if isinstance(each, int))):
            for stage in _STAGES:
                if allowed(space, {"stage": stage, "micro_batch": micro}):
                    rows.append((stage_seconds(stage, training.parameters, share // micro, network), stage, micro))
    return tuple({"stage": stage, "micro_batch": micro} for _, stage, micro in sorted(rows)[:_MAX_STARTS])


def switch_space(training: Training) -> Space:
    """Returns the switches that the configuration's stage reads."""
    own = parse_config(training.document)
    if own.stage == 0:
        raise UsageError("the DeepSpeed configuration has stage 0, which reads none of ZeRO's switches: give another")
    zero = training.document.get("zero_optimization", {})
    buckets = _around(own.reduce_bucket_size, training.parameters)
    found = [
        Parameter("overlap_comm", (False, True), own.overlap_comm, "switches"),
        Parameter("reduce_bucket_size", buckets, own.reduce_bucket_size, "buckets"),
        Parameter("contiguous_gradients", (False, True), own.contiguous_gradients, "switches"),
    ]
    if own.stage in (1, 2):
        round_robin = bool(zero.get("round_robin_gradients", False))
        gathers = _around(own.allgather_bucket_size, training.parameters)
        found += [
            Parameter("use_multi_rank_bucket_allreduce", (False, True), own.multi_rank_bucket_allreduce, "switches"),
            Parameter("allgather_bucket_size", gathers, own.allgather_bucket_size, "buckets"),
            Parameter("round_robin_gradients", (False, True), round_robin, "switches"),
        ]
        if own.reduce_scatter:
            found.append(_reduce_scatter(training.reduce_scatter))
    else:
        prefetch = own.prefetch_bucket_size
        found += [Parameter("stage3_prefetch_bucket_size", _around(prefetch, None), prefetch, "buckets")]
    return Space(tuple(found))


def _reduce_scatter(now: bool) -> Parameter:
    """The hooks' true reduce-scatter, which takes what these two switches decide."""
    needs = (("use_multi_rank_bucket_allreduce", (True,)), ("contiguous_gradients", (True,)))
    return Parameter(ENV_REDUCE_SCATTER, (None, "1"), "1" if now else None, "switches", needs)


def with_settings(training: Training, configuration: Configuration) -> dict[str, Any]:
    """Returns the DeepSpeed configuration with these settings, at the same global batch."""
    after = copy.deepcopy(dict(training.document))
    zero = dict(after.get("zero_optimization", {}))
    for name, value in configuration.items():
        if name == "micro_batch":
            after |= batch_keys(training, int(str(value)))
        elif name != ENV_REDUCE_SCATTER:
            zero[name] = value
    after["zero_optimization"] = zero
    return after


def batch_keys(training: Training, micro: int) -> dict[str, int]:
    whole = global_batch(training)
    return {
        "train_batch_size": whole,
        "train_micro_batch_size_per_gpu": micro,
        "gradient_accumulation_steps": whole // (micro * training.ranks),
    }


def _around(current: int, parameters: float | None) -> tuple[int, ...]:
    """Returns the buckets to try. What is larger than the model is one bucket: only the smallest such counts."""
    useful = [each for each in _BUCKETS if parameters is None or each < 2 * parameters] or [_BUCKETS[0]]
    return tuple(sorted({*useful, current}))


def _stage(configuration: Configuration) -> int:
    return int(str(configuration["stage"]))


def _needs_as_much(one: Configuration, other: Configuration) -> bool:
    micro = [int(str(each["micro_batch"])) for each in (one, other)]
    return _stage(one) <= _stage(other) and micro[0] >= micro[1]


def _is_power(number: int) -> bool:
    return number & (number - 1) == 0
