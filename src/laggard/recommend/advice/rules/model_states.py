"""Weights, gradients and optimizer states that do not fit into a GPU: a higher ZeRO stage, or offload."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import msgspec

from laggard.recommend.advice.deepspeed_setting import setting
from laggard.recommend.advice.gpu_memory import Need, need, need_text
from laggard.recommend.advice.rule import Rule
from laggard.recommend.advice.situation import Situation
from laggard.recommend.advice.values import Gain, Item

SOURCE: Final = (
    "ZeRO (Rajbhandari and others, 2020): stage 1 divides optimizer states among GPUs, 2 gradients, 3 weights; "
    "ZeRO-Offload (Ren and others, 2021); Adam takes 16 bytes a parameter, and buffers 4 GB, as jobs were seen to need"
)


def judge(situation: Situation) -> Iterator[Item]:
    config, now = situation.deepspeed, need(situation)
    if config is None or now is None or now.states_fit:
        return
    for stage in range(config.stage + 1, 4):
        if _fits(need(situation, stage=stage)):
            yield _repair("zero_optimization.stage", config.stage, stage, now)
            return
    if not config.offload_optimizer and _fits(need(situation, stage=3, offload_optimizer="cpu")):
        if config.stage < 3:
            yield _repair("zero_optimization.stage", config.stage, 3, now)
        yield _repair("zero_optimization.offload_optimizer.device", "none", "cpu", now)


def _fits(found: Need | None) -> bool:
    return found is not None and found.fits


def _repair(key: str, current: Any, recommended: Any, now: Need) -> Item:
    item = setting(
        key,
        current,
        recommended,
        "the model does not fit into the GPUs: the job will run out of memory",
        evidence=(need_text(now),),
        gain=Gain("rule"),
        risk="More communication, or copies over PCIe, in each step: slower than what fits without it.",
        source=SOURCE,
    )
    return msgspec.structs.replace(item, repairs=True)


RULE = Rule("model_states", judge, SOURCE)
