"""Finds GPUs beside which a NIC is missing: the node's other GPUs have one behind the same kind of bridge. Pure.

A board is built alike for all its GPUs: one NIC behind each GPU's switch, or one for two GPUs. Where a place has fewer
than the others, a NIC is gone, or was never put in.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

_MIN_PLACES: Final = 3
"""The fewest places that show how a board is built: of two that differ, neither is the usual one."""


class Hole(NamedTuple):
    """A place with fewer NICs than the others: the PCIe bridge above it, its GPUs, and how many NICs it has and the
    others have."""

    bridge: str
    gpus: tuple[str, ...]
    nics: int
    usual: int


Path = Sequence[str]
"""The addresses of the bridges above a device, from the root port on, and its own."""


def holes(gpu_paths: Sequence[Path], nic_paths: Sequence[Path]) -> tuple[Hole, ...]:
    """The places that lack a NIC; none where the places do not show how the board is built. `nic_paths`: those of one
    model. Most places have to agree, so that at most a third are holes."""
    depth = _usual_depth(gpu_paths, nic_paths)
    if not depth:
        return ()
    places: dict[tuple[str, ...], list[str]] = {}
    for path in gpu_paths:
        places.setdefault(tuple(path[:depth]), []).append(path[-1])
    nics = Counter(tuple(path[:depth]) for path in nic_paths)
    usual, agreeing = Counter((len(gpus), nics[place]) for place, gpus in places.items()).most_common(1)[0]
    if len(places) < _MIN_PLACES or 3 * agreeing < 2 * len(places):
        return ()
    return tuple(
        Hole(place[-1], tuple(gpus), nics[place], usual[1])
        for place, gpus in places.items()
        if len(gpus) == usual[0] and nics[place] < usual[1]
    )


def _usual_depth(gpu_paths: Sequence[Path], nic_paths: Sequence[Path]) -> int:
    """How many bridges most GPUs share with their nearest NIC; 0 where most share none."""
    depths = Counter(max((_shared(gpu, nic) for nic in nic_paths), default=0) for gpu in gpu_paths)
    depth, gpus = depths.most_common(1)[0] if depths else (0, 0)
    return depth if 2 * gpus > len(gpu_paths) else 0


def _shared(one: Path, other: Path) -> int:
    count = 0
    for left, right in zip(one[:-1], other[:-1], strict=False):
        if left != right:
            break
        count += 1
    return count


def by_root(address: str, roots: Mapping[str, Sequence[int]]) -> tuple[str, int] | None:
    """The domain and the first bus of the PCI host bridge below which `address` is; None where no root is known.
    `roots`: the first buses of the host bridges, by domain. Each has the buses up to the next one."""
    domain, bus = address.split(":")[:2]
    below = [first for first in roots.get(domain, ()) if first <= int(bus, 16)]
    return (domain, max(below)) if below else None
