"""The CUDA runtime over lazy devices: as much of it as laggard comes to through torch, by NVIDIA's rules.

- Which device is current is each thread's own, and 0 at first. cudaGetDevice and the question for a primary context
  make no context. cudaSetDevice makes one since CUDA 12 (c10/cuda/CUDAFunctions.cpp says so above `targetDeviceIndex`).
- Every other call here makes one on the *current* device, whatever device the event or the stream is of. For
  cudaEventElapsedTime torch has found that (pytorch#122538), for cudaEventQuery torchcomms#777; a comment in
  pytorch#122538 says that a query makes none. The stand-in takes the costly answer.
- What is prohibited during a capture: CUDA's programming guide, "Prohibited and Unhandled Operations", and the
  documentation of cudaThreadExchangeStreamCaptureMode and cudaStreamIsCapturing. A query is among the "potentially
  unsafe" calls (pytorch#104555: the NCCL watchdog's, of an event recorded before the capture, broke it).
- In a forked child nothing works.

It tells what the hooks did from what the script did: strays() has the contexts that are the hooks' alone.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Iterable, Sequence
from typing import Final, NoReturn

from support.lazy_device import LazyDevice, Place, Stream

TEXTS: Final = {
    "cudaErrorInitializationError": "initialization error",
    "cudaErrorInvalidResourceHandle": "invalid resource handle",
    "cudaErrorNotReady": "device not ready",
    "cudaErrorAssert": "device-side assert triggered",
    "cudaErrorStreamCaptureUnsupported": "operation not permitted when stream is capturing",
    "cudaErrorStreamCaptureInvalidated": "operation failed due to a previous error during capture",
    "cudaErrorStreamCaptureImplicit": "operation would make the legacy stream depend on a capturing blocking stream",
    "cudaErrorStreamCaptureWrongThread": "attempt to terminate a thread-local capture sequence from another thread",
    "cudaErrorCapturedEvent": "operation not permitted on an event last recorded in a capturing stream",
}
"""What cudaGetErrorString says."""

PASSED_ON: Final = {"wait", "synchronize", "capture_begin", "capture_end"}
"""The script's own calls, which come here through the hooks that stand in their place."""

MADE: Final[list[LazyCudart]] = []
"""Every runtime of this process, since a test began."""


class CudaError(RuntimeError):
    """What torch raises for an error of the runtime (C10_CUDA_CHECK)."""

    def __init__(self, name: str) -> None:
        super().__init__(f"CUDA error: {TEXTS[name]}\nSearch for `{name}' in the documentation of the runtime.")
        self.name = name


class CudaEvent:
    """A cudaEvent_t. `place`: None until it is recorded; `captured`: it was last recorded in a capture."""

    def __init__(self, device: int, timing: bool) -> None:
        self.device, self.timing = device, timing
        self.place: Place | None = None
        self.captured = False


class Capture:
    """A stream that is being captured. `mode`: global, thread_local or relaxed."""

    def __init__(self, stream: Stream, device: int, mode: str) -> None:
        self.stream, self.device, self.mode = stream, device, mode
        self.thread = threading.get_ident()
        self.invalid = False


