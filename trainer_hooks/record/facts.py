"""The facts that a rank reports of itself beside its numbers: small values by name, for the rank file's facts."""

from __future__ import annotations

import json
from typing import Any, Final

from laggard.rankfile.layout import FACTS_LIMIT


class Facts:
    """Values by name, each of JSON's kinds. Set from any thread; the heartbeat writes them when they have changed."""

    def __init__(self) -> None:
        self._values: dict[str, Any] = {}
        self._encoded: dict[str, Any] | None = None  # the values of the last changed_json()

    def set(self, name: str, value: Any) -> None:
        """A later value replaces an earlier one of the same name; None removes it."""
        if self._values.get(name) == value:
            return
        values = {**self._values, name: value}
        self._values = {key: each for key, each in values.items() if each is not None}  # replaced as a whole

    def get(self, name: str) -> Any:
        """The value of that name; None where none was set."""
        return self._values.get(name)

    def changed_json(self) -> bytes | None:
        """Returns the JSON of all values where one was set since the last call; None where none was.

        What is too large, or no JSON, is left out, the largest first, and its name stands in `left_out`.
        """
        values = self._values
        if values is self._encoded:
            return None
        self._encoded = values
        left_out: list[str] = []
        while True:
            shown = {**values, "left_out": sorted(left_out)} if left_out else values
            text = json.dumps(shown, default=_placeholder, separators=(",", ":")).encode()
            if len(text) <= FACTS_LIMIT or not values:
                break
            largest = max(values, key=lambda name: len(json.dumps(values[name], default=_placeholder)))
            left_out.append(largest[:64])
            values = {name: value for name, value in values.items() if name != largest}
        return text if len(text) <= FACTS_LIMIT else None


FACTS: Final = Facts()
"""The facts that this process reports of itself in its rank file: `FACTS.set(name, value)`."""


def _placeholder(value: object) -> str:
    return f"<{type(value).__name__}>"
