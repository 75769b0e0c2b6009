"""The rings among nodes: POST /api/v1/rings/due of agents whose node is idle, which nodes measure each other next,
and the newest ring's measurements."""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Collection, Iterable, Sequence
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from msgspec import structs

from laggard.collector.settings import CollectorSettings
from laggard.collector.web.documents import NewestRing
from laggard.collector.web.signed_requests import Handler, Kind, signed_handler
from laggard.collector.web.source import ClusterSource
from laggard.kit.secret_files import TokenFile
from laggard.model import Verdict
from laggard.wire.idle_rings import RingAsk, RingDue, RingTask
from laggard.wire.nodes import NodeRow, RingPairs, RingsDocument
from laggard.wire.signing import RING_AGENT, RING_COLLECTOR, signed

# The nodes that are to measure each other next, so that each takes part in a ring once in a period. Pure.
#
# Who asks (a scheduler's script, a person) starts the rings: the collector starts nothing. That a node runs no rank
# that laggard sees does not say that it is free, which the scheduler knows.

MIN_RING_NODES: Final = 3
"""The least number of a ring's nodes: of fewer it cannot tell which one is slow."""

MAX_RING_NODES: Final = 32
"""The largest number of a ring's nodes: among more, not all links are measured."""

_MAX_RINGS: Final = 512


def plan_rings(
    nodes: Iterable[NodeRow], period_seconds: float, ring_nodes: int, suspects: Collection[str] = ()
) -> RingsDocument:
    """Puts the nodes that are due into rings of `ring_nodes`, who has waited longest first; fewer than MIN_RING_NODES
    that are left over take along others that are free, who have waited longest of those. A node that fails its checks
    is none to compare others with, and is left out. `suspects`: those to which a job's slow link leads are as those
    that no ring has measured yet."""
    rows = (structs.replace(row, ring_age_seconds=None) if row.node in suspects else row for row in nodes)
    named = {row.node: row for row in rows if row.node}
    answering = {name: row for name, row in named.items() if row.state == "up"}
    failing = {name for name, row in answering.items() if row.verdict == Verdict.FAIL.value}
    busy = {name for name, row in answering.items() if row.ranks} - failing
    free = sorted(answering.keys() - failing - busy, key=lambda name: (-_age(answering[name]), name))
    due = [name for name in free if _age(answering[name]) >= period_seconds]
    rings = [tuple(due[at : at + ring_nodes]) for at in range(0, len(due), ring_nodes)]
    if rings and len(rings[-1]) < MIN_RING_NODES:
        spare = [name for name in free if name not in rings[-1]]
        taken = spare if len(rings) == 1 else [name for name in spare if name not in due] or spare
        rings[-1] = (*rings[-1], *taken[: MIN_RING_NODES - len(rings[-1])])
    return RingsDocument(
        period_seconds=period_seconds,
        rings=tuple(ring for ring in rings[:_MAX_RINGS] if len(ring) >= MIN_RING_NODES),
        due=len(due),
        measured=sum(_age(row) < period_seconds for row in answering.values()),
        busy=len(busy),
        failing=len(failing),
        silent=len(named) - len(answering),
    )


def _age(row: NodeRow) -> float:
    return math.inf if row.ring_age_seconds is None else row.ring_age_seconds


# The rings of the agents that ask which one they are to take part in: the collector gathers those that ask, and plans
# rings among them, so that each node is measured once in a period, and at once where a job's slow link leads to it.
#
# The nodes of a ring are told of it one after the other, as they ask; all begin at the same moment. Who does not come
# is done without (rings as a gang). Nothing is kept over a restart: when a node was measured its agent tells.

