"""The ring's own process: `python -m laggard.agent.idle_rings.child`. It reads one line, the ring's description, and
writes one, how it ended. The end of its input tells it to end its ranks at once: a job came, or its parent is gone."""

from __future__ import annotations

import os
import resource
import sys
import time
from collections.abc import Mapping
from typing import Final

import msgspec

from laggard.environment import ENV_NODE
from laggard.errors import UsageError
from laggard.rings.keep import pairs_of
from laggard.rings.member import MemberSettings
from laggard.rings.membership import Membership
from laggard.rings.messages import NodeShare
from laggard.rings.options import RingOptions
from laggard.rings.run import run_node
from laggard.wire import decode, encode
from laggard.wire.idle_rings import RingTask
from laggard.wire.nodes import RingPairs

_INPUT: Final = 0
_MAX_BYTES: Final = 1 << 20
_NICE: Final = 10
_OOM_SCORE: Final = "1000"
"""The score that makes these the first of all processes to end where memory is short."""


class RingOrder(msgspec.Struct, frozen=True):
    """The order of the parent. `tokens`: this ring's alone, of which this node shows the first."""

    task: RingTask
    node: str
    device: str
    tokens: tuple[str, ...]


class RingEnd(msgspec.Struct, frozen=True):
    """`status` as of `laggard ring`; `share`: what the ring found about this node; None: it came to no end here.
    `pairs`: what was measured in pairs, on the node that led."""

    status: int
    text: str
    share: NodeShare | None = None
    pairs: RingPairs | None = None


def main() -> int:
    answers = os.dup(1)
    os.dup2(2, 1)  # whatever prints must not reach the parent
    order = decode(_read_line(), RingOrder)
    _be_modest()
    os.write(answers, encode(_run(order)) + b"\n")
    return 0


def _run(order: RingOrder) -> RingEnd:
    task = order.task
    settings = MemberSettings(
        place=_place(task),
        options=RingOptions(seconds=task.seconds, pairs=True, gang=True),
        tokens=order.tokens,
        device=order.device,
        local_ranks=None,
        environ=_environ(os.environ, order.node),
        deadline=time.monotonic() + task.deadline_seconds,
    )
    try:
        ended = run_node(settings, task.join_seconds, leave=_INPUT)
    except UsageError as error:
        return RingEnd(2, str(error))
    return RingEnd(ended.status, ended.text, ended.share, pairs_of(ended.ring))


def _place(task: RingTask) -> Membership:
    return Membership(
        task.number, len(task.nodes), task.host, task.port, names=task.nodes, second=(task.second_host, task.port)
    )


def _environ(environ: Mapping[str, str], node: str) -> dict[str, str]:
    """One CPU's worth of threads for each rank."""
    return {**environ, ENV_NODE: node, "OMP_NUM_THREADS": "1"}


def _be_modest() -> None:
    """Takes what no job wants: the last share of the CPUs, the first place where memory is short, no core files."""
    os.nice(_NICE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with open("/proc/self/oom_score_adj", "w") as file:
        file.write(_OOM_SCORE)


def _read_line() -> bytes:
    data = bytearray()
    while not data.endswith(b"\n") and len(data) < _MAX_BYTES:
        chunk = os.read(_INPUT, 1)  # and no byte more: what follows is the end
        if not chunk:
            raise SystemExit(0)
        data += chunk
    return bytes(data)


if __name__ == "__main__":
    sys.exit(main())
