"""The launches of a process group, by the hook that torch 2.15 has for that (ProcessGroup.register_pre_hook).

It sees what C++ launches, too, and needs no Flight Recorder. But it is called for each collective, and a call costs as
much as all that the hooks in Python do (docs/measurements.md): so a group gets it only where the Flight Recorder cannot
name what C++ makes in it. It tells neither when a collective is over nor who waits for it.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Final

from laggard.trainer_hooks.collectives.flight_recorder_entries import GroupEntries, RecordedCollective, operation
from laggard.trainer_hooks.record.recorder import clock

_HOOK_ID: Final = 0x1A66A2D  # hooks of one group are told apart by it
_MAX_LAUNCHES: Final = 4096  # launches
_NO_COLLECTIVES: Final = ("send", "recv", "split", "new_window", "unknown")


class LaunchHook:
    """The launches of one process group from here on. Raises AttributeError where torch has no such hook."""

    def __init__(self, group: Any) -> None:
        self._launches: deque[tuple[int, Any, int]] = deque(
            maxlen=_MAX_LAUNCHES
        )  # when, torch's name of the operation, bytes
        self._unregister = group.unregister_pre_hook
        self._since = clock()
        group.register_pre_hook(_HOOK_ID, self._launched)

    def _launched(self, args: Any) -> None:
        try:
            size = max(
                sum(each.nbytes for each in args.input_tensors), sum(each.nbytes for each in args.output_tensors)
            )
            self._launches.append((clock(), args.name, size))
        except Exception:  # torch would raise it in the training
            self._launches.append((clock(), args.name, 0))

    def entries(self, since: int) -> GroupEntries:
        """The collectives launched after `since` on the recorder's clock, as read_entries() has them."""
        launches = list(self._launches)
        first = launches[0][0] if len(launches) == _MAX_LAUNCHES else self._since
        names = [(str(name).rpartition(".")[2].lower(), size) for at, name, size in launches if at > since]
        return GroupEntries(
            [RecordedCollective(operation(name), size) for name, size in names if name not in _NO_COLLECTIVES],
            first <= since,
        )

    def remove(self) -> None:
        """The group, or the process, is about to end."""
        self._unregister(_HOOK_ID)
