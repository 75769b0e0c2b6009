"""64-bit numbers on their way from a GPU to the host, for which nothing waits. Imported only once torch has started
CUDA by itself."""

from __future__ import annotations

from collections import deque
from typing import Any, Final

from laggard.trainer_hooks.device.captures import GraphCaptures
from laggard.trainer_hooks.device.cuda import CudaDevice, CudaMark

MAX_UNDER_WAY: Final = 64
"""The most numbers under way: a host is rarely that many steps ahead of its GPU. What comes beyond is not copied."""


class DigestCopies:
    """Copies numbers of the CUDA device `index` into pinned memory, in its current stream, with an event behind each.
    Making it takes the pinned memory, once. Raises AttributeError where this torch lacks what events take."""

    def __init__(self, torch: Any, index: int, captures: GraphCaptures) -> None:
        self._device = CudaDevice(torch, index, captures)
        self._captures = captures
        self._pinned = torch.empty(MAX_UNDER_WAY, dtype=torch.int64, device="cpu", pin_memory=True)
        self._under_way: deque[tuple[int, int, CudaMark]] = deque()
        self._next = 0

    def start(self, step: int, number: Any) -> None:
        """Starts the copy of `number`, a tensor of one int64, which belongs to `step`."""
        if len(self._under_way) >= MAX_UNDER_WAY:
            return
        slot, self._next = self._next, (self._next + 1) % MAX_UNDER_WAY
        self._pinned[slot].copy_(number, non_blocking=True)
        mark = self._device.record()
        if mark is not None:
            self._under_way.append((step, slot, mark))

    def arrived(self) -> list[tuple[int, int]]:
        """The (step, number) that have arrived since the last call, in their order."""
        found: list[tuple[int, int]] = []
        while self._under_way and not self._captures.under_way() and self._device.done(self._under_way[0][2]):
            step, slot, mark = self._under_way.popleft()
            self._device.release(mark)
            found.append((step, int(self._pinned[slot])))
        return found
