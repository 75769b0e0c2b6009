"""Bucket sizes: buckets that are too small make messages that the network's latency decides."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Final

from laggard.deepspeed_config import BUCKET_ELEMENTS, DeepSpeedConfig
from laggard.recommend.advice.deepspeed_setting import (
    exposed_evidence,
    exposed_share,
    gain_of_saving,
    setting,
)
from laggard.recommend.advice.rule import Rule
from laggard.recommend.advice.situation import Situation
from laggard.recommend.advice.values import Gain, Item

SOURCE: Final = (
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


def judge(situation: Situation) -> Iterator[Item]:
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
                gain=_gain(situation, exposed, operations),
                risk="DeepSpeed takes memory for a whole bucket in each step, however small the model: 5e8 elements in "
                "fp16 are 1 GB, twice that with overlap_comm. More than the model's parameters is for nothing.",
                source=SOURCE,
                evidence=exposed_evidence(exposed),
            )


def _gain(situation: Situation, exposed: float | None, operations: Iterable[str]) -> Gain:
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


RULE = Rule("buckets", judge, SOURCE, "DeepSpeed 0.15 to 0.19")
