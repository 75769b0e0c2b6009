"""torch.cuda over a lazy device: as much of it as the hooks touch, with torch's names and rules.

For running the CUDA part of the hooks (device/cuda.py) where there is no CUDA. What it lacks raises AttributeError.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from support.lazy_device import LazyDevice, Place
from support.lazy_device import Stream as LazyStream


def lazy_torch(device: LazyDevice) -> Any:
    """A module in the place of torch; `torch.lazy` is the device."""
    streams: dict[int, LazyStream] = {}

    def known(stream: LazyStream) -> int:
        streams[stream.number] = stream
        return stream.number

    class Stream:
        def __init__(self, number: int) -> None:
            self.cuda_stream = number

        def wait_event(self, event: Any) -> None:
            event.wait(self)

        def wait_stream(self, other: Any) -> None:
            event = Event()
            event.record(other)
            self.wait_event(event)

        def synchronize(self) -> None:
            device.synchronize(streams[self.cuda_stream])

    class Event:
        def __init__(self, enable_timing: bool = False) -> None:
            self._timing = enable_timing
            self._place: Place | None = None

        def record(self, stream: Any = None) -> None:
            assert not (device.in_capture and self._timing), "recorded during a capture"
            self._place = device.place(streams[(stream or current_stream()).cuda_stream])

        def query(self) -> bool:
            assert not device.in_capture, "queried during a capture"
            return self._place is None or self._place.passed.is_set()

        def wait(self, stream: Any = None) -> None:
            assert self._place is not None
            streams[(stream or current_stream()).cuda_stream].submit(self._place.passed.wait)

        def synchronize(self) -> None:
            assert self._place is not None and self._place.passed.wait(60)

        def elapsed_time(self, end: Any) -> float:
            assert self._timing and end._timing and self.query() and end.query(), "not ready"
            return (end._place.time - self._place.time) / 1e6  # type: ignore[union-attr]

    class CUDAGraph:
        def capture_begin(self, pool: Any = None) -> None:
            device.in_capture = True

        def capture_end(self) -> None:
            device.in_capture = False

    def current_stream(index: int = 0) -> Stream:
        return Stream(known(device._current))

    def synchronize(index: Any = None) -> None:
        for stream in list(streams.values()):
            device.synchronize(stream)

    cuda = SimpleNamespace(
        Stream=Stream,
        Event=Event,
        CUDAGraph=CUDAGraph,
        current_stream=current_stream,
        current_device=lambda: 0,
        is_initialized=lambda: True,
        synchronize=synchronize,
        stream_of=lambda lazy: Stream(known(lazy)),
    )
    core = SimpleNamespace(
        _cuda_getDevice=lambda: 0,
        _cuda_getCurrentRawStream=lambda index: known(device._current),
        _cuda_isCurrentStreamCapturing=lambda: device.in_capture,
    )
    distributed = SimpleNamespace(get_backend=lambda group: group)
    return SimpleNamespace(cuda=cuda, _C=core, distributed=distributed, lazy=device)
