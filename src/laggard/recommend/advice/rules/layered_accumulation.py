"""Accumulation that a framework orders by layers: an option where communication of stage 3 decides."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from laggard.recommend.advice.deepspeed_setting import exposed_evidence, exposed_share, gain_of_saving
from laggard.recommend.advice.rule import Rule
from laggard.recommend.advice.situation import Situation
from laggard.recommend.advice.values import Item
from laggard.recommend.layered_accumulation import partitioned_volume

SOURCE: Final = "Layered gradient accumulation and modular pipeline parallelism (arXiv 2106.02679)"
_MIN_EXPOSED: Final = 0.2


def judge(situation: Situation) -> Iterator[Item]:
    config = situation.deepspeed
    exposed = exposed_share(situation)
    if config is None or config.stage != 3 or not config.grad_accum or config.grad_accum < 2:
        return
    if exposed is None or exposed < _MIN_EXPOSED:
        return
    less = partitioned_volume(1, config.grad_accum, False) / partitioned_volume(1, config.grad_accum, True)
    saved = exposed * (1 - 1 / less)
    yield Item(
        target="launcher",
        key="layered accumulation",
        current=None,
        recommended="a framework that accumulates layer by layer; FSDP with no_sync where memory allows",
        reason=f"stage 3 gathers all weights in each of {config.grad_accum} micro-steps, by layers once in a step",
        evidence=(*exposed_evidence(exposed), f"{less:.0f} times less to move"),
        gain=gain_of_saving(saved),
        risk="DeepSpeed does not do it: another framework, or gradients whole on each GPU.",
        apply="An option for the next job, to be measured.",
        revert="the framework as it was",
        source=SOURCE,
    )


RULE = Rule("layered_accumulation", judge, SOURCE)
