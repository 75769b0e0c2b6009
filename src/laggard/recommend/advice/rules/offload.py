"""Offload and quantisation: memory bought with time, and bytes saved at the price of precision."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from laggard.recommend.advice.deepspeed_setting import exposed_share, setting
from laggard.recommend.advice.gpu_memory import need
from laggard.recommend.advice.rule import Rule
from laggard.recommend.advice.situation import Situation
from laggard.recommend.advice.values import Gain, Item

SOURCE: Final = "ZeRO-Offload (Ren and others, 2021); ZeRO++ (Wang and others, 2023); DeepSpeed's documentation"
_MIN_EXPOSED: Final = 0.2


def judge(situation: Situation) -> Iterator[Item]:
    config, exposed = situation.deepspeed, exposed_share(situation)
    if config is None:
        return
    for key, device in (("offload_optimizer", config.offload_optimizer), ("offload_param", config.offload_param)):
        without = need(situation, **{key: ""})
        if device and (without is None or without.fits):
            yield setting(
                f"zero_optimization.{key}.device",
                device,
                "none",
                f"states go over PCIe to {device} in each step: where they fit into the GPUs this is time for nothing; "
                "recomputation of activations (gradient checkpointing) makes room for about a third more compute",
                gain=Gain("rule", None, 1.0, None),
                risk="Without it the job may run out of memory: try with the same micro-batch first.",
                source=SOURCE,
            )
    if config.stage != 3 or exposed is None or exposed < _MIN_EXPOSED:
        return
    if not config.quantized_weights:
        yield setting(
            "zero_optimization.zero_quantized_weights",
            False,
            True,
            "weights are gathered twice in each micro-step: in 8 bits they are half as many bytes",
            gain=Gain("modelled", None, 0.9, 1 / (1 - exposed / 3)),
            risk="It changes results a little: an option to be measured, with the loss beside it.",
            source=SOURCE,
        )
    if not config.quantized_gradients:
        yield setting(
            "zero_optimization.zero_quantized_gradients",
            False,
            True,
            "gradients are reduced in each micro-step: in 4 bits and all to all they are a quarter of the bytes",
            gain=Gain("modelled", None, 0.9, 1 / (1 - exposed / 4)),
            risk="It changes results more than quantised weights do: measure with the loss beside it, after them.",
            source=SOURCE,
        )


RULE = Rule("offload", judge, SOURCE, "DeepSpeed 0.15 to 0.19; quantised weights from 0.10 on")
