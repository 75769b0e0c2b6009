"""Events on nodes, as `kubectl describe node` shows them: what the controller did there, and why it did not.

They are core/v1 Events in the namespace `default`, where the API server wants those of objects without a namespace. It
forgets them after an hour. How often they are written is bounded, and one that fails holds nothing else up.
"""

from __future__ import annotations

import logging
import time
from typing import Final, NamedTuple

from laggard.kubernetes.api_server import ApiError, ApiServer
from laggard.kubernetes.node import Node, Patch, rfc3339
from laggard.text.words import printable_line

log = logging.getLogger("laggard.kubernetes")

COMPONENT: Final = "laggard-controller"

NODE_BURST: Final = 10
NODE_SECONDS: Final = 300.0
"""The time for one more event of one node, after NODE_BURST at once. client-go's recorder has 25 and 300."""
FLEET_BURST: Final = 200
FLEET_SECONDS: Final = 10.0
"""The time for one more event of all nodes together."""
PAUSE_SECONDS: Final = 60.0
"""The time for which no event is written after one could not be."""

_MESSAGE_CHARACTERS: Final = 1000  # the API server takes 1024 bytes


class Event(NamedTuple):
    """`reason`: one word."""

    node: Node
    is_warning: bool
    reason: str
    message: str


class Budget:
    """`burst` at once, and one more for every `seconds` that pass, up to `burst` again."""

    def __init__(self, burst: int, seconds: float) -> None:
        self._burst, self._seconds = burst, seconds
        self._left, self._at = float(burst), 0.0

    def take(self, now: float) -> bool:
        """Whether there was one to take, at `now` in monotonic seconds."""
        self._refill(now)
        if self._left < 1:
            return False
        self._left -= 1
        return True

    def is_full(self, now: float) -> bool:
        self._refill(now)
        return self._left >= self._burst

    def _refill(self, now: float) -> None:
        self._left = min(self._burst, self._left + max(0.0, now - self._at) / self._seconds)
        self._at = now


class Events:
    """Collects a round's events; send() writes them. `enabled`: where not, none is written."""

    def __init__(self, api: ApiServer, enabled: bool) -> None:
        self._api = api
        self._enabled = enabled
        self._pending: list[Event] = []
        self._fleet = Budget(FLEET_BURST, FLEET_SECONDS)
        self._nodes: dict[str, Budget] = {}
        self._paused_until = 0.0

    def add(self, event: Event) -> None:
        self._pending.append(event)

    def send(self, now: float) -> None:
        """Writes what the budgets permit, and drops the rest. `now` in monotonic seconds."""
        pending, self._pending = self._pending, []
        self._nodes = {name: budget for name, budget in self._nodes.items() if not budget.is_full(now)}
        if not self._enabled or now < self._paused_until:
            return
        permitted = [event for event in pending if self._permits(event.node.name, now)]
        if len(permitted) < len(pending):
            log.info("%d events on nodes are not written: there are too many", len(pending) - len(permitted))
        for event in permitted:
            try:
                self._api.create_event(event_body(event, rfc3339(time.time())))
            except ApiError as error:
                log.warning("events are not written for a while: %s", error)
                self._paused_until = now + PAUSE_SECONDS
                return

    def _permits(self, name: str, now: float) -> bool:
        own = self._nodes.setdefault(name, Budget(NODE_BURST, NODE_SECONDS))
        return own.take(now) and self._fleet.take(now)


def event_body(event: Event, now: str) -> Patch:
    """The core/v1 Event. `now`: RFC 3339."""
    return {
        "metadata": {"generateName": "laggard-", "namespace": "default"},
        "involvedObject": {"apiVersion": "v1", "kind": "Node", "name": event.node.name, "uid": event.node.uid},
        "type": "Warning" if event.is_warning else "Normal",
        "reason": event.reason,
        "message": printable_line(event.message, _MESSAGE_CHARACTERS),
        "source": {"component": COMPONENT},
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
    }
