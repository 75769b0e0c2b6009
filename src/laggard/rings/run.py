"""A whole ring on this node: its supervisor, and on the node that leads it the coordinator beside it. Nothing is left
running."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import signal
import time
from typing import Final, NamedTuple

from msgspec import structs

from laggard import wire
from laggard.kit.environment import ENV_STATE_DIR
from laggard.kit.progress import Bar
from laggard.kit.words import printable_line
from laggard.model import EXIT_CODES, Finding, Severity, Verdict
from laggard.probes.nccl.last_ring import LAST_RING_PATH, LastRing
from laggard.rings.coordinator import ONE_MACHINE, Coordinator, NotAllCame
from laggard.rings.document import Ring
from laggard.rings.member import Member, MemberSettings, NotReached, RingBroken
from laggard.rings.membership import Membership, NodeShare, second_leads
from laggard.rings.session import Session, broken_ring
from laggard.wire.nodes import MAX_RING_NODES, MAX_RING_PAIRS, RingPairs

# The share of the whole ring's document that each node of a gang is told. Pure.
#
# A node fails for what accuses it alone. A link that is slow is no reason to reject a node, since both of its nodes are
# fast with others: it is a warning on both. A link that fails, or changes what it carries, is critical on both, because
# no job can have the two.

_MAX_FINDINGS: Final = 8
_MAX_LINES: Final = 32
_LINE_LENGTH: Final = 300
"""The most characters of a line. The bounds keep the message under its 64 KiB."""


def share_of(ring: Ring, number: int) -> NodeShare:
    """Returns what node `number` is told: the findings that accuse it, and lines about the others."""
    places = next((each.findings for each in ring.accused if each.node == number), ())
    own = [ring.findings[place] for place in places]
    others = [f"{name} did not come" if name.startswith("node ") else name for name in ring.absent]
    others += ring.left
    others += [f"{each.code} {each.device} {each.summary}" for each in ring.findings if each not in own]
    return NodeShare(
        findings=tuple(map(_of_one_node, own[:_MAX_FINDINGS])),
        others=tuple(printable_line(line, _LINE_LENGTH) for line in others[:_MAX_LINES]),
        unknown=printable_line(ring.unknown, _LINE_LENGTH),
        judged=len(ring.nodes),
    )


def _of_one_node(found: Finding) -> Finding:
    is_slow_link = found.code == "RING_SLOW" and "nodes" in found.evidence
    return structs.replace(found, severity=Severity.WARNING) if is_slow_link else found


def keep_share(share: NodeShare, path: str = LAST_RING_PATH, pairs: RingPairs | None = None) -> None:
    """Replaces the result of the ring before. A ring that could not judge this node replaces none, unless it accuses
    it; one of another user leaves nothing, since its findings would be told as this machine's own, nor does one whose
    state is elsewhere (LAGGARD_STATE_DIR). `pairs`: on the node that led it, what was measured in pairs."""
    if (share.unknown and not share.findings) or os.environ.get(ENV_STATE_DIR):
        return
    data = wire.encode(LastRing(time.time(), share.judged, share.findings, pairs))
    new = f"{path}.{os.getpid()}"
    with contextlib.suppress(OSError):  # a read-only /run: the ring's own answer says the same
        if os.geteuid() == 0:  # else the folder's owner is who it is for
            os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)
        with open(new, "wb", opener=_private) as file:
            file.write(data)
        os.replace(new, path)


def pairs_of(ring: Ring | None) -> RingPairs | None:
    """The pairs that the ring measured; None where it measured none, or more than are told of."""
    pairs = ring.pairs if ring is not None else None
    if ring is None or pairs is None or not pairs.matrix:
        return None
    if len(ring.nodes) > MAX_RING_NODES or len(pairs.matrix) > MAX_RING_PAIRS:
        return None
    place = {node.number: index for index, node in enumerate(ring.nodes)}
    measured = [it for it in pairs.matrix if it.nodes[0] in place and it.nodes[1] in place]
    return RingPairs(
        nodes=tuple(node.node for node in ring.nodes),
        size_bytes=pairs.size_bytes,
        pairs=tuple((place[it.nodes[0]], place[it.nodes[1]], it.busbw_bytes_per_second) for it in measured),
        slow_nodes=tuple(place[number] for number in pairs.slow_nodes if number in place),
        slow_links=tuple((place[a], place[b]) for a, b in pairs.slow_links if a in place and b in place),
    )


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_EXCL, 0o644)


_TEXT: Final = (
    "without a token anybody who reaches node 0 could have taken part, so that what is found is a warning (give "
    "--token-file)"
)


def without_token(ring: Ring, acts: bool) -> Ring:
    """`acts`: the answer lets jobs start or takes nodes out of service, or the nodes met by torchrun's store, in which
    everybody can write. Then nothing that was found is critical."""
    ring = structs.replace(ring, authenticated=False)
    if not acts or ring.verdict is not Verdict.FAIL:
        return ring
    unknown = "; ".join(filter(None, (_TEXT, ring.unknown)))
    findings = tuple(map(_lowered, ring.findings))
    return structs.replace(ring, verdict=Verdict.UNKNOWN, findings=findings, unknown=unknown)


def _lowered(found: Finding) -> Finding:
    return structs.replace(found, severity=Severity.WARNING) if found.severity is Severity.CRITICAL else found


_END_SECONDS: Final = 5.0
"""The time before the deadline that is kept for telling all nodes."""
_MIN_GANG_NODES: Final = 2
"""The least number of nodes with which a gang begins."""
_SECOND_NODE_SHARE: Final = 0.3
"""The share of the time that is left for which node 1 is waited for where node 0 did not come; the rest is for
measuring."""
LEAVES: Final = "it was told to end, as a job came"
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Ended(NamedTuple):
    """The end of the ring for this node. `ring`: on the node that led it."""

    status: int
    text: str
    ring: Ring | None = None
    share: NodeShare | None = None
    """The node's share of what the ring found, where it came to an end."""


