"""TCP in place of RDMA: the largest loss of all that is published."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec

from laggard.recommend.advice.rule import Rule, repair, variable
from laggard.recommend.advice.situation import Situation
from laggard.recommend.advice.values import Gain, Item

SOURCE: Final = (
    "PMBS at SC25, Pretraining LLMs at Scale: TCP slowed the backward pass 12 times; jingchaozhang.github.io, "
    "InfiniBand and Ethernet for fine-tuning at scale: 26 to 57 times"
)
_GAIN: Final = Gain("rule", 12.0, 1.5, 57.0)
_ELSEWHERE: Final = Gain("rule", None, 1.0, 57.0)
_CHOICES: Final = {"NCCL_IB_DISABLE": ("1",), "NCCL_NET": ("Socket",), "NCCL_NET_PLUGIN": ("none",)}


def judge(situation: Situation) -> Iterator[Item]:
    found = situation.finding("TCP_FALLBACK")
    if found is None:
        return
    chosen = [name for name in _CHOICES if gain_without(name, situation.environment.get(name, ""))]
    for name in chosen:
        current = situation.environment[name]
        apply, revert = variable(name, current, None)
        item = repair(found, "nccl_env", name, _GAIN, SOURCE, current, None)
        yield msgspec.structs.replace(item, apply=apply, revert=revert, commands=(apply,))
    if not chosen:
        yield repair(found, "host", "transport", _GAIN, SOURCE, "TCP", "RDMA")


def gain_without(name: str, value: str) -> Gain | None:
    """Returns what removing a variable gains that has NCCL choose TCP, where the nodes have RDMA; None for others."""
    return _ELSEWHERE if value.lower() in [each.lower() for each in _CHOICES.get(name, ())] else None


RULE = Rule("tcp_fallback", judge, SOURCE)
