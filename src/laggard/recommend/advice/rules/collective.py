"""The collective that DeepSpeed's stages 1 and 2 really use: an all-reduce, of which each rank needs a share only."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from laggard.deepspeed_config import DeepSpeedConfig
from laggard.environment import ENV_REDUCE_SCATTER
from laggard.recommend.advice.deepspeed_setting import exposed_evidence, exposed_share, setting
from laggard.recommend.advice.rule import Rule
from laggard.recommend.advice.situation import Situation
from laggard.recommend.advice.values import Gain, Item

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
        source="docs/reduce-scatter.md: 1.17 to 1.26 times as fast with 4 ranks; PMBS at SC25",
    )


def _gain_of_half(exposed: float) -> Gain:
    """Returns the gain of moving half of what gradients move. A step that reduces once moves (N - 1) / N of the
    parameters when it gathers them and twice that for the gradients: a third is saved. Micro-steps that reduce too
    bring it up to a half, and buckets that few ranks own are not scattered."""
    return Gain("modelled", 1 / (1 - exposed / 3), 1.0, 1 / (1 - exposed / 2))


RULE = Rule("collective", judge, SOURCE, "DeepSpeed 0.13 to 0.19")