def run_node(settings: MemberSettings, join_seconds: float, leave: int | None = None) -> Ended:
    """Runs this node's part to its end, and leaves what accuses this node for its agent, where the nodes had to know a
    secret. `leave`: a descriptor; when it can be read, or its other end is closed, this node ends its ranks, and says
    to the others that it goes. Raises UsageError, and KeyboardInterrupt for signals that end processes."""
    try:
        ended = asyncio.run(_until_told(settings, join_seconds, leave))
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None
    if ended.share is not None and settings.tokens and settings.place.nodes > 1:
        keep_share(ended.share, pairs=pairs_of(ended.ring))
    return ended


async def _until_told(settings: MemberSettings, join_seconds: float, leave: int | None) -> Ended:
    member = Member(settings)
    task = asyncio.ensure_future(_run(member, join_seconds))
    loop = asyncio.get_running_loop()
    for number in _SIGNALS:
        loop.add_signal_handler(number, task.cancel)
    if leave is None:
        return await task
    told = False

    def go() -> None:
        nonlocal told
        told = True
        loop.remove_reader(leave)
        member.leave(LEAVES)
        task.cancel()

    loop.add_reader(leave, go)
    try:
        return await task
    except asyncio.CancelledError:
        if told:
            return Ended(EXIT_CODES[Verdict.UNKNOWN], LEAVES)
        raise


async def _run(member: Member, join_seconds: float) -> Ended:
    settings, began = member.settings, time.monotonic()
    try:
        return await asyncio.wait_for(_node(member, join_seconds), settings.deadline - began)
    except asyncio.TimeoutError:
        return _broken(settings, RingBroken(f"the ring did not end within {time.monotonic() - began:.0f} s"), began)
    except RingBroken as error:
        return _broken(settings, error, began)
    finally:
        member.stop()


