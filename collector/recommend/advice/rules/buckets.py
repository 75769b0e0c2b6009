"""Bucket sizes: buckets that are too small make messages that the network's latency decides."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from laggard.collector.recommend.advice.deepspeed_setting import (
    exposed_evidence,
    exposed_share,
    gain_of_saving,
    setting,
)
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
    config, exposed = situation.deepspeed, exposed_share(situation)
    if config is None or config.stage not in (1, 2):
        return
    for key, size in (
        ("reduce_bucket_size", config.reduce_bucket_size),
        ("allgather_bucket_size", config.allgather_bucket_size),
    ):
        if size < _SMALL:
            yield setting(
                f"zero_optimization.{key}",
                size,
                BUCKET_ELEMENTS,
                f"messages of {size} elements are so small that latency decides, not bandwidth",
                gain=Gain("rule", None, 1.0, None) if exposed is None else gain_of_saving(exposed),
                risk="A bucket takes memory: 5e8 elements in fp16 are 1 GB, twice that with overlap_comm.",
                source=SOURCE,
                evidence=exposed_evidence(exposed),
            )


RULE = Rule("buckets", judge, SOURCE, "DeepSpeed 0.15 to 0.19")