class LazyCudart:
    """`contexts`: the devices that have a primary context; `used`: those that the script itself has used. `broken`: the
    sticky error that every call repeats, once there is one. `version`: CUDA's."""

    def __init__(self, devices: Sequence[LazyDevice], version: int = 12) -> None:
        self.devices, self.version = devices, version
        self.contexts: set[int] = set()
        self.used: set[int] = set()
        self.broken = ""
        self.captures: list[Capture] = []
        self._by_hooks: dict[int, str] = {}  # device -> where in the hooks its context was made
        self._thread = threading.local()
        self._process = os.getpid()
        MADE.append(self)

    def strays(self) -> list[str]:
        """The contexts that the hooks made on devices which the script has not used."""
        return [f"GPU {device}: {where}" for device, where in self._by_hooks.items() if device not in self.used]

    # Which device is current.

    @property
    def forked(self) -> bool:
        return os.getpid() != self._process

    def get_device(self) -> int:
        self._check()
        return int(getattr(self._thread, "device", 0))

    def set_device(self, device: int) -> None:
        self._check()
        self._thread.device = device
        if self.version >= 12:
            self._use(device)

    def has_context(self, device: int) -> bool:
        """cuDevicePrimaryCtxGetState, by c10's hasPrimaryContext: the driver's, which repeats no error."""
        if self.forked:
            raise CudaError("cudaErrorInitializationError")
        return device in self.contexts

    def enter(self) -> int:
        """Begins a call that makes a context on the current device, which it returns; or stands for one."""
        device = self.get_device()
        self._use(device)
        return device

    # Events.

    def event_create(self, timing: bool) -> CudaEvent:
        return CudaEvent(self.enter(), timing)

    def event_record(self, event: CudaEvent, stream: Stream) -> None:
        device = self.enter()
        if event.device != device:
            raise CudaError("cudaErrorInvalidResourceHandle")
        self._check_legacy(stream, device)
        event.captured = stream.captured
        event.place = None if stream.captured else self.devices[device].place(stream)

    def event_query(self, event: CudaEvent) -> bool:
        self.enter()
        self._check_event(event)
        return event.place is None or event.place.passed.is_set()

    def event_synchronize(self, event: CudaEvent) -> None:
        self.enter()
        self._check_event(event)
        assert event.place is None or event.place.passed.wait(300), "the lazy device stands still"

    def event_elapsed_ms(self, start: CudaEvent, end: CudaEvent) -> float:
        self.enter()
        if start.device != end.device or not (start.timing and end.timing):
            raise CudaError("cudaErrorInvalidResourceHandle")
        if start.captured or end.captured:
            raise CudaError("cudaErrorCapturedEvent")
        if start.place is None or end.place is None:
            raise CudaError("cudaErrorInvalidResourceHandle")
        if not (start.place.passed.is_set() and end.place.passed.is_set()):
            raise CudaError("cudaErrorNotReady")
        return (end.place.time - start.place.time) / 1e6

    # Streams and devices.

    def stream_wait_event(self, stream: Stream, event: CudaEvent) -> None:
        self._check_legacy(stream, self.enter())
        if event.place is not None:
            stream.wait_for(event.place)

    def stream_query(self, stream: Stream) -> bool:
        device = self.enter()
        self._check_may_wait([stream])
        return self.devices[device].place(stream).passed.is_set()

    def stream_synchronize(self, stream: Stream) -> None:
        device = self.enter()
        self._check_may_wait([stream])
        self.devices[device].synchronize(stream)

    def device_synchronize(self) -> None:
        device = self.devices[self.enter()]
        self._check_may_wait(device.streams.values())
        for stream in list(device.streams.values()):
            device.synchronize(stream)

    # Captures.

    def stream_begin_capture(self, stream: Stream, mode: str = "global") -> None:
        device = self.enter()
        if stream.number == 0 or stream.captured:
            raise CudaError("cudaErrorStreamCaptureUnsupported")
        stream.captured = True
        self.captures.append(Capture(stream, device, mode))

    def stream_end_capture(self, stream: Stream) -> None:
        self.enter()
        capture = next(each for each in self.captures if each.stream is stream)
        if capture.mode != "relaxed" and capture.thread != threading.get_ident():
            raise CudaError("cudaErrorStreamCaptureWrongThread")
        self.captures.remove(capture)
        stream.captured = False
        if capture.invalid:
            raise CudaError("cudaErrorStreamCaptureInvalidated")

    def stream_is_capturing(self, stream: Stream) -> bool:
        """Also of one whose capture has become invalid: torch compares with cudaStreamCaptureStatusNone."""
        self._check_legacy(stream, self.enter())
        return stream.captured

    # What goes wrong.

    def _check(self) -> None:
        if self.broken:
            raise CudaError(self.broken)
        if self.forked:
            raise CudaError("cudaErrorInitializationError")

    def _use(self, device: int) -> None:
        where = place_in_hooks()
        if not where:
            self.used.add(device)
        elif device not in self.contexts:
            self._by_hooks[device] = where
        self.contexts.add(device)

    def _check_event(self, event: CudaEvent) -> None:
        if event.captured:
            self._fail("cudaErrorCapturedEvent", self.captures)
        self._check_safe()

    def _check_safe(self) -> None:
        """Whether this thread may make calls that are "potentially unsafe" beside captures."""
        own = threading.get_ident()
        modes = {"global": True, "thread_local": False, "relaxed": False}
        hit = [it for it in self.captures if modes[it.mode] or (it.mode == "thread_local" and it.thread == own)]
        if hit:
            self._fail("cudaErrorStreamCaptureUnsupported", hit)

    def _check_may_wait(self, streams: Iterable[Stream]) -> None:
        captured = [each for each in self.captures if each.stream in streams]
        if captured:
            self._fail("cudaErrorStreamCaptureUnsupported", captured)
        self._check_safe()

    def _check_legacy(self, stream: Stream, device: int) -> None:
        """The default stream may not be used, nor asked about, while a blocking stream of its device is captured."""
        if stream.number == 0 and any(each.stream.blocking and each.device == device for each in self.captures):
            raise CudaError("cudaErrorStreamCaptureImplicit")

    def _fail(self, name: str, captures: Iterable[Capture]) -> NoReturn:
        for each in captures:
            each.invalid = True
        raise CudaError(name)


def place_in_hooks() -> str:
    """Where in the hooks the present call comes from; empty: it is the script's."""
    frame, entered = sys._getframe(1), ""
    while frame.f_code.co_filename in _OWN and frame.f_back is not None:
        entered, frame = frame.f_code.co_name, frame.f_back
    module = frame.f_globals.get("__name__", "")
    if not module.startswith("laggard.trainer_hooks") or entered in PASSED_ON:
        return ""
    return f"{entered}() in {module}, line {frame.f_lineno}, {frame.f_code.co_name}()"


_OWN: Final = {__file__, __file__.replace("lazy_cudart", "lazy_torch"), contextlib.__file__}


def strays() -> list[str]:
    """The contexts that the hooks made on devices which no script has used, since a test began."""
    return [each for runtime in MADE for each in runtime.strays()]
