"""Leaves what a ring found about this node for its agent, where the ring was root's, or of the user whose folder
/run/laggard/rings is: root decides who that is (deploy/systemd/tmpfiles.d)."""

from __future__ import annotations

import contextlib
import os
import time

from laggard import wire
from laggard.environment import ENV_STATE_DIR
from laggard.probes.nccl.model.last_ring import LAST_RING_PATH, LastRing
from laggard.rings.document import Ring
from laggard.rings.order import NodeShare
from laggard.wire.nodes import MAX_RING_NODES, MAX_RING_PAIRS, RingPairs


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
