"""The interface that the hooks need of a device that runs behind the host: marks in its streams, and the time between
two of them.

Nothing here may ever block: a mark is put into a stream and asked later whether the stream has come past it.
device/cuda.py has the implementation for CUDA.
"""

from __future__ import annotations

from typing import Any, Final, Protocol

MARK_LIMIT: Final = 16384
"""The most marks in use at once. ZeRO-3 of a large model takes some thousands a step, and a host runs a step or two
ahead."""


class Mark(Protocol):
    """A place in a stream, from record() to release()."""

    stream: int  # which stream; marks of one stream are passed in the order of their serials
    serial: int  # counts the device's marks
    at: int  # host clock, nanoseconds, just before the mark was put there: the stream passed it no earlier


class AsyncDevice(Protocol):
    """All of it but runs_backward() is for the training thread alone (with autograd's, which runs while the training
    thread waits for it). `index` tells the devices of a process apart."""

    index: int

    def stream(self) -> int:
        """The stream of this device on which this thread launches now."""

    def capturing(self) -> bool:
        """Whether a graph is being captured: then nothing else here may be called."""

    def record(self) -> Any:
        """A mark at the end of the present stream; None where it cannot be had: MARK_LIMIT are in use."""

    def done(self, mark: Any) -> bool:
        """Whether the stream has come past `mark`."""

    def nanoseconds_between(self, earlier: Any, later: Any) -> int:
        """Device time from one mark to another; both are done. Negative where `later` was passed first."""

    def release(self, mark: Any) -> None:
        """`mark` is needed no more, done or not."""

    def carries(self, tensors: Any, group: Any) -> bool:
        """Whether a collective on `tensors` in `group` runs on this device. `tensors`: one, lists of them, or None for
        an operation that moves no data."""

    def other_index(self, tensors: Any) -> int | None:
        """The index of another device like this on which a collective on `tensors` runs that does not run on this one;
        None: it runs on the host."""

    def runs_backward(self) -> bool:
        """Whether this thread runs a part of a backward pass: autograd's threads do, while the training thread
        waits."""
