"""Queue pairs on RoCE: switches spread traffic by flows, and one queue pair is one flow."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from laggard.recommend.advice.rule import Rule, variable
from laggard.recommend.advice.situation import Situation
from laggard.recommend.advice.values import Gain, Item

SOURCE: Final = "NCCL's user guide, troubleshooting (RoCE); Meta, RDMA over Ethernet at scale, SIGCOMM 2024"
_NAME: Final = "NCCL_IB_QPS_PER_CONNECTION"
_RECOMMENDED: Final = "4"


def judge(situation: Situation) -> Iterator[Item]:
    roce = situation.link_layers == {"Ethernet"} and "IB" in situation.networks
    if not roce or not situation.environment_known or _NAME in situation.environment or (situation.nodes or 0) < 2:
        return
    apply, revert = variable(_NAME, None, _RECOMMENDED)
    yield Item(
        target="nccl_env",
        key=_NAME,
        current="1 (default)",
        recommended=_RECOMMENDED,
        reason="one queue pair for a connection is one flow, and a switch keeps a flow on one of its paths",
        evidence=(f"RoCE on {situation.nodes} nodes",),
        gain=Gain("rule", None, 1.0, None),
        risk="More queue pairs cost small messages a little latency: measure with and without, alternately.",
        apply=apply,
        revert=revert,
        commands=(apply,),
        source=SOURCE,
    )


RULE = Rule("queue_pairs", judge, SOURCE, "NCCL 2.10 and newer")
