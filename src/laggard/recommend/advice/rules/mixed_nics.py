"""Nodes with NICs of different kinds: data-parallel groups belong on one kind, pipeline borders between kinds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from laggard.recommend.advice.placement import mixed_groups, place
from laggard.recommend.advice.rule import Rule
from laggard.recommend.advice.situation import Situation
from laggard.recommend.advice.values import Gain, Item

SOURCE: Final = "Holmes, distributed training across clusters with heterogeneous NICs (arXiv 2312.03549)"


def judge(situation: Situation) -> Iterator[Item]:
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
        source=SOURCE,
    )


RULE = Rule("mixed_nics", judge, SOURCE)
