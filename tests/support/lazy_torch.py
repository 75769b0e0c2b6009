"""torch.cuda over lazy devices: as much of it as laggard touches, with torch's names and rules, as torch's source has
them. What it lacks raises AttributeError.

Files and lines are of torch 2.13.0 where no other version stands with them. Read besides: the headers and Python files
of 2.4.0, 2.5.1, 2.6.0, 2.7.1, 2.8.0, 2.9.1, 2.10.0, 2.11.0, 2.12.1 and 2.14.1; of .cpp files, which no wheel has, those
of the repository's main branch, and so without lines.
"""

import contextlib
import threading
from types import SimpleNamespace
from typing import Any, Final

from support.lazy_cudart import CudaEvent, LazyCudart
from support.lazy_device import LazyDevice
from support.lazy_device import Stream as LazyStream

PRIORITIES: Final = (0, -3)
"""The least and the greatest priority of streams. Newer GPUs have -5; torch has four pools (c10/cuda/CUDAStream.h:55,
163-184: `max_compile_time_stream_priorities`)."""

CYCLES_PER_SECOND: Final = 2e9

STREAMS_PER_POOL: Final = 32
"""c10/cuda/CUDAStream.cpp, kStreamsPerPool."""


class LazyTensor:
    """A tensor on device number `index`; -1: in the host's memory."""

    nbytes = 64

    def __init__(self, index: int = 1) -> None:
        self.device = SimpleNamespace(index=index)
        self.is_cuda = index >= 0

    def get_device(self) -> int:
        return int(self.device.index)


class Devices:
    """Which device is current, by torch: c10/cuda/CUDAFunctions.cpp.

    Built for CUDA 12 and newer (`#if CUDA_VERSION >= 12000`), torch goes back to a device without a context only once
    there is work for it. So after a call for another device that one stays the runtime's current device, and torch's is
    `target`, each thread's own. Builds for CUDA 11, and those for ROCm, go back at once."""

    def __init__(self, runtime: LazyCudart) -> None:
        self.runtime = runtime
        self._later = runtime.version >= 12
        self._thread = threading.local()

    @property
    def target(self) -> int:
        return int(getattr(self._thread, "target", -1))

    @target.setter
    def target(self, device: int) -> None:
        self._thread.target = device

    def get(self) -> int:
        """GetDevice, current_device."""
        return self.target if self.target >= 0 else self.runtime.get_device()

    def set(self, device: int, force: bool = False) -> None:
        """SetDevice. It makes no context on the device that is current already, but where it is forced."""
        self.target = -1
        if force or self.runtime.get_device() != device:
            self.runtime.set_device(device)

    def maybe_set(self, device: int) -> None:
        """MaybeSetDevice: how guards go back."""
        if not self._later or self.runtime.has_context(device):
            self.set(device)
        else:
            self.target = device

    def exchange(self, device: int) -> int:
        """ExchangeDevice: how guards begin. It makes a context with CUDA 12, but on the device that is current."""
        former, self.target = self.target, -1
        if former < 0:
            former = self.runtime.get_device()
            if former == device:
                return former
        self.runtime.set_device(device)
        return former

    def maybe_exchange(self, device: int) -> int:
        """MaybeExchangeDevice: how Python's guards go back. It makes no context."""
        if not self._later:
            return self.exchange(device)
        former = self.runtime.get_device()
        if former == device:
            return former
        if self.runtime.has_context(device):
            self.runtime.set_device(device)
        else:
            self.target = device
        return former


class Guard:
    """CUDAGuard: c10/core/impl/InlineDeviceGuard.h:73-78 and 113-115."""

    def __init__(self, devices: Devices, device: int) -> None:
        self._devices, self._device = devices, device

    def __enter__(self) -> None:
        self._former = self._devices.exchange(self._device)

    def __exit__(self, *_: object) -> None:
        self._devices.maybe_set(self._former)


