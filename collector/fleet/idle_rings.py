"""The rings of the agents that ask which one they are to take part in: the collector gathers those that ask, and plans
rings among them, so that each node is measured once in a period, and at once where a job's slow link leads to it.

The nodes of a ring are told of it one after the other, as they ask; all begin at the same moment. Who does not come is
done without (rings as a gang). Nothing is kept over a restart: when a node was measured its agent tells.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Collection, Sequence
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from laggard.collector.fleet.nonces import Nonces
from laggard.collector.fleet.ring_plan import MIN_RING_NODES, plan_rings
from laggard.wire.idle_rings import RingAsk, RingTask
from laggard.wire.nodes import NodeRow

CLOCK_SECONDS: Final = 300.0
"""The largest difference between the clocks of an agent and its collector: older questions may be an eavesdropper's."""

MEASURE_SECONDS: Final = 60.0
_EXTRA_SECONDS: Final = 60.0
"""The time for the start of processes, and the first connections."""
_SLACK_SECONDS: Final = 5.0
_MAX_NONCES: Final = 1 << 16
_RETRY_SECONDS: Final = 600.0
"""The time after a ring for which its nodes are left alone, unless their agents tell that it measured them: a job came,
or one of its nodes did not start."""
_LOOPBACK: Final = ("127.", "localhost", "::1")


class IdleRingSettings(NamedTuple):
    """The settings of the collector for idle rings (`ring_...`)."""

    period_seconds: float
    nodes: int
    ask_seconds: float
    port: int


class _Ring(NamedTuple):
    id: str
    nodes: tuple[str, ...]
    host: str
    second_host: str
    begins_at: float
    ends_at: float


class Answer(NamedTuple):
    ring: RingTask | None
    reason: str


class IdleRings:
    """Moments are seconds on the collector's monotonic clock, `wall` is Unix time. Threads may ask at once."""

    def __init__(self, settings: IdleRingSettings, since: float = 0.0) -> None:
        """`since`: when this collector started, Unix time."""
        self._settings = settings
        self._lock = threading.Lock()
        self._asked: dict[str, float] = {}
        self._gathering_since: float | None = None
        self._rings: list[_Ring] = []
        self._tried: dict[str, float] = {}
        self._nonces = Nonces(CLOCK_SECONDS, _MAX_NONCES, since)

    def refusal(self, ask: RingAsk, wall: float) -> str:
        """Returns why a signed question counts for nothing: it was heard before, or is from another time."""
        with self._lock:
            return self._nonces.refusal(ask.nonce, ask.at, wall)

    def answer(self, node: str, nodes: Sequence[NodeRow], suspects: Collection[str], now: float) -> Answer:
        """Returns the ring that the idle `node` is to take part in. `nodes`: as the agents last answered; `suspects`:
        whom a job's slow link leads to, who are measured first, whenever they were measured last."""
        with self._lock:
            self._forget(now)
            ring = self._ring_of(node)
            if ring is None:
                self._asked[node] = now
                if self._gathering_since is None:
                    self._gathering_since = now
                ring = self._new_ring(node, nodes, suspects, now)
            if ring is None:
                return Answer(None, self._why_none(node, nodes, suspects))
            if ring.begins_at <= now:
                return Answer(None, "the node's ring began without it")
            return Answer(self._task(ring, node, now), "")

    def _forget(self, now: float) -> None:
        patience = 2.5 * self._settings.ask_seconds
        self._asked = {node: at for node, at in self._asked.items() if now - at <= patience}
        retry_seconds = min(_RETRY_SECONDS, self._settings.period_seconds)
        self._tried = {node: at for node, at in self._tried.items() if now - at <= retry_seconds}
        self._rings = [ring for ring in self._rings if ring.ends_at > now]
        if not self._asked:
            self._gathering_since = None

    def _ring_of(self, node: str) -> _Ring | None:
        return next((ring for ring in self._rings if node in ring.nodes), None)

    def _new_ring(self, node: str, nodes: Sequence[NodeRow], suspects: Collection[str], now: float) -> _Ring | None:
        rows = [row for row in nodes if row.node in self._asked]
        rows = [row for row in rows if row.node not in self._tried and self._ring_of(row.node or "") is None]
        since = now if self._gathering_since is None else self._gathering_since
        gathered = now - since >= self._settings.ask_seconds
        if not gathered and len(rows) < self._settings.nodes:
            return None  # others ask in a moment
        plan = plan_rings(rows, self._settings.period_seconds, self._settings.nodes, suspects)
        names = next((ring for ring in plan.rings if node in ring), None)
        if names is None:
            return None
        self._gathering_since = None
        begins_at = now + self._settings.ask_seconds + _SLACK_SECONDS
        hosts = _hosts(names, {row.node: row.url for row in rows})
        ring = _Ring(
            secrets.token_hex(8),
            names,
            hosts[0],
            hosts[1],
            begins_at,
            begins_at + self._deadline_seconds + _SLACK_SECONDS,
        )
        self._rings.append(ring)
        self._tried.update(dict.fromkeys(names, ring.ends_at))
        for name in names:
            self._asked.pop(name, None)
        return ring

    @property
    def _join_seconds(self) -> float:
        return 30.0

    @property
    def _deadline_seconds(self) -> float:
        return 2 * self._join_seconds + MEASURE_SECONDS + _EXTRA_SECONDS

    def _task(self, ring: _Ring, node: str, now: float) -> RingTask:
        return RingTask(
            id=ring.id,
            number=ring.nodes.index(node),
            nodes=ring.nodes,
            host=ring.host,
            second_host=ring.second_host,
            port=self._settings.port,
            begin_seconds=round(ring.begins_at - now, 3),
            join_seconds=self._join_seconds,
            seconds=MEASURE_SECONDS,
            deadline_seconds=self._deadline_seconds,
        )

    def _why_none(self, node: str, nodes: Sequence[NodeRow], suspects: Collection[str]) -> str:
        row = next((row for row in nodes if row.node == node), None)
        if row is None or row.state != "up":
            return "the collector has no answer of this node's agent: is it among its targets, under the same name?"
        if row.verdict == "fail":
            return "the node fails its checks: it is none to compare others with"
        if row.ranks:
            return "ranks run on the node"
        if node in self._tried:
            return "a ring of the node's is not long ago"
        age = row.ring_age_seconds
        if age is not None and age < self._settings.period_seconds and node not in suspects:
            return f"a ring measured the node {age / 3600:.1f} hours ago"
        return f"{len(self._asked)} idle nodes ask, and a ring needs {MIN_RING_NODES}, of which one is due"


def _hosts(names: Sequence[str], urls: dict[str | None, str]) -> list[str]:
    """The hosts at which the first two nodes listen: at the address at which their agents answer, or under their names
    where that is this machine's own, which leads others to themselves."""
    found = [urlsplit(urls[name]).hostname or name for name in names]
    if all(host.startswith(_LOOPBACK) for host in found):
        return found
    return [name if host.startswith(_LOOPBACK) else host for host, name in zip(found, names, strict=True)]
