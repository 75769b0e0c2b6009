"""The RDMA ports of a node: which are peers, and which carry the training job's traffic. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from laggard.probes.rdma.model.port import Port, PortKind


class NodePorts(NamedTuple):
    """The ports of a node that are judged. `compute_kind` is the kind that its GPUs use; a port of another kind
    (storage, management) may be unused, slow or without an address, and nothing is wrong."""

    ports: tuple[Port, ...]
    compute_kind: PortKind | None
    gpus: int  # 0: none, or not known

    def of_kind(self, kind: PortKind) -> tuple[Port, ...]:
        return tuple(port for port in self.ports if port.kind == kind)

    def kinds(self) -> tuple[PortKind, ...]:
        return tuple(dict.fromkeys(port.kind for port in self.ports))


def node_ports(ports: Iterable[Port], gpu_paths: Sequence[Sequence[str]]) -> NodePorts:
    """Leaves out the virtual functions of guests and finds the compute kind. `gpu_paths`: see sysfs.pci_path()."""
    judged = tuple(port for port in ports if not port.virtual_function)
    return NodePorts(judged, _compute_kind(judged, gpu_paths), len(gpu_paths))


def nearest_ports(gpu_path: Sequence[str], ports: Iterable[Port]) -> tuple[Port, ...]:
    """Returns the ports that share the most PCIe bridges with a GPU, and at least one bridge."""
    shared = [(_shared_bridges(gpu_path, port.path), port) for port in ports]
    most = max((count for count, _ in shared), default=0)
    return tuple(port for count, port in shared if count == most) if most else ()


def _shared_bridges(one: Sequence[str], other: Sequence[str]) -> int:
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
