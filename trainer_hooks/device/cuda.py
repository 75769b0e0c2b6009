"""CUDA events as marks. Imported only once torch has started CUDA by itself; every call here returns at once.

Written against torch 2.4 to 2.14: the raw stream's number and the capture's state come from the functions that torch's
own compiler calls, a tenth of the price of asking for a Stream object.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import os
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from laggard.trainer_hooks.device.clock import MARK_LIMIT
from laggard.trainer_hooks.device.collectives import DeviceCollectives
from laggard.trainer_hooks.device.gpu import GraphCaptures, Placement
from laggard.trainer_hooks.record.recorder import Recorder

clock = time.perf_counter_ns


class CudaMark:
    """An event with where and when it was recorded last."""

    __slots__ = ("at", "event", "serial", "stream")

    def __init__(self, event: Any) -> None:
        self.event = event
        self.stream = 0
        self.serial = 0
        self.at = 0


class CudaDevice:
    """A CUDA device of `torch` (an api.AsyncDevice), which need not be the current one: events go into its current
    stream, and no context is made on another. Events come from a pool that grows to MARK_LIMIT and is used again from
    then on."""

    def __init__(self, torch: Any, index: int, captures: GraphCaptures) -> None:
        self.index = index
        self._torch = torch
        self._captures = captures
        self._current_device: Callable[[], int] = torch._C._cuda_getDevice
        self._raw_stream: Callable[[int], int] = torch._C._cuda_getCurrentRawStream
        self._graph_task: Callable[[], int] = torch._C._current_graph_task_id
        self._exchange_device: Callable[[int], int] = torch._C._cuda_exchangeDevice
        self._restore_device: Callable[[int], int] = torch._C._cuda_maybeExchangeDevice
        captures.stream_is_captured = torch._C._cuda_isCurrentStreamCapturing
        self.capturing = captures.under_way
        self._streams: dict[int, Any] = {}
        self._free: list[CudaMark] = []
        self._events: list[Any] = []
        _never_destroy(self._events)
        self._serials = itertools.count(1).__next__

    def stream(self) -> int:
        return self._raw_stream(self.index)

    def record(self) -> CudaMark | None:
        number = self._raw_stream(self.index)
        stream = self._streams.get(number)
        if stream is None:
            stream = self._streams[number] = self._torch.cuda.current_stream(self.index)
        if self._free:
            mark = self._free.pop()
        elif len(self._events) < MARK_LIMIT:
            mark = CudaMark(self._torch.cuda.Event(enable_timing=True))
            self._events.append(mark.event)
        else:
            return None
        mark.stream = number
        mark.serial = self._serials()
        mark.at = clock()
        mark.event.record(stream)
        return mark

    def done(self, mark: CudaMark) -> bool:
        # cudaEventQuery, which torch calls without a guard, makes a context on the runtime's current device (~0.5 GB)
        return bool(self._on_device(mark.event.query))

    def nanoseconds_between(self, earlier: CudaMark, later: CudaMark) -> int:
        # since torch 2.8 elapsed_time queries both events before its own guard (2.13: c10/cuda/CUDAEvent.h:195-213);
        # torch gives ms, CUDA resolves half a microsecond
        return int(self._on_device(earlier.event.elapsed_time, later.event) * 1e6)

    def _on_device(self, ask: Callable[..., Any], *arguments: Any) -> Any:
        """ask(...), called while this device is the current one."""
        if self._current_device() == self.index:
            return ask(*arguments)
        former = self._exchange_device(self.index)
        try:
            return ask(*arguments)
        finally:
            self._restore_device(former)

    def release(self, mark: CudaMark) -> None:
        mark.serial = 0
        self._free.append(mark)

    def carries(self, tensors: Any, group: Any) -> bool:
        if tensors is None:
            return self._synchronizes_here(group)
        while isinstance(tensors, (list, tuple)):
            tensors = tensors[0]
        return bool(tensors.get_device() == self.index)

    def other_index(self, tensors: Any) -> int | None:
        while isinstance(tensors, (list, tuple)):
            tensors = tensors[0]
        return tensors.get_device() if tensors is not None and tensors.is_cuda else None

    def runs_backward(self) -> bool:
        return self._graph_task() >= 0

    def _synchronizes_here(self, group: Any) -> bool:
        """Whether a barrier of `group` runs on a GPU: torch takes the CPU where the group has a backend for it."""
        types = getattr(group, "_device_types", None)
        if types is None:
            return str(self._torch.distributed.get_backend(group)) == "nccl"
        return {each.type for each in types} == {"cuda"}


def _never_destroy(events: list[Any]) -> None:
    """Keeps `events`, and what is put into it, until the process ends. Each cudaEventDestroy() of thousands, after a
    CUDA error, writes a warning or ends the process by another status than its own (c10/cuda/CUDAEvent.h)."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(events))


