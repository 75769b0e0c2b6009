"""A healthy HGX H100 node: 8 GPUs and 8 ConnectX-7 for RoCE, each pair behind a PCIe switch of its own.

The tree, its device identities, link widths, request sizes and ACS registers are those that `lspci -vvv` shows on such
machines: a root port, a PEX890xx switch with an NVMe drive, a GPU, a NIC and the switch's management endpoint, four
times a socket; a storage NIC on one switch of each socket; four NVSwitches behind a small switch of their own, whose
ports have ACS switched on, and root ports of the chipset with source validation. None of these is between a GPU and
a NIC: nothing is wrong with that machine.
"""

from support.archive import Tree
from support.config_space import DOWNSTREAM, PCI_BRIDGE, REDIRECT, ROOT_PORT, SOURCE_VALID, UPSTREAM, Device, Link
from support.gpus import gpu_files
from support.host_files import host_files
from support.nic import Nic, add_netdev, add_nic
from support.pci_tree import PciTree
from support.plain import CONNECTX7

_NODES = {0: "0-55,112-167", 1: "56-111,168-223"}
_SWITCHES = ((0x15, 0), (0x37, 0), (0x48, 0), (0x59, 0), (0x97, 1), (0xB7, 1), (0xC7, 1), (0xD7, 1))
"""The bus of each root port with a PCIe switch, and its NUMA node."""
_STORAGE = (0x15, 0x97)
_MODULES = "nvidia nvidia_uvm nvidia_modeset nvidia_peermem mlx5_core mlx5_ib ib_uverbs ib_core rdma_cm nvme tg3 xfs"
_CMDLINE = "BOOT_IMAGE=/vmlinuz-5.15.0-113-generic root=/dev/mapper/system-root ro intel_iommu=off"
_DEVICE_FILES = (
    "/dev/null",
    *(f"/dev/nvidia{number}" for number in range(8)),
    *(f"/dev/nvidia-nvswitch{number}" for number in range(4)),
    *(f"/dev/nvidia-caps/nvidia-cap{number}" for number in (1, 2)),
    *(f"/dev/nvidia{name}" for name in ("ctl", "-modeset", "-nvlink", "-nvswitchctl", "-uvm", "-uvm-tools")),
)
_SLOT = Link("32.0", 16)

_ROOT = Device(0x8086, 0x352A, 0x060400, ROOT_PORT, _SLOT, 4, max_payload=256, read_request=4096, acs=(0x1F, 0))
_UPSTREAM = Device(0x1000, 0xC030, 0x060400, UPSTREAM, _SLOT, 0xB0, max_payload=2048, read_request=128)
GPU = Device(0x10DE, 0x2330, 0x030200, link=_SLOT, revision=0xA1, subsystem=(0x10DE, 0x16C1), read_request=4096)
_STORAGE_NIC = CONNECTX7._replace(device=0x101D, link=Link("16.0", 16), acs=(0, 0), ats=None)
_NVME = Device(0x8086, 0x0A54, 0x010802, link=Link("16.0", 4), read_request=4096)
_MANAGEMENT = Device(0x1000, 0x02B0, 0x010700, link=_SLOT, revision=0xB0, read_request=4096)
NVSWITCH = Device(0x10DE, 0x22A3, 0x068000, link=Link("16.0", 2), revision=0xA1, read_request=4096)
_NVSWITCH_PORT = Device(0x11F8, 0x4128, 0x060400, DOWNSTREAM, Link("16.0", 2), read_request=128, acs=(0x5F, REDIRECT))
_CHIPSET = Device(0x8086, 0x1BBE, 0x060400, ROOT_PORT, Link("5.0", 1, "8.0"), 0x11, acs=(0x13, SOURCE_VALID))


def hgx_h100() -> Tree:
    pci = PciTree(_NODES)
    pci.files.update(host_files(_CMDLINE, _NODES, 2048, _MODULES.split()))
    pci.files["/dev/infiniband/rdma_cm"] = ""
    pci.files.update(dict.fromkeys(_DEVICE_FILES, ""))
    for product, value in (("sys_vendor", "Dell Inc."), ("product_name", "PowerEdge XE9680")):
        pci.files[f"/sys/class/dmi/id/{product}"] = value + "\n"
    _chipset(pci)
    nics: list[Nic] = []
    for number, (bus, node) in enumerate(_SWITCHES):
        _switch(pci, bus, node, number)
        nics.append(_nic(bus + 5, len(nics)))
        if bus in _STORAGE:
            nics.append(_storage_nic(bus + 6, len(nics)))
    for nic in nics:
        add_nic(pci, nic)
    _nvswitches(pci)
    pci.files.update(gpu_files())
    return pci.files


