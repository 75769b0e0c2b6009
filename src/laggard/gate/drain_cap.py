"""Asks the collector whether this node may be drained, before every drain and every rejected job.

Where all nodes fail at once, the cause is a defect of the checks, or of something that the nodes share (the fabric
manager, a file server), and to drain them all would be the outage. So no answer means no: a collector that cannot be
reached is most likely away for the same reason. The price is one more job on a sick node, as before laggard. A node
that it let be drained before is another matter: drains_answer.py.
"""

from __future__ import annotations

from typing import Final

from laggard.address import as_url, without_login
from laggard.constants import COLLECTOR_PORT
from laggard.gate.settings import COLLECTOR_SECONDS, NO_CAP, PATIENCE_SECONDS
from laggard.gate.time_limit import TimeLimit
from laggard.text.words import printable_line
from laggard.wire import WireError
from laggard.wire.nodes import DrainsDocument

_KEPT_FOR_SLURM_SECONDS: Final = 3.0
"""The part of the gate's time that patience with a busy collector leaves for the drain."""


def drain_refusal(collector: str | None, node: str, limit: TimeLimit) -> str:
    """Why `node` may not be drained; empty if it may be. `collector`: its URL, or `none` for no cap."""
    if not collector:
        return "no collector is named"
    seconds = limit.to_decide(COLLECTOR_SECONDS)
    if not seconds:
        return "the gate's time was over before"
    if collector == NO_CAP:
        return ""
    from urllib.parse import quote  # sockets are slow to import, and few runs need them

    from laggard.gate.drains_answer import drains_answer
    from laggard.http.client import NoResponse

    url = f"{as_url(collector, COLLECTOR_PORT)}/api/v1/drains?node={quote(node, safe='')}"
    try:
        answer = drains_answer(url, seconds, max(seconds, limit.to_decide(PATIENCE_SECONDS, _KEPT_FOR_SLURM_SECONDS)))
    except (NoResponse, WireError) as error:
        return f"no answer from the collector {without_login(collector)}: {error}"
    return _refusal(answer, node, without_login(collector))


def _refusal(answer: DrainsDocument, node: str, collector: str) -> str:
    if answer.answering and not answer.asker_known:
        return (
            f"the collector {collector} knows no node {node}: the agent has to run here and to report "
            f"as {node}, and the collector to ask it (`targets` in collector.yaml)"
        )
    if not answer.may_drain:
        return f"the cap on drains: {printable_line(answer.reason, 300)}"
    if not answer.asker_fails:  # else it is not counted for the nodes that ask next
        return f"the collector does not know yet that {node} fails"
    return ""
