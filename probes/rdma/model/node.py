"""The ports of a node as its GPUs need them: which kind of port is theirs, and which are beside them. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec

from laggard.probes.rdma.model.sysfs import Port, PortKind


class NodePorts(msgspec.Struct, frozen=True):
    """The ports of a node that are judged. `compute_kind` is the kind that its GPUs use; a port of another kind
    (storage, management) may be unused, slow or without an address, and nothing is wrong."""

    ports: tuple[Port, ...]
    compute_kind: PortKind | None
    gpus: int  # 0: none, or not known
    needed: frozenset[str] | None = None  # names of the ports that GPUs need by their places; None: these do not tell

    def of_kind(self, kind: PortKind) -> tuple[Port, ...]:
        return tuple(port for port in self.ports if port.kind == kind)

    def may_serve(self, port: Port) -> bool:
        """Whether GPUs need the port, or may need it."""
        return port.kind == self.compute_kind and (self.needed is None or port.name in self.needed)

    def kinds(self) -> tuple[PortKind, ...]:
        return tuple(dict.fromkeys(port.kind for port in self.ports))


def node_ports(ports: Iterable[Port], gpu_paths: Sequence[Sequence[str]]) -> NodePorts:
    """Leaves out the virtual functions of guests and finds the compute kind. `gpu_paths`: see sysfs.pci_path()."""
    judged = tuple(port for port in ports if not port.virtual_function)
    kind = _compute_kind(judged, gpu_paths)
    needed = _needed([port for port in judged if port.kind == kind], gpu_paths)
    return NodePorts(judged, kind, len(gpu_paths), needed)


def _needed(ports: Sequence[Port], gpu_paths: Sequence[Sequence[str]]) -> frozenset[str] | None:
    """The names of the ports of one kind that the GPUs need. A board has the same number of ports beside each GPU, or
    beside each few: where a place has more, the others are for something else. Those are needed that are in the slots
    which the ports have elsewhere (the switches of a board are wired alike), else as many as are usual, whichever. None
    where more than a third of the GPUs have none beside them, or all have the same, as in a virtual machine."""
    places = Counter(nearest_ports(path, ports) for path in gpu_paths)
    if 3 * places.pop((), 0) > len(gpu_paths) or len(places) < 2:
        return None
    numbers = {gpus: Counter(len(near) for near, count in places.items() if count == gpus) for gpus in places.values()}
    usual = {gpus: min(found, key=lambda number: (-found[number], number)) for gpus, found in numbers.items()}
    slots = {_slot(port) for near, gpus in places.items() if len(near) == usual[gpus] for port in near}
    needed: set[str] = set()
    for near, gpus in places.items():
        chosen = [port for port in near if _slot(port) in slots] if len(near) > usual[gpus] else near
        if len(chosen) != usual[gpus] and sum(port.active for port in near) >= usual[gpus]:
            chosen = [port for port in near if port.active]
        needed.update(port.name for port in chosen)
    return frozenset(needed)


def _slot(port: Port) -> str:
    """The device and function number of the bridge above the port, which a switch's position gives it."""
    return port.path[-2].rpartition(":")[2]


def nearest_ports(gpu_path: Sequence[str], ports: Iterable[Port]) -> tuple[Port, ...]:
    """Returns the ports that share the most PCIe bridges with a GPU, and at least one bridge."""
    shared = [(shared_bridges(gpu_path, port.path), port) for port in ports]
    most = max((count for count, _ in shared), default=0)
    return tuple(port for count, port in shared if count == most) if most else ()


def shared_bridges(one: Sequence[str], other: Sequence[str]) -> int:
    """How many bridges two devices share, by the addresses above them from the root on."""
    count = 0
    for left, right in zip(one[:-1], other[:-1], strict=False):
        if left != right:
            break
        count += 1
    return count


def _compute_kind(ports: Sequence[Port], gpu_paths: Sequence[Sequence[str]]) -> PortKind | None:
    """Returns the kind that is nearest to the most GPUs; between equals InfiniBand before Ethernet, then the most
    bandwidth. A port that is down counts with the rate of the fastest active port of its kind."""
    near: Counter[PortKind] = Counter()
    for path in gpu_paths:
        near.update({port.kind for port in nearest_ports(path, ports)})
    counts = Counter(port.kind for port in ports)

    def weight(kind: PortKind) -> tuple[int, bool, float, int]:
        rate = max((port.rate_gigabits for port in ports if port.kind == kind and port.active), default=0.0)
        return near[kind], kind.link_layer == "InfiniBand", rate * counts[kind], counts[kind]

    return max(counts, key=weight) if counts else None
