"""The share of the whole ring's document that each node of a gang is told. Pure.

A node fails for what accuses it alone. A link that is slow is no reason to reject a node, since both of its nodes are
fast with others: it is a warning on both. A link that fails, or changes what it carries, is critical on both, because
no job can have the two.
"""

from __future__ import annotations

from typing import Final

from msgspec import structs

from laggard.model import Finding, Severity
from laggard.rings.document import Ring
from laggard.rings.order import NodeShare
from laggard.text.words import printable_line

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
