"""Writes each node's condition LaggardHealthy: what changed at once, and the rest again now and then."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Final

from laggard.kubernetes.api_server import ApiServer, attempt
from laggard.kubernetes.events import Event, Events
from laggard.kubernetes.judge import TRUE, UNKNOWN
from laggard.kubernetes.node import CONDITION, OPT_OUT, Health, Node, condition_patch, rfc3339, without_condition
from laggard.kubernetes.streaks import Streaks

HEARTBEAT_SECONDS: Final = 300.0
"""The time after which a condition that stays is written again: the kubelet's own period
(nodeStatusReportFrequency)."""

MAX_WRITES: Final = 200
"""The most nodes that are written in one round, those with news first: thousands at once would be a burden on the
server."""


class Conditions:
    """`unknown_seconds`: how long a node is Unknown before that is written."""

    def __init__(self, api: ApiServer, events: Events, streaks: Streaks, unknown_seconds: float) -> None:
        self._api = api
        self._events = events
        self._streaks = streaks
        self._unknown_seconds = unknown_seconds
        self._written_at: dict[str, float] = {}

    def write(self, nodes: Iterable[Node], health: Mapping[str, Health], now: float) -> list[str]:
        """Returns what could not be written, one line each. `now` in monotonic seconds."""
        due = [(node, health[node.name]) for node in nodes if node.name in health]
        due = [(node, found) for node, found in due if self._is_due(node, found, now)]
        due.sort(key=lambda pair: _says_the_same(*pair))
        failures: list[str] = []
        for node, found in due[:MAX_WRITES]:
            written = attempt(partial(self._api.patch_status, node.name, condition_patch(node, found, rfc3339())))
            if written.done:
                self._written_at[node.name] = now
                self._tell(node, found)
            failures += written.failures
        self._written_at = {name: at for name, at in self._written_at.items() if name in health}
        return failures

    def remove(self, nodes: Iterable[Node]) -> Iterator[str]:
        """Takes the condition from the nodes that have it. Yields what could not be written."""
        for node in nodes:
            if node.condition:
                written = attempt(partial(self._api.patch_status, node.name, without_condition()))
                if written.done:
                    self._events.add(Event(node, False, "Ignored", f"{CONDITION} is removed: the node has {OPT_OUT}"))
                yield from written.failures

    def _tell(self, node: Node, found: Health) -> None:
        """An event where the status or its reason is another one. That a new node is well is none."""
        before = node.condition
        same = (before.status, before.reason) == (found.status, found.reason) if before else found.status == TRUE
        if not same:
            said = f"{CONDITION} is {found.status}: {found.message}"
            self._events.add(Event(node, found.status != TRUE, found.reason, said))

    def _is_due(self, node: Node, found: Health, now: float) -> bool:
        if found.status == UNKNOWN and self._streaks.lasts(node.name, UNKNOWN, now) < self._unknown_seconds:
            return False
        written_at = self._written_at.get(node.name)
        return not _says_the_same(node, found) or written_at is None or now - written_at >= HEARTBEAT_SECONDS


def _says_the_same(node: Node, found: Health) -> bool:
    before = node.condition
    return before is not None and Health(before.status, before.reason, before.message) == found
