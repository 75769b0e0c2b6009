"""All-reduces that latency decides: more channels do not help there, fewer steps do. Which they are, and what
hierarchical algorithms do for them.

Between 128 KB and 2 MB across nodes NVRAR (arXiv 2511.09557) has 1.9 to 3.6 times less latency than NCCL: a
reduce-scatter inside the node, recursive doubling between nodes on a share of the data, an all-gather inside.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final, NamedTuple

from laggard.recommend.advice.situation import Situation
from laggard.recommend.advice.values import Gain, Item

MIN_BYTES: Final = 128 << 10
MAX_BYTES: Final = 2 << 20


class TwoLevels(NamedTuple):
    """A cluster for alpha-beta: latencies in seconds, bandwidths of a GPU in bytes per second."""

    nodes: int
    gpus_per_node: int
    node_latency: float = 2e-6
    node_bandwidth: float = 200e9
    network_latency: float = 10e-6
    network_bandwidth: float = 25e9


def is_latency_bound(size_bytes: float, nodes: int) -> bool:
    return nodes > 1 and MIN_BYTES <= size_bytes <= MAX_BYTES


def ring_seconds(size_bytes: float, cluster: TwoLevels) -> float:
    """Returns the time of a ring over all GPUs, whose steps go at the pace of the network."""
    ranks = cluster.nodes * cluster.gpus_per_node
    network_steps = 2 * (cluster.nodes - 1)
    node_steps = 2 * (ranks - 1) - network_steps
    latency = network_steps * cluster.network_latency + node_steps * cluster.node_latency
    bandwidth = cluster.network_bandwidth * cluster.gpus_per_node  # a ring for each NIC
    return latency + 2 * (ranks - 1) / ranks * size_bytes / bandwidth


def tree_seconds(size_bytes: float, cluster: TwoLevels) -> float:
    """Returns the time of a tree between nodes with a chain inside each."""
    hops = 2 * math.ceil(math.log2(max(2, cluster.nodes)))
    latency = hops * cluster.network_latency + 2 * (cluster.gpus_per_node - 1) * cluster.node_latency
    return latency + 2 * size_bytes / (cluster.network_bandwidth * cluster.gpus_per_node)


def recursive_doubling_seconds(size_bytes: float, cluster: TwoLevels) -> float:
    """Returns the time of reduce-scatter in the node, recursive doubling between nodes, all-gather in the node."""
    gpus = cluster.gpus_per_node
    inside = 2 * (gpus - 1) * cluster.node_latency + 2 * size_bytes * (gpus - 1) / (gpus * cluster.node_bandwidth)
    rounds = math.ceil(math.log2(max(2, cluster.nodes)))
    return inside + rounds * (cluster.network_latency + size_bytes / gpus / cluster.network_bandwidth)


def best_speedup(size_bytes: float, cluster: TwoLevels) -> float:
    """Returns how much faster recursive doubling is than the better of ring and tree."""
    nccl = min(ring_seconds(size_bytes, cluster), tree_seconds(size_bytes, cluster))
    return nccl / recursive_doubling_seconds(size_bytes, cluster)


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
        current="one ring or tree over all ranks",
        recommended="larger messages (buckets, fused parameters); else a hierarchical all-reduce (NVRAR, MSCCL++)",
        reason=f"all-reduces of {size / 1e3:.0f} KB between nodes take as long as their steps, whatever the bandwidth",
        evidence=(f"{times:.0f} all-reduces a step, {size / 1e3:.0f} KB on average", f"{exposed:.0%} of a step"),
        gain=Gain("modelled", 1 / (1 - saved), 1.0, 1 / (1 - exposed * (1 - 1 / 3.6))),
        risk="Other libraries have their own limits: measure, with results checked.",
        apply="Raise bucket_cap_mb (DDP) or the bucket sizes (DeepSpeed); tune tree with ll128 for these sizes.",
        revert="the sizes as they were",
        source=SOURCE,
    )
