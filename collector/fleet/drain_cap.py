"""Decides whether one more node may be drained. A gate asks this before it drains; asking reserves nothing.

A defect of the checks themselves, or of something that all nodes share, makes every node fail at once; draining them
all would be the outage. So beyond a small share of the fleet failing, no gate drains: people look first. The count
follows the agents' reports, which are up to a minute old: a gate therefore waits until the collector knows that its own
node fails (`asker_fails`), so that of several nodes each counts those before it, and of two that came at once neither
drains. A node whose agent fell silent after it failed still counts: else who keeps the agent busy, as any user of the
node can, would have the node pass.
"""

from __future__ import annotations

from laggard.collector.fleet.fleet_wide import words
from laggard.collector.jobs.snapshot import ClusterSnapshot
from laggard.model import Verdict
from laggard.text.words import counted
from laggard.wire.nodes import DrainsDocument, NodeRow


def drains_document(snapshot: ClusterSnapshot, max_ratio: float, node: str | None) -> DrainsDocument:
    """The answer to whether `node`, which asks, may be drained; it is not counted itself. `max_ratio`: the share of the
    answering nodes that may fail at once; at least one may, unless it is 0. Where no agent answers, the answer is no:
    the collector then knows nothing of the fleet."""
    answering = [row for row in snapshot.nodes if row.state == "up"]
    fails = [*failing_nodes(snapshot), *_silent_since_they_failed(snapshot)]
    failing = [row for row in fails if row.node not in snapshot.failing_together and (node is None or row.node != node)]
    cap = cap_of(len(answering), max_ratio)
    if answering:
        others = "besides the one that asks " if node else ""
        reason = (
            f"of {counted(len(answering), 'node')} {len(failing)} {others}fail now, at most {cap} may be out at once"
        )
    else:
        reason = "no agent answers" if snapshot.rounds else "the agents have not been asked yet"
    held_back = _why_held_back(snapshot, node, len(answering))
    return DrainsDocument(
        may_drain=len(failing) < cap and not held_back,
        reason=held_back or reason,
        nodes=len(snapshot.nodes),
        answering=len(answering),
        failing=len(failing),
        cap=cap,
        max_drain_ratio=max_ratio,
        asker_fails=node is not None and any(row.node == node for row in fails),
        asker_known=node is None or any(row.node == node for row in snapshot.nodes),
    )


def cap_of(answering: int, max_ratio: float) -> int:
    """How many of the answering nodes may be out at once: at least one, unless `max_ratio` is 0."""
    return max(1, int(max_ratio * answering)) if answering and max_ratio > 0 else 0


def failing_nodes(snapshot: ClusterSnapshot) -> list[NodeRow]:
    """The nodes that answer and fail their checks."""
    return [row for row in snapshot.nodes if row.state == "up" and row.verdict == Verdict.FAIL.value]


def _silent_since_they_failed(snapshot: ClusterSnapshot) -> list[NodeRow]:
    return [row for row in snapshot.nodes if row.verdict == Verdict.UNKNOWN.value and row.node in snapshot.last_failed]


def _why_held_back(snapshot: ClusterSnapshot, node: str | None, answering: int) -> str:
    """Why this node is not to be drained now, whatever the cap says; empty: nothing holds it back."""
    if node in snapshot.failing_together:
        codes = {it.finding.code for it in snapshot.findings if it.node == node}
        mine = [code for code in sorted(snapshot.fleet_wide) if code in codes]
        return "; ".join(words(code, snapshot.fleet_wide[code], answering) for code in mine)
    seconds = snapshot.waiting_seconds.get(node or "")
    if seconds is None:
        return ""
    return f"as many nodes as may be drained within an hour were first; this one may be in {seconds / 60:.0f} min"
