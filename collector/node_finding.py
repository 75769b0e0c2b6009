"""A finding with the node that it is about."""

from __future__ import annotations

from msgspec import Struct

from laggard.model import Finding


class NodeFinding(Struct, frozen=True):
    url: str
    node: str
    finding: Finding
