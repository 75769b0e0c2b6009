"""The advice about a job's settings of the network: RoCE's traffic class and queue pairs, and nodes with NICs of
different kinds.

Holmes (arXiv 2312.03549) keeps each data-parallel group on nodes with NICs of one kind, and lets pipeline stages meet
at the border between kinds: data parallelism moves all gradients, a pipeline only activations.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from laggard.recommend.advice.situation import Situation, variable_item
from laggard.recommend.advice.values import Gain, Item

TRAFFIC_CLASS_SOURCE: Final = (
    "NCCL's user guide, NCCL_IB_TC and troubleshooting (RoCE); RFC 2474 and RFC 3168: the byte is DSCP and ECN; "
    "mlnx_qos: with trust in DSCP the priority is DSCP / 8"
)
_TRAFFIC_CLASS_NAME: Final = "NCCL_IB_TC"
_MAX_TRAFFIC_CLASS: Final = 255
_ECT_0: Final = 2
"""ECN-capable: a switch marks such packets in place of dropping them."""


def judge_traffic_class(situation: Situation) -> Iterator[Item]:
    """It holds for NCCL 2.1.15 and newer."""
    lossless = situation.lossless_priorities
    if not lossless or not situation.environment_known:
        return
    given = situation.environment.get(_TRAFFIC_CLASS_NAME)
    traffic_class = _number(given)
    if traffic_class is None or priority_of(traffic_class) in lossless:
        return
    best = max(lossless - {0}, key=lambda priority: -abs(priority - 3), default=0)
    listed = ", ".join(map(str, sorted(lossless)))
    yield variable_item(
        _TRAFFIC_CLASS_NAME,
        given,
        str(class_for(best)),
        "0 (default)",
        reason=f"its packets have priority {priority_of(traffic_class)}, and the RoCE ports have flow control for "
        f"{listed}: full buffers drop them",
        evidence=(f"priority flow control: {listed}", f"DSCP {traffic_class >> 2}"),
        gain=Gain("rule", None, 1.0, None),
        risk="The switches must map the same DSCP to the same priority: ask who runs the network.",
        source=TRAFFIC_CLASS_SOURCE,
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


QUEUE_PAIRS_SOURCE: Final = "NCCL's user guide, troubleshooting (RoCE); Meta, RDMA over Ethernet at scale, SIGCOMM 2024"
_QUEUE_PAIRS_NAME: Final = "NCCL_IB_QPS_PER_CONNECTION"
_RECOMMENDED: Final = "4"


def judge_queue_pairs(situation: Situation) -> Iterator[Item]:
    """It holds for NCCL 2.10 and newer."""
    roce = situation.link_layers == {"Ethernet"} and "IB" in situation.networks
    if (
        not roce
        or not situation.environment_known
        or _QUEUE_PAIRS_NAME in situation.environment
        or (situation.nodes or 0) < 2
    ):
        return
    yield variable_item(
        _QUEUE_PAIRS_NAME,
        None,
        _RECOMMENDED,
        "1 (default)",
        reason="one queue pair for a connection is one flow, and a switch keeps a flow on one of its paths",
        evidence=(f"RoCE on {situation.nodes} nodes",),
        gain=Gain("rule", None, 1.0, None),
        risk="More queue pairs cost small messages a little latency: measure with and without, alternately.",
        source=QUEUE_PAIRS_SOURCE,
    )


class Placement(NamedTuple):
    hosts: tuple[str, ...]
    """The hosts in the order of a hostfile: nodes of a kind follow one another."""
    kinds: tuple[tuple[str, int], ...]
    """Each kind with its number of nodes, in the same order: a border of the pipeline belongs between two of them."""


def mixed_groups(
    groups: Sequence[Sequence[int]], node_of_rank: Mapping[int, str], kind_of_node: Mapping[str, str]
) -> tuple[tuple[int, ...], ...]:
    """Returns the groups whose ranks are on nodes with NICs of different kinds. Nodes of unknown kind do not count."""
    return tuple(
        tuple(group)
        for group in groups
        if len({kind_of_node[node] for rank in group if (node := node_of_rank.get(rank, "")) in kind_of_node}) > 1
    )


def place(kind_of_node: Mapping[str, str]) -> Placement:
    """Returns the nodes sorted by kind, the kind of most nodes first."""
    counts: dict[str, int] = {}
    for kind in kind_of_node.values():
        counts[kind] = counts.get(kind, 0) + 1
    kinds = sorted(counts, key=lambda kind: (-counts[kind], kind))
    hosts = [node for kind in kinds for node in sorted(kind_of_node) if kind_of_node[node] == kind]
    return Placement(tuple(hosts), tuple((kind, counts[kind]) for kind in kinds))


MIXED_NICS_SOURCE: Final = "Holmes, distributed training across clusters with heterogeneous NICs (arXiv 2312.03549)"


def judge_mixed_nics(situation: Situation) -> Iterator[Item]:
    if len(set(situation.kind_of_node.values())) < 2:
        return
    placement = place(situation.kind_of_node)
    mixed = mixed_groups(situation.data_parallel_groups, situation.node_of_rank, situation.kind_of_node)
    if situation.data_parallel_groups and not mixed:
        return
    kinds = ", ".join(f"{count} nodes with {kind}" for kind, count in placement.kinds)
    evidence = (kinds, *([f"{len(mixed)} data-parallel groups span kinds"] if mixed else []))
    yield Item(
        target="launcher",
        key="hostfile",
        current=None,
        recommended=list(placement.hosts),
        reason="a data-parallel group that spans kinds of NICs talks as the slowest way between them allows",
        evidence=evidence,
        gain=Gain("rule", None, 1.0, None),
        risk="It needs a pipeline with a border where the kinds change; without one, use the nodes of one kind.",
        apply="Start the job with the hosts in the order of the file hostfile.",
        revert="the hostfile as it was",
        source=MIXED_NICS_SOURCE,
    )
