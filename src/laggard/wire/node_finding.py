"""A finding with the node that it is about."""

from __future__ import annotations

from msgspec import Struct

from laggard.model import Finding


class NodeFinding(Struct, frozen=True):
    """`url`: of the agent that reported it. `node`: the name under which the node's ranks are known."""

    url: str
    node: str
    finding: Finding
