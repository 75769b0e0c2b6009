"""What a rank tells of itself beside its numbers: small values by name, for the rank file's facts."""

from __future__ import annotations

import json
from typing import Any, Final

from laggard.rankfile.layout import FACTS_LIMIT


class Facts:
    """Values by name, each of JSON's kinds. Set from any thread; the heartbeat writes them when they have changed."""

    def __init__(self) -> None:
        self._values: dict[str, Any] = {}
        self._told: dict[str, Any] | None = None

    def set(self, name: str, value: Any) -> None:
        """A later value replaces an earlier one of the same name; None takes it away."""
        if self._values.get(name) == value:
            return
        values = {**self._values, name: value}
        self._values = {key: each for key, each in values.items() if each is not None}  # replaced as a whole

    def news(self) -> bytes | None:
        """The JSON of all values, where one was set since the last time; None where none was.

        What is too large, or no JSON, is left out, the largest first, and its name stands in `left_out`.
        """
        values = self._values
        if values is self._told:
            return None
        self._told = values
        left_out: list[str] = []
        while True:
            told = {**values, "left_out": sorted(left_out)} if left_out else values
            text = json.dumps(told, default=_unfit, separators=(",", ":")).encode()
            if len(text) <= FACTS_LIMIT or not values:
                break
            largest = max(values, key=lambda name: len(json.dumps(values[name], default=_unfit)))
            left_out.append(largest[:64])
            values = {name: value for name, value in values.items() if name != largest}
        return text if len(text) <= FACTS_LIMIT else None


FACTS: Final = Facts()
"""What this process tells of itself in its rank file: `FACTS.set(name, value)`."""


def _unfit(value: object) -> str:
    return f"<{type(value).__name__}>"
