"""The interface that the recorder and the hooks need of whatever times a rank's work on a device: see
device/collectives.py."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from laggard.trainer_hooks.record.events import LaneLog, Launch, PendingWork


class DeviceTimer(Protocol):
    """Times phases, steps and collectives of the training thread by marks in a device's streams, and logs them once the
    device has come past the marks. Nothing here waits for the device. A mark is None where none could be had."""

    pending: PendingWork[Any]

    def enter(self, now: int, phase: int, work: int) -> None:
        """The training thread enters `phase`, at `now` on the host's clock. `work`: as Recorder.enter."""

    def leave(self) -> None:
        """The training thread leaves the phase."""

    def end_step(self, finished: int, next_step: int) -> None:
        """The step `finished` ends with the phase left last."""

    def call(
        self,
        original: Callable[..., Any],
        group: Any,
        args: Sequence[Any],
        named: dict[str, Any],
        launch: tuple[int, LaneLog, int],
        sized: Any,
        size_of: Callable[[Any], int],
    ) -> Any:
        """Returns original(group, ...), called once, between marks. `launch`: word, lane log, issued. `sized`: the
        argument that has the operation's size; None where the operation moves no data."""

    def wait(self, work: object, original: Callable[..., Any], *args: Any) -> Any:
        """Returns original(work, ...), the caller's own wait, called once, between marks."""

    def synchronize(self, work: object, original: Callable[..., Any]) -> Any:
        """Returns original(work), Work.synchronize(), called once, between marks where it waits for a collective."""

    def begin_batch(self, now: int) -> None:
        """Does as PendingWork.begin_batch."""

    def end_batch(self, key: int | None) -> None:
        """Does as PendingWork.end_batch; logs what is over."""

    def carries(self, tensors: Any, group: Any) -> bool:
        """Whether a collective on `tensors` (one, lists of them, or None: it moves no data) in `group` runs there."""

    def mark(self) -> Any:
        """A mark at the end of the present stream."""

    def release(self, *marks: Any) -> None:
        """These marks are needed no more."""

    def take(self, since: int, logs: set[int], before: Any) -> tuple[list[Launch], Any]:
        """Takes as PendingWork.take does, for a caller that waits for the collectives in C++. Also returns `before`, or
        the mark of the last arrival that came after it in its stream."""

    def log_native(self, launches: Sequence[Launch], before: Any, after: Any, waits: bool = True) -> None:
        """Logs collectives that C++ made and waited for: their stream was ready for them at `before`, and stood still
        until `after`; for them where `waits`. The marks are the caller's no more."""

    def log_ended(self, launches: Sequence[Launch], ended: int) -> None:
        """Logs collectives of which nothing is known but that they are over, for the host, at `ended`."""

    def time_native_wait(self, original: Callable[..., Any], *args: Any) -> Any:
        """Returns original(...), called once, between marks: the present stream waits for a collective that C++ made
        and that log_ended() will log."""

    def recent_launches(self) -> Iterable[tuple[int, int, int]]:
        """Word, launch on the host's clock and bytes of the last collectives."""

    def poll(self) -> None:
        """Logs what the device has come past by now. Never blocks."""

    def close(self) -> None:
        """The training is over: what the device has not come to by now was never seen to end."""

    def abandon(self) -> None:
        """Asks the device nothing from here on: this process is a forked child, in which it does not answer."""

    def facts(self) -> dict[str, Any]:
        """The facts to report of the device's clock, by name."""
