"""An RDMA port with what gives it its packet size and addresses: its network device and its GID table."""

from __future__ import annotations

from typing import NamedTuple

from laggard.probes.errors import Unknown
from laggard.probes.host.host import Host
from laggard.probes.rdma.model.gid_table import Gid, read_gids
from laggard.probes.rdma.model.netdev import Netdev, netdev_name, read_netdev
from laggard.probes.rdma.model.port import Port
from laggard.probes.unreadable import Unreadable


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
        netdev = read_netdev(host, name) if name else None
        if not name and roce:
            text = f"the network device of {port.name} is not known, or is in another network namespace"
            unreadable.append(Unreadable(text))
    except Unknown as error:
        unreadable.append(Unreadable(str(error)))
    if roce:
        try:
            gids = read_gids(host, port)
        except Unknown as error:
            unreadable.append(Unreadable(str(error)))
    return PortNetwork(port, netdev, gids, tuple(unreadable))
