"""Broken twins: each is a healthy recorded machine with one fault of its kind of board, and what laggard says then.

A line of TWINS is the fault in words, its changes to the recorded machine, and the findings that are due beside those
of the healthy one, as `severity GPU: CODE CODE`. GPUs go by their index in the machine's nvml.json.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from laggard.probes.nvml.model import NVML_PATH
from support.materialise import change_json, unlist_gpu

Change = Callable[[Path], None]
"""Changes the recorded machine in a folder, which is a copy."""

_BOOT: Final = "3f0a5c1e-6d6b-4f0e-9c55-0c6f2f1f7a10"
_UPTIME: Final = 864000.0
"""Boot and uptime, in seconds, of all machines here."""


class Twin(NamedTuple):
    says: str
    changes: tuple[Change, ...]
    due: tuple[str, ...]


class Xid(NamedTuple):
    code: int
    text: str


def fault(says: str, *parts: Change | str) -> Twin:
    """A line of the table: the fault, its changes, then the findings that are due."""
    changes = tuple(part for part in parts if not isinstance(part, str))
    return Twin(says, changes, tuple(part for part in parts if isinstance(part, str)))


def gpu(index: int, **readings: Any) -> Change:
    """NVML's readings of a GPU; `rows__failed` is `failed` of its `rows`."""
    return nvml({f"gpus/{index}/{name.replace('__', '/')}": value for name, value in readings.items()})


def nvml(places: Mapping[str, Any]) -> Change:
    """Values of NVML's answers, by their place."""
    return lambda root: change_json(root / NVML_PATH.lstrip("/"), places)


def memory_error(index: int) -> Change:
    """The GPU's memory had an error that ECC could not correct."""
    return gpu(index, ecc_volatile=1, ecc_aggregate=1)


def link_down(index: int) -> Change:
    """One of a GPU's eighteen NVLinks is down."""
    return gpu(index, links=[*[True] * 7, False, *[True] * 10])


def hot(index: int) -> Change:
    """The GPU is beyond the margin at which the hardware slows it down, which it does."""
    return gpu(index, temperature_celsius=90, margin_celsius=-3, clocks_event_reasons=0x48)


def lost(index: int) -> Change:
    """NVML counts the GPU and gives no access to it."""
    return nvml({f"gpus/{index}": {"index": index, "errors": {"handle": "GPU_IS_LOST"}}})


def unlisted(index: int) -> Change:
    """NVML does not list the GPU any more."""
    return lambda root: unlist_gpu(root, index)


def no_peers(index: int, other: int) -> Change:
    """Two GPUs cannot reach each other's memory."""
    pairs = ((index, other), (other, index))
    return nvml({f"{access}/{row}/{column}": 5 for access in ("p2p_read", "p2p_write") for row, column in pairs})


def logged(index: int, xid: Xid) -> Change:
    """The driver logged an Xid of the GPU, ten minutes ago. It goes before a change that hides the GPU's address."""

    def add(root: Path) -> None:
        log, address = root / "laggard/kmsg", addresses(root)[index].rpartition(".")[0]
        line = f"NVRM: Xid (PCI:{address}): {xid.code}, pid='<unknown>', name=<unknown>, {xid.text}"
        log.write_text(f"{log.read_text()}3,2000,{(_UPTIME - 600) * 1e6:.0f},-;{line}\n")

    return add


def lanes(index: int, width: int) -> Change:
    """The GPU's PCIe link has that many lanes now."""

    def write(root: Path) -> None:
        (root / "sys/bus/pci/devices" / addresses(root)[index] / "current_link_width").write_text(f"{width}\n")

    return write


def ended(pid: int) -> Change:
    """A process of the machine runs no more."""

    def remove(root: Path) -> None:
        (root / f"proc/{pid}").rename(root / f"ended-{pid}")

    return remove


def throttled(share: float, reason: str, *indices: int) -> Change:
    """The clocks of GPUs were held down for a share of the last hour."""
    nanoseconds = round(share * 3600e9)
    return _in_the_last_hour(
        "gpu_throttle", "throttled_nanoseconds", {index: {reason: nanoseconds} for index in indices}
    )


