"""CUDA events as marks. Imported only once torch has started CUDA by itself; every call here returns at once.

Written against torch 2.4 to 2.13: the raw stream's number and the capture's state come from the functions that torch's
own compiler calls, a tenth of the price of asking for a Stream object.
"""

from __future__ import annotations

import functools
import itertools
import os
import threading
import time
from collections.abc import Callable
from typing import Any

from laggard.trainer_hooks.device.api import MARK_LIMIT
from laggard.trainer_hooks.device.collectives import DeviceCollectives
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
    """The CUDA device that is current when this is made (an api.AsyncDevice). Events come from a pool that grows to
    MARK_LIMIT and is used again from then on."""

    def __init__(self) -> None:
        import torch

        self._torch: Any = torch
        self._index = torch.cuda.current_device()
        self._current_device: Callable[[], int] = torch._C._cuda_getDevice
        self._raw_stream: Callable[[int], int] = torch._C._cuda_getCurrentRawStream
        self._is_capturing: Callable[[], bool] = torch._C._cuda_isCurrentStreamCapturing
        self._streams: dict[int, Any] = {}
        self._free: list[CudaMark] = []
        self._made = 0
        self._serials = itertools.count(1).__next__
        self.captures = 0  # graphs being captured by any thread

    def stream(self) -> int | None:
        return self._raw_stream(self._index) if self._current_device() == self._index else None

    def capturing(self) -> bool:
        return self.captures > 0 or self._is_capturing()

    def record(self) -> CudaMark | None:
        number = self.stream()
        if number is None:
            return None
        stream = self._streams.get(number)
        if stream is None:
            stream = self._streams[number] = self._torch.cuda.current_stream(self._index)
        if self._free:
            mark = self._free.pop()
        elif self._made < MARK_LIMIT:
            self._made += 1
            mark = CudaMark(self._torch.cuda.Event(enable_timing=True))
        else:
            return None
        mark.stream = number
        mark.serial = self._serials()
        mark.at = clock()
        mark.event.record(stream)
        return mark

    def done(self, mark: CudaMark) -> bool:
        return bool(mark.event.query())

    def nanoseconds_between(self, earlier: CudaMark, later: CudaMark) -> int:
        return int(earlier.event.elapsed_time(later.event) * 1e6)  # torch gives ms, CUDA resolves half a microsecond

    def release(self, mark: CudaMark) -> None:
        self._free.append(mark)

    def carries(self, tensors: Any, group: Any) -> bool:
        """Tensors on a GPU, or, where an operation has none (barrier), a group whose only backend is NCCL."""
        if tensors is None:
            return str(self._torch.distributed.get_backend(group)) == "nccl"
        while isinstance(tensors, (list, tuple)):
            tensors = tensors[0]
        return bool(tensors.is_cuda)


def create_timer(recorder: Recorder) -> DeviceCollectives | None:
    """Returns a device timer for `recorder`, and puts the hooks that it needs into torch.cuda. None where this torch
    lacks what that takes: the host's clock is used then."""
    try:
        device = CudaDevice()
    except AttributeError:
        recorder.give_up_on_device()
        return None
    single_queue = os.environ.get("CUDA_DEVICE_MAX_CONNECTIONS") == "1"
    timer = DeviceCollectives(device, recorder, mark_launches=not single_queue)
    _count_captures(device)
    _hook_stream_waits(timer)
    return timer


def _count_captures(device: CudaDevice) -> None:
    """Counts the graphs that are being captured. The stream that captures need not be the one that is current, and an
    event queried by any thread can spoil a capture."""
    import torch

    graph = torch.cuda.CUDAGraph
    begin, end = graph.capture_begin, graph.capture_end

    @functools.wraps(begin)
    def capture_begin(self: Any, *args: Any, **kwargs: Any) -> Any:
        device.captures += 1
        try:
            return begin(self, *args, **kwargs)
        except BaseException:
            device.captures -= 1
            raise

    @functools.wraps(end)
    def capture_end(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return end(self, *args, **kwargs)
        finally:
            device.captures -= 1

    graph.capture_begin = capture_begin  # type: ignore[method-assign]
    graph.capture_end = capture_end  # type: ignore[method-assign]


def _hook_stream_waits(timer: DeviceCollectives) -> None:
    """Times the user's own waits of the present stream for another one, and of the host for the device.
    (Stream.wait_event and wait_stream come to Event.wait.)"""
    import torch

    raw_wait = torch.cuda.Event.wait
    home = threading.get_ident()

    @functools.wraps(raw_wait)
    def wait(self: Any, stream: Any = None) -> Any:
        if timer.timeline.overlapped and (stream is None or getattr(stream, "cuda_stream", None) == timer.main):
            return timer.time_stream_wait(raw_wait, self, stream)
        return raw_wait(self, stream)

    def timed(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def synchronize(*args: Any, **kwargs: Any) -> Any:
            result = timer.time_stream_wait(original, *args, **kwargs)
            if threading.get_ident() == home:
                timer.poll()
            return result

        return synchronize

    torch.cuda.Event.wait = wait  # type: ignore[method-assign]
    torch.cuda.Event.synchronize = timed(torch.cuda.Event.synchronize)  # type: ignore[method-assign]
    torch.cuda.Stream.synchronize = timed(torch.cuda.Stream.synchronize)  # type: ignore[method-assign]
    torch.cuda.synchronize = timed(torch.cuda.synchronize)
