"""The devices that an active probe may load, and how work on them is timed. torch is imported here and nowhere else.

A GPU that somebody uses is left alone, and so is one of which that cannot be told: an active probe takes its memory
and its time. A recorded machine cannot be loaded at all.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any, NamedTuple

from laggard.probes.active.measuring.rules import EMULATED, ActiveThresholds, Measured, median
from laggard.probes.errors import Unknown
from laggard.probes.gpu.model.readings import query_non_mig_gpus
from laggard.probes.host.host import Host
from laggard.probes.nvml.model import Gpu

STAND_INS = 3
"""How many devices the CPU stands for."""

_MOST_ROUNDS = 1000
_LEAST_ROUNDS = 3
_PIECE = 1 << 24
_IDLE_MEMORY_RATIO = 0.1  # of a GPU's memory: what the driver, and the context that asks, take of an idle one


class Device(NamedTuple):
    """`place` is torch's name of it; `name` is how findings call it; `kind` its model; `bus_id` as sysfs writes it."""

    name: str
    kind: str
    place: str
    bus_id: str = ""

    @property
    def on_gpu(self) -> bool:
        return self.place != "cpu"


class Round(NamedTuple):
    """`work` is timed; `wrong` then counts the wrong values of its result, outside of the time."""

    work: Callable[[], None]
    wrong: Callable[[], int]


def load_torch() -> Any:
    try:
        import torch
    except ImportError as error:
        raise Unknown(f"needs torch, which cannot be imported: {error}") from None
    return torch


def measure_all(
    host: Host, thresholds: ActiveThresholds, measure: Callable[[Any, Device], Measured]
) -> tuple[list[Measured], list[str]]:
    """`measure` of each device, one after the other; and the reasons why devices were not measured."""
    if host.recorded:
        raise Unknown("a recorded machine cannot be loaded")
    measured, silent = [], []
    for device in _cpu() if thresholds.device == "cpu" else _gpus(host):
        if isinstance(device, str):
            silent.append(device)
            continue
        torch = load_torch()
        try:
            with torch.inference_mode(), torch.cuda.device(device.place) if device.on_gpu else nullcontext():
                measured.append(measure(torch, device))
                torch.cuda.empty_cache()  # the next probe finds the memory as this one did
        except RuntimeError as error:  # what torch raises for every error of CUDA: out of memory, uncorrectable ECC
            silent.append(f"{device.name}: {str(error).splitlines()[0]}")
    return measured, silent


def time_rounds(torch: Any, device: Device, seconds: float, one: Round, units: float) -> tuple[float, int, int]:
    """Rounds for `seconds` (three at least). The rate in `units` a second, how many wrong values, and how many rounds
    were checked. A GPU's is its median round: a brake that comes and goes is its own. A CPU is shared, and a round that
    was disturbed says nothing of it: its is the best."""
    one.work()  # what the first call costs is not the device's speed
    wrong = one.wrong()
    times: list[float] = []
    until = time.monotonic() + seconds
    while len(times) < _LEAST_ROUNDS or (time.monotonic() < until and len(times) < _MOST_ROUNDS):
        times.append(_timed(torch, device, one.work))
        wrong += one.wrong()
    typical = median(times) if device.on_gpu else min(times)
    return units / max(typical, 1e-9), wrong, len(times) + 1


def count_wrong_places(torch: Any, words: Any) -> int:
    """How many of the words do not hold their own place. In pieces, so that little memory is taken besides."""
    return sum(
        int((piece != torch.arange(start, start + len(piece), dtype=torch.int32, device=piece.device)).sum())
        for start, piece in ((at, words[at : at + _PIECE]) for at in range(0, len(words), _PIECE))
    )


def _timed(torch: Any, device: Device, work: Callable[[], None]) -> float:
    """Seconds on the device's own clock."""
    if not device.on_gpu:
        began = time.perf_counter()
        work()
        return time.perf_counter() - began
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    work()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) / 1e3


def _cpu() -> Iterator[Device | str]:
    yield from (Device(f"CPU run {number}", EMULATED, "cpu") for number in range(STAND_INS))


def _gpus(host: Host) -> Iterator[Device | str]:
    gpus = query_non_mig_gpus(host)
    torch = load_torch()
    if not torch.cuda.is_available():
        raise Unknown(f"NVML lists {len(gpus)} GPUs, torch {torch.__version__} can use none of them")
    unseen = {gpu.key: gpu for gpu in gpus}
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        known = [gpu for gpu in gpus if gpu.uuid and gpu.uuid.endswith(str(getattr(properties, "uuid", "?")))]
        if len(known) != 1:
            yield f"cuda:{index}: NVML knows no such GPU, so it cannot be told whether it is in use"
            continue
        unseen.pop(known[0].key, None)
        reason = _occupied(known[0]) or _filled(torch, index)
        yield f"{known[0].device}: {reason}" if reason else _device(known[0], properties.name, index)
    yield from (f"{gpu.device}: not visible to torch" for gpu in unseen.values())


def _device(gpu: Gpu, kind: str, index: int) -> Device:
    return Device(gpu.device, kind, f"cuda:{index}", gpu.bus_id or "")


def _occupied(gpu: Gpu) -> str:
    if gpu.processes is None:
        return f"cannot tell whether it is in use: {gpu.errors.get('processes', 'NVML does not say')}"
    pids = ", ".join(str(process.pid) for process in gpu.processes[:4])
    return f"in use by process {pids}" if gpu.processes else ""


def _filled(torch: Any, index: int) -> str:
    """In a container the list of processes may be empty while another container uses the GPU; its memory tells."""
    free, total = torch.cuda.mem_get_info(index)
    used = 1 - free / total
    return f"in use: {used:.0%} of its memory is taken".replace("%", " %") if used > _IDLE_MEMORY_RATIO else ""