def retrained(index: int, times: int) -> Change:
    """The GPU's NVLink 0 was trained anew that often in the last hour."""
    return _in_the_last_hour("nvlink_errors", "link_errors", {index: {"recovery": times}})


def _in_the_last_hour(probe: str, field: str, increases: Mapping[int, Mapping[str, int]]) -> Change:
    """Counters of GPUs, by index and name, have risen since a snapshot of an hour ago. `field`: the reading that has
    them, by name, or by name and link."""

    def write(root: Path) -> None:
        path = root / NVML_PATH.lstrip("/")
        answers = json.loads(path.read_text())
        before: dict[str, int] = {}
        for index, by_name in increases.items():
            for name, increase in by_name.items():
                counts = answers["gpus"][index][field]
                one, *more = counts[name] if isinstance(counts[name], list) else [counts[name]]
                before[f"{answers['gpus'][index]['uuid']} {name}"] = sum([one, *more])
                counts[name] = [one + increase, *more] if isinstance(counts[name], list) else one + increase
        path.write_text(json.dumps(answers))
        snapshot = {"boot_id": _BOOT, "probes": {probe: [{"uptime": _UPTIME - 3600, "counters": before}]}}
        (root / "laggard/last_look.json").write_text(json.dumps(snapshot))

    return write


def addresses(root: Path) -> list[str]:
    """The PCI addresses of a recorded machine's GPUs, by their index."""
    return [each["bus_id"] for each in json.loads((root / NVML_PATH.lstrip("/")).read_text())["gpus"]]


ROW: Final = Xid(64, "Row Remapper Error: (0x00000000000a1b2c) - All reserved rows for bank are remapped")
OFF_BUS: Final = Xid(79, "GPU has fallen off the bus.")
CONTAINED: Final = Xid(94, "Contained: SM (0x1). RST: No, D-RST: No")
UNCONTAINED: Final = Xid(95, "Uncontained: LTC TAG (0x2,0x0). RST: Yes, D-RST: No")
NO_ANSWER: Final = Xid(119, "Timeout after 6s of waiting for RPC response from GPU0 GSP! Expected function 103")
LINK_ENDED: Final = Xid(149, "NETIR_LINK_EVT Fatal XC0 i0 Link 07 (0x004505c6 0x00000000 0x00000000)")

