"""DeepSpeed's overlap_comm: gradients of a bucket are reduced while the backward pass goes on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

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
    "DeepSpeed's zero/config.py: off by default but for stage 3; PMBS at SC25: best on for H100 and off for A100, so "
    "it is to be measured"
)
_MIN_EXPOSED: Final = 0.05


def judge(situation: Situation) -> Iterator[Item]:
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
        source=SOURCE,
        evidence=exposed_evidence(exposed),
    )


RULE = Rule("overlap", judge, SOURCE, "DeepSpeed 0.15 to 0.19")
