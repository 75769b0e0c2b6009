"""May one more node be drained? Asked by a gate before it drains; nothing is counted up by asking.

A defect of the checks themselves, or of what all nodes share, makes every node fail at once; draining them all would
be the outage. So beyond a small share of the fleet failing, no gate drains: people look first. The count follows the
agents' reports, which are up to a minute old: a gate therefore waits until its own failing is known here
(`asker_fails`), so that of several nodes each sees those before it, and of two that came at once neither drains.
"""

from __future__ import annotations

from laggard.collector.jobs.snapshot import Picture
from laggard.model import Verdict
from laggard.text.words import counted
from laggard.wire import DrainsDocument


def drains_document(picture: Picture, max_ratio: float, node: str | None) -> DrainsDocument:
    """`node`: who asks; its own failing is what it asks about, and is not counted. Nobody answering is no permission:
    a collector that sees nothing knows nothing of the fleet."""
    answering = [row for row in picture.nodes if row.state == "up"]
    failing = [row for row in answering if row.verdict == Verdict.FAIL.value and (node is None or row.node != node)]
    cap = max(1, int(max_ratio * len(answering))) if answering and max_ratio > 0 else 0
    if answering:
        whose = "besides the one that asks " if node else ""
        reason = (
            f"of {counted(len(answering), 'node')} {len(failing)} {whose}fail now, at most {cap} may be out at once"
        )
    else:
        reason = "no agent answers" if picture.rounds else "the agents have not been asked yet"
    asker_fails = any(row.node == node and row.verdict == Verdict.FAIL.value for row in answering)
    return DrainsDocument(
        may_drain=len(failing) < cap,
        reason=reason,
        nodes=len(picture.nodes),
        answering=len(answering),
        failing=len(failing),
        cap=cap,
        max_drain_ratio=max_ratio,
        asker_fails=asker_fails,
    )
