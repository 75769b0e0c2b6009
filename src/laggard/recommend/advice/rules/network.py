"""The advice about a network that findings tell of: TCP in place of RDMA, and RoCE as switches and NICs are set up."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec

from laggard.recommend.advice.situation import Rule, Situation, for_each_finding, repair, variable
from laggard.recommend.advice.values import Gain, Item

TCP_FALLBACK_SOURCE: Final = (
    "PMBS at SC25, Pretraining LLMs at Scale: TCP slowed the backward pass 12 times; jingchaozhang.github.io, "
    "InfiniBand and Ethernet for fine-tuning at scale: 26 to 57 times"
)
_GAIN: Final = Gain("rule", 12.0, 1.5, 57.0)
_ELSEWHERE: Final = Gain("rule", None, 1.0, 57.0)
_CHOICES: Final = {"NCCL_IB_DISABLE": ("1",), "NCCL_NET": ("Socket",), "NCCL_NET_PLUGIN": ("none",)}


def judge_tcp_fallback(situation: Situation) -> Iterator[Item]:
    found = situation.finding("TCP_FALLBACK")
    if found is None:
        return
    chosen = [name for name in _CHOICES if gain_without(name, situation.environment.get(name, ""))]
    for name in chosen:
        current = situation.environment[name]
        apply, revert = variable(name, current, None)
        item = repair(found, "nccl_env", name, _GAIN, TCP_FALLBACK_SOURCE, current, None)
        yield msgspec.structs.replace(item, apply=apply, revert=revert, commands=(apply,))
    if not chosen:
        yield repair(found, "host", "transport", _GAIN, TCP_FALLBACK_SOURCE, "TCP", "RDMA")


def gain_without(name: str, value: str) -> Gain | None:
    """Returns what removing a variable gains that has NCCL choose TCP, where the nodes have RDMA; None for others."""
    return _ELSEWHERE if value.lower() in [each.lower() for each in _CHOICES.get(name, ())] else None


TCP_FALLBACK_RULE = Rule("tcp_fallback", judge_tcp_fallback, TCP_FALLBACK_SOURCE)


ROCE_SOURCE = "NVIDIA/nccl#378 and #306: below 1 GB/s without flow control; NCCL's user guide, RoCE"
ROCE_RULE = Rule(
    "roce",
    for_each_finding(
        {
            "PFC_OFF": ("nic", "PFC"),
            "ECN_OFF": ("nic", "ECN"),
            "RDMA_MTU_LOW": ("nic", "MTU"),
            "RDMA_GID_WRONG": ("nic", "GID"),
            "NIC_MIXED": ("nccl_env", "NCCL_IB_HCA"),
            "RDMA_RATE_LOW": ("nic", "rate"),
            "RDMA_ERRORS_RISING": ("nic", "errors"),
        },
        Gain("rule"),
        ROCE_SOURCE,
    ),
    ROCE_SOURCE,
)