TWINS: Final[Mapping[str, tuple[Twin, ...]]] = {
    "h100_gpus_of_today": (
        fault("SRAM past its threshold", gpu(3, sram_threshold_exceeded=True), "critical GPU 3: GPU_ECC_UNCORRECTED"),
        fault("no spare row left", gpu(5, rows__failed=True), "critical GPU 5: GPU_ROW_REMAP_FAILED"),
        fault("an NVLink down", link_down(1), "critical GPU 1: NVLINK_DOWN"),
        fault("power brake of one GPU", throttled(0.33, "hw_power_brake", 2), "critical GPU 2: GPU_THROTTLED"),
        fault("hot and slowed", hot(0), "critical GPU 0: GPU_TOO_HOT", "warning GPU 0: GPU_THROTTLED"),
        fault("off the bus", logged(6, OFF_BUS), lost(6), "critical GPU 6: GPU_LOST GPU_XID"),
        fault("firmware was silent, by the log alone", logged(4, NO_ANSWER), "warning GPU 4: GPU_XID"),
        fault(
            "firmware silent, and a reset asked for",
            logged(4, NO_ANSWER),
            gpu(4, recovery_action=1),
            "critical GPU 4: GPU_LOST GPU_XID",
        ),
        fault("fabric manager ended", ended(3120), "warning nv-fabricmanager: FABRIC_MANAGER_DOWN"),
        fault("half of its peers' PCIe lanes", lanes(3, 8), "warning GPU 3: PCIE_LINK_DEGRADED"),
    ),
    "hgx_h200_gpus": (
        fault(
            "a memory error, not contained",
            memory_error(3),
            logged(3, UNCONTAINED),
            "critical GPU 3: GPU_ECC_UNCORRECTED GPU_XID",
        ),
        fault(
            "a memory error, contained to its program",
            memory_error(3),
            logged(3, CONTAINED),
            "warning GPU 3: GPU_ECC_UNCORRECTED GPU_XID",
        ),
        fault("a GPU that did not start", unlisted(4), "critical GPU 4: GPU_MISSING"),
        fault("not registered with the fabric", gpu(2, fabric__status=999), "critical GPU 2: FABRIC_NOT_READY"),
        fault("held to 400 W by the BMC", gpu(6, enforced_power_limit_watts=400.0), "warning GPU 6: GPU_CLOCKS_LOW"),
        fault("an NVLink that retrains", retrained(1, 5), "warning GPU 1: NVLINK_ERRORS"),
        fault("hot for a third of an hour", throttled(0.33, "thermal", 7), "critical GPU 7: GPU_THROTTLED"),
        fault("two GPUs without peer-to-peer", no_peers(0, 5), "critical GPU 0: P2P_DISABLED"),
    ),
    "hgx_b200_gpus": (
        fault("the driver asks for a reset", gpu(7, recovery_action=1), "critical GPU 7: GPU_LOST"),
        fault("a channel to repair", gpu(4, repair__channel=True), "warning GPU 4: GPU_ROW_REMAP_PENDING"),
        fault("fabric unhealthy", gpu(5, fabric__health_summary=2), "critical GPU 5: FABRIC_NOT_READY"),
        fault("waits for the subnet manager", gpu(5, fabric__state=2), "critical GPU 5: FABRIC_NOT_READY"),
        fault("an NVLink down", link_down(0), "critical GPU 0: NVLINK_DOWN"),
        fault("fabric manager ended", ended(3120), "warning nv-fabricmanager: FABRIC_MANAGER_DOWN"),
    ),
    "gb200_gpus": (
        fault("unrepairable memory", gpu(1, unrepairable_memory=True), "critical GPU 1: GPU_ROW_REMAP_FAILED"),
        fault("a processor to repair", gpu(2, repair__tpc=True), "warning GPU 2: GPU_ROW_REMAP_PENDING"),
        fault("reduced NVLink bandwidth", gpu(0, fabric__health_mask=0xA9), "critical GPU 0: FABRIC_NOT_READY"),
        fault("an unhealthy route", gpu(3, fabric__health_mask=0x9A), "critical GPU 3: FABRIC_NOT_READY"),
        fault("IMEX domain to recover", gpu(2, recovery_action=5), "warning GPU 2: GPU_LOST"),
        fault("half of the lanes, in a guest", lanes(2, 8), "warning GPU 2: PCIE_LINK_DEGRADED"),
        fault("an NVLink down, in a guest", link_down(1), "critical GPU 1: NVLINK_DOWN"),
    ),
    "gb300_gpus": (
        fault("a row to remap", gpu(3, rows__pending=True), "warning GPU 3: GPU_ROW_REMAP_PENDING"),
        fault(
            "a link that a fatal error ended",
            link_down(0),
            logged(0, LINK_ENDED),
            "critical GPU 0: NVLINK_DOWN GPU_XID",
        ),
        fault("half an hour of heat", throttled(0.5, "sw_thermal", 1), "warning GPU 1: GPU_THROTTLED"),
        fault("configured with too few links", gpu(2, fabric__health_mask=0x5AA), "critical GPU 2: FABRIC_NOT_READY"),
        fault("a GPU that did not start", unlisted(1), "critical GPU 1: GPU_MISSING"),
        fault(
            "power brake of the whole rack",
            throttled(0.33, "hw_power_brake", 0, 1, 2, 3),
            "warning GPU 0: GPU_THROTTLED",  # of all four, the first of which stands here
        ),
    ),
    "vm_l40s_x8": (
        fault("off the bus", logged(0, OFF_BUS), lost(0), "critical GPU 0: GPU_LOST GPU_XID"),
        fault("SRAM past its threshold", gpu(0, sram_threshold_exceeded=True), "critical GPU 0: GPU_ECC_UNCORRECTED"),
        fault("hot and slowed", hot(0), "critical GPU 0: GPU_TOO_HOT", "warning GPU 0: GPU_THROTTLED"),
        fault("set to 200 of 350 W", gpu(0, power_limit_watts=200.0), "warning GPU 0: GPU_CLOCKS_LOW"),
        fault("no spare row left", gpu(0, rows__failed=True), "critical GPU 0: GPU_ROW_REMAP_FAILED"),
        fault("persistence mode off", gpu(0, persistence=False), "warning GPU 0: GPU_PERSISTENCE_OFF"),
    ),
    "vm_a10g_x8": (
        fault(
            "a memory error, not contained",
            memory_error(0),
            logged(0, UNCONTAINED),
            "critical GPU 0: GPU_ECC_UNCORRECTED GPU_XID",
        ),
        fault("no spare row left", gpu(0, rows__failed=True), "critical GPU 0: GPU_ROW_REMAP_FAILED"),
        fault("at its slowdown temperature", gpu(0, temperature_celsius=95), "critical GPU 0: GPU_TOO_HOT"),
        fault("hotter than it may run", gpu(0, temperature_celsius=90), "warning GPU 0: GPU_TOO_HOT"),
        fault("hot for a third of an hour", throttled(0.33, "thermal", 0), "critical GPU 0: GPU_THROTTLED"),
    ),
    "vm_t4_x8": (
        fault(
            "a memory error, and a reset asked for",
            memory_error(0),
            gpu(0, recovery_action=1),
            "critical GPU 0: GPU_ECC_UNCORRECTED GPU_LOST",
        ),
        fault("at its slowdown temperature", gpu(0, temperature_celsius=94), "critical GPU 0: GPU_TOO_HOT"),
        fault("the only GPU did not start", unlisted(0), "critical GPU 0: GPU_MISSING"),
        fault("slowed by the hardware now", gpu(0, clocks_event_reasons=0x08), "warning GPU 0: GPU_THROTTLED"),
    ),
    "rtx_3090": (
        fault("4 of the lanes that both ends can do", lanes(0, 4), "critical GPU 0: PCIE_LINK_DEGRADED"),
        fault("at its slowdown temperature", gpu(0, temperature_celsius=95), "critical GPU 0: GPU_TOO_HOT"),
        fault("set to 200 of 350 W", gpu(0, power_limit_watts=200.0), "warning GPU 0: GPU_CLOCKS_LOW"),
        fault("off the bus", logged(0, OFF_BUS), lost(0), "critical GPU 0: GPU_LOST GPU_XID"),
        fault("its power supply brakes", throttled(0.33, "hw_power_brake", 0), "warning GPU 0: GPU_THROTTLED"),
    ),
    "a100_mig_gpus": (
        fault(
            "a memory error, contained to one instance",
            memory_error(1),
            logged(1, CONTAINED),
            "warning GPU 1: GPU_ECC_UNCORRECTED GPU_XID",
        ),
        fault(
            "a memory error, not contained",
            memory_error(1),
            logged(1, UNCONTAINED),
            "critical GPU 1: GPU_ECC_UNCORRECTED GPU_XID",
        ),
        fault(
            "no spare row, which in MIG mode the log alone tells",
            memory_error(2),
            logged(2, ROW),
            "critical GPU 2: GPU_XID",
            "warning GPU 2: GPU_ECC_UNCORRECTED",
        ),
        fault("at its slowdown temperature", gpu(2, temperature_celsius=89), "critical GPU 2: GPU_TOO_HOT"),
        fault("lost, with all its instances", lost(3), "critical GPU 3: GPU_LOST"),
        fault("hot for a third of an hour", throttled(0.33, "thermal", 0), "critical GPU 0: GPU_THROTTLED"),
    ),
}
