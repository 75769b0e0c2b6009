"""The devices that an active probe may load, and how work on them is timed. torch is imported in this file alone.

A GPU that is in use is left alone, and so is one that may be: an active probe takes its memory and its time. A recorded
machine cannot be loaded at all.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from itertools import pairwise
from typing import Any, NamedTuple

from laggard.model import Finding
from laggard.probes.active.measuring.rates import (
    EMULATED,
    ActiveThresholds,
    Measurement,
    NotMeasured,
    RateTest,
    facts_of,
    fault_code,
    judge,
    median,
)
from laggard.probes.errors import Unknown
from laggard.probes.gpu.model.readings import query_non_mig_gpus
from laggard.probes.host.host import Host
from laggard.probes.nvml.model import Gpu
from laggard.probes.probe import Fact

_CPU_STAND_INS = 3
"""The number of devices that the CPU emulates."""

_MAX_ROUNDS = 1000
_MIN_ROUNDS = 3
_PIECE = 1 << 24
_broken: list[str] = []  # the error after which CUDA serves this process no more, if any
_IDLE_MEMORY_RATIO = 0.1  # of an idle GPU's memory: the driver and the context that asks need less


class ComputeDevice(NamedTuple):
    """A GPU, or the CPU in the place of one."""

    name: str
    """The name for findings."""
    model: str
    torch_name: str
    """`cuda:0` or `cpu`."""
    bus_id: str = ""
    """The bus id as sysfs writes it."""

    @property
    def on_gpu(self) -> bool:
        return self.torch_name != "cpu"


class Workload(NamedTuple):
    """One round of work. `run` is timed; `count_wrong` then counts the wrong values of its result, and is not timed."""

    run: Callable[[], None]
    count_wrong: Callable[[], int]
    units: float
    """The work of one round."""
    values: int
    """The number of values of its result."""


def load_torch() -> Any:
    try:
        import torch
    except ImportError as error:
        raise Unknown(f"needs torch, which cannot be imported: {error}") from None
    return torch


def measure_all(
    host: Host, thresholds: ActiveThresholds, measure: Callable[[Any, ComputeDevice], Measurement]
) -> tuple[list[Measurement], list[NotMeasured]]:
    """Measures each device, one after the other. Raises Unknown where the machine is a recorded one or torch cannot be
    used, and whatever query_non_mig_gpus() raises."""
    if host.recorded:
        raise Unknown("a recorded machine cannot be loaded")
    measured: list[Measurement] = []
    not_measured: list[NotMeasured] = []
    stand_ins = (ComputeDevice(f"CPU run {number}", EMULATED, "cpu") for number in range(_CPU_STAND_INS))
    for device in stand_ins if thresholds.device == "cpu" else _gpus(host):
        result = device if isinstance(device, NotMeasured) else _measure(device, measure)
        measured.extend([result] if isinstance(result, Measurement) else [])
        not_measured.extend([result] if isinstance(result, NotMeasured) else [])
    return measured, not_measured


def _measure(device: ComputeDevice, measure: Callable[[Any, ComputeDevice], Measurement]) -> Measurement | NotMeasured:
    """Measures a device. CUDA serves this process no more after an error of the hardware: it repeats the error for
    every GPU, until the process ends. So no later GPU is measured, by no later probe, and none is taken for the faulty
    one."""
    if _broken:
        return NotMeasured(f"{device.name}: not measured after {_broken[0]}")
    torch = load_torch()
    try:
        with torch.inference_mode(), torch.cuda.device(device.torch_name) if device.on_gpu else nullcontext():
            result = measure(torch, device)
            torch.cuda.empty_cache()  # the next probe has as much memory as this one had
            return result
    except RuntimeError as error:  # what torch raises for every error of CUDA
        text = f"{device.name}: {_first_line(error)}"
        code = fault_code(text)
        if code and device.on_gpu:
            _broken.append(text)
        return NotMeasured(text, device.name, code)


def time_rounds(
    torch: Any, device: ComputeDevice, seconds: float, workload: Workload, warm_up: float = 0.0
) -> Measurement:
    """Runs rounds for `seconds`, at least three, after a warm-up of `warm_up` seconds and one round at least. The rate
    of a GPU is that of its median round, so that throttling that comes and goes counts. The rate of a CPU, which is
    shared with other processes, is that of its best round."""
    until = time.monotonic() + warm_up
    _timed(torch, device, workload.run)  # the first call costs more than later ones
    while time.monotonic() < until:
        _timed(torch, device, workload.run)
    wrong = workload.count_wrong()
    times: list[float] = []
    until = time.monotonic() + seconds
    while len(times) < _MIN_ROUNDS or (time.monotonic() < until and len(times) < _MAX_ROUNDS):
        times.append(_timed(torch, device, workload.run))
        wrong += workload.count_wrong()
    typical = median(times) if device.on_gpu else min(times)
    checked = (len(times) + 1) * workload.values  # the warm-up's last round, too
    return Measurement(device.name, device.model, workload.units / max(typical, 1e-9), checked, wrong)


def move_words(
    torch: Any, device: ComputeDevice, seconds: float, places: Sequence[Any], move: Callable[[Any, Any], Any] | None
) -> Measurement:
    """Moves 32-bit words that hold their own index from each place to the next, and counts on the last one those that
    do not. `move(to, from)`: torch's copy_, unless a test puts in a faulty one."""
    words = len(places[0])

    def run() -> None:
        for origin, target in pairwise(places):
            (move or _copy)(target, origin)

    def count_wrong() -> int:
        """Also clears what arrived, so that a copy that does nothing is found in the next round."""
        count = _count_wrong_places(torch, places[-1])
        for place in places[1:]:
            place.zero_()
        return count

    workload = Workload(run, count_wrong, units=2.0 * 4 * words, values=words)
    return time_rounds(torch, device, seconds, workload)


