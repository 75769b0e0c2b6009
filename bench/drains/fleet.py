"""The kinds of healthy nodes of the fleets, laid out as recorded machines. What they look like is what people posted
of such machines; where a value is a real capture's, the line says of which."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

from support.archive import dump, unpack
from support.config_space import Device, Link
from support.gpus import gpu
from support.host_files import host_files
from support.materialise import materialise
from support.paths import MACHINES
from support.pci_tree import PciTree

from drains.healthy import dress
from drains.machine import Base

_CX7: Final = ("mlx5_0", "mlx5_2", "mlx5_3", "mlx5_4", "mlx5_5", "mlx5_7", "mlx5_8", "mlx5_9")
"""The NICs of an HGX H100 node that its GPUs use; mlx5_1 and mlx5_6 are for storage."""
_NODES: Final = {0: "0-15"}


class Kind(NamedTuple):
    """`share` of the fleet's nodes; `make` lays a healthy node out."""

    share: float
    make: Callable[[Path], Base]
    says: str


def _roce(root: Path) -> Base:
    materialise("hgx_h100", root)
    return Base("hgx_h100_roce", root, _CX7)


def _infiniband(root: Path) -> Base:
    materialise("hgx_h100", root)
    unpack((MACHINES / "infiniband" / "tree.txt").read_text(), root)
    _set_nvml(root, lambda nvml: nvml.update(driver_version="580.95.05"))
    return Base("hgx_h100_ib", root, _CX7)


def _r535(root: Path) -> Base:
    """Driver 535: NVML has no recovery action before 570 (nvml.h: field 230), and no counters by reason."""
    materialise("hgx_h100", root)

    def old(nvml: dict[str, Any]) -> None:
        nvml["driver_version"] = "535.183.06"
        for one in nvml["gpus"]:
            one["recovery_action"] = None
            one["throttled_nanoseconds"] = {"thermal": 0, "board_limit": 0}
            one["errors"] = {"recovery_action": "NOT_SUPPORTED"}

    _set_nvml(root, old)
    return Base("hgx_h100_r535", root, _CX7)


def _cloud_guest(root: Path) -> Base:
    """One L40S in a guest of a cloud: the slot has 8 lanes, the board can do 16 (`nvidia-smi -q -x` of g6e.2xlarge in
    NVIDIA/k8s-test-infra@3b2b865d, qx-l40s.xml: max_link_width 16x, current_link_width 8x, Pass-Through)."""
    pci = PciTree(_NODES)
    pci.files.update(host_files("BOOT_IMAGE=/vmlinuz ro quiet", _NODES, 64, ("nvidia", "nvidia_uvm", "ena", "nvme")))
    board = Device(0x10DE, 0x26B9, 0x030200, link=Link("16.0", 8, "16.0", 16), revision=0xA1)
    pci.add("0000:30:00.0", board, driver="nvidia")
    cpuinfo = str(pci.files["/proc/cpuinfo"])
    pci.files["/proc/cpuinfo"] = cpuinfo.replace("flags\t\t: fpu", "flags\t\t: fpu hypervisor")
    pci.files["/sys/class/dmi/id/sys_vendor"] = "Amazon EC2\n"
    pci.files["/sys/class/dmi/id/product_name"] = "g6e.2xlarge\n"
    one = _pcie_board(0, "0000:30:00.0", "NVIDIA L40S", watts=350.0, links=0)
    _lay(root, pci, [one], "595.91.07")
    return Base("cloud_guest_l40s", root)


def _bridged(root: Path) -> Base:
    """Four A100 PCIe boards, two of which have an NVLink bridge (a bridge joins two boards: NVIDIA A100 PCIe product
    brief, "NVLink Bridge Support")."""
    buses = (0x17, 0x31, 0xB1, 0xCA)
    boards = [
        _pcie_board(number, f"0000:{bus:02x}:00.0", "NVIDIA A100 80GB PCIe", 300.0, links=12 if number < 2 else 0)
        for number, bus in enumerate(buses)
    ]
    pci = _slots(512, buses, 0x20B5, Device(0x8086, 0x347A, 0x060400, 4, Link("16.0", 16), payload=256, acs=(0x0F, 0)))
    _lay(root, pci, boards, "570.124.06", bridged=(0, 1))
    return Base("workstation_bridge", root)


