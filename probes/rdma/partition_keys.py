"""RDMA_PKEY_MISSING: an InfiniBand port without a partition key that the ports of most GPUs have.

The subnet manager writes the keys into each port. A job names one (NCCL_IB_PKEY, a virtual interface), and a rank whose
port lacks it reaches nobody.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Final

from laggard.model import Finding
from laggard.probes.errors import NotApplicable, Unreadable, if_present
from laggard.probes.host.counter_history import SaveCounters
from laggard.probes.host.host import Host
from laggard.probes.probe import RDMA, Fact, Probe
from laggard.probes.rdma.model.sysfs import Port, RdmaThresholds, gpu_paths, nearest_ports, read_ports
from laggard.probes.rows import Row, Wanted, judge

_FEWEST: Final = 3
"""The fewest GPUs that show what is usual: of two that differ, neither is."""

_GAP: Final = 4
"""The empty places behind which no key is looked for: each is a question to the adapter's firmware, and a subnet
manager fills the table from its beginning."""


def check(host: Host, thresholds: RdmaThresholds) -> Iterator[Finding | Fact | SaveCounters | Unreadable]:
    keys = _keys_by_port(host, thresholds.ignore)
    if not keys:
        raise NotApplicable("no active InfiniBand port beside a GPU")
    yield Fact("keys", sorted({key for found in keys.values() for key in found}))
    counts = Counter(key for found in keys.values() for key in found)
    usual = frozenset(key for key, count in counts.items() if 2 * count > len(keys) >= _FEWEST)
    there = {name: len(found & usual) for name, found in keys.items()}
    wanted = {name: Wanted(len(usual)) for name in keys}
    yield from judge(host, _KEYS._replace(there=lambda host, items: there, wanted=lambda host: wanted))


def _keys_by_port(host: Host, ignore: tuple[str, ...]) -> Mapping[str, frozenset[str]]:
    """The keys of the ports that are nearest to a GPU, by the names of these ports. A storage port may be as near as
    the GPU's own and have keys of its own: what one of them has is there."""
    ports = [port for port in read_ports(host, ignore).ports if port.active and port.kind.link_layer == "InfiniBand"]
    groups = {near for path in gpu_paths(host) if (near := nearest_ports(path, ports))}
    return {
        ", ".join(port.name for port in near): frozenset(key for port in near for key in _keys(host, port))
        for near in sorted(groups)
    }


def _keys(host: Host, port: Port) -> Iterator[str]:
    """The port's keys, with the bit of a full member (0x8000), as /sys writes them."""
    place, empty = 0, 0
    while empty < _GAP:
        key = (if_present(host.read, f"{port.folder}/pkeys/{place}") or "").strip()
        place, empty = place + 1, empty + 1 if key in ("", "0x0000") else 0
        if not empty:
            yield key


def _lacks(there: int, wanted: int) -> str:
    return f"has {there} of the {wanted} partition keys that the ports of most GPUs have"


_KEYS: Final = Row(
    "partition keys",
    "RDMA_PKEY_MISSING",
    lambda host, items: {},
    _lacks,
    "Put the port's GUID into the partition (partitions.conf of OpenSM, UFM): the subnet manager then writes its keys.",
    ("head /sys/class/infiniband/*/ports/1/pkeys/[0-3]", "ibstat", "smpquery pkeys -D 0"),
)

PROBE: Final = Probe("rdma_pkeys", check, RdmaThresholds(), group=RDMA)
