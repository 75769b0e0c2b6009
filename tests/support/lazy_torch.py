"""torch.cuda over lazy devices: as much of it as the hooks touch, with torch's names and rules.

For running the CUDA part of the hooks (device/cuda.py) where there is no CUDA. What it lacks raises AttributeError.
Which device is current, and which calls make a context on a device, is as in torch with CUDA 12: set_device() and the
device guards of torch's own calls make one on the device that they are for; a query makes one on the current device.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

from support.lazy_device import LazyDevice, Place
from support.lazy_device import Stream as LazyStream

CYCLES_PER_SECOND = 2e9


class LazyTensor:
    """A tensor on device number `index`; -1: in the host's memory."""

    nbytes = 64

    def __init__(self, index: int = 0) -> None:
        self.device = SimpleNamespace(index=index)
        self.is_cuda = index >= 0

    def get_device(self) -> int:
        return int(self.device.index)


class LazyCuda:
    """What torch.cuda keeps of its devices. `contexts`: the devices that have one."""

    def __init__(self, devices: tuple[LazyDevice, ...]) -> None:
        self.devices = devices
        self.current = 0
        self.contexts: set[int] = set()
        self.autograd = 0  # the thread that runs a backward pass beside the training thread
        self._streams: dict[tuple[int, int], LazyStream] = {}

    def launch(self, index: int, seconds: float) -> None:
        """A kernel on a tensor of device `index`, as torch launches it: whichever device is current."""
        self.contexts.add(index)
        self.devices[index].work(seconds)

    def known(self, index: int, stream: LazyStream) -> int:
        self._streams[index, stream.number] = stream
        return stream.number

    def stream(self, of: Any) -> LazyStream:
        return self._streams[of.device_index, of.cuda_stream]

    def set_device(self, index: int) -> None:
        self.current = index
        self.contexts.add(index)

    def exchange(self, index: int, makes_context: bool) -> int:
        former, self.current = self.current, index
        if makes_context:
            self.contexts.add(index)
        return former


def lazy_torch(*devices: LazyDevice) -> Any:
    """A module in the place of torch; `torch.lazy` is its first device, `torch.lazy_cuda` what it keeps of all."""
    state = LazyCuda(devices)

    class Stream:
        def __init__(self, number: int | None = None, index: int = 0) -> None:
            self.cuda_stream = state.known(index, devices[index].new_stream()) if number is None else number
            self.device_index = index

        def wait_event(self, event: Any) -> None:
            event.wait(self)

        def wait_stream(self, other: Any) -> None:
            event = Event()
            event.record(other)
            self.wait_event(event)

        def synchronize(self) -> None:
            devices[self.device_index].synchronize(state.stream(self))

    class EventBase:
        """As torch._C._CudaEventBase, whose methods are C++: what is put in the place of Event's does not change it."""

        _place: Place | None

        def wait(self, stream: Any = None) -> None:
            assert self._place is not None
            state.stream(stream or current_stream()).wait_for(self._place)

    class Event(EventBase):
        def __init__(self, enable_timing: bool = False) -> None:
            self._timing = enable_timing
            self._place: Place | None = None
            self._index: int | None = None

        def record(self, stream: Any = None) -> None:
            stream = stream or current_stream()
            assert self._index in (None, stream.device_index), "does not match recording stream's device"
            self._index = stream.device_index
            state.contexts.add(stream.device_index)
            device = devices[stream.device_index]
            assert not (device.in_capture and self._timing), "recorded during a capture"
            self._place = device.place(state.stream(stream))

        def query(self) -> bool:
            assert not any(device.in_capture for device in devices), "queried during a capture"
            state.contexts.add(state.current)
            return self._place is None or self._place.passed.is_set()

        def wait(self, stream: Any = None) -> None:
            super().wait(stream)

        def synchronize(self) -> None:
            assert self._place is not None and self._place.passed.wait(300)

        def elapsed_time(self, end: Any) -> float:
            assert self._timing and end._timing and self._index == end._index, "not of one device, or without timing"
            assert self.query() and end.query(), "not ready"  # torch asks before its guard: on the current device
            state.contexts.add(self._index or 0)
            assert self._place is not None
            return (end._place.time - self._place.time) / 1e6

    class CUDAGraph:
        def capture_begin(self, pool: Any = None) -> None:
            devices[state.current].in_capture = True

        def capture_end(self) -> None:
            devices[state.current].in_capture = False

    class Graph:
        """torch.accelerator's, which does not come to CUDAGraph."""

        def capture_begin(self) -> None:
            devices[state.current].in_capture = True

        def capture_end(self) -> None:
            devices[state.current].in_capture = False

    def current_stream(index: int | None = None) -> Stream:
        index = state.current if index is None else index
        return Stream(state.known(index, devices[index]._current), index)

    def synchronize(index: Any = None) -> None:
        device = devices[state.current if index is None else index]
        for stream in list(state._streams.values()):
            device.synchronize(stream)

    def spin(cycles: int) -> None:
        """torch.cuda._sleep, on a GPU of CYCLES_PER_SECOND."""
        current_stream()  # synchronize() waits for those that were seen
        state.launch(state.current, cycles / CYCLES_PER_SECOND)

    @contextmanager
    def stream_context(stream: Stream) -> Iterator[None]:
        with devices[stream.device_index].on(state.stream(stream)):
            yield

    cuda = SimpleNamespace(
        init=lambda: None,
        is_available=lambda: True,
        stream=stream_context,
        _sleep=spin,
        Stream=Stream,
        Event=Event,
        CUDAGraph=CUDAGraph,
        current_stream=current_stream,
        current_device=lambda: state.current,
        device_count=lambda: len(devices),
        set_device=state.set_device,
        is_initialized=lambda: True,
        synchronize=synchronize,
        get_device_properties=lambda index: SimpleNamespace(uuid=f"uuid-{index}"),
        stream_of=lambda lazy, index=0: Stream(state.known(index, lazy), index),
    )
    core = SimpleNamespace(
        _CudaEventBase=EventBase,
        _cuda_getDevice=lambda: state.current,
        _cuda_getCurrentRawStream=lambda index: state.known(index, devices[index]._current),
        _cuda_isCurrentStreamCapturing=lambda: devices[state.current].in_capture,
        _cuda_hasPrimaryContext=lambda index: index in state.contexts,
        _cuda_exchangeDevice=lambda index: state.exchange(index, True),
        _cuda_maybeExchangeDevice=lambda index: state.exchange(index, False),
        _current_graph_task_id=lambda: 0 if threading.get_ident() == state.autograd else -1,
    )
    accelerator = SimpleNamespace(synchronize=lambda index=None: synchronize(index), Graph=Graph)
    distributed = SimpleNamespace(get_backend=lambda group: group)
    return SimpleNamespace(
        __version__="lazy",
        ones=lambda *shape, device="cuda": LazyTensor(0 if device == "cuda" else -1),
        cuda=cuda,
        _C=core,
        accelerator=accelerator,
        distributed=distributed,
        lazy=devices[0],
        lazy_cuda=state,
    )
