"""A ring's own process: `python -m laggard.rings.child`. It reads one line, the order, and writes one, how it ended.
The end of its input tells it to end its ranks at once: a job came, or its parent is gone."""

from __future__ import annotations

import os
import resource
import sys
import time
from collections.abc import Mapping
from typing import Final

from laggard.kit.environment import ENV_NODE
from laggard.kit.errors import UsageError
from laggard.rings.member import MemberSettings
from laggard.rings.membership import MAX_BYTES, RingEnd, RingOrder
from laggard.rings.options import RingOptions
from laggard.rings.run import pairs_of, run_node
from laggard.wire import decode, encode

_INPUT: Final = 0
_NICE: Final = 10
_OOM_SCORE: Final = "1000"
"""The score that makes these the first of all processes to end where memory is short."""


def main() -> int:
    answers = os.dup(1)
    os.dup2(2, 1)  # whatever prints must not reach the parent
    order = decode(_read_line(), RingOrder)
    if order.modest:
        _be_modest()
    os.write(answers, encode(_run(order)) + b"\n")
    return 0


def _run(order: RingOrder) -> RingEnd:
    settings = MemberSettings(
        place=order.place,
        options=RingOptions(seconds=order.seconds, pairs=True, gang=True),
        tokens=order.tokens,
        device=order.device,
        local_ranks=None,
        environ=_environ(os.environ, order),
        deadline=time.monotonic() + order.deadline_seconds,
    )
    try:
        ended = run_node(settings, order.join_seconds, leave=_INPUT)
    except UsageError as error:  # a busy port, or an address of another machine
        return RingEnd(2, str(error))
    return RingEnd(ended.status, ended.text, ended.share, pairs_of(ended.ring))


def _environ(environ: Mapping[str, str], order: RingOrder) -> dict[str, str]:
    """If it is to be modest, one CPU's worth of threads for each rank."""
    own = {ENV_NODE: order.node} if order.node else {}
    return {**environ, **own, **({"OMP_NUM_THREADS": "1"} if order.modest else {})}


def _be_modest() -> None:
    """Takes what no job wants: the last share of the CPUs, the first place where memory is short, no core files."""
    os.nice(_NICE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with open("/proc/self/oom_score_adj", "w") as file:
        file.write(_OOM_SCORE)


def _read_line() -> bytes:
    data = bytearray()
    while not data.endswith(b"\n") and len(data) < MAX_BYTES:
        chunk = os.read(_INPUT, 1)  # and no byte more: what follows is the end
        if not chunk:
            raise SystemExit(0)
        data += chunk
    return bytes(data)


if __name__ == "__main__":
    sys.exit(main())