def _switch(pci: PciTree, bus: int, node: int, number: int) -> None:
    """Adds a root port and everything behind it: the switch on bus+1, its ports on bus+2, each endpoint on a bus of its
    own."""
    last = bus + 7
    root, upstream = _at(bus, 1), _at(bus + 1)
    pci.add(root, _ROOT, node=node, driver="pcieport", secondary=(bus + 1, last))
    pci.add(upstream, _UPSTREAM, parent=root, node=node, driver="pcieport", secondary=(bus + 2, last))
    endpoints = [
        (0, bus + 3, _NVME, Link("16.0", 4, "32.0"), "nvme"),
        (1, bus + 4, GPU, _SLOT, "nvidia"),
        (2, bus + 5, CONNECTX7, _SLOT, "mlx5_core"),
        (0x1F, bus + 7, _MANAGEMENT, _SLOT, "mpi3mr"),
    ]
    if bus in _STORAGE:
        endpoints.append((3, bus + 6, _STORAGE_NIC, Link("16.0", 16, "32.0"), "mlx5_core"))
    for slot, behind, device, link, driver in endpoints:
        port = _at(bus + 2, slot)
        pci.add(port, _downstream(link), parent=upstream, node=node, driver="pcieport", secondary=(behind, behind))
        folder = pci.add(_at(behind), device, parent=port, node=node, driver=driver)
        if driver == "nvme":
            controller = f"{folder}/nvme/nvme{number}"
            pci.files[f"{controller}/model"] = "INTEL SSDPF2KX038T1\n"
            pci.files[f"{controller}/state"] = "live\n"
            pci.link(f"/sys/class/nvme/nvme{number}", controller)


def _downstream(link: Link) -> Device:
    """A port of the switch. It runs as fast as the device behind it, which for some is slower than the port itself."""
    return Device(0x1000, 0xC030, 0x060400, DOWNSTREAM, link, 0xB0, max_payload=2048, read_request=128, acs=(0x5F, 0))


def _nvswitches(pci: PciTree) -> None:
    root = _ROOT._replace(link=Link("16.0", 2, "16.0", 16))
    upstream = _NVSWITCH_PORT._replace(port=UPSTREAM, acs=None)
    pci.add(_at(0x80, 1), root, node=1, driver="pcieport", secondary=(0x81, 0x86))
    pci.add(_at(0x81), upstream, parent=_at(0x80, 1), node=1, driver="pcieport", secondary=(0x82, 0x86))
    for number in range(4):
        port, bus = _at(0x82, number), 0x83 + number
        pci.add(port, _NVSWITCH_PORT, parent=_at(0x81), node=1, driver="pcieport", secondary=(bus, bus))
        pci.add(_at(bus), NVSWITCH, parent=port, node=1, driver="nvidia-nvswitch")


def _chipset(pci: PciTree) -> None:
    for bus, node in ((0, 0), (0x80, 1)):
        pci.add(_at(bus), Device(0x8086, 0x09A2, 0x088000, revision=0x20), node=node)
    pci.add(_at(0, 0xC), _CHIPSET._replace(link=Link("5.0", 1, "8.0")), driver="pcieport", secondary=(1, 1))
    gigabit = Device(0x14E4, 0x165F, 0x020000, link=Link("5.0", 1), read_request=4096)
    pci.add(_at(1), gigabit, parent=_at(0, 0xC), driver="tg3")
    add_netdev(pci, _at(1), "eno8303", "04:32:01:00:00:01", 1000)
    pci.add(_at(0, 0xE), _CHIPSET._replace(payload=128), driver="pcieport", secondary=(2, 3))
    bridge = Device(0x1556, 0xBE00, 0x060400, PCI_BRIDGE, Link("5.0", 1), 2, payload=128)
    pci.add(_at(2), bridge, parent=_at(0, 0xE), secondary=(3, 3))
    pci.add(_at(3), Device(0x102B, 0x0536, 0x030000, revision=4), parent=_at(2), driver="mgag200")


def _nic(bus: int, number: int) -> Nic:
    return Nic(_at(bus), f"mlx5_{number}", f"enp{bus}s0np0", number, f"10.{100 + number}.0.17")


def _storage_nic(bus: int, number: int) -> Nic:
    nic = _nic(bus, number)
    return nic._replace(
        rate="100 Gb/sec (2X HDR)", megabits=100000, board="MT_0000000359", type="MT4125", firmware="22.41.1000"
    )


def _at(bus: int, slot: int = 0) -> str:
    return f"0000:{bus:02x}:{slot:02x}.0"
