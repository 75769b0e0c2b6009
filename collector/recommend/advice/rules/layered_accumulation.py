"""Accumulation that a framework orders by layers: an option where communication of stage 3 decides."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from laggard.collector.recommend.advice.rule import Rule
from laggard.collector.recommend.advice.situation import Situation
from laggard.collector.recommend.advice.values import Gain, Item
from laggard.collector.recommend.layered_accumulation import partitioned_volume

SOURCE: Final = "Layered gradient accumulation and modular pipeline parallelism (arXiv 2106.02679)"
_MIN_EXPOSED: Final = 0.2


def judge(situation: Situation) -> Iterator[Item]:
    config, profile = situation.deepspeed, situation.profile
    exposed = profile.exposed_share if profile else None
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
        evidence=(f"{exposed:.0%} of a step is spent in collectives", f"{less:.0f} times less to move"),
        gain=Gain("modelled", 1 / (1 - saved / 2), 1.0, 1 / (1 - saved)),
        risk="DeepSpeed does not do it: another framework, or gradients whole on each GPU.",
        apply="An option for the next job, to be measured.",
        revert="the framework as it was",
        source=SOURCE,
    )


RULE = Rule("layered_accumulation", judge, SOURCE)
