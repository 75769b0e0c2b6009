"""The advice about DeepSpeed's communication: ZeRO stage and accumulation at a constant global batch, buckets, the
collective, overlap, and accumulation by layers.

Layered accumulation (arXiv 2106.02679): with the usual accumulation gradients are complete in the last micro-step,
whose backward pass alone can hide their reduction. Layered accumulation runs all micro-batches of a layer before the
next layer: its reduction is hidden by the rest of the whole backward pass, and partitioned weights are gathered once
for all micro-batches.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Final

from laggard.deepspeed_config import BUCKET_ELEMENTS, DeepSpeedConfig
from laggard.kit.environment import ENV_REDUCE_SCATTER
from laggard.recommend.advice.deepspeed import exposed_evidence, exposed_share, gain_of_saving, need, setting
from laggard.recommend.advice.situation import Situation
from laggard.recommend.advice.values import Gain, Item

ACCUMULATION_SOURCE: Final = (
    "ZeRO (Rajbhandari and others, 2020); PMBS at SC25: stage 1 wins at accumulations 32 and 16, stage 2 at 8 and 4"
)
_MIN_EXPOSED: Final = 0.05
_MANY_MICRO_BATCHES: Final = 16
"""The number of accumulated micro-batches from which on stage 1 won where both fitted."""


def judge_accumulation(situation: Situation) -> Iterator[Item]:
    """It holds for DeepSpeed 0.15 to 0.19."""
    config, exposed = situation.deepspeed, exposed_share(situation)
    if config is None or config.stage < 2 or not config.grad_accum or config.grad_accum < 2:
        return
    if exposed is not None and exposed < _MIN_EXPOSED:
        return
    accumulated = config.grad_accum
    evidence = exposed_evidence(exposed)
    if (
        config.stage == 2
        and (exposed is not None or accumulated >= _MANY_MICRO_BATCHES)
        and _has_room(situation, stage=1)
    ):
        yield setting(
            "zero_optimization.stage",
            2,
            1,
            f"stage 2 reduces gradients in each of {accumulated} micro-steps, stage 1 once a step",
            evidence=evidence,
            gain=_gain_of_accumulation(exposed, accumulated),
            source=ACCUMULATION_SOURCE,
            risk="Stage 1 keeps all gradients on each GPU: 2 to 4 bytes a parameter more. It may run out of memory.",
        )
    fewer = 2 if accumulated % 2 == 0 else accumulated
    if config.micro_batch and _has_room(situation, micro_batch=config.micro_batch * fewer):
        yield setting(
            "gradient_accumulation_steps",
            accumulated,
            accumulated // fewer,
            f"stage {config.stage} communicates in each of {accumulated} micro-steps: fewer and larger ones do less, "
            "at the same global batch (raise train_micro_batch_size_per_gpu by the same factor)",
            evidence=evidence,
            gain=_gain_of_fewer(exposed, fewer),
            source=ACCUMULATION_SOURCE,
            risk="A larger micro-batch takes more activations: it may run out of memory; recomputation makes room.",
        )


def _has_room(situation: Situation, **changes: int) -> bool:
    """Returns False where the changed configuration is known not to fit into a GPU."""
    found = need(situation, **changes)
    return found is None or found.fits


def _gain_of_accumulation(exposed: float | None, fewer: int) -> Gain:
    """Returns the gain of communicating a `fewer`th as often, if all exposed communication is that of micro-steps."""
    return Gain("rule", None, 0.9, None) if exposed is None else gain_of_saving(exposed * (1 - 1 / fewer))


def _gain_of_fewer(exposed: float | None, fewer: int) -> Gain:
    """Returns the gain of a `fewer`th of the micro-steps. Each has an overhead besides its communication, of which the
    recording does not tell: at most all of the step is by micro-step."""
    gain = _gain_of_accumulation(exposed, fewer)
    return gain if exposed is None else Gain(gain.basis, gain.ratio, gain.low, float(fewer))


BUCKETS_SOURCE: Final = (
    "DeepSpeed's zero/config.py: 5e8 elements by default; DeepSpeed issue 3338: all-gather from 2.6 to 1.4 s"
)
_SMALL_BUCKET_ELEMENTS: Final = 20_000_000
"""The elements of a bucket below which it is small: 40 MB in bf16, from where on a ring is at its full speed on some
hundred GPUs."""
_LATENCY_BYTES: Final = 65536
"""The size of a message below which its latency decides how long it is waited for: 20 us are 50 KB at 20 Gbit/s."""
_NARROWEST, _WIDEST = 2, 4
"""The bytes of a gradient, in half and in single precision."""


_ROUND: Final = 100_000


def judge_buckets(situation: Situation) -> Iterator[Item]:
    """It holds for DeepSpeed 0.15 to 0.19."""
    config, exposed = situation.deepspeed, exposed_share(situation)
    if config is None or config.stage not in (1, 2):
        return
    whole = _gradient_bytes(situation, config)
    for key, size, operations in (
        ("reduce_bucket_size", config.reduce_bucket_size, ("all_reduce", "reduce")),
        ("allgather_bucket_size", config.allgather_bucket_size, ("all_gather",)),
    ):
        if size < _SMALL_BUCKET_ELEMENTS and not (whole and size * _WIDEST >= whole):
            yield setting(
                f"zero_optimization.{key}",
                size,
                _enough(whole),
                f"messages of {size} elements are so small that latency decides, not bandwidth",
                gain=_gain_of_buckets(situation, exposed, operations),
                risk="DeepSpeed takes memory for a whole bucket in each step, however small the model: 5e8 elements in "
                "fp16 are 1 GB, twice that with overlap_comm. More than the model's parameters is for nothing.",
                source=BUCKETS_SOURCE,
                evidence=exposed_evidence(exposed),
            )


def _gain_of_buckets(situation: Situation, exposed: float | None, operations: Iterable[str]) -> Gain:
    """Returns the gain of one message in place of many. The gain is at most that of a step whose whole time goes with
    the number of messages: each message takes time of its own besides its wait, in copies and calls, and the recording
    does not tell how much."""
    if exposed is None or situation.profile is None:
        return Gain("rule", None, 1.0, None)
    found = [situation.profile.collectives.get(name, (0.0, 0.0)) for name in operations]
    messages = sum(times for times, _ in found)
    mean = sum(times * size for times, size in found) / messages if messages else 0.0
    if messages < 2:
        return gain_of_saving(exposed)
    saving = gain_of_saving(exposed * (1 - 1 / messages))
    likely = saving.high if mean < _LATENCY_BYTES else saving.ratio
    return Gain(saving.basis, likely, saving.low, max(messages, saving.high or 1.0))


def _gradient_bytes(situation: Situation, config: DeepSpeedConfig) -> float | None:
    """Returns what one reduction of all gradients moves, by the recording: stage 2 reduces in each micro-step. None
    where that is not known."""
    if situation.profile is None:
        return None
    found = [situation.profile.collectives.get(name, (0.0, 0.0)) for name in ("all_reduce", "reduce")]
    whole = sum(times * size for times, size in found)
    return whole / ((config.grad_accum or 1) if config.stage == 2 else 1) or None


def _enough(whole: float | None) -> int:
    """Returns elements that hold all gradients, at most DeepSpeed's default."""
    if whole is None:
        return BUCKET_ELEMENTS
    return min(BUCKET_ELEMENTS, math.ceil(whole / _NARROWEST / _ROUND) * _ROUND)


