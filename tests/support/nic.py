"""/sys/class/infiniband and /sys/class/net of an RDMA NIC, as mlx5 makes them, for made-up machines."""

import json
from typing import NamedTuple

from support.archive import Tree
from support.paths import TESTS
from support.pci_tree import PciTree

_CONSTANT: dict[str, dict[str, str]] = json.loads((TESTS / "data" / "host" / "nic.json").read_text())
"""Files that all NICs have alike, of the network device, the RDMA device and its port."""

_COUNTERS = (
    "VL15_dropped excessive_buffer_overrun_errors link_downed link_error_recovery local_link_integrity_errors "
    "multicast_rcv_packets multicast_xmit_packets port_rcv_constraint_errors port_rcv_data port_rcv_errors "
    "port_rcv_packets port_rcv_remote_physical_errors port_rcv_switch_relay_errors port_xmit_constraint_errors "
    "port_xmit_data port_xmit_discards port_xmit_packets port_xmit_wait symbol_error unicast_rcv_packets "
    "unicast_xmit_packets"
)
_HW_COUNTERS = (
    "duplicate_request implied_nak_seq_err local_ack_timeout_err np_cnp_sent np_ecn_marked_roce_packets "
    "out_of_buffer out_of_sequence packet_seq_err req_cqe_error req_cqe_flush_error req_remote_access_errors "
    "req_remote_invalid_request resp_cqe_error resp_cqe_flush_error resp_local_length_error "
    "resp_remote_access_errors rnr_nak_retry_err roce_adp_retrans roce_adp_retrans_to roce_slow_restart "
    "roce_slow_restart_cnps roce_slow_restart_trans rp_cnp_handled rp_cnp_ignored rx_atomic_requests "
    "rx_dct_connect rx_icrc_encapsulated rx_read_requests rx_write_requests"
)
_BUSY = {
    "port_rcv_data": 205128687774249,
    "port_xmit_data": 230442669431839,
    "port_rcv_packets": 317548853677,
    "port_xmit_packets": 315487941081,
    "unicast_rcv_packets": 317548853677,
    "unicast_xmit_packets": 315487941081,
    "rx_write_requests": 3809045607,
    "rx_read_requests": 9187392,
}
_STATISTICS = (
    "collisions multicast rx_bytes rx_crc_errors rx_dropped rx_errors rx_fifo_errors rx_packets tx_bytes "
    "tx_carrier_errors tx_dropped tx_errors tx_fifo_errors tx_packets"
)


class Nic(NamedTuple):
    """An RDMA NIC with one RoCE port."""

    address: str  # of the PCI device
    name: str  # mlx5_0
    netdev: str
    number: int  # makes addresses differ
    ip: str
    rate: str = "400 Gb/sec (4X NDR)"
    megabits: int = 400000
    board: str = "MT_0000000838"
    type: str = "MT4129"
    firmware: str = "28.41.1000"


def add_nic(pci: PciTree, nic: Nic) -> None:
    folder = pci.folder(nic.address)
    rdma, net = f"{folder}/infiniband/{nic.name}", f"{folder}/net/{nic.netdev}"
    verbs = f"{folder}/infiniband_verbs/uverbs{nic.number}"
    _texts(pci.files, rdma, _device(nic))
    _texts(pci.files, f"{rdma}/ports/1", _port(nic))
    for kind, names in (("counters", _COUNTERS.split()), ("hw_counters", _HW_COUNTERS.split())):
        _texts(pci.files, f"{rdma}/ports/1/{kind}", {name: str(_BUSY.get(name, 0)) for name in names})
    pci.files[f"{rdma}/ports/1/hw_counters/lifespan"] = "12\n"
    _gids(pci.files, f"{rdma}/ports/1", nic)
    _texts(pci.files, verbs, {"ibdev": nic.name, "abi_version": "1", "dev": f"231:{192 + nic.number}"})
    pci.files[f"/dev/infiniband/uverbs{nic.number}"] = ""
    add_netdev(pci, nic.address, nic.netdev, _mac(nic), nic.megabits, mtu=9000, index=3 + nic.number)
    for parent, path, link in (
        ("infiniband", rdma, nic.name),
        ("infiniband_verbs", verbs, f"uverbs{nic.number}"),
    ):
        pci.link(f"/sys/class/{parent}/{link}", path)
        pci.link(f"{path}/device", folder)
    pci.link(f"{rdma}/subsystem", "/sys/class/infiniband")
    pci.link(f"{net}/subsystem", "/sys/class/net")


def add_netdev(pci: PciTree, address: str, name: str, mac: str, megabits: int, mtu: int = 1500, index: int = 2) -> None:
    folder = f"{pci.folder(address)}/net/{name}"
    own = {"address": mac, "ifindex": str(index), "mtu": str(mtu), "speed": str(megabits)}
    _texts(pci.files, folder, {**_CONSTANT["netdev"], **own})
    _texts(pci.files, f"{folder}/statistics", dict.fromkeys(_STATISTICS.split(), "0"))
    pci.link(f"{folder}/device", pci.folder(address))
    pci.link(f"/sys/class/net/{name}", folder)


def _device(nic: Nic) -> dict[str, str]:
    guid = f"a088:c203:00b8:{0xA0B0 + nic.number:04x}"
    named = {"board_id": nic.board, "fw_ver": nic.firmware, "hca_type": nic.type, "node_desc": nic.name}
    return {**_CONSTANT["device"], **named, "node_guid": guid, "sys_image_guid": guid}


def _port(nic: Nic) -> dict[str, str]:
    return {**_CONSTANT["port"], "rate": nic.rate}


def _gids(files: Tree, port: str, nic: Nic) -> None:
    """Adds the GID table: two types for each of two addresses, in the kernel's default order. Empty entries read as
    zeros, and their attributes cannot be read."""
    local = f"fe80:0000:0000:0000:a288:c2ff:feb8:{0xA0B0 + nic.number:04x}"
    parts = [int(part) for part in nic.ip.split(".")]
    mapped = f"0000:0000:0000:0000:0000:ffff:{parts[0]:02x}{parts[1]:02x}:{parts[2]:02x}{parts[3]:02x}"
    for index, gid in enumerate((local, local, mapped, mapped)):
        kind = "RoCE v2" if index % 2 else "IB/RoCE v1"
        _texts(
            files,
            port,
            {f"gids/{index}": gid, f"gid_attrs/types/{index}": kind, f"gid_attrs/ndevs/{index}": nic.netdev},
        )
    for index in range(4, 8):
        files[f"{port}/gids/{index}"] = ":".join(["0000"] * 8) + "\n"


def _mac(nic: Nic) -> str:
    return f"a0:88:c2:b8:a0:{0xB0 + nic.number:02x}"


def _texts(files: Tree, folder: str, texts: dict[str, str]) -> None:
    files.update({f"{folder}/{name}": f"{text}\n" for name, text in texts.items()})
