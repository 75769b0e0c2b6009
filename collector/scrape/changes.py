"""The lines of the log on agents that change their state: one line for each state, at most once a minute, however many
agents there are and however often they change."""

from __future__ import annotations

import logging
from typing import Final

from laggard.text.words import counted

log = logging.getLogger("laggard.collector")

LINE_SECONDS: Final = 60.0
_MAX_NAMED: Final = 4


class StateChanges:
    """Collects the changes of a round; says() what is due."""

    def __init__(self) -> None:
        self._pending: dict[str, dict[str, str]] = {}  # by state: the agents that are in it since, with the reason
        self._said_at: dict[str, float] = {}

    def forget(self, url: str) -> None:
        for agents in self._pending.values():
            agents.pop(url, None)

    def add(self, url: str, state: str, reason: str) -> None:
        self.forget(url)
        self._pending.setdefault(state, {})[url] = reason

    def lines(self, now: float) -> list[tuple[int, str]]:
        """The levels and lines to log now; what came too soon after a line of its state waits for the next."""
        due = [
            state
            for state, agents in self._pending.items()
            if agents and now - self._said_at.get(state, now - LINE_SECONDS) >= LINE_SECONDS
        ]
        self._said_at.update(dict.fromkeys(due, now))
        return [
            (logging.INFO if state == "up" else logging.WARNING, _line(state, self._pending.pop(state)))
            for state in due
        ]


def _line(state: str, agents: dict[str, str]) -> str:
    named = [f"{url} ({reason})" if reason else url for url, reason in list(agents.items())[:_MAX_NAMED]]
    more = f" and {len(agents) - _MAX_NAMED} more" if len(agents) > _MAX_NAMED else ""
    verb = "is" if len(agents) == 1 else "are"
    return f"{counted(len(agents), 'agent')} {verb} {state}: {', '.join(named)}{more}"
