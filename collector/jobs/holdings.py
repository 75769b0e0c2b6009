"""The number of jobs and ranks that are held, of each user and from each agent. Who gives way where there is no room,
and what is not held, in words.

Room is shared by max-min fairness between users: where all of it is taken, a newcomer takes the place of the user who
holds the most, unless that is the newcomer's own. So a user who floods the cluster with jobs loses their own. What one
agent can bring is bounded by itself, since an agent that lies may name any number of users.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple, TypeVar

from laggard.kit.words import counted
from laggard.model import JobKey

Who = TypeVar("Who", int, str)

MAX_JOBS_OF_AGENT = 64
"""The most jobs of one agent. Agents report at most 64 ranks at once, so no honest one brings more jobs that run."""

MAX_RANKS_OF_AGENT = 1024
"""The most ranks that one answer may hold. Ranks that ended are held for a while, so this is more than run on a node at
once."""


class Limits(NamedTuple):
    """The most that is held, of all users and agents together."""

    jobs: int = 4096
    ranks: int = 131_072


class Held:
    """How many jobs, or ranks, are held: of each user, and from each agent. At most `most` in all, `most_of_agent` from
    one agent. A job counts for the agent that was the first to report it, a rank for the agent that has claimed it."""

    def __init__(self, most: int, most_of_agent: int) -> None:
        self.most, self.most_of_agent = most, most_of_agent
        self.total = 0
        self.of_owner: Counter[int] = Counter()
        self.of_agent: Counter[str] = Counter()

    def add(self, owner: int, agent: str, count: int = 1) -> None:
        self.total += count
        _add(self.of_owner, owner, count)
        _add(self.of_agent, agent, count)


def who_gives_way(counts: Counter[int], newcomer: int) -> int | None:
    """The user who has to give up one of what is counted for one more of `newcomer`. None where nobody has to: then
    the newcomer already holds as much as anybody does. A user gives way only to one who holds at least two fewer, else
    the two would take the place from each other again and again."""
    heaviest = max(counts, key=lambda owner: counts[owner], default=None)
    if heaviest is None or counts[heaviest] < counts[newcomer] + 2:
        return None
    return heaviest


def _add(counts: Counter[Who], who: Who, count: int) -> None:
    counts[who] += count
    if not counts[who]:
        del counts[who]


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