MEASURE_SECONDS: Final = 60.0
_JOIN_SECONDS: Final = 30.0
_DEADLINE_SECONDS: Final = 2 * _JOIN_SECONDS + MEASURE_SECONDS + 60.0
"""With the time for the start of processes, and the first connections."""
_SLACK_SECONDS: Final = 5.0
_RETRY_SECONDS: Final = 600.0
"""The time after a ring for which its nodes are left alone, unless their agents tell that it measured them: a job came,
or one of its nodes did not start."""
_LOOPBACK: Final = ("127.", "localhost", "::1")


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
    """Moments are seconds on the collector's monotonic clock. Not thread-safe."""

    def __init__(self, settings: CollectorSettings) -> None:
        self._settings = settings
        self._asked: dict[str, float] = {}
        self._gathering_since: float | None = None
        self._rings: list[_Ring] = []
        self._tried: dict[str, float] = {}

    def answer(self, node: str, nodes: Sequence[NodeRow], suspects: Collection[str], now: float) -> Answer:
        """Returns the ring that the idle `node` is to take part in. `nodes`: as the agents last answered; `suspects`:
        whom a job's slow link leads to, who are measured first, whenever they were measured last."""
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
        patience = 2.5 * self._settings.ring_ask_seconds
        self._asked = {node: at for node, at in self._asked.items() if now - at <= patience}
        retry_seconds = min(_RETRY_SECONDS, self._settings.ring_period_seconds)
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
        gathered = now - since >= self._settings.ring_ask_seconds
        if not gathered and len(rows) < self._settings.ring_nodes:
            return None  # others ask in a moment
        plan = plan_rings(rows, self._settings.ring_period_seconds, self._settings.ring_nodes, suspects)
        names = next((ring for ring in plan.rings if node in ring), None)
        if names is None:
            return None
        self._gathering_since = None
        begins_at = now + self._settings.ring_ask_seconds + _SLACK_SECONDS
        host, second_host, *_ = _hosts(names, {row.node: row.url for row in rows})
        ends_at = begins_at + _DEADLINE_SECONDS + _SLACK_SECONDS
        ring = _Ring(secrets.token_hex(8), names, host, second_host, begins_at, ends_at)
        self._rings.append(ring)
        self._tried.update(dict.fromkeys(names, ring.ends_at))
        for name in names:
            self._asked.pop(name, None)
        return ring

    def _task(self, ring: _Ring, node: str, now: float) -> RingTask:
        return RingTask(
            id=ring.id,
            number=ring.nodes.index(node),
            nodes=ring.nodes,
            host=ring.host,
            second_host=ring.second_host,
            port=self._settings.ring_port,
            begin_seconds=round(ring.begins_at - now, 3),
            join_seconds=_JOIN_SECONDS,
            seconds=MEASURE_SECONDS,
            deadline_seconds=_DEADLINE_SECONDS,
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
        if age is not None and age < self._settings.ring_period_seconds and node not in suspects:
            return f"a ring measured the node {age / 3600:.1f} hours ago"
        return f"{len(self._asked)} idle nodes ask, and a ring needs {MIN_RING_NODES}, of which one is due"


def _hosts(names: Sequence[str], urls: dict[str | None, str]) -> list[str]:
    """The hosts at which the first two nodes listen: at the address at which their agents answer, or under their names
    where that is this machine's own, which leads others to themselves."""
    found = [urlsplit(urls[name]).hostname or name for name in names]
    if all(host.startswith(_LOOPBACK) for host in found):
        return found
    return [name if host.startswith(_LOOPBACK) else host for host, name in zip(found, names, strict=True)]


def ring_suspects(source: ClusterSource, period_seconds: float) -> frozenset[str]:
    """The machines of slow links of the last `period_seconds` that no ring has measured since they were last named."""
    now = time.time()
    measured = {
        row.node: now - row.ring_age_seconds for row in source.snapshot.nodes if row.ring_age_seconds is not None
    }
    links = source.incidents.slow_links(now - period_seconds)
    return frozenset(node for it in links for node in it.culprit.machines if measured.get(node, 0.0) < it.seen_at)


_DUE: Final = Kind(
    RingAsk,
    RING_AGENT,
    off="no ring is ever due here: this collector has no ring_token_file",
    none="no question about a ring",
    max_bytes=4096,
    max_nonces=1 << 16,
)


def idle_ring_handler(source: ClusterSource, settings: CollectorSettings) -> Handler:
    """Raises UsageError where the token cannot be read."""
    rings = IdleRings(settings)

    async def due(ask: RingAsk, token: str) -> RingDue:
        suspects = ring_suspects(source, settings.ring_period_seconds)
        answer = rings.answer(ask.node, source.snapshot.nodes, suspects, time.monotonic())
        document = RingDue(ask.nonce, answer.reason, settings.ring_ask_seconds, answer.ring)
        return signed(token, RING_COLLECTOR, document)  # by the one that this agent knows

    return signed_handler(TokenFile(settings.ring_token_file, "ring_token_file"), _DUE, due)


MAX_NODES: Final = 48
"""The most nodes in the matrix: the accused, then those in its slowest pairs."""


def newest_ring(rows: Iterable[NodeRow]) -> NewestRing:
    led = [
        (row.ring_age_seconds, row.ring_pairs) for row in rows if row.ring_pairs and row.ring_age_seconds is not None
    ]
    if not led:
        return NewestRing(None, None)
    age, pairs = min(led, key=lambda it: it[0])
    return NewestRing(age, _part(pairs), len(pairs.nodes), len(pairs.pairs))


def _part(ring: RingPairs) -> RingPairs:
    """The ring with MAX_NODES nodes at most, in the order that they had."""
    if len(ring.nodes) <= MAX_NODES:
        return ring
    accused = [*ring.slow_nodes, *(place for link in ring.slow_links for place in link)]
    slowest = sorted(ring.pairs, key=lambda pair: pair[2] or 0.0)
    wanted = dict.fromkeys([*accused, *(place for first, second, _ in slowest for place in (first, second))])
    chosen = sorted(list(wanted)[:MAX_NODES])
    place = {old: new for new, old in enumerate(chosen)}
    return RingPairs(
        nodes=tuple(ring.nodes[old] for old in chosen),
        size_bytes=ring.size_bytes,
        pairs=tuple((place[a], place[b], rate) for a, b, rate in ring.pairs if a in place and b in place),
        slow_nodes=tuple(place[it] for it in ring.slow_nodes if it in place),
        slow_links=tuple((place[a], place[b]) for a, b in ring.slow_links if a in place and b in place),
    )
