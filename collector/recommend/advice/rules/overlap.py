"""DeepSpeed's overlap_comm: gradients of a bucket are reduced while the backward pass goes on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from laggard.collector.recommend.advice.rule import Rule
from laggard.collector.recommend.advice.situation import Situation
from laggard.collector.recommend.advice.values import Gain, Item

SOURCE: Final = (
    "DeepSpeed's zero/config.py: off by default but for stage 3; PMBS at SC25: best on for H100 and off for A100, so "
    "it is to be measured"
)
_MIN_EXPOSED: Final = 0.05


def judge(situation: Situation) -> Iterator[Item]:
    config, profile = situation.deepspeed, situation.profile
    if config is None or config.stage not in (1, 2) or config.overlap_comm:
        return
    exposed = profile.exposed_share if profile else None
    if exposed is not None and exposed < _MIN_EXPOSED:
        return
    yield Item(
        target="deepspeed",
        key="zero_optimization.overlap_comm",
        current=False,
        recommended=True,
        reason="gradients are reduced after the backward pass, and nothing hides it",
        evidence=() if exposed is None else (f"{exposed:.0%} of a step is spent in collectives",),
        gain=Gain("rule", None, 0.95, None) if exposed is None else modelled(exposed),
        risk="It takes memory for another bucket, and slows computing that it overlaps: on some machines it is slower.",
        apply='"overlap_comm": true in zero_optimization',
        revert='"overlap_comm": false',
        source=SOURCE,
    )


def modelled(exposed: float) -> Gain:
    """Returns the gain of hiding communication: of nothing to all that is exposed, half in the middle."""
    return Gain("modelled", 1 / (1 - exposed / 2), 1.0, 1 / (1 - exposed))


RULE = Rule("overlap", judge, SOURCE, "DeepSpeed 0.15 to 0.19")
