"""All-reduces in the latency regime between nodes: more channels do not help there, fewer steps do."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from laggard.recommend.advice.rule import Rule
from laggard.recommend.advice.situation import Situation
from laggard.recommend.advice.values import Gain, Item
from laggard.recommend.small_reductions import TwoLevels, best_speedup, is_latency_bound

SOURCE: Final = (
    "NVRAR (arXiv 2511.09557): 1.9 to 3.6 times less latency for 128 KB to 2 MB; alpha-beta with 10 us and "
    "25 GB/s between nodes"
)
_MIN_EXPOSED: Final = 0.05


def judge(situation: Situation) -> Iterator[Item]:
    profile, nodes, ranks = situation.profile, situation.nodes, situation.ranks
    if profile is None or not nodes or not ranks or "all_reduce" not in profile.collectives:
        return
    times, size = profile.collectives["all_reduce"]
    exposed = profile.exposed_share or 0.0
    if not is_latency_bound(size, nodes) or exposed < _MIN_EXPOSED:
        return
    speedup = best_speedup(size, TwoLevels(nodes, max(1, ranks // nodes)))
    saved = exposed * (1 - 1 / max(1.0, speedup))
    yield Item(
        target="launcher",
        key="all-reduce of small messages",
        current="NCCL",
        recommended="larger messages (buckets, fused parameters); else a hierarchical all-reduce (NVRAR, MSCCL++)",
        reason=f"all-reduces of {size / 1e3:.0f} KB between nodes take as long as their steps, whatever the bandwidth",
        evidence=(f"{times:.0f} all-reduces a step, {size / 1e3:.0f} KB on average", f"{exposed:.0%} of a step"),
        gain=Gain("modelled", 1 / (1 - saved), 1.0, 1 / (1 - exposed * (1 - 1 / 3.6))),
        risk="Other libraries have their own limits: measure, with results checked.",
        apply="Raise bucket_cap_mb (DDP) or the bucket sizes (DeepSpeed); tune tree with ll128 for these sizes.",
        revert="the sizes as they were",
        source=SOURCE,
    )


RULE = Rule("small_messages", judge, SOURCE)
