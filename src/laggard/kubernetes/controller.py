"""The controller: reads the collector's view of the nodes, and writes it to them as condition, event and, if asked,
taint.

Events are core/v1 Events in the namespace `default`, where the API server wants those of objects without a namespace.
It forgets them after an hour. How often they are written is bounded, and one that fails holds nothing else up.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple

from laggard.kit.words import printable_line
from laggard.kubernetes.api_server import ApiError, ApiServer, Exchange, Written, attempt
from laggard.kubernetes.breaker import HOUR, Fleet, Limits, Streaks, permit
from laggard.kubernetes.judge import (
    FALSE,
    TRUE,
    UNKNOWN,
    CollectorError,
    judge,
    misnamed,
    misnamed_line,
    read_view,
    summary,
)
from laggard.kubernetes.node import (
    CONDITION,
    OPT_OUT,
    TAINT_KEY,
    Health,
    Node,
    Patch,
    condition_patch,
    new_taint,
    out_of,
    rfc3339,
    taint_patch,
    unix_time,
    without_condition,
)
from laggard.kubernetes.settings import ControllerSettings

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


log = logging.getLogger("laggard.kubernetes")


class Round(NamedTuple):
    """The outcome of a round. `completed_at`: when one was last completed, Unix time; 0: none was. `misnamed`: agents
    whose node's name no node has. `failure`: why this one was not completed; empty: it was. `seconds`: how long the
    last completed one took; None: none was. `out`: the samples of laggard_node_out."""

    completed_at: float = 0.0
    unhealthy: int = 0
    tainted: int = 0
    held_back: str = ""
    misnamed: int = 0
    failure: str = ""
    seconds: float | None = None
    out: Mapping[tuple[str, str, str], float] = {}


class Controller:
    """`last` is replaced as a whole after each round."""

    def __init__(self, api: ApiServer, exchange: Exchange, settings: ControllerSettings) -> None:
        self.last = Round()
        self._api = api
        self._exchange = exchange
        self._settings = settings
        self._streaks = Streaks()
        self._events = Events(api, settings.events)
        self._conditions = Conditions(api, self._events, self._streaks, settings.unknown_seconds)
        self._taints = Taints(api, self._events, self._streaks, settings)
        self._said = ("", "")

    def round(self, now: float) -> None:
        """One round, at `now` in monotonic seconds. Never raises for what API server or collector do."""
        try:
            began = time.monotonic()
            nodes = self._api.nodes()
            view = read_view(self._exchange, self._settings.collector)
        except (ApiError, CollectorError) as error:
            # What is on the nodes stays: that nothing is known now says nothing about them.
            log.error("%s", error)
            self.last = self.last._replace(failure=str(error))
            return
        watched = {node.name: node for node in nodes if not node.opted_out}
        left_alone = [node for node in nodes if node.opted_out]
        health = judge(watched.values(), view)
        strangers = misnamed(nodes, view)
        self._tell(summary(health), misnamed_line(strangers) if strangers else "")
        self._streaks.update({name: found.status for name, found in health.items()}, now)
        # Taints first: they hold for the version of the node that was read, and a condition makes a new one.
        failures = [*self._taints.remove(left_alone), *self._taints.write(watched, health, now)]
        failures += [*self._conditions.remove(left_alone), *self._conditions.write(watched.values(), health, now)]
        self._events.send(now)
        self.last = Round(
            completed_at=self.last.completed_at if failures else time.time(),
            unhealthy=sum(found.status == FALSE for found in health.values()),
            tainted=sum(node.taint is not None for node in nodes),
            held_back=self._taints.held_back,
            misnamed=len(strangers),
            failure=failures[0] if failures else "",
            seconds=self.last.seconds if failures else time.monotonic() - began,
            out=out_of(nodes),
        )

    def _tell(self, nodes: str, strangers: str) -> None:
        """Logs how the nodes are, and which agents have a wrong name: at the first round, and when it is news."""
        before, self._said = self._said, (nodes, strangers)
        if nodes != before[0]:
            log.info("%s", nodes)
        if strangers and strangers != before[1]:
            log.warning("%s", strangers)
