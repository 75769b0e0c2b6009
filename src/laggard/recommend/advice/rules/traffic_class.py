"""The traffic class of RDMA on RoCE: it must lead into a priority that has flow control, else packets are dropped."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from laggard.recommend.advice.rule import Rule, variable
from laggard.recommend.advice.situation import Situation
from laggard.recommend.advice.values import Gain, Item

SOURCE: Final = (
    "NCCL's user guide, NCCL_IB_TC and troubleshooting (RoCE); RFC 2474 and RFC 3168: the byte is DSCP and ECN; "
    "mlnx_qos: with trust in DSCP the priority is DSCP / 8"
)
_NAME: Final = "NCCL_IB_TC"
_MAX_TRAFFIC_CLASS: Final = 255
_ECT_0: Final = 2
"""ECN-capable: a switch marks such packets in place of dropping them."""


def judge(situation: Situation) -> Iterator[Item]:
    lossless = situation.lossless_priorities
    if not lossless or not situation.environment_known:
        return
    given = situation.environment.get(_NAME)
    traffic_class = _number(given)
    if traffic_class is None or priority_of(traffic_class) in lossless:
        return
    best = max(lossless - {0}, key=lambda priority: -abs(priority - 3), default=0)
    apply, revert = variable(_NAME, given, str(class_for(best)))
    listed = ", ".join(map(str, sorted(lossless)))
    yield Item(
        target="nccl_env",
        key=_NAME,
        current=given if given is not None else "0 (default)",
        recommended=str(class_for(best)),
        reason=f"its packets have priority {priority_of(traffic_class)}, and the RoCE ports have flow control for "
        f"{listed}: full buffers drop them",
        evidence=(f"priority flow control: {listed}", f"DSCP {traffic_class >> 2}"),
        gain=Gain("rule", None, 1.0, None),
        risk="The switches must map the same DSCP to the same priority: ask who runs the network.",
        apply=apply,
        revert=revert,
        commands=(apply,),
        source=SOURCE,
    )


def priority_of(traffic_class: int) -> int:
    """Returns the priority, 0 to 7, that a port with trust in DSCP gives to a traffic class, by the usual mapping."""
    return traffic_class >> 5


def class_for(priority: int) -> int:
    """Returns the traffic class for a priority: its DSCP is 8 times the priority and 2, with ECN. 3: 106."""
    return (8 * priority + 2) << 2 | _ECT_0


def _number(given: str | None) -> int | None:
    """Returns NCCL_IB_TC; where it is not set, or -1, the 0 that NCCL then takes. None: no traffic class."""
    if given is None or given.strip() == "-1":
        return 0
    text = given.strip()
    return int(text) if text.isdecimal() and int(text) <= _MAX_TRAFFIC_CLASS else None


RULE = Rule("traffic_class", judge, SOURCE, "NCCL 2.1.15 and newer")