class LazyCuda:
    """What torch.cuda keeps of its devices, and what tests do by themselves. `autograd`: the thread that runs a
    backward pass beside the training thread. `timing_events`: how many were made."""

    def __init__(self, devices: tuple[LazyDevice, ...], cuda: int, initialized: bool) -> None:
        self.devices = devices
        self.runtime = LazyCudart(devices, cuda)
        self.current = Devices(self.runtime)
        self.initialized = initialized
        self.autograd = 0
        self.timing_events = 0

    @property
    def contexts(self) -> set[int]:
        return self.runtime.contexts

    def guard(self, device: int) -> Guard:
        return Guard(self.current, device)

    def put_tensor(self, device: int) -> None:
        """A tensor is made on `device`: it has a context from here on."""
        with self.guard(device):
            self.runtime.enter()

    def launch(self, device: int, seconds: float) -> None:
        """A kernel on a tensor of `device`, as torch launches it: whichever device is current."""
        with self.guard(device):
            self.runtime.enter()
            self.devices[device].work(seconds)

    def lazy_init(self) -> None:
        """_lazy_init, torch/cuda/__init__.py. In a forked child the functions in C call it again
        (torch/csrc/utils/device_lazy_init.cpp, set_requires_device_init)."""
        if self.initialized and self.runtime.forked:
            raise RuntimeError(
                "Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, "
                "you must use the 'spawn' start method"
            )
        self.initialized = True


