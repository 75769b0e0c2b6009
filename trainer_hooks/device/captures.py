"""The CUDA graphs that this process captures. While any thread captures one, no thread may query an event, which can
break the capture (pytorch#104487: the NCCL watchdog's queries did); and what is launched into a graph does not run.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable
from typing import Any, Final

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