async def _node(member: Member, join_seconds: float) -> Ended:
    place, options = member.settings.place, member.settings.options
    if place.number == 0:
        return await _lead_and_take_part(member, place, join_seconds)
    await member.start_workers()
    try:
        end = await member.take_part(*await member.find_coordinator(), join_seconds)
    except NotReached:
        if not options.gang or place.second is None:
            raise
        return await _without_node_0(member, second_leads(place), join_seconds)
    return Ended(end.status, end.text, share=end.share)


async def _without_node_0(member: Member, place: Membership, join_seconds: float) -> Ended:
    """The others meet at node 1, which names node 0 among those that did not come."""
    left = member.settings.deadline - time.monotonic()
    seconds = min(join_seconds, _SECOND_NODE_SHARE * left)
    if place.number == 1:
        return await _lead_and_take_part(member, place, seconds)
    end = await member.take_part(place.host, place.port, seconds, lead=1)
    return Ended(end.status, end.text, share=end.share)


async def _lead_and_take_part(member: Member, place: Membership, join_seconds: float) -> Ended:
    own_secret = secrets.token_hex(32)
    coordinator = Coordinator(place, member.settings.tokens, own_secret)
    port = await coordinator.listen()  # before the workers start: a busy port is told at once
    await _start_workers(member)
    host = place.store[0] if place.store is not None else place.host  # it is reached as the others reach it
    if place.is_one_machine:
        host = ONE_MACHINE
    if place.store is not None:
        await member.publish_address(host, port)
    leading = asyncio.ensure_future(_lead(member, coordinator, join_seconds))
    taking_part = asyncio.ensure_future(member.take_part(host, port, join_seconds, place.number, own_secret))
    try:
        await asyncio.wait((leading, taking_part), return_when=asyncio.FIRST_COMPLETED)
        if not leading.done():
            taking_part.result()  # raises where this node failed by itself
        ring = await leading
        return Ended(EXIT_CODES[ring.verdict], "", ring, share_of(ring, place.number))
    except RingBroken as error:
        await coordinator.end(error.status, f"node {place.number}: {error}")
        raise
    except asyncio.CancelledError:
        await coordinator.end(EXIT_CODES[Verdict.UNKNOWN], f"node {place.number}, which led the ring, left: {LEAVES}")
        raise
    finally:
        for task in (leading, taking_part):
            task.cancel()
        await asyncio.gather(leading, taking_part, return_exceptions=True)


async def _start_workers(member: Member) -> None:
    with Bar() as progress:
        progress.show(0.0, "the ranks load torch")
        await member.start_workers()


async def _lead(member: Member, coordinator: Coordinator, join_seconds: float) -> Ring:
    """Gathers the nodes, has them measure, tells all how it ended, and returns the document."""
    settings = member.settings
    progress, began = Bar(), time.monotonic()
    until = settings.deadline - _END_SECONDS
    try:
        progress.show(0.0, f"waiting for {settings.place.nodes} nodes")
        await coordinator.gather(min(until, began + join_seconds), _MIN_GANG_NODES if settings.options.gang else None)
        ring = await Session(coordinator, settings.options, progress, until).run()
    except NotAllCame as error:
        ring = broken_ring(f"{error}", time.monotonic() - began)
    finally:
        progress.clear()
    if not settings.tokens and settings.place.nodes > 1:
        ring = without_token(ring, settings.options.gang or settings.place.store is not None)
    reasons = [f"{finding.device} {finding.summary}" for finding in ring.findings] or [ring.unknown]
    shares = {node.number: share_of(ring, node.number) for node in ring.nodes}
    await coordinator.end(EXIT_CODES[ring.verdict], reasons[0], shares)
    return ring


def _broken(settings: MemberSettings, error: RingBroken, began: float) -> Ended:
    ring = broken_ring(str(error), time.monotonic() - began) if settings.place.number == 0 else None
    return Ended(error.status, str(error), ring)
