"""Two small servers: `plain` has neither GPU nor RDMA NIC, `one_nic` is the same with one ConnectX-7 for RoCE."""

from support.archive import Tree
from support.config_space import ROOT_PORT, Device, Link
from support.host_files import host_files
from support.nic import Nic, add_netdev, add_nic
from support.pci_tree import PciTree

_NODES = {0: "0-15"}
_MODULES = ("nvme", "igb", "xfs")
_CMDLINE = "BOOT_IMAGE=/vmlinuz-5.15.0-113-generic root=/dev/mapper/system-root ro quiet"
_HOST_BRIDGE = Device(0x8086, 0x9B33, 0x060000)
_NVME = Device(0x144D, 0xA80A, 0x010802, link=Link("8.0", 4, "16.0"))  # a drive in an older slot, which is no fault
_GIGABIT = Device(0x8086, 0x1533, 0x020000, link=Link("2.5", 1))
CONNECTX7 = Device(
    0x15B3, 0x1021, 0x020000, link=Link("32.0", 16), subsystem=(0x15B3, 0x0023), read_request=4096, ats=False
)


def plain() -> Tree:
    return _server(_MODULES).files


def one_nic() -> Tree:
    pci = _server((*_MODULES, "mlx5_core", "mlx5_ib", "ib_uverbs", "ib_core", "rdma_cm"))
    pci.add("0000:00:01.0", _port(Link("32.0", 16)), secondary=(3, 3), driver="pcieport")
    pci.add("0000:03:00.0", CONNECTX7, parent="0000:00:01.0", driver="mlx5_core")
    add_nic(pci, Nic("0000:03:00.0", "mlx5_0", "enp3s0np0", 0, "10.40.0.17"))
    pci.files["/dev/infiniband/rdma_cm"] = ""
    return pci.files


def _server(modules: tuple[str, ...]) -> PciTree:
    pci = PciTree(_NODES)
    pci.files.update(host_files(_CMDLINE, _NODES, 128, modules))
    pci.add("0000:00:00.0", _HOST_BRIDGE)
    pci.add("0000:00:1c.0", _port(Link("8.0", 4)), secondary=(1, 1), driver="pcieport")
    pci.add("0000:00:1c.4", _port(Link("2.5", 1, "8.0")), secondary=(2, 2), driver="pcieport")
    pci.add("0000:01:00.0", _NVME, parent="0000:00:1c.0", driver="nvme")
    pci.add("0000:02:00.0", _GIGABIT, parent="0000:00:1c.4", driver="igb")
    pci.files["/sys/devices/pci0000:00/0000:00:1c.0/0000:01:00.0/nvme/nvme0/model"] = "SAMSUNG MZ1L2960HCJR\n"
    add_netdev(pci, "0000:02:00.0", "eth0", "3c:ec:ef:00:00:02", 1000)
    return pci


def _port(link: Link) -> Device:
    return Device(0x8086, 0xA33C, 0x060400, ROOT_PORT, link, max_payload=256, acs=(0x0F, 0))