def _mixed_boards(root: Path) -> Base:
    """Four RTX 4090 of two makers: equal names, 450 and 480 W by default (nvml.h,
    nvmlDeviceGetPowerManagementDefaultLimit: the default is the board's)."""
    boards = []
    for number, bus in enumerate(buses := (0x01, 0x21, 0x41, 0x61)):
        watts = 480.0 if number < 3 else 450.0
        board = _pcie_board(number, f"0000:{bus:02x}:00.0", "NVIDIA GeForce RTX 4090", watts, links=0)
        board.update(ecc_volatile=None, ecc_aggregate=None, rows=None, mig=None)
        board["errors"].update(dict.fromkeys(("ecc_volatile", "ecc_aggregate", "rows", "mig"), "NOT_SUPPORTED"))
        boards.append(board)
    pci = _slots(256, buses, 0x2684, Device(0x1022, 0x14AB, 0x060400, 4, Link("16.0", 16)), display=0x030000)
    _lay(root, pci, boards, "570.124.06")
    return Base("workstation_boards", root)


def _slots(gigabytes: int, buses: tuple[int, ...], model: int, root_port: Device, display: int = 0x030200) -> PciTree:
    """A workstation's boards of one model, each below a root port of its own."""
    pci = PciTree(_NODES)
    modules = ("nvidia", "nvidia_uvm", "igb", "nvme")
    pci.files.update(host_files("BOOT_IMAGE=/vmlinuz ro quiet", _NODES, gigabytes, modules))
    for bus in buses:
        port = f"0000:{bus - 1:02x}:01.0"
        pci.add(port, root_port, driver="pcieport", secondary=(bus, bus))
        board = Device(0x10DE, model, display, link=Link("16.0", 16), revision=0xA1)
        pci.add(f"0000:{bus:02x}:00.0", board, parent=port, driver="nvidia")
    return pci


def _pcie_board(number: int, address: str, name: str, watts: float, links: int) -> dict[str, Any]:
    one = gpu(number)
    one.update(
        bus_id=address, name=name, power_limit_watts=watts, default_power_limit_watts=watts, fabric=None,
        errors={"fabric": "NOT_SUPPORTED"}, links=[True] * links or None,
        link_errors={kind: [0] * links for kind in ("replay", "recovery", "crc")} if links else None,
    )  # fmt: skip
    if not links:
        one["errors"].update(links="NOT_SUPPORTED", link_errors="NOT_SUPPORTED")
    return one


def _lay(root: Path, pci: PciTree, boards: list[dict[str, Any]], driver: str, bridged: tuple[int, ...] = ()) -> None:
    count = len(boards)
    if bridged:  # the boards without a bridge have links, none of which is up
        for board in boards:
            if not board["links"]:
                board.update(links=[False] * 12, link_errors={kind: [0] * 12 for kind in ("replay", "recovery", "crc")})
                board["errors"] = {"fabric": "NOT_SUPPORTED"}
    peers = [[None if row == column else 0 for column in range(count)] for row in range(count)]
    pci.files["/laggard/nvml.json"] = (
        json.dumps({"laggard_nvml": 1, "driver_version": driver, "gpus": boards, "p2p_read": peers, "p2p_write": peers})
        + "\n"
    )
    pci.files["/laggard/kmsg"] = ""
    pci.files["/proc/2/comm"] = "kthreadd\n"
    unpack(dump(pci.files), root)
    shutil.copy(MACHINES / "hgx_h100" / "laggard" / "facts.json", root / "laggard" / "facts.json")
    (root / "laggard" / "replies.json").write_text('{"/home": {}}')


def _set_nvml(root: Path, change: Callable[[dict[str, Any]], object]) -> None:
    path = root / "laggard/nvml.json"
    document = json.loads(path.read_text())
    change(document)
    path.unlink()
    path.write_text(json.dumps(document))


KINDS: Final[dict[str, Kind]] = {
    "hgx_h100_roce": Kind(0.40, _roce, "HGX H100, 8 RoCE NICs, driver 570"),
    "hgx_h100_ib": Kind(0.25, _infiniband, "HGX H100, 8 InfiniBand NICs, driver 580"),
    "hgx_h100_r535": Kind(0.15, _r535, "HGX H100, 8 RoCE NICs, driver 535"),
    "cloud_guest_l40s": Kind(0.10, _cloud_guest, "one L40S in a cloud's guest, driver 595"),
    "workstation_bridge": Kind(0.05, _bridged, "4 A100 PCIe, two of them with an NVLink bridge"),
    "workstation_boards": Kind(0.05, _mixed_boards, "4 RTX 4090 of two makers"),
}
"""The fleet. The shares are assumed: the tables are also given by kind of node, where they have no say."""


def lay_out(kind: str, folder: Path) -> Base:
    return dress(KINDS[kind].make(folder / kind))
