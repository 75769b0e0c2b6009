"""Offload and quantisation: memory bought with time, and bytes saved at the price of precision."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from laggard.collector.recommend.advice.rule import Rule
from laggard.collector.recommend.advice.situation import Situation
from laggard.collector.recommend.advice.values import Gain, Item

SOURCE: Final = "ZeRO-Offload (Ren and others, 2021); ZeRO++ (Wang and others, 2023); DeepSpeed's documentation"
_MIN_EXPOSED: Final = 0.2


def judge(situation: Situation) -> Iterator[Item]:
    config, profile = situation.deepspeed, situation.profile
    if config is None:
        return
    for key, device in (("offload_optimizer", config.offload_optimizer), ("offload_param", config.offload_param)):
        if device:
            yield _item(
                f"zero_optimization.{key}",
                device,
                "none",
                f"states go over PCIe to {device} in each step: where they fit into the GPUs this is time for nothing",
                Gain("rule", None, 1.0, None),
                "Without it the job may run out of memory: try with the same micro-batch first.",
            )
    exposed = profile.exposed_share if profile else None
    if config.stage == 3 and exposed is not None and exposed >= _MIN_EXPOSED and not config.quantized_weights:
        yield _item(
            "zero_optimization.zero_quantized_weights",
            False,
            True,
            "weights are gathered twice in each micro-step: in 8 bits they are half as many bytes",
            Gain("modelled", None, 0.9, 1 / (1 - exposed / 3)),
            "It changes results a little: an option to be measured, with the loss beside it.",
        )


def _item(key: str, current: object, recommended: object, reason: str, gain: Gain, risk: str) -> Item:
    name = key.rpartition(".")[2]
    return Item(
        target="deepspeed",
        key=key,
        current=current,
        recommended=recommended,
        reason=reason,
        evidence=(),
        gain=gain,
        risk=risk,
        apply=f"{name}: {recommended} in zero_optimization",
        revert=f"{name}: {current}",
        source=SOURCE,
    )


RULE = Rule("offload", judge, SOURCE, "DeepSpeed 0.15 to 0.19; quantised weights from 0.10 on")
