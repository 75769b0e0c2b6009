"""Bucket sizes: buckets that are too small make messages that the network's latency decides."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from laggard.collector.recommend.advice.rule import Rule
from laggard.collector.recommend.advice.situation import Situation
from laggard.collector.recommend.advice.values import Gain, Item
from laggard.deepspeed_config import BUCKET_ELEMENTS

SOURCE: Final = (
    "DeepSpeed's zero/config.py: 5e8 elements by default; DeepSpeed issue 3338: all-gather from 2.6 to 1.4 s"
)
_SMALL: Final = 20_000_000
"""Elements; in bf16 40 MB, from where on a ring is at its full speed on some hundred GPUs."""


def judge(situation: Situation) -> Iterator[Item]:
    config, profile = situation.deepspeed, situation.profile
    if config is None or config.stage not in (1, 2):
        return
    exposed = profile.exposed_share if profile else None
    for key, size in (
        ("reduce_bucket_size", config.reduce_bucket_size),
        ("allgather_bucket_size", config.allgather_bucket_size),
    ):
        if size < _SMALL:
            yield Item(
                target="deepspeed",
                key=f"zero_optimization.{key}",
                current=size,
                recommended=BUCKET_ELEMENTS,
                reason=f"messages of {size} elements are so small that latency decides, not bandwidth",
                evidence=() if exposed is None else (f"{exposed:.0%} of a step is spent in collectives",),
                gain=Gain("rule", None, 1.0, None) if exposed is None else _modelled(exposed),
                risk="A bucket takes memory: 5e8 elements in fp16 are 1 GB, twice that with overlap_comm.",
                apply=f'"{key}": {BUCKET_ELEMENTS} in zero_optimization',
                revert=f'"{key}": {size}',
                source=SOURCE,
            )


def _modelled(exposed: float) -> Gain:
    return Gain("modelled", 1 / (1 - exposed / 2), 1.0, 1 / (1 - exposed))


RULE = Rule("buckets", judge, SOURCE, "DeepSpeed 0.15 to 0.19")
