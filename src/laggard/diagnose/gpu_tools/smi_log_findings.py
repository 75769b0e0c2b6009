"""Findings from what `nvidia-smi -q` has beside NVML's values: PCIe links, pages that wait to be retired, errors in the
place of values. Pure.

A link's generation is lower while the GPU is idle, to save power, and its width is not. In a virtual machine the host's
end is not shown, and the link is not judged: a cloud's slot may have fewer lanes than the GPU.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final
from xml.etree import ElementTree

from laggard.model import Finding
from laggard.probes.nvml.model import Gpu, Nvml
from laggard.probes.probe import finding

_MIN_BUSY_PERCENT: Final = 20
_MIN_FAILED_READINGS: Final = 3
_ERRORS: Final = frozenset({"Unknown Error", "ERR!"})
_GUESTS: Final = ("Pass-Through", "VGPU")
_LINK: Final = "pci/pci_gpu_link_info"
_LINK_FIX: Final = (
    "Reseat the card, riser or cable and check the slot's settings in the firmware (link speed, bifurcation). If that "
    "does not help, replace the device, then the board."
)
_PAGE_FIX: Final = (
    "Reset the GPU, or reboot, when its job is done: the page is retired then. A board whose pages go on failing is to "
    "be returned."
)


def judge_log(root: ElementTree.Element, nvml: Nvml) -> Iterator[Finding]:
    for gpu, element in zip(nvml.gpus, root.iterfind("gpu"), strict=True):
        yield from _link(gpu, element)
        yield from _retired_pages(gpu, element)
        yield from _silence(gpu, element)


def _link(gpu: Gpu, element: ElementTree.Element) -> Iterator[Finding]:
    if (element.findtext("gpu_virtualization_mode/virtualization_mode") or "").strip() in _GUESTS:
        return
    width, max_width = (_number(element, f"{_LINK}/link_widths/{end}_link_width") for end in ("current", "max"))
    speed, max_speed = (_number(element, f"{_LINK}/pcie_gen/{end}_link_gen") for end in ("current", "max"))
    ends = [_number(element, f"{_LINK}/pcie_gen/{end}") for end in ("device_max", "host_max")]
    ends += [_number(element, f"{_LINK}/pcie_gen/max_{end}_link_gen") for end in ("device", "host")]
    reachable = min([end for end in (max_speed, *ends) if end], default=0)
    if width and max_width and width < max_width:
        summary = f"runs on {width} PCIe lanes of {max_width} (width x{width}, not x{max_width})"
    elif speed and speed < reachable and _is_busy(element):
        summary = f"runs at PCIe generation {speed} of {reachable} under load"
    else:
        return
    yield finding(
        "PCIE_LINK_DEGRADED",
        gpu.device,
        summary,
        evidence={
            "width_lanes": width,
            "most_width_lanes": max_width,
            "generation": speed,
            "most_generation": reachable or None,
            "replays": _number(element, "pci/replays_since_reset") or _number(element, "pci/replay_counter"),
        },
        fix=_LINK_FIX,
        commands=(f"nvidia-smi -q -i {gpu.index} | grep -A 12 'GPU Link Info'", "lspci -vvv"),
    )


def _is_busy(element: ElementTree.Element) -> bool:
    state = (element.findtext("performance_state") or "").strip()
    return state == "P0" and (_number(element, "utilization/gpu_util") or 0) >= _MIN_BUSY_PERCENT


def _retired_pages(gpu: Gpu, element: ElementTree.Element) -> Iterator[Finding]:
    group = element.find("retired_pages")
    if group is None:
        return
    texts = [(group.findtext(name) or "").strip().lower() for name in ("pending_blacklist", "pending_retirement")]
    if "yes" not in texts:
        return
    double = _first(group, "double_bit_ecc", "double_bit_retirement/retired_count")
    single = _first(group, "single_bit_ecc", "multiple_single_bit_retirement/retired_count")
    cause = " after a double bit error" if double else ""
    yield finding(
        "GPU_ROW_REMAP_PENDING",
        gpu.device,
        f"has a faulty page of its memory{cause}, whose retirement is pending until the next reset",
        evidence={"double_bit_pages": double, "single_bit_pages": single},
        fix=_PAGE_FIX,
        commands=(f"nvidia-smi -q -d PAGE_RETIREMENT -i {gpu.index}", f"nvidia-smi --gpu-reset -i {gpu.index}"),
    )


def _silence(gpu: Gpu, element: ElementTree.Element) -> Iterator[Finding]:
    """A GPU that answers with errors. One that is lost by name, or asks for a reset, is the probe's."""
    failed = [each.tag for each in element.iter() if (each.text or "").strip(" []\n") in _ERRORS]
    if len(failed) >= _MIN_FAILED_READINGS:
        summary = f"does not answer the driver: {len(failed)} of its readings are errors"
        fix = "Look for Xid in the kernel's log. Reset the GPU; if that does not help, power the node off and on."
        commands = ("dmesg -T | grep -E 'NVRM|pcieport'", f"nvidia-smi --gpu-reset -i {gpu.index}")
        yield finding("GPU_LOST", gpu.device, summary, evidence={"failed": failed[:16]}, fix=fix, commands=commands)


def _first(element: ElementTree.Element, *paths: str) -> int | None:
    return next((number for path in paths if (number := _number(element, path)) is not None), None)


def _number(element: ElementTree.Element, path: str) -> int | None:
    found = re.match(r"(\d{1,9})", (element.findtext(path) or "").strip())
    return int(found[1]) if found else None
