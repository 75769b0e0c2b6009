"""The GID table of a RoCE port: which address, of which RoCE version, is at which index."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

import msgspec

from laggard.kit.words import lazy_pattern
from laggard.probes.errors import Unknown, Unreadable, if_present
from laggard.probes.host.host import Host
from laggard.probes.rdma.model.sysfs import Netdev, Port, netdev_name, read_netdev

V2: Final = "RoCE v2"  # gid_attrs/types/N; the other is "IB/RoCE v1" (sysfs-class-infiniband)
_MAX_ENTRIES: Final = 64
_GAP: Final = 8
"""The number of empty entries after which the search ends: tables have 256 entries and are filled from the start."""
_GID = lazy_pattern(r"[0-9a-f]{4}(?::[0-9a-f]{4}){7}")


class Gid(msgspec.Struct, frozen=True):
    number: int  # its index in the table
    address: int  # 128 bits, as in IPv6
    type: str

    @property
    def scope(self) -> str:
        if self.address >> 32 == 0xFFFF:  # ::ffff:0:0/96, an IPv4 address (RFC 4291)
            return "ipv4"
        return "link-local" if self.address >> 118 == 0xFE80 >> 6 else "global"

    @property
    def routable(self) -> bool:
        """Whether peers outside the port's own network segment can be reached with it. NCCL prefers such entries."""
        return self.type == V2 and self.scope != "link-local"


def parse_gid(text: str) -> int | None:
    """Parses `0000:0000:0000:0000:0000:ffff:0a64:0011`; None where the text is no GID."""
    text = text.strip().lower()
    return int(text.replace(":", ""), 16) if _GID.fullmatch(text) else None


def read_gids(host: Host, port: Port) -> tuple[Gid, ...]:
    """Returns the entries in use. Raises Unknown where the table cannot be read."""
    found: list[Gid] = []
    empty = 0
    for index in range(_MAX_ENTRIES):
        path = f"{port.folder}/gids/{index}"
        text = if_present(host.read, path) if index else host.read(path)
        if text is None:
            break
        address = parse_gid(text)
        if address is None:
            raise Unknown(f"{path} is no GID: {text[:40]!r}")
        if address == 0:
            empty += 1
            if empty == _GAP:
                break
            continue
        empty = 0
        gid_type = _type(host, port, index)
        if gid_type:
            found.append(Gid(index, address, gid_type))
    return tuple(found)


def preferred_gid(gids: Iterable[Gid]) -> Gid | None:
    """Returns the entry that NCCL chooses: IPv4 before global IPv6 (NCCL_IB_ADDR_FAMILY is AF_INET by default)."""
    routable = [gid for gid in gids if gid.routable]
    return min(routable, key=lambda gid: (gid.scope != "ipv4", gid.number), default=None)


def _type(host: Host, port: Port, index: int) -> str:
    """Returns the type; empty for an entry that was removed meanwhile, for which the kernel answers EINVAL."""
    path = f"{port.folder}/gid_attrs/types/{index}"
    return host.text(path) if index else host.read(path).strip()


class PortNetwork(NamedTuple):
    port: Port
    netdev: Netdev | None
    gids: tuple[Gid, ...] | None
    """None: not read, or no active RoCE port."""

    unreadable: tuple[Unreadable, ...]


def read_port_network(host: Host, port: Port) -> PortNetwork:
    netdev, gids = None, None
    unreadable: list[Unreadable] = []
    roce = port.ethernet and port.active
    try:
        name = netdev_name(host, port)
        if not name and roce:
            raise Unknown(f"the network device of {port.name} is not known, or is in another network namespace")
        netdev = read_netdev(host, name) if name else None
    except Unknown as error:
        unreadable.append(Unreadable(str(error)))
    if roce:
        try:
            gids = read_gids(host, port)
        except Unknown as error:
            unreadable.append(Unreadable(str(error)))
    return PortNetwork(port, netdev, gids, tuple(unreadable))
