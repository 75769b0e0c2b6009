"""A lazy device in the place of the GPU of gpu-check's jobs (scripts/gpu_check/jobs/loads.py), shared by processes.

It takes turns among the processes that have work of one kind, as a GPU's time slices do: each slice is done with the
kind's lock in hand, and who waits comes next. Where the hooks are in this process, they time this device.
"""

from __future__ import annotations

import fcntl
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from gpu_check.jobs.loads import loop

from support.lazy_device import LazyDevice, Place, sleep_until

SLICE_NS = 1_000_000


class LazyLoads:
    """As jobs/loads.py's Loads. GPU_CHECK_SHARED: the folder of the locks; without one nothing is shared."""

    def __init__(self) -> None:
        rank = int(os.environ.get("RANK", "0"))
        self.device = torch.device("cpu")
        self.lazy = LazyDevice(clock_offset=rank * 10**12, drift=rank * 2e-5)
        folder = os.environ.get("GPU_CHECK_SHARED")
        self._folder = Path(folder) if folder else None
        hooked = any(name.startswith("laggard.trainer_hooks.") for name in sys.modules)
        self._marked = _time_by(self.lazy) if hooked else None

    def unit(self, kind: str) -> Callable[[], None]:
        if kind == "cpu":
            return loop
        share = TimeShare(self._folder, kind) if self._folder else None
        return lambda: self.lazy.current.submit(share.slice if share else _alone)

    def stamp(self) -> Place:
        return self.lazy.place()

    def between(self, earlier: Place, later: Place) -> float:
        return (later.time - earlier.time) / 1e6

    def wait(self, stamp: Place) -> None:
        assert stamp.passed.wait(300), "the lazy device stands still"

    def synchronize(self) -> None:
        self.lazy.synchronize()
        if self._marked is not None:
            self._marked.check()

    def never_ends(self) -> None:
        self.lazy.block()

    def freeze(self) -> None:
        """Gloo on a CPU waits for no device: what stands still is the whole process."""
        os.kill(os.getpid(), signal.SIGSTOP)


def _time_by(lazy: LazyDevice) -> Any:
    """Has the hooks time the device. Returns what they mark it by."""
    from laggard.trainer_hooks.attach import session
    from laggard.trainer_hooks.device.collectives import DeviceCollectives
    from support.lazy_cuda_device import LazyCudaDevice

    recorder, marked = session().recorder, LazyCudaDevice(lazy, takes_all=True)
    recorder.live.device = DeviceCollectives(marked, recorder)
    return marked


def _alone(begin: int) -> int:
    return sleep_until(begin + SLICE_NS)


class TimeShare:
    """One process's part in a time-shared thing. Who has the second lock runs; who has the first one is next, so that
    two take turns."""

    def __init__(self, folder: Path, kind: str) -> None:
        self._next, self._runs = (
            os.open(folder / f"{kind}.{name}", os.O_RDWR | os.O_CREAT) for name in ("next", "runs")
        )

    def slice(self, begin: int) -> int:
        waited = [_lock(self._next), _lock(self._runs)]
        if any(waited):
            begin = max(begin, time.perf_counter_ns())
        fcntl.flock(self._next, fcntl.LOCK_UN)
        end = sleep_until(begin + SLICE_NS)
        fcntl.flock(self._runs, fcntl.LOCK_UN)
        return end


def _lock(file: int) -> bool:
    """Locks the file. Returns whether that took a wait."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        fcntl.flock(file, fcntl.LOCK_EX)
        return True
    return False
