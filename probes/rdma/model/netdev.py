"""The network device behind an RDMA port, as /sys/class/net shows it."""

from __future__ import annotations

from typing import Final, NamedTuple

from laggard.probes.errors import NotFound, Unknown
from laggard.probes.host.host import Host
from laggard.probes.rdma.model.port import RDMA, Port
from laggard.probes.rdma.model.sysfs import read_if_present

NET: Final = "/sys/class/net"
_IFF_UP: Final = 1
_HEADER_BYTES: Final = 96
"""The bytes that the kernel subtracts from an Ethernet MTU for RoCE: GRH 40, UDP 8, BTH 12, XRC 4, AtomicETH 28, ICRC 4
(iboe_get_mtu in include/rdma/ib_addr.h)."""
_IB_MTUS: Final = (4096, 2048, 1024, 512, 256)


class Netdev(NamedTuple):
    name: str
    operstate: str
    admin_up: bool
    mtu: int


def roce_path_mtu(mtu: int) -> int:
    """Returns the RoCE path MTU, in bytes, that an Ethernet MTU leaves room for; 0: none. It is computed as in the
    kernel, because the verbs' active_mtu is in no file of sysfs."""
    return next((size for size in _IB_MTUS if mtu - _HEADER_BYTES >= size), 0)


def netdev_name(host: Host, port: Port) -> str:
    """Returns the port's network device; empty where it has none. Raises Unknown where it cannot be read."""
    try:
        return host.read(f"{port.folder}/gid_attrs/ndevs/0").strip()
    except Unknown:  # no entry (InfiniBand), or an empty one, which reads as EINVAL
        pass
    try:
        names = host.entries(f"{RDMA}/{port.device}/device/net")
    except NotFound:
        return ""
    matching = [name for name in names if _dev_port(host, name) == port.number - 1]
    return matching[0] if matching else names[0] if len(names) == 1 else ""


def read_netdev(host: Host, name: str) -> Netdev:
    folder = f"{NET}/{name}"
    texts = {key: host.read(f"{folder}/{key}").strip() for key in ("operstate", "mtu")}
    if not texts["mtu"].isdecimal():
        raise Unknown(f"{folder}/mtu is no number: {texts['mtu'][:20]!r}")
    up = _admin_up(read_if_present(host, f"{folder}/flags"))
    return Netdev(name, texts["operstate"], up, int(texts["mtu"]))


def _admin_up(flags: str) -> bool:
    """Returns False only where the flags were read: to report that somebody set the device down is an accusation."""
    try:
        return bool(int(flags, 16) & _IFF_UP)
    except ValueError:
        return True


def has_been_up(host: Host, port: Port) -> bool:
    """Returns whether the port has had a link since its driver started: then it is cabled and no spare port."""
    try:
        name = netdev_name(host, port)
        ups = read_if_present(host, f"{NET}/{name}/carrier_up_count") if name else ""
        downs = read_if_present(host, f"{port.folder}/counters/link_downed")
    except Unknown:
        return False
    return any(text.isdecimal() and int(text) > 0 for text in (ups, downs))


def _dev_port(host: Host, name: str) -> int:
    try:
        return int(read_if_present(host, f"{NET}/{name}/dev_port") or 0)
    except (Unknown, ValueError):
        return 0
