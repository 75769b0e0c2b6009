"""NVML as laggard reads it, against nvidia-smi; how long its calls take; and what only hardware tells of them.

Keeps NVML's readings as for a recorded machine (nvml.json), the calls' times and nvidia-smi's text in the part's
folder. These hold UUIDs; the outcomes do not.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gpu_check.outcome import CannotRun, Context, Outcome, info, judged, require_nvidia_gpu

EXACT = (
    "bus_id", "uuid", "name", "minor", "mig", "persistence", "rows", "ecc_volatile", "ecc_aggregate", "max_sm_mhz",
    "max_memory_mhz", "application_sm_mhz", "default_sm_mhz", "power_limit_watts", "default_power_limit_watts",
    "recovery_action",
)  # fmt: skip
TOLERANCES = {"temperature_celsius": 5, "margin_celsius": 5, "memory_temperature_celsius": 5}
SLOWDOWN_MARGINS = range(193, 197)  # NVML_FI_DEV_TEMPERATURE_*_TLIMIT
LINK_FIELDS, LINKS = (161, 162, 163), 36


def run(context: Context) -> Iterator[Outcome]:
    require_nvidia_gpu()
    import pynvml  # a part that cannot import it does not run

    from laggard.probes.nvml.live import read_nvml
    from laggard.probes.nvml.model import encode_nvml

    calls: list[tuple[float, str]] = []
    nvml = read_nvml(lambda call, time_limit: calls.append((time.monotonic(), call)), 60.0)
    ended = time.monotonic()
    (context.out / "nvml.json").write_bytes(encode_nvml(nvml))
    if nvml.error:
        raise CannotRun(f"no GPU: NVML says {nvml.error}")
    yield times(calls, ended, context.out)
    yield info("driver", f"{nvml.driver_version}, {len(nvml.gpus)} GPUs")
    for gpu in nvml.gpus:
        not_read = ", ".join(f"{name}: {error}" for name, error in gpu.errors.items())
        yield info(f"{gpu.device}, not read", not_read or "nothing")
    yield from compare(nvml, context.out)
    for gpu in nvml.gpus:
        if gpu.bus_id:
            yield info(f"{gpu.device}, PCIe link", pcie_link(gpu.bus_id))
    yield from raw_fields(pynvml)


def times(calls: list[tuple[float, str]], ended: float, out: Path) -> Outcome:
    spans = [(after - at, call) for (at, call), (after, _) in zip(calls, [*calls[1:], (ended, "")], strict=True)]
    (out / "calls.json").write_text(json.dumps([[call, seconds] for seconds, call in spans], indent=1))
    longest = ", ".join(f"{call} {seconds * 1e3:.1f} ms" for seconds, call in sorted(spans, reverse=True)[:3])
    return info("calls", f"{len(calls)} in {ended - calls[0][0]:.3f} s; the longest: {longest}")


def compare(nvml: Any, out: Path) -> Iterator[Outcome]:
    """Judges the fields in which NVML's readings and nvidia-smi's differ."""
    from laggard.probes.nvml.nvidia_smi import parse_nvidia_smi

    try:
        text = subprocess.run(["nvidia-smi", "-q", "-x"], capture_output=True, text=True, timeout=60, check=True).stdout
    except (OSError, subprocess.SubprocessError) as error:
        yield info("against nvidia-smi", f"not compared: nvidia-smi does not run: {error}")
        return
    (out / "nvidia-smi.xml").write_text(text)
    others = {gpu.uuid: gpu for gpu in parse_nvidia_smi(text).gpus}
    for gpu in nvml.gpus:
        other = others.get(gpu.uuid)
        if other is None:
            yield judged(f"{gpu.device} against nvidia-smi", gpu.uuid is None, "nvidia-smi does not list this GPU")
            continue
        both = [(field, getattr(gpu, field), getattr(other, field)) for field in (*EXACT, *TOLERANCES)]
        known = [(field, ours, theirs) for field, ours, theirs in both if ours is not None and theirs is not None]
        unequal = [
            field if field == "uuid" else f"{field} is {ours} in NVML and {theirs} there"
            for field, ours, theirs in known
            if not agree(field, ours, theirs)
        ]
        text = "; ".join(unequal) or f"{len(known)} fields agree"
        yield judged(f"{gpu.device} against nvidia-smi", not unequal, text)


def agree(field: str, ours: Any, theirs: Any) -> bool:
    return bool(abs(ours - theirs) <= TOLERANCES[field]) if field in TOLERANCES else bool(ours == theirs)


def pcie_link(bus_id: str) -> str:
    folder = Path("/sys/bus/pci/devices", bus_id)
    try:
        width, most, speed, top = (
            (folder / name).read_text().strip()
            for name in ("current_link_width", "max_link_width", "current_link_speed", "max_link_speed")
        )
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    return f"x{width} of x{most}, {speed} of {top}"


def raw_fields(pynvml: Any) -> Iterator[Outcome]:
    """The types of the temperature margins' values, and whether one call answers all fields of as many links as NVML
    allows: 118 with the ten that are not a link's."""
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    try:
        types = [
            f"{value.fieldId}: type {value.valueType}, status {value.nvmlReturn}"
            for value in pynvml.nvmlDeviceGetFieldValues(handle, list(SLOWDOWN_MARGINS))
        ]
        yield info("temperature margins", "; ".join(types))
        ids: list[Any] = [82, 194, 196, 230, 269, 270, 271, 52, 59, 38]
        ids += [(field, link) for field in LINK_FIELDS for link in range(LINKS)]
        found = pynvml.nvmlDeviceGetFieldValues(handle, ids)
        answered = sum(value.nvmlReturn == 0 for value in found)
        yield info("fields in one call", f"{len(ids)} asked for, {answered} of them have a value")
    except pynvml.NVMLError as error:
        yield info("fields in one call", f"refused: {error}")
