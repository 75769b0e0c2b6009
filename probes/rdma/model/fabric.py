"""Which RDMA ports are peers, and which carry the training job's traffic. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from laggard.probes.rdma.model.port import Kind, Port


class Fabric(NamedTuple):
    """The judged ports of a node. `compute` is the kind that its GPUs use; a port of another kind (storage,
    management) may be unused, slow or without an address and nothing is wrong."""

    ports: tuple[Port, ...]
    compute: Kind | None
    gpus: int  # 0: none, or not known

    def of(self, kind: Kind) -> tuple[Port, ...]:
        return tuple(port for port in self.ports if port.kind == kind)

    def kinds(self) -> tuple[Kind, ...]:
        return tuple(dict.fromkeys(port.kind for port in self.ports))


def fabric(ports: Iterable[Port], gpu_paths: Sequence[Sequence[str]]) -> Fabric:
    """Without guests' virtual functions. `gpu_paths`: see rdma.pci_path."""
    judged = tuple(port for port in ports if not port.virtual_function)
    return Fabric(judged, _compute_kind(judged, gpu_paths), len(gpu_paths))


def nearest(gpu: Sequence[str], ports: Iterable[Port]) -> tuple[Port, ...]:
    """The ports that share the most PCIe bridges with a GPU, at least one."""
    shared = [(_shared(gpu, port.path), port) for port in ports]
    most = max((count for count, _ in shared), default=0)
    return tuple(port for count, port in shared if count == most) if most else ()


def _shared(one: Sequence[str], other: Sequence[str]) -> int:
    count = 0
    for left, right in zip(one[:-1], other[:-1], strict=False):
        if left != right:
            break
        count += 1
    return count


def _compute_kind(ports: Sequence[Port], gpu_paths: Sequence[Sequence[str]]) -> Kind | None:
    """The kind that is nearest to the most GPUs; where that says nothing, InfiniBand before Ethernet, then the most
    bandwidth. Ports that are down count with the rate of the best of their kind."""
    near: Counter[Kind] = Counter()
    for path in gpu_paths:
        near.update({port.kind for port in nearest(path, ports)})
    counts = Counter(port.kind for port in ports)

    def weight(kind: Kind) -> tuple[int, bool, float, int]:
        rate = max((port.rate_gigabits for port in ports if port.kind == kind and port.active), default=0.0)
        return near[kind], kind.link_layer == "InfiniBand", rate * counts[kind], counts[kind]

    return max(counts, key=weight) if counts else None