COLLECTIVE_SOURCE: Final = (
    "DeepSpeed's zero/stage_1_and_2.py: use_multi_rank_bucket_allreduce is on by default; issues 5758, 6463; PMBS at "
    "SC25: a reduce-scatter was best on all three platforms"
)


def judge_collective(situation: Situation) -> Iterator[Item]:
    """It holds for DeepSpeed 0.13 to 0.19."""
    config, profile = situation.deepspeed, situation.profile
    if config is None or config.stage not in (1, 2) or not config.multi_rank_bucket_allreduce:
        return
    evidence: tuple[str, ...] = ()
    if profile and "all_reduce" in profile.collectives:
        times, size = profile.collectives["all_reduce"]
        evidence = (f"{times:.0f} all-reduces a step, {size / 1e6:.1f} MB on average",)
    yield setting(
        "zero_optimization.use_multi_rank_bucket_allreduce",
        True,
        False,
        "gradients are all-reduced: each rank receives all of them, and keeps its share; the other way is a reduce to "
        "each owner",
        gain=Gain("rule", None, 0.8, 1.19),
        risk="Reduces to single owners may be slower with many ranks: an option to be measured, alternately.",
        source=COLLECTIVE_SOURCE,
        evidence=evidence,
    )
    if config.reduce_scatter and config.contiguous_gradients:
        yield _scattered(config, exposed_share(situation))


