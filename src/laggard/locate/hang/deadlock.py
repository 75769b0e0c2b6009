"""Finds ranks that wait for one another. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Set


def ranks_in_cycles(waits_for: Mapping[int, Set[int]]) -> frozenset[int]:
    """The ranks on a cycle of the wait-for graph or on a path between two cycles; empty where there is no cycle.

    `waits_for` maps each rank that waits to all ranks that it waits for. Kahn's elimination, from both ends: first
    the ranks from which no cycle can be reached go, then those that cannot be reached from a cycle.
    """
    forward = {rank: set(others) & waits_for.keys() for rank, others in waits_for.items()}
    before_cycles = _without_dead_ends(forward)
    backward: dict[int, set[int]] = {rank: set() for rank in before_cycles}
    for rank in before_cycles:
        for other in forward[rank] & before_cycles:
            backward[other].add(rank)
    return frozenset(_without_dead_ends(backward))


def _without_dead_ends(graph: Mapping[int, Set[int]]) -> set[int]:
    """The nodes from which a path never ends. Linear in the edges: thousands of ranks may wait in a row."""
    edges_left = {node: len(others) for node, others in graph.items()}
    predecessors: dict[int, list[int]] = {}
    for node, others in graph.items():
        for other in others:
            predecessors.setdefault(other, []).append(node)
    dead_ends = [node for node, count in edges_left.items() if not count]
    while dead_ends:
        end = dead_ends.pop()
        del edges_left[end]
        for node in predecessors.get(end, ()):
            edges_left[node] -= 1
            if not edges_left[node]:
                dead_ends.append(node)
    return set(edges_left)
