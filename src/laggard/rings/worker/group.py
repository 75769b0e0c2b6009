"""A process group of a ring: NCCL's between GPUs, gloo's between CPUs, and collectives on it that are timed.

The groups are made directly from a store. torch's init_process_group would make the default group, of which a process
has one, and its object collectives unpickle what others send; nothing here does.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

Collective = Callable[[], None]


class Group:
    """`members` of the world exchange data through `store`; a collective that takes longer than `seconds` fails."""

    def __init__(
        self, torch: Any, device: str, store: Any, place: int, size: int, seconds: float, address: str
    ) -> None:
        self.torch, self.device, self.place, self.size = torch, device, place, size
        limit = timedelta(seconds=max(1.0, seconds))
        self._deadline = time.monotonic() + seconds
        make = _nccl if device.startswith("cuda") else _gloo
        self.backend = make(torch, store, place, size, limit, address)

    def all_reduce(self, tensor: Any, maximum: bool = False) -> None:
        options = self.torch.distributed.AllreduceOptions()
        if maximum:
            options.reduceOp = self.torch.distributed.ReduceOp.MAX
        self.backend.allreduce([tensor], options).wait()

    def reduce_scatter(self, output: Any, tensor: Any) -> None:
        self.backend._reduce_scatter_base(output, tensor).wait()

    def all_gather(self, output: Any, tensor: Any) -> None:
        self.backend._allgather_base(output, tensor).wait()

    def largest(self, value: float) -> float:
        """Returns the largest `value` of all members, the same on each."""
        tensor = self.torch.tensor([value], dtype=self.torch.float64, device=self.device)
        self.all_reduce(tensor, maximum=True)
        self.finish()
        return float(tensor.item())

    def finish(self) -> None:
        """Waits until the device has done what it was given. Raises TimeoutError at the group's deadline, since a GPU
        whose peer is gone would wait for ever."""
        if self.device == "cpu":
            return
        event = self.torch.cuda.Event()
        event.record()
        while not event.query():
            if time.monotonic() > self._deadline:
                raise TimeoutError("the collective did not end in time")
            time.sleep(0.0002)

    def timed(self, collective: Collective, times: int) -> list[float]:
        """Returns the seconds of each of `times` runs, on the device's own clock."""
        return self._timed_on_host(collective, times) if self.device == "cpu" else self._timed_on_gpu(collective, times)

    def _timed_on_host(self, collective: Collective, times: int) -> list[float]:
        seconds = []
        clock = time.perf_counter
        for _ in range(times):
            began = clock()
            collective()
            seconds.append(clock() - began)
        return seconds

    def _timed_on_gpu(self, collective: Collective, times: int) -> list[float]:
        events = [self.torch.cuda.Event(enable_timing=True) for _ in range(times + 1)]
        events[0].record()
        for event in events[1:]:
            collective()
            event.record()
        self.finish()
        return [one.elapsed_time(two) / 1e3 for one, two in zip(events, events[1:], strict=False)]

    def close(self) -> None:
        """Ends the group. NCCL's is aborted: a peer that is gone would be waited for."""
        if self.device != "cpu":
            abort_nccl(self.backend)


def abort_nccl(backend: Any) -> None:
    """Aborts a ProcessGroupNCCL: by abort() since torch 2.6, by _shutdown() before it, which aborts as well."""
    (getattr(backend, "abort", None) or backend._shutdown)()


def _gloo(torch: Any, store: Any, place: int, size: int, limit: timedelta, address: str) -> Any:
    gloo = torch.distributed.ProcessGroupGloo
    options = gloo._Options()
    options._timeout = limit
    options._devices = [gloo.create_device(hostname=address)] if address else [gloo.create_default_device()]
    return gloo(store, place, size, options)


def _nccl(torch: Any, store: Any, place: int, size: int, limit: timedelta, address: str) -> Any:
    """NCCL chooses its network by itself, as it does for the job."""
    nccl = torch.distributed.ProcessGroupNCCL
    options = nccl.Options()
    options._timeout = limit
    return nccl(store, place, size, options)
