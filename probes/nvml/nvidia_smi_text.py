"""Turns `nvidia-smi -q` as text into the elements that `nvidia-smi -q -x` has, so that both are read by one parser.

The text is a tree by indentation, with `Name : value` at its leaves. Most names become elements by lower case and
underscores; _NAMES has the others. What grep left of such a text is read as well: a GPU begins with its own line.
"""

from __future__ import annotations

import re
from typing import Final
from xml.etree import ElementTree

_MAX_CHARACTERS: Final = 64 << 20
_MAX_GPUS: Final = 1024
_MAX_DEPTH: Final = 12
_GPU = re.compile(r"GPU ([0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.\d)\s*$")
_LINE = re.compile(r"( *)([A-Za-z][\w .()/#-]{0,80}?) *(?::(?: (.*))?)?$")
_DRIVER = re.compile(r"^Driver Version +: +([\w.]+)", re.MULTILINE)
_REASONS: Final = ("clocks_event_reasons", "clocks_throttle_reasons")
_CLOCKS: Final = ("clocks", "max_clocks", "applications_clocks", "default_applications_clocks")
_NAMES: Final = {
    "gpu_uuid": "uuid",
    "gpu_current_temp": "gpu_temp",
    "gpu_t_limit_temp": "gpu_temp_tlimit",
    "gpu_shutdown_temp": "gpu_temp_max_threshold",
    "gpu_slowdown_temp": "gpu_temp_slow_threshold",
    "gpu_max_operating_temp": "gpu_temp_max_gpu_threshold",
    "memory_current_temp": "memory_temp",
    "memory_max_operating_temp": "gpu_temp_max_mem_threshold",
    "gpu_slowdown_t_limit_temp": "gpu_temp_slow_tlimit_threshold",
    "gpu_max_operating_t_limit_temp": "gpu_temp_max_gpu_tlimit_threshold",
    "link_width": "link_widths",
    "pcie_generation": "pcie_gen",
    "gpu_link_info": "pci_gpu_link_info",
    "clusteruuid": "clusterUuid",
    "sram_uncorrectable_sec_ded": "sram_uncorrectable_secded",
    "remapping_failure_occurred": "remapped_row_failure",
}
_NAMES_WITHIN: Final = {
    **{(section, old): new for section in _CLOCKS for old, new in (("graphics", "graphics_clock"), ("sm", "sm_clock"),
       ("memory", "mem_clock"))},
    ("mig_mode", "current"): "current_mig",
    ("ecc_mode", "current"): "current_ecc",
    ("pcie_gen", "max"): "max_link_gen",
    ("pcie_gen", "current"): "current_link_gen",
    ("link_widths", "max"): "max_link_width",
    ("link_widths", "current"): "current_link_width",
    ("remapped_rows", "correctable_error"): "remapped_row_corr",
    ("remapped_rows", "uncorrectable_error"): "remapped_row_unc",
    ("remapped_rows", "pending"): "remapped_row_pending",
    ("retired_pages", "pending_page_blacklist"): "pending_blacklist",
    ("utilization", "gpu"): "gpu_util",
}  # fmt: skip


def is_text(text: str) -> bool:
    """Returns whether the text is `nvidia-smi -q`, or parts of it."""
    lines = text.splitlines()[:4000]
    heads = sum(1 for line in lines if _GPU.match(line))
    leaves = sum(1 for line in lines if line.startswith("    ") and " : " in line)
    return heads > 0 and leaves >= heads


def parse_text(text: str) -> ElementTree.Element:
    """The text as an element `nvidia_smi_log`, with a `gpu` for each GPU."""
    root = ElementTree.Element("nvidia_smi_log")
    driver = _DRIVER.search(text)
    if driver:
        ElementTree.SubElement(root, "driver_version").text = driver[1]
    stack: list[tuple[int, ElementTree.Element]] = []
    for line in text[:_MAX_CHARACTERS].splitlines():
        if head := _GPU.match(line):
            if len(root) > _MAX_GPUS:
                break
            stack = [(-1, ElementTree.SubElement(root, "gpu", id=head[1]))]
        elif stack and line.startswith(" ") and len(line) < 400 and (found := _LINE.match(line.rstrip())):
            _add(stack, len(found[1]), found[2], found[3])
    return root


def _add(stack: list[tuple[int, ElementTree.Element]], indent: int, name: str, value: str | None) -> None:
    while stack[-1][0] >= indent:
        stack.pop()
    parent = stack[-1][1]
    if len(stack) > _MAX_DEPTH:
        return
    reasons = next((element for _, element in stack if element.tag in _REASONS), None)
    element = ElementTree.SubElement(parent if reasons is None else reasons, _tag(parent.tag, name, reasons))
    element.text = (value or "").strip() or None
    stack.append((indent, element))


def _tag(parent: str, name: str, reasons: ElementTree.Element | None) -> str:
    tag = re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")
    if reasons is not None:
        tag = {"idle": "gpu_idle", "display_clock_setting": "display_clocks_setting"}.get(tag, tag)
        return f"{reasons.tag.removesuffix('s')}_{tag}"
    return _NAMES_WITHIN.get((parent, tag)) or _NAMES.get(tag, tag)
