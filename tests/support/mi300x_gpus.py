"""A healthy server with eight MI300X: small, for the machines that differ in what amdgpu shows.

Made up after public captures: the addresses, the model and the temperatures are those of an `amd-smi` table of eight
MI300X (ROCm 7.0, amdgpu 6.14.14), the limits those that `amd-smi static` prints of an MI300A, the names and forms of
the files those of the driver's sources (tests/upstream.md). Which bridges are above such GPUs is not known
here: each has a root port of its own.
"""

import struct
from collections.abc import Mapping

from support.archive import Tree
from support.config_space import ROOT_PORT, Device, Link
from support.host_files import host_files
from support.pci_tree import PciTree

BUSES = (0x05, 0x26, 0x46, 0x65, 0x85, 0xA6, 0xC6, 0xE5)
_NODES = {0: "0-31", 1: "32-63"}
_MODULES = ("nvme", "igb", "xfs", "amdgpu", "amdxcp", "amdttm", "amdkcl")
_CMDLINE = "BOOT_IMAGE=/vmlinuz-5.15.0-113-generic root=/dev/mapper/system-root ro iommu=pt pci=realloc=off"
_SLOT = Link("32.0", 16)
_ROOT = Device(0x1022, 0x14AB, 0x060400, ROOT_PORT, _SLOT, max_payload=512, acs=(0x1F, 0))
_GPU = Device(0x1002, 0x74A1, 0x120000, link=_SLOT, subsystem=(0x1002, 0x74A1), read_request=4096)
_VRAM_BYTES = 196592 << 20
_BLOCKS = ("umc", "sdma", "gfx", "mmhub", "xgmi_wafl")
_CYCLES = 864_000_000
"""A cycle of the firmware's each millisecond since boot; its real length is not public."""


def mi300x_gpus() -> Tree:
    pci = PciTree(_NODES)
    pci.files.update(host_files(_CMDLINE, _NODES, 2304, _MODULES))
    for number, bus in enumerate(BUSES):
        _add(pci, number, bus)
    pci.files["/sys/module/amdgpu/parameters/bad_page_threshold"] = "-1\n"
    pci.files["/sys/module/amdgpu/version"] = "6.14.14\n"
    pci.files["/laggard/kmsg"] = _log()
    return pci.files


def _add(pci: PciTree, number: int, bus: int) -> None:
    node, root, address = number // 4, f"0000:{bus - 1:02x}:01.0", f"0000:{bus:02x}:00.0"
    pci.add(root, _ROOT, node=node, driver="pcieport", secondary=(bus, bus))
    folder = pci.add(address, _GPU, parent=root, node=node, driver="amdgpu")
    monitor = f"{folder}/hwmon/hwmon{number + 4}"
    files: dict[str, str | bytes] = {
        f"{folder}/product_name": "AMD Instinct MI300X\n",
        f"{folder}/unique_id": f"5c88007d{number:08x}\n",
        f"{folder}/vbios_version": "113-M3000100-102\n",
        f"{folder}/gpu_busy_percent": "0\n",
        f"{folder}/mem_info_vram_total": f"{_VRAM_BYTES}\n",
        f"{folder}/mem_info_vram_used": f"{285 << 20}\n",
        f"{folder}/xgmi_physical_id": f"{number}\n",
        f"{folder}/gpu_metrics": gpu_metrics_1_7(41 + number % 4, 34),
        f"{folder}/ras/features": "feature mask: 0x5ffff\n",
        f"{folder}/ras/gpu_vram_bad_pages": "",
        f"{monitor}/name": "amdgpu\n",
    }
    files |= {f"{folder}/ras/{block}_err_count": "ue: 0\nce: 0\nde: 0\n" for block in _BLOCKS}
    for sensor, (label, now, critical, emergency) in enumerate(
        (("junction", 41 + number % 4, 100, 110), ("mem", 34, 105, 115)), 2
    ):
        values = {"input": now, "crit": critical, "emergency": emergency}
        files |= {f"{monitor}/temp{sensor}_{name}": f"{value * 1000}\n" for name, value in values.items()}
        files[f"{monitor}/temp{sensor}_label"] = label + "\n"
    pci.files.update(files)


def gpu_metrics_1_7(
    hotspot: int = 41,
    memory: int = 34,
    residencies: Mapping[str, int] | None = None,
    links: tuple[int, ...] = (1,) * 7 + (0xFFFF,),
    cycles: int = _CYCLES,
) -> bytes:
    """struct gpu_metrics_v1_7 of Linux, kgd_pp_interface.h; what laggard does not read is zero."""
    table = bytearray(2208)
    struct.pack_into("<HBB", table, 0, len(table), 1, 7)
    struct.pack_into("<HH", table, 4, hotspot, memory)
    counts = {"prochot": 0, "ppt": 0, "socket_thm": 0, "vr_thm": 0, "hbm_thm": 0, **(residencies or {})}
    struct.pack_into("<6I", table, 40, cycles, *counts.values())
    struct.pack_into("<8H", table, 264, *links)
    return bytes(table)


def _log() -> str:
    """What amdgpu writes at boot, in the form of /dev/kmsg."""
    lines = ["Linux version 5.15.0-113-generic (buildd@lcy02-amd64-080)", "[drm] amdgpu kernel modesetting enabled."]
    for bus in BUSES:
        device = f"amdgpu 0000:{bus:02x}:00.0: amdgpu: "
        lines += [
            f"{device}MEM ECC is active.",
            f"{device}RAS INFO: ras initialized successfully, hardware ability[ffff] ras_mask[ffff]",
            f"{device}0 uncorrectable hardware errors detected in umc block",
        ]
    boot = "".join(f"6,{number},{12_000_000 + number},-;{text}\n" for number, text in enumerate(lines))
    return boot + "".join(
        f"3,{len(lines) + number},{860_000_000_000 + number},-;amdgpu 0000:46:00.0: amdgpu: {text}\n"
        for number, text in enumerate(_PAGE_FAULT)
    )


_PAGE_FAULT = (
    "[gfxhub0] no-retry page fault (src_id:0 ring:40 vmid:8 pasid:32785)",
    " in process python pid 71212 thread python pid 71212",
    "   in page starting at address 0x00007f1d4a000000 from IH client 0x1b (UTCL2)",
)
"""What a program makes the driver write that reads an address which is not mapped (gmc_v9_0.c)."""
