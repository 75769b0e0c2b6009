"""May this node go out? Asked of the collector before every drain and every rejected job.

What makes all nodes fail at once is a defect of the checks, or of what they share (the fabric's manager, a file
server): draining them all would be the outage. So no answer is a no: a collector that cannot be reached is most likely
away for the same reason. The price is one job on a sick node, which is what the cluster had before.
"""

from __future__ import annotations

from typing import Final

from laggard.wire import DrainsDocument, WireError, decode

ANSWER_SECONDS: Final = 1.0
NO_CAP: Final = "none"


def objection(collector: str, node: str) -> str:
    """Why `node` may not be drained; empty where it may. `collector`: its address, or `none` for no cap."""
    if collector == NO_CAP:
        return ""
    from urllib.parse import quote  # sockets are slow to import, and few need them

    from laggard.http.client import NoResponse, get

    url = f"{collector}/api/v1/drains?node={quote(node, safe='')}"
    try:
        answer = decode(get(url, ANSWER_SECONDS).body, DrainsDocument)
    except (NoResponse, WireError) as error:
        return f"no answer from the collector {collector}: {error}"
    if not answer.may_drain:
        return f"the cap on drains: {answer.reason}"
    if not answer.asker_fails:  # others cannot count what the collector has not seen
        return f"the collector does not know yet that {node} fails"
    return ""
