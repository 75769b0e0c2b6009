"""What is known of the process's GPU without timing it: which one it trains on, and whether a CUDA graph is captured.

A script need not call torch.cuda.set_device(): with `.to(rank)` and `device_ids=[rank]` GPU 0 stays current in every
rank. So the tensors decide: those of the trained module, of the optimizer and of the collectives.

While any thread captures a graph, no thread may query an event, which can break the capture (pytorch#104487: the NCCL
watchdog's queries did); and what is launched into a graph does not run.
"""

from __future__ import annotations

import functools
import sys
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any, Final


class Placement:
    """`index`: the CUDA device of the tensors that this process trains on; None as long as none was seen."""

    def __init__(self) -> None:
        self.index: int | None = None

    def saw(self, tensors: Iterable[Any]) -> None:
        """These tensors are trained. The first on a GPU decides, unless others have decided before."""
        if self.index is None:
            self.index = next((each.device.index for each in tensors if each.is_cuda), None)

    def saw_optimizer(self, optimizer: Any) -> None:
        """`optimizer`, which may be any object with a step(), has updated what it trains."""
        if self.index is None:
            groups = getattr(optimizer, "param_groups", ())
            self.saw(tensor for group in groups for tensor in group["params"])

    def find(self) -> int | None:
        """The device as far as it is known by now: before there are tensors, the only one with a CUDA context; of
        several, the current one. None: not known yet. Makes no context (pytorch, c10/cuda/CUDAFunctions.cpp: neither
        cudaGetDevice nor the question for a context makes one)."""
        torch = sys.modules.get("torch")
        if self.index is not None or torch is None or not torch.cuda.is_initialized():
            return self.index
        current: int = torch.cuda.current_device()
        has_context = getattr(torch._C, "_cuda_hasPrimaryContext", None)
        if has_context is None:
            return current
        used = [index for index in range(torch.cuda.device_count()) if has_context(index)]
        if len(used) == 1:
            return used[0]
        return current if current in used else None


def gpu_uuid(index: int | None) -> str | None:
    """The UUID of a CUDA device. None where the device or its UUID is not known, or CUDA is not initialized: this
    function must not do that."""
    torch = sys.modules.get("torch")
    if index is None or torch is None or not torch.cuda.is_initialized():
        return None
    uuid = getattr(torch.cuda.get_device_properties(index), "uuid", None)
    return None if uuid is None else f"GPU-{uuid}"


clock = time.perf_counter_ns

_CAPTURE_ERROR: Final = "captur"
"""What CUDA's texts of errors by captures have in common, and no others have (cudaGetErrorString): of the legacy stream
it answers cudaErrorStreamCaptureImplicit, "operation would make the legacy stream depend on a capturing blocking
stream", while C++ captures another one."""


class GraphCaptures:
    """`count`: captures under way, by any thread. `ended_at`: when one was under way last, in nanoseconds of
    CLOCK_MONOTONIC; 0: there was none. `stream_is_captured` asks whether this thread's current stream is being
    captured; it is set once CUDA is initialized, for captures that do not begin in Python."""

    def __init__(self) -> None:
        self.count = 0
        self.ended_at = 0
        self.stream_is_captured: Callable[[], bool] = _never
        self._lock = threading.Lock()

    def forget(self) -> None:
        """This process is a forked child: it has no captures, and CUDA answers it nothing."""
        self.count = 0
        self.stream_is_captured = _never
        self._lock = threading.Lock()

    def under_way(self) -> bool:
        """Whether a graph is being captured now. Raises RuntimeError where CUDA does not answer."""
        if self.count > 0:
            return True
        try:
            captured = self.stream_is_captured()
        except RuntimeError as error:
            if _CAPTURE_ERROR not in str(error):
                raise  # an error of the GPU, say, which CUDA repeats from here on
            captured = True
        if captured:
            self.ended_at = clock()
        return captured

    def hook(self, torch: Any) -> None:
        """Counts the captures of `torch`'s graphs from now on. The stream that captures need not be the one that is
        current."""
        owners = (torch.cuda, getattr(torch, "accelerator", None))  # torch.accelerator.Graph: since torch 2.12
        for owner, name in zip(owners, ("CUDAGraph", "Graph"), strict=True):
            if hasattr(owner, name):
                self._hook_graph(getattr(owner, name))

    def _hook_graph(self, graph: Any) -> None:
        begin, end = graph.capture_begin, graph.capture_end

        @functools.wraps(begin)
        def capture_begin(self_: Any, *args: Any, **kwargs: Any) -> Any:
            self._add(1)
            try:
                return begin(self_, *args, **kwargs)
            except BaseException:
                self._add(-1)
                raise

        @functools.wraps(end)
        def capture_end(self_: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                return end(self_, *args, **kwargs)
            finally:
                self._add(-1)

        graph.capture_begin = capture_begin
        graph.capture_end = capture_end

    def _add(self, captures: int) -> None:
        with self._lock:
            self.count += captures
            self.ended_at = clock()


def _never() -> bool:
    return False