def create_timer(recorder: Recorder, placement: Placement, captures: GraphCaptures) -> DeviceCollectives | None:
    """Returns a device timer for `recorder`, and puts the hooks that it needs into torch.cuda. None where this torch
    lacks what that takes, and the host's clock is used then; or where it is not known yet on which device this process
    trains."""
    import torch

    index = placement.find()
    if index is None:
        return None
    try:
        device = CudaDevice(torch, index, captures)
    except AttributeError:
        recorder.give_up_on_device()
        return None
    single_queue = os.environ.get("CUDA_DEVICE_MAX_CONNECTIONS") == "1"
    timer = DeviceCollectives(device, recorder, mark_launches=not single_queue, placement=placement)
    _time_stream_waits(timer)
    return timer


def _time_stream_waits(timer: DeviceCollectives) -> None:
    import torch

    waits = getattr(torch.cuda.Event.wait, "_laggard_waits", None) or _StreamWaits()
    waits.timer = timer


class _StreamWaits:
    """Has `timer` time the training's own waits of the present stream for another one, and of the host for the device.
    (Stream.wait_event and wait_stream come to Event.wait.)"""

    timer: DeviceCollectives

    def __init__(self) -> None:
        import torch

        cuda: Any = torch.cuda
        cuda.Event.wait = self._timed_wait(cuda.Event.wait)
        owners = [cuda.Event, cuda.Stream, cuda]
        if hasattr(torch, "accelerator"):  # torch 2.6
            owners.append(torch.accelerator)
        for owner in owners:
            owner.synchronize = self._timed(owner.synchronize)

    def _timed_wait(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def wait(event: Any, stream: Any = None) -> Any:
            timer = self.timer
            on_main = stream is None or getattr(stream, "cuda_stream", None) == timer.main
            if on_main and timer.timeline.overlapped and timer.on_training_thread():
                return timer.time_stream_wait(original, event, stream)
            return original(event, stream)

        wait._laggard_waits = self  # type: ignore[attr-defined]
        return wait

    def _timed(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def synchronize(*args: Any, **kwargs: Any) -> Any:
            timer = self.timer
            if not timer.on_training_thread():
                return original(*args, **kwargs)
            result = timer.time_stream_wait(original, *args, **kwargs)
            timer.poll()
            return result

        return synchronize


# 64-bit numbers on their way from a GPU to the host, for which nothing waits. Imported only once torch has started CUDA
# by itself.

MAX_UNDER_WAY: Final = 64
"""The most numbers under way: a host is rarely that many steps ahead of its GPU. What comes beyond is not copied."""


class DigestCopies:
    """Copies numbers of the CUDA device `index` into pinned memory, in its current stream, with an event behind each.
    Making it takes the pinned memory, once. Raises AttributeError where this torch lacks what events take."""

    def __init__(self, torch: Any, index: int, captures: GraphCaptures) -> None:
        self._device = CudaDevice(torch, index, captures)
        self._captures = captures
        self._pinned = torch.empty(MAX_UNDER_WAY, dtype=torch.int64, device="cpu", pin_memory=True)
        self._under_way: deque[tuple[int, int, CudaMark]] = deque()
        self._next = 0

    def start(self, step: int, number: Any) -> None:
        """Starts the copy of `number`, a tensor of one int64, which belongs to `step`."""
        if len(self._under_way) >= MAX_UNDER_WAY:
            return
        slot, self._next = self._next, (self._next + 1) % MAX_UNDER_WAY
        self._pinned[slot].copy_(number, non_blocking=True)
        mark = self._device.record()
        if mark is not None:
            self._under_way.append((step, slot, mark))

    def arrived(self) -> list[tuple[int, int]]:
        """The (step, number) that have arrived since the last call, in their order."""
        found: list[tuple[int, int]] = []
        while self._under_way and not self._captures.under_way() and self._device.done(self._under_way[0][2]):
            step, slot, mark = self._under_way.popleft()
            self._device.release(mark)
            found.append((step, int(self._pinned[slot])))
        return found
