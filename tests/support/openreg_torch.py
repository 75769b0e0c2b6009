"""torch.cuda's names over torch_openreg, PyTorch's own simulated accelerator: its streams are threads, and what the
hooks touch (streams, events, the current stream) is torch's own code in C++.

torch_openreg is in PyTorch's repository, test/cpp_extensions/open_registration_extension/torch_openreg, and in no
package index. It has two devices, and no graphs. A kernel that takes a time of its own, which it lacks, is compiled
here.
"""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

KERNEL = """
#include <chrono>
#include <functional>
#include <thread>
struct orStream;
namespace openreg { int addTaskToStream(orStream* stream, std::function<void()> task); }
extern "C" int sleep_on(void* stream, double seconds) {
  return openreg::addTaskToStream(static_cast<orStream*>(stream), [seconds] {
    std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
  });
}
"""


class OpenregDevice:
    """Device number `index`, while device 0 stays the current one. A stream is a torch.Stream that the device's library
    made."""

    def __init__(self, torch: Any, library: Path, build: Path, index: int) -> None:
        (build / "kernel.cpp").write_text(KERNEL)
        command = ["g++", "-shared", "-fPIC", "-O1", "-o", build / "kernel.so", build / "kernel.cpp", library]
        subprocess.run([*command, f"-Wl,-rpath,{library.parent}"], check=True)
        self._openreg = ctypes.CDLL(str(library))
        self._kernel = ctypes.CDLL(str(build / "kernel.so")).sleep_on
        self._kernel.argtypes = (ctypes.c_void_p, ctypes.c_double)
        self._torch, self._index = torch, index
        self.network = self.new_stream()
        self.use(self.new_stream())

    def new_stream(self) -> Any:
        handle = ctypes.c_void_p()
        with self._torch.openreg.device(self._index):
            assert self._openreg.orStreamCreate(ctypes.byref(handle)) == 0 and handle.value is not None
        kind = self._torch.Stream("openreg").device_type
        return self._torch.Stream(stream_id=handle.value, device_index=self._index, device_type=kind)

    def use(self, stream: Any) -> None:
        self._torch.accelerator.set_stream(stream)
        self._torch.openreg.set_device(0)

    def current(self) -> Any:
        return self._torch.accelerator.current_stream(self._index)

    def work(self, seconds: float, stream: Any = None) -> None:
        assert self._kernel((stream or self.current()).stream_id, seconds) == 0

    def wait_for(self, stream: Any, of: Any) -> None:
        """`of` waits for all that `stream` has to do now."""
        of.wait_event(stream.record_event())


class OpenregWork:
    """A collective's handle."""

    def __init__(self, device: OpenregDevice) -> None:
        self._device, self._done = device, device.network.record_event()

    def wait(self) -> None:
        self._device.current().wait_event(self._done)

    def synchronize(self) -> None:
        self.wait()


def openreg_as_cuda(torch: Any, extension: Any) -> Any:
    """A module in the place of torch."""

    class Stream:
        def __init__(self, stream: Any) -> None:
            self.stream = stream
            self.cuda_stream, self.device_index = stream.stream_id, stream.device_index

        def wait_stream(self, other: Any) -> None:
            event = Event()
            event.record(other)
            event.wait(self)

        def synchronize(self) -> None:
            self.stream.synchronize()

    class Event:
        def __init__(self, enable_timing: bool = False) -> None:
            self.event = torch.Event("openreg", enable_timing=enable_timing)

        def record(self, stream: Any = None) -> None:
            self.event.record((stream or current_stream()).stream)

        def query(self) -> bool:
            return bool(self.event.query())

        def wait(self, stream: Any = None) -> None:
            self.event.wait((stream or current_stream()).stream)

        def synchronize(self) -> None:
            self.event.synchronize()

        def elapsed_time(self, end: Any) -> float:
            return float(self.event.elapsed_time(end.event))

    def current_stream(index: int | None = None) -> Stream:
        return Stream(torch.accelerator.current_stream(index))

    cuda = SimpleNamespace(
        Stream=Stream,
        Event=Event,
        CUDAGraph=type("CUDAGraph", (), {"capture_begin": None, "capture_end": None}),
        current_stream=current_stream,
        current_device=torch.openreg.current_device,
        is_initialized=lambda: True,
        synchronize=torch.accelerator.synchronize,
        get_device_properties=lambda index: None,
    )
    core = SimpleNamespace(
        _cuda_getDevice=torch.openreg.current_device,
        _cuda_getCurrentRawStream=lambda index: torch.accelerator.current_stream(index).stream_id,
        _cuda_isCurrentStreamCapturing=lambda: False,
        _cuda_exchangeDevice=extension._C._exchangeDevice,
        _cuda_maybeExchangeDevice=extension._C._exchangeDevice,
        _current_graph_task_id=torch._C._current_graph_task_id,
    )
    return SimpleNamespace(cuda=cuda, _C=core, Stream=Stream, distributed=SimpleNamespace(get_backend=lambda it: it))