def _scattered(config: DeepSpeedConfig, exposed: float | None) -> Item:
    """Returns the option of the hooks' own reduce-scatter."""
    return Item(
        target="launcher",
        key=ENV_REDUCE_SCATTER,
        current=None,
        recommended="1",
        reason=f"stage {config.stage} all-reduces gradients of which each rank keeps a share: a true reduce-scatter "
        "by the hooks moves half of that with the same sums",
        evidence=exposed_evidence(exposed),
        gain=Gain("rule", None, 1.0, None) if exposed is None else _gain_of_half(exposed),
        risk="It replaces a method of DeepSpeed 0.19.8 in the running process; with other versions nothing changes.",
        apply=f"export {ENV_REDUCE_SCATTER}=1 for all ranks, under `laggard run`",
        revert=f"unset {ENV_REDUCE_SCATTER}",
        source="docs/hooks.md: 1.17 to 1.26 times as fast with 4 ranks; PMBS at SC25",
    )


def _gain_of_half(exposed: float) -> Gain:
    """Returns the gain of moving half of what gradients move. A step that reduces once moves (N - 1) / N of the
    parameters when it gathers them and twice that for the gradients: a third is saved. Micro-steps that reduce too
    bring it up to a half, and buckets that few ranks own are not scattered."""
    return Gain("modelled", 1 / (1 - exposed / 3), 1.0, 1 / (1 - exposed / 2))


OVERLAP_SOURCE: Final = (
    "DeepSpeed's zero/config.py: off by default but for stage 3; PMBS at SC25: best on for H100 and off for A100, so "
    "it is to be measured"
)


def judge_overlap(situation: Situation) -> Iterator[Item]:
    """It holds for DeepSpeed 0.15 to 0.19."""
    config, exposed = situation.deepspeed, exposed_share(situation)
    if config is None or config.stage not in (1, 2) or config.overlap_comm:
        return
    if exposed is not None and exposed < _MIN_EXPOSED:
        return
    yield setting(
        "zero_optimization.overlap_comm",
        False,
        True,
        "gradients are reduced after the backward pass, and nothing hides it",
        gain=Gain("rule", None, 0.95, None) if exposed is None else gain_of_saving(exposed),
        risk="It takes memory for another bucket, and slows computing that it overlaps: on some machines it is slower.",
        source=OVERLAP_SOURCE,
        evidence=exposed_evidence(exposed),
    )


LAYERED_ACCUMULATION_SOURCE: Final = "Layered gradient accumulation and modular pipeline parallelism (arXiv 2106.02679)"
_MIN_EXPOSED_BY_LAYERS: Final = 0.2


def judge_layered_accumulation(situation: Situation) -> Iterator[Item]:
    config = situation.deepspeed
    exposed = exposed_share(situation)
    if config is None or config.stage != 3 or not config.grad_accum or config.grad_accum < 2:
        return
    if exposed is None or exposed < _MIN_EXPOSED_BY_LAYERS:
        return
    saved = exposed * (1 - 1 / config.grad_accum)  # weights and gradients move once in a step, not in each micro-step
    yield Item(
        target="launcher",
        key="layered accumulation",
        current=None,
        recommended="a framework that accumulates layer by layer; FSDP with no_sync where memory allows",
        reason=f"stage 3 gathers all weights in each of {config.grad_accum} micro-steps, by layers once in a step",
        evidence=(*exposed_evidence(exposed), f"{config.grad_accum} times less to move"),
        gain=gain_of_saving(saved),
        risk="DeepSpeed does not do it: another framework, or gradients whole on each GPU.",
        apply="An option for the next job, to be measured.",
        revert="the framework as it was",
        source=LAYERED_ACCUMULATION_SOURCE,
    )