def lazy_torch(
    *devices: LazyDevice, version: tuple[int, int] = (2, 13), cuda: int = 12, initialized: bool = True
) -> Any:
    """A module in the place of torch. `torch.lazy` is its last device, on which tests train while device 0 is current;
    `torch.lazy_cuda` what it keeps of all. `cuda`: the version that it was built for."""
    state = LazyCuda(devices, cuda, initialized)
    runtime, current = state.runtime, state.current

    def index_of(device: Any) -> int:
        """_get_device_index(device, optional=True), torch/cuda/_utils.py."""
        if isinstance(device, str):
            return int(device.removeprefix("cuda:"))
        return current.get() if device is None else int(getattr(device, "index", device))

    class Device:
        """torch.cuda.device, torch/cuda/__init__.py:642-661. None: no other device."""

        def __init__(self, device: Any) -> None:
            self.idx = index_of(device)

        def __enter__(self) -> None:
            self.prev_idx = exchange_device(self.idx)

        def __exit__(self, *_: object) -> None:
            maybe_exchange_device(self.prev_idx)

    class Stream:
        """torch/cuda/streams.py:17-55, torch/csrc/cuda/Stream.cpp. One of the pools makes a context: they are made
        under a guard (initDeviceStreamState, CUDAStream.cpp). One that exists already, as current_stream() gives it,
        makes none."""

        def __init__(
            self, device: Any = None, priority: int = 0, *, lazy: LazyStream | None = None, device_index: int = -1
        ) -> None:
            self.device_index = device_index if lazy else index_of(device)
            self.priority = max(min(priority, PRIORITIES[0]), PRIORITIES[1])  # since 2.7; 2.6 asks for 0 or less
            if lazy is None:
                with state.guard(self.device_index):
                    runtime.enter()
                pool = pools.setdefault((self.device_index, self.priority), [])
                lazy = devices[self.device_index].new_stream() if len(pool) < STREAMS_PER_POOL else pool.pop(0)
                pool.append(lazy)
            self.lazy = lazy
            self.cuda_stream = lazy.number
            self.device = SimpleNamespace(index=self.device_index)

        @staticmethod
        def priority_range() -> tuple[int, int]:
            return PRIORITIES

        def wait_event(self, event: Any) -> None:
            event.wait(self)

        def wait_stream(self, stream: Any) -> None:
            self.wait_event(stream.record_event())

        def record_event(self, event: Any = None) -> Any:
            event = event or Event()
            event.record(self)
            return event

        def query(self) -> bool:
            """CUDAStream::query: under a guard, as synchronize() is (CUDAStream.cpp)."""
            with state.guard(self.device_index):
                return runtime.stream_query(self.lazy)

        def synchronize(self) -> None:
            with state.guard(self.device_index):
                runtime.stream_synchronize(self.lazy)

        def __eq__(self, other: object) -> bool:
            return isinstance(other, Stream) and (self.lazy, self.device_index) == (other.lazy, other.device_index)

        def __hash__(self) -> int:
            return hash((self.cuda_stream, self.device_index))

    class ExternalStream(Stream):
        """torch/cuda/streams.py:136-156: a stream that another library made, of the device that is named or current."""

        def __init__(self, stream_ptr: int, device: Any = None) -> None:
            with Device(device):
                here = current.get()
                super().__init__(lazy=devices[here].streams[stream_ptr], device_index=here)

    class EventBase:
        """torch._C._CudaEventBase: torch/csrc/cuda/Event.cpp, c10/cuda/CUDAEvent.h (before 2.11:
        ATen/cuda/CUDAEvent.h). What is put in the place of Event's methods does not change it."""

        def __init__(
            self, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False, **flags: bool
        ) -> None:
            """Makes no event yet: see record(). `external` is known since 2.8 (streams.py:183-193)."""
            unknown = set(flags) - ({"external"} if version >= (2, 8) else set())
            if unknown:
                raise TypeError(f"Event.__new__() got an unexpected keyword argument '{min(unknown)}'")
            self._timing = enable_timing
            self._event: CudaEvent | None = None
            state.timing_events += enable_timing

        @property
        def device(self) -> Any:
            return None if self._event is None else SimpleNamespace(index=self._event.device)

        def record(self, stream: Any) -> None:
            """CUDAEvent.h:131-165. The event is made on the stream's device, under a guard; a stream of another device
            is refused; the guard comes before what is recorded, and before the question whether the stream that is
            current there is being captured, which is asked since 2.8."""
            if self._event is None:
                with state.guard(stream.device_index):  # createEvent, 254-270
                    self._event = runtime.event_create(self._timing)
            if self._event.device != stream.device_index:
                raise RuntimeError(
                    f"Event device {self._event.device} does not match recording stream's device {stream.device_index}."
                )
            with state.guard(self._event.device):
                if version >= (2, 8):
                    runtime.stream_is_capturing(devices[self._event.device].current)
                runtime.event_record(self._event, stream.lazy)

        def wait(self, stream: Any) -> None:
            """CUDAEvent.h:169-192 (block): under a guard of the stream's device. An event that was never recorded is no
            wait."""
            if self._event is None:
                return
            with state.guard(stream.device_index):
                if version >= (2, 8):
                    runtime.stream_is_capturing(devices[stream.device_index].current)
                runtime.stream_wait_event(stream.lazy, self._event)

        def query(self) -> bool:
            """CUDAEvent.h:103-119: without a guard."""
            return self._event is None or runtime.event_query(self._event)

        def synchronize(self) -> None:
            """CUDAEvent.h:218-227: without a guard."""
            if self._event is not None:
                runtime.event_synchronize(self._event)

        def elapsed_time(self, end_event: Any) -> float:
            """CUDAEvent.h:195-215. Since 2.8 it asks both events before its guard, which was all until 2.7
            (ATen/cuda/CUDAEvent.h:149-160 of 2.7.1)."""
            one, two = self._event, end_event._event
            if version >= (2, 8) and not (self._timing and end_event._timing):
                raise ValueError("Both events must be created with argument 'enable_timing=True'.")
            if one is None or two is None:
                kind = ValueError if version >= (2, 8) else RuntimeError
                raise kind("Both events must be recorded before calculating elapsed time.")
            if version >= (2, 8) and not (self.query() and end_event.query()):
                raise RuntimeError("Both events must be completed before calculating elapsed time.")
            with state.guard(one.device):
                return runtime.event_elapsed_ms(one, two)

    class Event(EventBase):
        """torch/cuda/streams.py:159-271: each of the methods that the hooks replace is Python, and calls the one in
        C++."""

        def record(self, stream: Any = None) -> None:
            super().record(stream or current_stream())

        def wait(self, stream: Any = None) -> None:
            super().wait(stream or current_stream())

        def synchronize(self) -> None:
            super().synchronize()

    class CUDAGraph:
        """torch/cuda/graphs.py, aten/src/ATen/cuda/CUDAGraph.cpp: captures the stream that is current, which may not be
        the default one, and ends on the same."""

        def __init__(self, keep_graph: bool = False) -> None:
            self._stream: Any = None

        def capture_begin(self, pool: Any = None, capture_error_mode: str = "global") -> None:
            stream = current_stream()
            if stream.cuda_stream == 0:
                raise RuntimeError("CUDA graphs must be captured on a non-default stream.")
            self._stream = stream
            runtime.stream_begin_capture(stream.lazy, capture_error_mode)

        def capture_end(self) -> None:
            if current_stream() != self._stream:
                raise RuntimeError("Capture must end on the same stream it began on.")
            runtime.stream_end_capture(self._stream.lazy)

    class Graph:
        """torch.accelerator's, which does not come to CUDAGraph's methods (torch/accelerator/graphs.py, since 2.12)."""

        def __init__(self, keep_graph: bool = False, *, pool: Any = None, capture_error_mode: str = "default") -> None:
            self._graph = CUDAGraph(keep_graph)
            self._mode = "global" if capture_error_mode == "default" else capture_error_mode

        def capture_begin(self) -> None:
            begin(self._graph, None, self._mode)

        def capture_end(self) -> None:
            end(self._graph)

    begin, end = CUDAGraph.capture_begin, CUDAGraph.capture_end
    pools: dict[tuple[int, int], list[LazyStream]] = {}

    def current_stream(device: Any = None) -> Stream:
        """torch/cuda/__init__.py:1235-1251: of the current device, or of the one that is named. Makes no context."""
        state.lazy_init()
        index = index_of(device)
        return Stream(lazy=devices[index].current, device_index=index)

    def set_stream(stream: Any) -> None:
        """THCPModule_setStream_wrap: makes the stream's device the current one."""
        if current.get() != stream.device_index:
            current.set(stream.device_index)
        devices[stream.device_index].current = stream.lazy

    class StreamContext:
        """torch.cuda.stream, torch/cuda/__init__.py."""

        def __init__(self, stream: Any) -> None:
            self.stream = stream

        def __enter__(self) -> None:
            self.here, self.there = current_stream(), current_stream(self.stream.device_index)
            set_stream(self.stream)

        def __exit__(self, *_: object) -> None:
            set_stream(self.there)
            set_stream(self.here)

    def set_device(device: Any) -> None:
        """_cuda_setDevice. Of the device that is current already it makes a context since 2.8 alone: SetDevice has
        `force` since then (c10/cuda/CUDAFunctions.h:42 of 2.8.0), for pytorch#155668; that _cuda_setDevice passes it is
        inferred from there."""
        state.lazy_init()
        current.set(index_of(device), force=version >= (2, 8))

    def get_device() -> int:
        """THCPModule_getDevice_wrap, Module.cpp: initializes CUDA, as the two exchanges do."""
        state.lazy_init()
        return current.get()

    def exchange_device(device: int) -> int:
        if device < 0:
            return -1
        state.lazy_init()
        return current.exchange(device)

    def maybe_exchange_device(device: int) -> int:
        if device < 0:
            return -1
        state.lazy_init()
        return current.maybe_exchange(device)

    def is_capturing() -> bool:
        """currentStreamCaptureStatus, ATen/cuda/CUDAGraphsUtils.cuh:22-27: of the current device's current stream, and
        not asked where that device has no context."""
        device = current.get()
        if not runtime.has_context(device):
            return False
        return runtime.stream_is_capturing(devices[device].current)

    def synchronize(device: Any = None) -> None:
        """torch/cuda/__init__.py:1209-1219: it makes a context on the device that it waits for."""
        state.lazy_init()
        with Device(device):
            runtime.device_synchronize()

    def accelerator_synchronize(device: Any = None, /) -> None:
        """torch/accelerator/__init__.py, CUDAGuardImpl.h:236-246: it goes back by SetDevice, which makes a context
        there; by MaybeSetDevice since 2.14 (CUDAGuardImpl.h:262-274 of 2.14.1)."""
        index, former = index_of(device), current.get()
        current.set(index)
        runtime.device_synchronize()
        (current.maybe_set if version >= (2, 14) else current.set)(former)

    def spin(cycles: int) -> None:
        """torch.cuda._sleep, on a GPU of CYCLES_PER_SECOND."""
        state.launch(current.get(), cycles / CYCLES_PER_SECOND)

    def ones(*shape: int, device: str = "cuda") -> LazyTensor:
        """torch.ones, of a size that nobody asks for."""
        index = current.get() if device == "cuda" else -1
        if index >= 0:
            state.put_tensor(index)
        return LazyTensor(index)

    def get_device_properties(device: Any = None) -> Any:
        """torch/cuda/__init__.py: initializes CUDA, and makes no context."""
        state.lazy_init()
        return SimpleNamespace(uuid=f"uuid-{index_of(device)}", name="lazy")

    def mem_get_info(device: Any = None) -> tuple[int, int]:
        """torch/csrc/cuda/shared/cudart.cpp: under a guard, so that it makes a context there."""
        state.lazy_init()
        with state.guard(index_of(device)):
            runtime.enter()
            return 99, 100

    cuda = SimpleNamespace(
        init=state.lazy_init,
        _sleep=spin,
        Stream=Stream,
        ExternalStream=ExternalStream,
        Event=Event,
        CUDAGraph=CUDAGraph,
        device=Device,
        stream=StreamContext,
        set_stream=set_stream,
        current_stream=current_stream,
        current_device=get_device,
        device_count=lambda: len(devices),
        set_device=set_device,
        is_available=lambda: True,
        mem_get_info=mem_get_info,
        empty_cache=lambda: None,
        is_initialized=lambda: state.initialized and not runtime.forked,  # torch/cuda/__init__.py, is_initialized
        is_current_stream_capturing=is_capturing,
        synchronize=synchronize,
        get_device_properties=get_device_properties,
        stream_of=lambda lazy: Stream(lazy=lazy, device_index=len(devices) - 1),
    )
    core = SimpleNamespace(
        _CudaEventBase=EventBase,
        _cuda_getDevice=get_device,
        _cuda_getCurrentRawStream=lambda index: devices[index].current.number,  # neither initializes CUDA nor asks it
        _cuda_isCurrentStreamCapturing=is_capturing,
        _cuda_hasPrimaryContext=runtime.has_context,
        _cuda_exchangeDevice=exchange_device,
        _cuda_maybeExchangeDevice=maybe_exchange_device,
        _current_graph_task_id=lambda: 0 if threading.get_ident() == state.autograd else -1,
    )
    distributed = SimpleNamespace(get_backend=lambda group: group)
    torch = SimpleNamespace(
        __version__=".".join(map(str, version)),
        cuda=cuda,
        _C=core,
        distributed=distributed,
        inference_mode=contextlib.nullcontext,
        ones=ones,
        lazy=devices[-1],
        lazy_cuda=state,
    )
    if version >= (2, 6):
        torch.accelerator = SimpleNamespace(synchronize=accelerator_synchronize)
    if version >= (2, 12):
        torch.accelerator.Graph = Graph
    return torch
