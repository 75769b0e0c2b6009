"""The rings among nodes: POST /api/v1/rings/due of agents whose node is idle, which nodes measure each other next,
and the newest ring's measurements."""

from __future__ import annotations

import math
import secrets
import threading
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from msgspec import structs
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response

from laggard.collector.settings import CollectorSettings
from laggard.collector.web.documents import NewestRing
from laggard.collector.web.signed_requests import Nonces, read_body
from laggard.collector.web.source import ClusterSource
from laggard.kit.secret_files import TokenFile
from laggard.model import Verdict
from laggard.rings.authentication import signed, signer
from laggard.wire import WireError, decode, encode
from laggard.wire.idle_rings import RingAsk, RingDue, RingTask
from laggard.wire.nodes import NodeRow, RingPairs, RingsDocument

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


def ring_suspects(source: ClusterSource, period_seconds: float) -> frozenset[str]:
    """The machines of slow links of the last `period_seconds` that no ring has measured since they were last named."""
    now = time.time()
    measured = {
        row.node: now - row.ring_age_seconds for row in source.snapshot.nodes if row.ring_age_seconds is not None
    }
    links = source.incidents.slow_links(now - period_seconds)
    return frozenset(node for it in links for node in it.culprit.machines if measured.get(node, 0.0) < it.seen_at)


_MAX_BYTES: Final = 4096
_OFF: Final = "no ring is ever due here: this collector has no ring_token_file\n"
_REFUSED: Final = "another token than the collector's\n"


def idle_ring_handler(source: ClusterSource, settings: CollectorSettings) -> Callable[[Request], Awaitable[Response]]:
    """Raises UsageError where the token cannot be read."""
    tokens = TokenFile(settings.ring_token_file, "ring_token_file")
    rings = IdleRings(
        IdleRingSettings(
            settings.ring_period_seconds, settings.ring_nodes, settings.ring_ask_seconds, settings.ring_port
        ),
        time.time(),
    )

    async def due(request: Request) -> Response:
        if not tokens:
            return PlainTextResponse(_OFF, 403)
        try:
            ask = decode(await read_body(request, _MAX_BYTES), RingAsk)
        except (WireError, ClientDisconnect) as error:
            return PlainTextResponse(f"no question about a ring: {error}\n", 400)
        token = signer(tokens.accepted(), "agent", ask)
        if token is None:
            return PlainTextResponse(_REFUSED, 403)
        refusal = rings.refusal(ask, time.time())
        if refusal:
            return PlainTextResponse(f"{refusal}\n", 409)
        suspects = ring_suspects(source, settings.ring_period_seconds)
        answer = rings.answer(ask.node, source.snapshot.nodes, suspects, time.monotonic())
        document = RingDue(ask.nonce, answer.reason, settings.ring_ask_seconds, answer.ring)
        answered = signed(token, "collector", document)  # by the one that this agent knows
        return Response(encode(answered), media_type="application/json")

    return due


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
