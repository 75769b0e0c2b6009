"""The CUDA part of the hooks on a device that is not written for these tests: PyTorch's own simulated accelerator. Its
streams are threads, and what the hooks touch (streams, events, the current stream) is torch's own code in C++.

torch_openreg is in PyTorch's repository, test/cpp_extensions/open_registration_extension/torch_openreg, and in no
package index; without it these tests are skipped. It has two devices, and no graphs. A kernel that takes a time of its
own, which it lacks, is compiled here.
"""

import ctypes
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any

import pytest
from support.lazy_device import as_torch
from support.lazy_training import KeepingSink, StubGroups, recorder_to

from laggard.trainer_hooks.collectives.process_group import CollectiveMethod, hook_waits, instrument
from laggard.trainer_hooks.device.gpu import Placement
from laggard.trainer_hooks.record.events import BACKWARD, FORWARD, OPTIMIZER
from laggard.trainer_hooks.record.recorder import Recorder

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


extension = pytest.importorskip("torch_openreg", reason="PyTorch's simulated accelerator is in no package index")

MS = 0.002


class Rank:
    """A rank that trains on openreg device `index`, with collectives of 12 "ms" in a stream of their own."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, build: Path, index: int) -> None:
        import torch

        library = Path(extension.__file__).parent / "lib" / "libopenreg.so"
        self.device = OpenregDevice(torch, library, build, index)
        self.torch, self.cuda = torch, openreg_as_cuda(torch, extension)
        monkeypatch.setitem(sys.modules, "torch", self.cuda)
        self.tensor = torch.zeros(16, device=f"openreg:{index}")
        self.kept, placement = KeepingSink(), Placement()
        placement.index = self.tensor.device.index
        self.recorder: Recorder = recorder_to(self.kept, placement)
        work_class = type("Work", (OpenregWork,), {name: vars(OpenregWork)[name] for name in ("wait", "synchronize")})
        hook_waits(work_class, self.recorder)

        def allreduce(group: Any, tensors: list[Any], options: Any = None) -> Any:
            self.device.wait_for(self.device.current(), self.device.network)
            self.device.work(12 * MS, self.device.network)
            return work_class(self.device)

        method = instrument(allreduce, CollectiveMethod("all_reduce", 0), self.recorder, StubGroups(), "allreduce")  # type: ignore[arg-type]
        self.reduce = as_torch(method)

    def train(self, communicate: Callable[[], object], steps: int = 8) -> None:
        for step in range(steps):
            for phase, seconds, then in (
                (FORWARD, 5 * MS, None),
                (BACKWARD, 5 * MS, communicate),
                (OPTIMIZER, 0, None),
            ):
                self.recorder.enter(phase)
                self.device.work(seconds)
                if then is not None:
                    then()
                self.recorder.leave()
            self.recorder.end_step(step + 1)
        self.device.current().synchronize()
        self.device.network.synchronize()
        self.recorder.close()
        assert self.torch.openreg.current_device() == 0
        assert self.recorder.totals.errors == self.recorder.totals.lost == 0
        assert len(self.kept.steps) == steps and self.kept.on_device == self.kept.collected == steps

    def waited(self) -> float:
        return median(step.waited for step in self.kept.steps[1:]) / 1e9

    def own(self, phase: int) -> float:
        return median(step.phases[phase] for step in self.kept.steps[1:]) / 1e9


@pytest.fixture(params=[0, 1], ids=["the current device", "another device than the current one"])
def rank(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Rank:
    return Rank(monkeypatch, tmp_path, request.param)


def about(expected: float) -> Any:
    return pytest.approx(expected, abs=4 * MS)


def test_a_synchronous_collective(rank: Rank) -> None:
    rank.train(lambda: rank.reduce([rank.tensor], "nccl"))
    assert rank.waited() == about(12 * MS)
    assert rank.own(FORWARD) == about(5 * MS) and rank.own(BACKWARD) == about(5 * MS)


@pytest.mark.parametrize("how", ["wait", "synchronize"])
@pytest.mark.parametrize(("computed", "waited"), [(6 * MS, 6 * MS), (18 * MS, 0.0)])
def test_an_asynchronous_one_that_computation_hides(rank: Rank, how: str, computed: float, waited: float) -> None:
    def hidden() -> None:
        handle = rank.reduce([rank.tensor], "nccl", async_op=True)
        rank.device.work(computed)
        getattr(handle, how)()

    rank.train(hidden)
    assert rank.waited() == about(waited)
    assert rank.own(BACKWARD) == about(5 * MS + computed)


@pytest.mark.parametrize("how", ["wait_stream", "synchronize"])
@pytest.mark.parametrize("whose", ["the training thread", "another thread"])
def test_a_second_stream_that_is_joined(rank: Rank, how: str, whose: str) -> None:
    main, second = rank.device.current(), rank.device.new_stream()

    def join() -> None:
        rank.device.use(main)  # the current stream is the thread's own
        if how == "wait_stream":
            rank.cuda.cuda.Stream(main).wait_stream(rank.cuda.cuda.Stream(second))
        else:
            rank.cuda.cuda.Stream(second).synchronize()

    def overlapped() -> None:
        rank.device.wait_for(main, second)
        rank.device.use(second)
        rank.reduce([rank.tensor], "nccl")
        rank.device.use(main)
        rank.device.work(4 * MS)
        if whose == "the training thread":
            join()
        else:
            thread = threading.Thread(target=join)
            thread.start()
            thread.join()

    rank.train(overlapped)
    assert rank.waited() == about(8 * MS if whose == "the training thread" else 0.0)


def test_a_collective_on_autograds_own_thread(rank: Rank) -> None:
    """Autograd runs the backward pass of a device's tensors on a thread of its own, as FSDP's collectives in it."""
    main, threads = rank.device.current(), set()
    leaf = rank.torch.ones(16, device=rank.tensor.device, requires_grad=True)

    def in_backward(_: Any) -> None:
        threads.add(threading.get_ident())
        rank.device.use(main)
        rank.reduce([rank.tensor], "nccl")

    product = leaf * 2
    product.register_hook(in_backward)
    rank.train(lambda: product.sum().backward(retain_graph=True))
    assert threads and threading.get_ident() not in threads
    assert rank.waited() == about(12 * MS)
