"""The notices that wait to be sent, bounded. Which one is to be tried next; no clock, no file, and no network."""

from __future__ import annotations

import dataclasses
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable
from typing import Final

from laggard.collector.incidents.notice import Notice
from laggard.wire import encode

MAX_WAITING: Final = 1024
"""The most notices that wait."""

MAX_WAITING_BYTES: Final = 8 << 20
"""The most bytes of them together. Beyond either, the oldest of the user who has the most is lost."""

FULL: Final = "full"
TOO_OLD: Final = "too_old"
LOST_REASONS: Final = (FULL, TOO_OLD)


@dataclasses.dataclass
class _Waiting:
    notice: Notice
    size: int
    tries: int = 0
    not_before: float = float("-inf")


class Outbox:
    """A queue that any thread may use. `changed` is called, without the lock, when a notice need not be kept any
    more."""

    def __init__(self, changed: Callable[[], None] = lambda: None) -> None:
        self._waiting: OrderedDict[str, _Waiting] = OrderedDict()
        self._bytes = 0
        self._done: dict[str, None] = {}
        self._lock = threading.Lock()
        self._changed = changed
        self.arrived = threading.Event()
        self.lost: Counter[str] = Counter(dict.fromkeys(LOST_REASONS, 0))

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, notices: Iterable[Notice]) -> int:
        """Takes what is not known yet, in this order. Returns how many had to make room, which are lost."""
        lost = 0
        with self._lock:
            for notice in notices:
                if notice.id not in self._waiting and notice.id not in self._done:
                    size = len(encode(notice))
                    self._waiting[notice.id] = _Waiting(notice, size)
                    self._bytes += size
            while len(self._waiting) > MAX_WAITING or self._bytes > MAX_WAITING_BYTES:
                self._drop(self._oldest_of_heaviest(), FULL)
                lost += 1
        if lost:
            self._changed()
        self.arrived.set()
        return lost

    def next(self, now: float) -> tuple[Notice, int] | None:
        """The notice to be sent now, and how often that was tried: the oldest that may be. Notices of one incident are
        sent in their order. `now`: monotonic seconds."""
        with self._lock:
            held = set()
            for each in self._waiting.values():
                if each.notice.incident.id not in held and each.not_before <= now:
                    return each.notice, each.tries
                held.add(each.notice.incident.id)
        return None

    def due_at(self) -> float | None:
        """Returns when the next may be sent, in monotonic seconds; None where none waits."""
        with self._lock:
            return min((each.not_before for each in self._waiting.values()), default=None)

    def sent(self, notice: Notice) -> None:
        with self._lock:
            self._end(notice.id)
        self._changed()

    def put_off(self, notice: Notice, until: float) -> None:
        """It was refused: others are tried before it is tried again."""
        with self._lock:
            if each := self._waiting.get(notice.id):
                each.tries, each.not_before = each.tries + 1, until

    def give_up(self, notice: Notice) -> None:
        with self._lock:
            self._drop(notice.id, TOO_OLD)
        self._changed()

    def done(self) -> tuple[str, ...]:
        """The ids of notices that need not be kept any more."""
        with self._lock:
            return tuple(self._done)

    def forget(self, ids: Iterable[str]) -> None:
        """Those of done() that are no longer in the file."""
        with self._lock:
            for each in ids:
                self._done.pop(each, None)

    def _oldest_of_heaviest(self) -> str:
        sizes: Counter[int] = Counter()
        for each in self._waiting.values():
            sizes[each.notice.incident.owner] += each.size
        ((owner, _),) = sizes.most_common(1)
        return next(key for key, each in self._waiting.items() if each.notice.incident.owner == owner)

    def _drop(self, number: str, why: str) -> None:
        if number in self._waiting:
            self.lost[why] += 1
        self._end(number)

    def _end(self, number: str) -> None:
        if each := self._waiting.pop(number, None):
            self._bytes -= each.size
            self._done[number] = None
