"""Leaves what a ring found about this node for its agent, where the ring was root's, or of the user whose folder
/run/laggard/rings is: root decides who that is (deploy/systemd/tmpfiles.d)."""

from __future__ import annotations

import contextlib
import os
import time

from laggard import wire
from laggard.environment import ENV_STATE_DIR
from laggard.probes.nccl.model.last_ring import LAST_RING_PATH, LastRing
from laggard.rings.messages import NodeShare


def keep_share(share: NodeShare, path: str = LAST_RING_PATH) -> None:
    """Replaces the result of the ring before. A ring that could not judge this node replaces none, unless it accuses
    it; one of another user leaves nothing, since its findings would be told as this machine's own, nor does one whose
    state is elsewhere (LAGGARD_STATE_DIR)."""
    if (share.unknown and not share.findings) or os.environ.get(ENV_STATE_DIR):
        return
    data = wire.encode(LastRing(time.time(), share.judged, share.findings))
    new = f"{path}.{os.getpid()}"
    with contextlib.suppress(OSError):  # a read-only /run: the ring's own answer says the same
        if os.geteuid() == 0:  # else the folder's owner is who it is for
            os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)
        with open(new, "wb", opener=_private) as file:
            file.write(data)
        os.replace(new, path)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_EXCL, 0o644)
