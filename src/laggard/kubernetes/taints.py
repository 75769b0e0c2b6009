"""Sets and removes laggard's taint, as far as the circuit breaker permits."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Final

from laggard.kubernetes.api_server import ApiServer, Written, attempt
from laggard.kubernetes.breaker import HOUR, Fleet, Limits, permit
from laggard.kubernetes.events import Event, Events
from laggard.kubernetes.judge import FALSE, TRUE, UNKNOWN
from laggard.kubernetes.node import OPT_OUT, TAINT_KEY, Health, Node, new_taint, rfc3339, taint_patch, unix_time
from laggard.kubernetes.settings import ControllerSettings
from laggard.kubernetes.streaks import Streaks

log = logging.getLogger("laggard.kubernetes")

_MAX_REMEMBERED_TAINTS: Final = 1 << 12


class Taints:
    """`held_back` says, after each write, why nodes that fail are not tainted; empty: none is held back."""

    def __init__(self, api: ApiServer, events: Events, streaks: Streaks, settings: ControllerSettings) -> None:
        self.held_back = ""
        self._api = api
        self._events = events
        self._waiting: set[str] = set()
        self._streaks = streaks
        self._settings = settings
        self._limits = Limits(settings.max_tainted_ratio, settings.max_taints_per_hour, settings.min_answering_ratio)
        # Unix time, as it is on the node, and monotonic seconds: a clock that is set ages no taint.
        self._set_at: deque[tuple[int, float]] = deque(maxlen=_MAX_REMEMBERED_TAINTS)

    @property
    def writes(self) -> bool:
        return self._settings.taint == "on"

    def write(self, nodes: Mapping[str, Node], health: Mapping[str, Health], now: float) -> list[str]:
        """Returns what could not be written, one line each. `now` in monotonic seconds."""
        if self._settings.taint == "off":
            return []
        failures = list(self._remove_from_healthy(nodes, now))
        fleet = self._fleet(nodes, health, now)
        permission = permit(fleet, self._limits)
        self.held_back = permission.held_back
        self._tell_waiting([nodes[name] for name in fleet.due if name not in permission.taint], permission.held_back)
        if permission.held_back:
            log.warning("nodes are not tainted: %s", permission.held_back)
        for name in permission.taint:
            failures += self._set(nodes[name], health[name])
        return failures

    def remove(self, nodes: Iterable[Node]) -> Iterator[str]:
        """Takes the taint from the nodes that have it, where taints are on. Yields what could not be written."""
        for node in nodes:
            if node.taint and self.writes:
                yield from self._take_away(node, f"the node has {OPT_OUT}").failures

    def _fleet(self, nodes: Mapping[str, Node], health: Mapping[str, Health], now: float) -> Fleet:
        failing = sorted(name for name, found in health.items() if found.status == FALSE)
        enough = self._settings.failing_seconds
        untainted = [name for name in failing if nodes[name].taint is None]
        return Fleet(
            watched=list(health),
            answering=[name for name, found in health.items() if found.status != UNKNOWN],
            failing=failing,
            due=[name for name in untainted if self._streaks.lasts(name, FALSE, now) >= enough],
            tainted_seconds_ago=list(self._ages(nodes.values())),
        )

    def _ages(self, nodes: Iterable[Node]) -> Iterator[float]:
        """The ages of the last hour's taints: those set here, and those that are on nodes from before a restart."""
        on_nodes = {unix_time(node.taint.time_added or "") for node in nodes if node.taint}
        now, monotonic = time.time(), time.monotonic()
        own = [monotonic - at for _, at in self._set_at]
        others = [now - at for at in on_nodes - {at for at, _ in self._set_at}]
        return (age for age in (*own, *others) if age < HOUR)

    def _set(self, node: Node, found: Health) -> tuple[str, ...]:
        if not self.writes:
            log.warning("dry run: node %s would be tainted: %s", node.name, found.message)
            return ()
        at = int(time.time())
        taint = new_taint(found.reason, self._settings.taint_effect, rfc3339(at))
        written = attempt(partial(self._api.patch, node.name, taint_patch(node, taint)))
        if written.done:
            self._set_at.append((at, time.monotonic()))
            log.warning("node %s is tainted: %s", node.name, found.message)
            said = f"{TAINT_KEY}={taint.value}:{taint.effect} is set: {found.message}"
            self._events.add(Event(node, True, "Tainted", said))
        return written.failures

    def _remove_from_healthy(self, nodes: Mapping[str, Node], now: float) -> Iterator[str]:
        enough = self._settings.healthy_seconds
        for name, node in nodes.items():
            if node.taint is None or self._streaks.lasts(name, TRUE, now) < enough:
                continue
            if not self.writes:
                log.warning("dry run: the taint of node %s would be removed: it is healthy again", name)
                continue
            yield from self._take_away(node, "it has been healthy for long enough").failures

    def _take_away(self, node: Node, why: str) -> Written:
        written = attempt(partial(self._api.patch, node.name, taint_patch(node, None)))
        if written.done:
            log.info("the taint of node %s is removed: %s", node.name, why)
            self._events.add(Event(node, False, "TaintRemoved", f"the taint {TAINT_KEY} is removed: {why}"))
        return written

    def _tell_waiting(self, waiting: Sequence[Node], held_back: str) -> None:
        """An event on each node that the breaker keeps untainted, when it begins to wait."""
        before, self._waiting = self._waiting, {node.name for node in waiting}
        for node in waiting:
            if self.writes and node.name not in before:
                self._events.add(Event(node, True, "TaintHeldBack", f"{TAINT_KEY} is not set: {held_back}"))
