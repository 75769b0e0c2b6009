"""Models how long a transfer takes once all members came: a latency and bytes over bandwidth, in a node and between."""

import math
from typing import NamedTuple

from simulator.layout import Group, Layout

NVLINK_BYTES_PER_SECOND = 300e9  # busbw of a node's all_reduce with nccl-tests on HGX H100, in round figures
NIC_BYTES_PER_SECOND = 40e9  # of 50 GB/s, one NDR port a GPU
HOP_SECONDS = {True: 4e-6, False: 12e-6}  # one hop in a node, and between nodes

# Bytes over a ring's slowest edge for one byte of size, as nccl-tests defines busbw from algbw.
FACTORS = {
    "all_reduce": lambda n: 2 * (n - 1) / n,
    "reduce_scatter": lambda n: (n - 1) / n,
    "all_gather": lambda n: (n - 1) / n,
    "all_to_all": lambda n: (n - 1) / n,
    "broadcast": lambda n: 1.0,
    "send": lambda n: 1.0,
}


class Transfer(NamedTuple):
    """Seconds of one transfer: `latency + max(inside, between)`, the last two the parts in nodes and between them."""

    latency: float
    inside: float
    between: float


def transfer(layout: Layout, op: str, ranks: tuple[int, ...], size: float) -> Transfer:
    """Returns what one `op` of `size` bytes takes among `ranks`. Between nodes every member drives its own NIC, so that
    k members on a node have k times one NIC's bandwidth (NCCL's channels are spread over the NICs)."""
    members: dict[int, list[int]] = {}
    for rank in ranks:
        members.setdefault(layout.node(rank), []).append(rank)
    moved = size * FACTORS[op](len(ranks))
    fewest = min(len({layout.nic(rank) for rank in local}) for local in members.values())
    hops = math.ceil(math.log2(len(ranks))) * (2 if op == "all_reduce" else 1)
    return Transfer(
        latency=hops * HOP_SECONDS[len(members) == 1],
        inside=moved / NVLINK_BYTES_PER_SECOND if any(len(local) > 1 for local in members.values()) else 0.0,
        between=moved / (NIC_BYTES_PER_SECOND * fewest) if len(members) > 1 else 0.0,
    )


def nics_used(layout: Layout, ranks: tuple[int, ...]) -> frozenset[tuple[int, int]]:
    """Returns the NICs through which these ranks speak with each other; empty where they share a node."""
    if len({layout.node(rank) for rank in ranks}) == 1:
        return frozenset()
    return frozenset(layout.nic(rank) for rank in ranks)


def uses_link(layout: Layout, group: Group, op: str, link: tuple[tuple[int, int], tuple[int, int]]) -> bool:
    """Tells whether a transfer of this group goes over the way between two NICs of different nodes: a ring passes from
    one node to the next in the order of ranks, on each rail; an all_to_all goes over every way."""
    used = nics_used(layout, group.ranks)
    if link[0] not in used or link[1] not in used:
        return False
    if op in ("all_to_all", "send"):
        return True
    nodes = sorted({node for node, _ in used})
    places = sorted(nodes.index(node) for node, _ in link)
    return link[0][1] == link[1][1] and (places[1] - places[0]) in (1, len(nodes) - 1)
