"""Parses `nvidia-smi -q -x`, of all GPUs or one, into the values that NVML gives: for files that somebody sent.

N/A means not supported, and what an older nvidia-smi does not print was not read. Neither becomes a zero.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final
from xml.etree import ElementTree

from laggard.probes.nvml.model import Gpu, GpuFabricInfo, GpuProcess, Nvml, RemappedRows, Repair, sysfs_bus_id
from laggard.probes.tables import meanings

_MAX_CHARACTERS: Final = 64 << 20
_DECLARATIONS = re.compile(r"<!(?:ENTITY|ELEMENT|ATTLIST|NOTATION)|<!DOCTYPE[^>\[]*\[")
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
_STATES: Final = {"not supported": 0, "not started": 1, "in progress": 2, "completed": 3}
_ACTIONS: Final = {
    "none": 0,
    "reset": 1,
    "reboot": 2,
    "drain p2p": 3,
    "drain and reset": 4,
    "recover imex domain": 5,
    "bus reset": 6,
    "system reboot": 7,
}
_UNKNOWN_ACTION: Final = 99
_HEALTH_FLAGS: Final = {  # by element: the shift in NVML_GPU_FABRIC_HEALTH_MASK, and the values of its two bits
    "bandwidth": (0, {"degraded": 1, "full": 2}),
    "route_recovery_in_progress": (2, {"true": 1, "false": 2}),
    "route_unhealthy": (4, {"true": 1, "false": 2}),
    "access_timeout_recovery": (6, {"true": 1, "false": 2}),
    "partition_assigned": (12, {"true": 1, "false": 2}),
}
_CONFIGURATION_SHIFT: Final = 8
_CONFIGURATION_UNKNOWN: Final = 15
_SUMMARIES: Final = {"healthy": 1, "unhealthy": 2, "limited capacity": 3}
_REASON_GROUPS: Final = ("clocks_event_reasons", "clocks_throttle_reasons")
_REASONS: Final = {
    "gpu_idle": 0x01,
    "applications_clocks_setting": 0x02,
    "sw_power_cap": 0x04,
    "hw_slowdown": 0x08,
    "sync_boost": 0x10,
    "sw_thermal_slowdown": 0x20,
    "hw_thermal_slowdown": 0x40,
    "hw_power_brake_slowdown": 0x80,
    "display_clocks_setting": 0x100,
}
_ERRORS: Final = {
    "gpu is lost": "GPU_IS_LOST",
    "gpu requires reset": "RESET_REQUIRED",
    "unknown error": "UNKNOWN",
    "err!": "UNKNOWN",
    "requested functionality has been deprecated": "DEPRECATED",
}
_UNCORRECTED: Final = (
    "sram_uncorrectable_parity",
    "sram_uncorrectable_secded",
    "sram_uncorrectable",
    "dram_uncorrectable",
    "double_bit/total",  # Volta and older
)


_RETIRED: Final = (
    "single_bit_ecc|retired_pages/multiple_single_bit_retirement/retired_count",
    "double_bit_ecc|retired_pages/double_bit_retirement/retired_count",
)
_PIECE: Final = 1 << 16
_MAX_DEPTH: Final = 32
_MAX_ELEMENTS: Final = 200_000
"""Twenty times what eight GPUs have."""


class _BoundedBuilder(ElementTree.TreeBuilder):
    """Makes the tree of elements. Raises ValueError for one that is nested or large without end."""

    def __init__(self) -> None:
        super().__init__()
        self._depth = self._count = 0

    def start(self, tag: str, attributes: dict[str, str], /) -> ElementTree.Element:
        self._depth, self._count = self._depth + 1, self._count + 1
        if self._depth > _MAX_DEPTH or self._count > _MAX_ELEMENTS:
            raise ValueError(f"more than {_MAX_DEPTH} elements in one another, or than {_MAX_ELEMENTS:,} in all")
        return super().start(tag, attributes)

    def end(self, tag: str, /) -> ElementTree.Element:
        self._depth -= 1
        return super().end(tag)


class NotNvidiaSmi(ValueError):
    """The text is not what `nvidia-smi -q -x` prints. The message says why."""


def parse_nvidia_smi(text: str) -> Nvml:
    """The readings in `text`. Raises NotNvidiaSmi."""
    return read_log(parse_xml(text))


def parse_xml(text: str) -> ElementTree.Element:
    """The element `nvidia_smi_log` of `text`. Raises NotNvidiaSmi. Entities and other declarations are refused, since
    they can make a small file endless."""
    if len(text) > _MAX_CHARACTERS:
        raise NotNvidiaSmi(f"larger than {_MAX_CHARACTERS >> 20} MiB")
    if _DECLARATIONS.search(text):
        raise NotNvidiaSmi("declares XML entities or elements, which nvidia-smi does not")
    try:
        parser = ElementTree.XMLParser(target=_BoundedBuilder())
        for start in range(0, len(text), _PIECE):  # what is refused shows at the end of a piece
            parser.feed(text[start : start + _PIECE])
        root = parser.close()
    except (ElementTree.ParseError, ValueError) as error:
        raise NotNvidiaSmi(f"is not XML: {error}") from None
    if root.tag != "nvidia_smi_log":
        raise NotNvidiaSmi(f"begins with <{root.tag[:40]}>, not <nvidia_smi_log>")
    return root


def read_log(root: ElementTree.Element) -> Nvml:
    """The readings of the element `nvidia_smi_log`."""
    gpus = tuple(_gpu(index, element) for index, element in enumerate(root.iterfind("gpu")))
    return Nvml(driver_version=_text(root, "driver_version") or "", gpus=gpus)


def _gpu(index: int, element: ElementTree.Element) -> Gpu:
    values: dict[str, Any] = {}
    errors: dict[str, str] = {}
    for name, (path, convert) in _FIELDS.items():
        text = _text(element, path)
        if text is None:
            continue
        known = _ERRORS.get(text.strip("[].").lower()) or ("NOT_SUPPORTED" if text == "N/A" else "")
        value = None if known else convert(text)
        if value is None:
            errors[name] = known or "NO_DATA"
        else:
            values[name] = value
    groups = {name: read(element) for name, read in _GROUPS.items()}
    values |= {name: value for name, value in groups.items() if value is not None}
    return Gpu(index=index, bus_id=sysfs_bus_id(element.get("id", "")) or None, errors=errors, **values)


def _text(element: ElementTree.Element, path: str) -> str | None:
    """The text of the first element that exists among the paths in `path`, which are separated by `|`; None without
    any."""
    for one in path.split("|"):
        found = element.find(one)
        if found is not None and found.text is not None and found.text.strip():
            return found.text.strip()
    return None


def _integer(text: str) -> int | None:
    number = _float(text)
    return None if number is None else int(number)


def _float(text: str) -> float | None:
    found = _NUMBER.match(text)
    return float(found[0]) if found and len(found[0]) < 20 else None


def _flag(text: str) -> bool | None:
    return {"yes": True, "enabled": True, "no": False, "disabled": False}.get(text.lower())


def _action(text: str) -> int:
    """The number of a recovery action; one that NVML does not use for the words of a newer nvidia-smi."""
    words = text.lower().replace("gpu ", "").replace("node ", "").replace(" required", "")
    return _ACTIONS.get(words, _UNKNOWN_ACTION)


def _string(text: str) -> str:
    return text[:200]


def _rows(element: ElementTree.Element) -> RemappedRows | None:
    texts = [
        _text(element, f"remapped_rows/remapped_row_{name}") or "" for name in ("corr", "unc", "pending", "failure")
    ]
    correctable, uncorrectable = map(_integer, texts[:2])
    pending, failed = map(_flag, texts[2:])
    if correctable is None or uncorrectable is None or pending is None or failed is None:
        return None
    return RemappedRows(correctable=correctable, uncorrectable=uncorrectable, pending=pending, failed=failed)


def _reasons(element: ElementTree.Element) -> int | None:
    groups = [group for name in _REASON_GROUPS if (group := element.find(name)) is not None]
    if not groups:
        return None
    active = [reason.tag.partition("_reason_")[2] for reason in groups[0] if (reason.text or "").strip() == "Active"]
    return sum(_REASONS.get(name, 0) for name in active)


def _uncorrected(kind: str) -> Callable[[ElementTree.Element], int | None]:
    def count(element: ElementTree.Element) -> int | None:
        texts = [_text(element, f"ecc_errors/{kind}/{name}") or "" for name in _UNCORRECTED]
        numbers = [number for number in map(_integer, texts) if number is not None]
        return sum(numbers) if numbers else None

    return count


def _fabric(element: ElementTree.Element) -> GpuFabricInfo | None:
    state = _STATES.get((_text(element, "fabric/state") or "").lower())
    if state is None:
        return None
    status = 0 if state != _STATES["completed"] or _text(element, "fabric/status") == "Success" else 999
    uuid = (_text(element, "fabric/clusterUuid|fabric/cluster_uuid") or "").replace("-", "")
    return GpuFabricInfo(
        state=state,
        status=status,
        health_mask=_health_mask(element),
        health_summary=_SUMMARIES.get(_health(element, "summary")),
        cluster_uuid=uuid if uuid.strip("0") and uuid != "N/A" else "",
        clique=_integer(_text(element, "fabric/cliqueId|fabric/clique_id") or "") or 0,
    )


def _health(element: ElementTree.Element, name: str) -> str:
    return (_text(element, f"fabric/health/{name}|fabric/{name}") or "").lower()


def _health_mask(element: ElementTree.Element) -> int | None:
    """The bits of NVML_GPU_FABRIC_HEALTH_MASK; None where nothing of it is shown. What is wrong with a configuration
    has a name here and a number there: it becomes a number that NVML does not use."""
    mask = sum(values.get(_health(element, name), 0) << shift for name, (shift, values) in _HEALTH_FLAGS.items())
    configuration = _health(element, "incorrect_configuration")
    if configuration not in ("", "n/a", "not supported"):
        mask |= (1 if configuration == "none" else _CONFIGURATION_UNKNOWN) << _CONFIGURATION_SHIFT
    return mask or None


def _repair(element: ElementTree.Element) -> Repair | None:
    texts = [_text(element, f"ecc_errors//{part}_repair_pending") for part in ("channel", "tpc")]
    channel, tpc = (None if text is None else _flag(text) for text in texts)
    return None if channel is None and tpc is None else Repair(channel=bool(channel), tpc=bool(tpc))


def _retired_pages(element: ElementTree.Element) -> int | None:
    numbers = [_integer(_text(element, f"retired_pages/{path}") or "") for path in _RETIRED]
    known = [number for number in numbers if number is not None]
    return sum(known) if known else None


def _processes(element: ElementTree.Element) -> tuple[GpuProcess, ...] | None:
    group = element.find("processes")
    if group is None:
        return None
    pids = [_integer(_text(process, "pid") or "") for process in group.iterfind("process_info")]
    return tuple(GpuProcess(pid=pid) for pid in pids if pid is not None)


_FIELDS: Final[dict[str, tuple[str, Callable[[str], Any]]]] = {
    "uuid": ("uuid", _string),
    "name": ("product_name", _string),
    "board_part": ("board_part_number", _string),
    "vbios": ("vbios_version", _string),
    "minor": ("minor_number", _integer),
    "mig": ("mig_mode/current_mig", _flag),
    "persistence": ("persistence_mode", _flag),
    "recovery_action": ("gpu_recovery_action", _action),
    "temperature_celsius": ("temperature/gpu_temp", _integer),
    "memory_temperature_celsius": ("temperature/memory_temp", _integer),
    "shutdown_celsius": ("temperature/gpu_temp_max_threshold", _integer),
    "slowdown_celsius": ("temperature/gpu_temp_slow_threshold", _integer),
    "gpu_max_celsius": ("temperature/gpu_temp_max_gpu_threshold", _integer),
    "memory_max_celsius": ("temperature/gpu_temp_max_mem_threshold", _integer),
    "margin_celsius": ("temperature/gpu_temp_tlimit", _integer),
    "slowdown_margin_celsius": ("temperature/gpu_temp_slow_tlimit_threshold", _integer),
    "gpu_max_margin_celsius": ("temperature/gpu_temp_max_gpu_tlimit_threshold", _integer),
    "max_sm_mhz": ("max_clocks/sm_clock", _integer),
    "max_memory_mhz": ("max_clocks/mem_clock", _integer),
    "application_sm_mhz": ("applications_clocks/graphics_clock", _integer),
    "application_memory_mhz": ("applications_clocks/mem_clock", _integer),
    "default_sm_mhz": ("default_applications_clocks/graphics_clock", _integer),
    "sm_mhz": ("clocks/sm_clock", _integer),
    "power_limit_watts": (
        "gpu_power_readings/requested_power_limit|power_readings/requested_power_limit|power_readings/power_limit",
        _float,
    ),
    "enforced_power_limit_watts": (
        "gpu_power_readings/current_power_limit|power_readings/enforced_power_limit",
        _float,
    ),
    "sram_threshold_exceeded": ("ecc_errors//sram_threshold_exceeded", _flag),
    "unrepairable_memory": ("ecc_errors//unrepairable_memory", _flag),
    "pcie_replays": ("pci/replay_counter|pci/replays_since_reset", _integer),
    "retirement_pending": ("retired_pages/pending_blacklist|retired_pages/pending_retirement", _flag),
    "default_power_limit_watts": (
        "gpu_power_readings/default_power_limit|power_readings/default_power_limit",
        _float,
    ),
}
_GROUPS: Final[dict[str, Callable[[ElementTree.Element], Any]]] = {
    "rows": _rows,
    "repair": _repair,
    "retired_pages": _retired_pages,
    "clocks_event_reasons": _reasons,
    "ecc_volatile": _uncorrected("volatile"),
    "ecc_aggregate": _uncorrected("aggregate"),
    "fabric": _fabric,
    "processes": _processes,
}


# Turns `nvidia-smi -q` as text into the elements that `nvidia-smi -q -x` has, so that both are read by one parser.
#
# The text is a tree by indentation, with `Name : value` at its leaves. Most names become elements by lower case and
# underscores; rules/nvidia_smi.ini has the others. What grep left of such a text is read as well: a GPU begins with its
# own line.

_MAX_GPUS: Final = 1024
_NVIDIA_SMI_TEXT_MAX_DEPTH: Final = 12
_GPU = re.compile(r"GPU ([0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.\d)\s*$")
_LINE = re.compile(r"( *)([A-Za-z][\w .()/#-]{0,80}?) *(?::(?: (.*))?)?$")
_DRIVER = re.compile(r"^Driver Version +: +([\w.]+)", re.MULTILINE)


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
    if len(stack) > _NVIDIA_SMI_TEXT_MAX_DEPTH:
        return
    reasons = next((element for _, element in stack if element.tag in _REASON_GROUPS), None)
    element = ElementTree.SubElement(parent if reasons is None else reasons, _tag(parent.tag, name, reasons))
    element.text = (value or "").strip() or None
    stack.append((indent, element))


def _tag(parent: str, name: str, reasons: ElementTree.Element | None) -> str:
    tag = re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")
    if reasons is not None:
        tag = {"idle": "gpu_idle", "display_clock_setting": "display_clocks_setting"}.get(tag, tag)
        return f"{reasons.tag.removesuffix('s')}_{tag}"
    names = meanings("nvidia_smi", "name")
    return names.get(f"{parent} {tag}", names.get(tag, (tag,)))[0]