def _copy(target: Any, origin: Any) -> None:
    target.copy_(origin, non_blocking=True)  # on one stream: one after the other


def _count_wrong_places(torch: Any, words: Any) -> int:
    """Works in pieces, to need little more memory."""
    return sum(
        int((piece != torch.arange(start, start + len(piece), dtype=torch.int32, device=piece.device)).sum())
        for start, piece in ((at, words[at : at + _PIECE]) for at in range(0, len(words), _PIECE))
    )


def _timed(torch: Any, device: ComputeDevice, work: Callable[[], None]) -> float:
    """Returns seconds on the device's own clock: of a CPU those that its cores worked for this process, since other
    processes take them, too."""
    if not device.on_gpu:
        began = time.process_time()
        work()
        return time.process_time() - began
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    work()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) / 1e3


def _gpus(host: Host) -> Iterator[ComputeDevice | NotMeasured]:
    gpus = query_non_mig_gpus(host)
    torch = load_torch()
    if not torch.cuda.is_available():
        raise Unknown(f"NVML lists {len(gpus)} GPUs, torch {torch.__version__} can use none of them")
    not_visible = {gpu.key: gpu for gpu in gpus}
    for index in range(torch.cuda.device_count()):
        gpu = _find_gpu(torch, index, gpus)
        if isinstance(gpu, NotMeasured):
            yield gpu
            continue
        not_visible.pop(gpu.key, None)
        yield _idle_device(torch, index, gpu)
    yield from (NotMeasured(f"{gpu.device}: not visible to torch") for gpu in not_visible.values())


def _find_gpu(torch: Any, index: int, gpus: Sequence[Gpu]) -> Gpu | NotMeasured:
    try:
        uuid = str(getattr(torch.cuda.get_device_properties(index), "uuid", "?"))
    except RuntimeError as error:
        return NotMeasured(f"cuda:{index}: {_first_line(error)}")
    known = [gpu for gpu in gpus if gpu.uuid and gpu.uuid.endswith(uuid)]
    if len(known) != 1:
        return NotMeasured(f"cuda:{index}: NVML knows no such GPU, so that it is unknown whether it is in use")
    return known[0]


def _idle_device(torch: Any, index: int, gpu: Gpu) -> ComputeDevice | NotMeasured:
    """The GPU, unless it is in use or CUDA does not start on it, which starts here."""
    reason = _reason_in_use(gpu) or (f"not measured after {_broken[0]}" if _broken else "")
    try:
        reason = reason or _reason_memory_used(torch, index)
        model = torch.cuda.get_device_properties(index).name
    except RuntimeError as error:
        reason, model = f"CUDA does not start on it: {_first_line(error)}", ""
    if reason:
        return NotMeasured(f"{gpu.device}: {reason}")
    return ComputeDevice(gpu.device, model, f"cuda:{index}", gpu.bus_id or "")


def _first_line(error: RuntimeError) -> str:
    return str(error).partition("\n")[0]


def _reason_in_use(gpu: Gpu) -> str:
    if gpu.processes is None:
        return f"unknown whether it is in use: {gpu.errors.get('processes', 'NVML does not report it')}"
    pids = ", ".join(str(process.pid) for process in gpu.processes[:4])
    return f"in use by process {pids}" if gpu.processes else ""


def _reason_memory_used(torch: Any, index: int) -> str:
    """Checks the memory: in a container the list of processes may be empty while another uses the GPU."""
    free, total = torch.cuda.mem_get_info(index)
    used = 1 - free / total
    return f"in use: {used:.0%} of its memory is taken".replace("%", " %") if used > _IDLE_MEMORY_RATIO else ""


def check_rates(
    host: Host, thresholds: ActiveThresholds, test: RateTest, measure: Callable[[Any, ComputeDevice], Measurement]
) -> Iterator[Finding | Fact]:
    """`measure` takes torch and a device. Raises Unknown as measure_all() and judge() do."""
    measured, not_measured = measure_all(host, thresholds, measure)
    yield Fact("measured", facts_of(measured, test.unit))
    yield from judge(measured, not_measured, test, thresholds)
