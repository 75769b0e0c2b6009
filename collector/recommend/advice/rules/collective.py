"""The collective that DeepSpeed's stages 1 and 2 really use: an all-reduce, of which each rank needs a share only."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from laggard.collector.recommend.advice.deepspeed_setting import setting
from laggard.collector.recommend.advice.rule import Rule
from laggard.collector.recommend.advice.situation import Situation
from laggard.collector.recommend.advice.values import Gain, Item

SOURCE: Final = (
    "DeepSpeed's zero/stage_1_and_2.py: use_multi_rank_bucket_allreduce is on by default; issues 5758, 6463; PMBS at "
    "SC25: a reduce-scatter was best on all three platforms"
)


def judge(situation: Situation) -> Iterator[Item]:
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
        source=SOURCE,
        evidence=evidence,
    )


RULE = Rule("collective", judge, SOURCE, "DeepSpeed 0.13 to 0.19")
