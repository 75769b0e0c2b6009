"""The jobs and ranks that agents report and the collector has no room for, as a value, and in words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

from laggard.collector.jobs.holdings import MAX_JOBS_OF_AGENT, MAX_RANKS_OF_AGENT, Limits
from laggard.collector.jobs.job import JobKey
from laggard.text.words import counted

_NAMED_USERS = 3


class NotHeld(NamedTuple):
    """`ranks`: how many of each job are not held. `unseen`: those of the jobs of which no rank is held."""

    ranks: Mapping[JobKey, int] = {}
    unseen: frozenset[JobKey] = frozenset()
    limits: Limits = Limits()

    def text(self) -> str:
        """Says what is not watched, whose it is, and the limits; empty where everything is."""
        if not self.ranks:
            return ""
        users = Counter(key.owner for key in self.unseen or self.ranks)
        named = [f"user {owner}" for owner, _ in users.most_common(_NAMED_USERS)]
        named += [f"{len(users) - _NAMED_USERS} more" if len(users) > _NAMED_USERS else ""]
        what = counted(len(self.unseen), "job") if self.unseen else counted(sum(self.ranks.values()), "rank")
        verb = "is" if what.startswith("1 ") else "are"
        return f"{what} of {', '.join(filter(None, named))} {verb} not watched: {self.limits_text()}"

    def limits_text(self) -> str:
        room = f"{counted(self.limits.jobs, 'job')} and {counted(self.limits.ranks, 'rank')}"
        of_agent = f"{MAX_JOBS_OF_AGENT} jobs and {MAX_RANKS_OF_AGENT} ranks"
        return f"there is room for {room}, and for {of_agent} of each agent"
