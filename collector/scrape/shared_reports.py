"""The parts of reports that many nodes have alike, held once: nodes of one kind tell the same of most probes, and as
Python's objects a report takes four times the room of its JSON."""

from __future__ import annotations

from typing import Any, Final

from msgspec import structs

from laggard.model import Report
from laggard.wire import encode

MAX_PARTS: Final = 16_384
"""The most parts that are remembered. With more all are forgotten, and those of the next reports take their place."""

MAX_PART_BYTES: Final = 16 << 10
"""The largest part that is remembered, as JSON."""


class SharedReports:
    """Not thread-safe."""

    def __init__(self) -> None:
        self._parts: dict[tuple[str, bytes], Any] = {}

    def of(self, report: Report) -> Report:
        """The same report, but that how long each probe took is 0: that is another time on each node, and no collector
        looks at it."""
        if len(self._parts) > MAX_PARTS:
            self._parts.clear()
        probes = tuple(self._one("", structs.replace(it, elapsed_seconds=0.0)) for it in report.probes)
        facts = {name: self._one(name, value) for name, value in report.facts.items()}
        return structs.replace(report, probes=probes, facts=facts)

    def _one(self, name: str, part: Any) -> Any:
        """The part that was there first of those with this text: to Python 1 and true would be equal."""
        try:
            told = encode(part)
        except RecursionError:  # facts may be nested as deeply as could just be read
            return part
        return part if len(told) > MAX_PART_BYTES else self._parts.setdefault((name, told), part)
