"""A whole ring on this node: its supervisor, and on node 0 the coordinator beside it. Nothing is left running."""

from __future__ import annotations

import asyncio
import signal
import time
from typing import Final, NamedTuple

from laggard.model import EXIT_CODES
from laggard.rings.coordinator import Coordinator, NotAllCame
from laggard.rings.document import Ring
from laggard.rings.gang import share_of
from laggard.rings.keep import keep_share
from laggard.rings.member import Member, MemberSettings, RingBroken
from laggard.rings.messages import NodeShare
from laggard.rings.progress import Progress
from laggard.rings.session import Session, broken_ring

_END_SECONDS: Final = 5.0
"""Of the deadline, kept for telling all nodes."""
_FEWEST: Final = 2
"""With how many nodes a gang begins, at least."""
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Ended(NamedTuple):
    """How the ring ended for this node. `ring`: on node 0."""

    status: int
    text: str
    ring: Ring | None = None
    share: NodeShare | None = None
    """Of what the ring found, where it came to an end."""


def run_node(settings: MemberSettings, join_seconds: float) -> Ended:
    """Runs this node's part to its end, and leaves what accuses this node for its agent, where the nodes had to know a
    secret. Raises UsageError, and KeyboardInterrupt for signals that end processes."""
    try:
        ended = asyncio.run(_until_signal(settings, join_seconds))
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None
    if ended.share is not None and settings.token and settings.place.nodes > 1:
        keep_share(ended.share)
    return ended


async def _until_signal(settings: MemberSettings, join_seconds: float) -> Ended:
    task = asyncio.ensure_future(_run(settings, join_seconds))
    loop = asyncio.get_running_loop()
    for number in _SIGNALS:
        loop.add_signal_handler(number, task.cancel)
    return await task


async def _run(settings: MemberSettings, join_seconds: float) -> Ended:
    began = time.monotonic()
    member = Member(settings)
    coordinator = Coordinator(settings.place, settings.token) if settings.place.number == 0 else None
    try:
        return await asyncio.wait_for(_node(member, coordinator, join_seconds), settings.deadline - began)
    except asyncio.TimeoutError:
        return _broken(settings, RingBroken(f"the ring did not end within {time.monotonic() - began:.0f} s"), began)
    except RingBroken as error:
        return _broken(settings, error, began)
    finally:
        member.stop()


async def _node(member: Member, coordinator: Coordinator | None, join_seconds: float) -> Ended:
    if coordinator is None:
        await member.start_workers()
        end = await member.take_part(*await member.find_coordinator(), join_seconds)
        return Ended(end.status, end.text, share=end.share)
    port = await coordinator.listen()  # before the workers start: a busy port is told at once
    await member.start_workers()
    host = _reachable_host(member)
    if member.settings.place.store is not None:
        await member.publish_address(host, port)
    leading = asyncio.ensure_future(_lead(member, coordinator, join_seconds))
    taking_part = asyncio.ensure_future(member.take_part(host, port))
    try:
        await asyncio.wait((leading, taking_part), return_when=asyncio.FIRST_COMPLETED)
        if not leading.done():
            taking_part.result()  # raises where this node failed by itself
        ring = await leading
        return Ended(EXIT_CODES[ring.verdict], "", ring, share_of(ring, 0))
    except RingBroken as error:
        await coordinator.end(error.status, f"node 0: {error}")
        raise
    finally:
        for task in (leading, taking_part):
            task.cancel()
        await asyncio.gather(leading, taking_part, return_exceptions=True)


async def _lead(member: Member, coordinator: Coordinator, join_seconds: float) -> Ring:
    """Gathers the nodes, has them measure, tells all how it ended, and returns the document."""
    settings = member.settings
    progress, began = Progress(), time.monotonic()
    until = settings.deadline - _END_SECONDS
    try:
        progress.show(0.0, f"waiting for {settings.place.nodes} nodes")
        await coordinator.gather(min(until, began + join_seconds), _FEWEST if settings.options.gang else None)
        ring = await Session(coordinator, settings.options, progress, until).run()
    except NotAllCame as error:
        ring = broken_ring(f"{error}", time.monotonic() - began)
    finally:
        progress.clear()
    reasons = [f"{finding.device} {finding.summary}" for finding in ring.findings] or [ring.unknown]
    shares = {node.number: share_of(ring, node.number) for node in ring.nodes}
    await coordinator.end(EXIT_CODES[ring.verdict], reasons[0], shares)
    return ring


def _reachable_host(member: Member) -> str:
    """Node 0 connects to itself as the others do, so that it knows the address that they use."""
    place = member.settings.place
    return place.store[0] if place.store is not None else place.host


def _broken(settings: MemberSettings, error: RingBroken, began: float) -> Ended:
    ring = broken_ring(str(error), time.monotonic() - began) if settings.place.number == 0 else None
    return Ended(error.status, str(error), ring)
