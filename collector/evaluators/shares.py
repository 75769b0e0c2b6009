"""The share of each evaluator: a hash of the job, modulo the number of live evaluators, says who judges it. Pure.

The hash is Prometheus' own `hashmod` (relabel_configs) of the labels `user` and `job_id`, joined by `;`: the last eight
bytes of their MD5, as a number. So who shards scrapes in the same way gets the same shares.
Source: Prometheus' documentation, configuration, relabel_config, and its model/relabel.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Final, NamedTuple

from laggard.collector.jobs.key import JobKey

LEASE_SECONDS: Final = 10.0
"""The time after which an evaluator that has not said that it is alive is gone, by the database's clock: its jobs are
others' then. laggard's choice: four beats that fail."""

BEAT_SECONDS: Final = 2.0
"""The time from one beat, in which an evaluator says that it is alive and reads what others judged, to the next."""


class Members(NamedTuple):
    """The evaluators among whom the jobs are shared, by name, and the name of this one."""

    names: tuple[str, ...] = ()
    me: str = ""

    def judge_of(self, key: JobKey) -> str:
        """The evaluator that judges the job; empty where there is none."""
        return self.names[hashmod(key, len(self.names))] if self.names else ""

    def is_mine(self, key: JobKey) -> bool:
        return bool(self.me) and self.judge_of(key) == self.me

    def after(self, live: Iterable[str], me: str, back_seconds: float) -> Members:
        """The members once a beat found `live` ones. While the database has been there again for less than a lease,
        those of before count as well: they all come back at once, and jobs need not move to and fro. (Not this one's
        former name, where the server still has the connection that holds it.) Where nobody is live, since Prometheus
        answers none of them, nothing moves."""
        found = set(live)
        if not found or back_seconds < LEASE_SECONDS:
            found |= set(self.names) - ({self.me} if me != self.me else set())
        return Members(tuple(sorted(found)), me)


def hashmod(key: JobKey, modulus: int) -> int:
    """0 to `modulus` - 1."""
    digest = hashlib.md5(f"{key.owner};{key.job_id}".encode(), usedforsecurity=False).digest()
    return int.from_bytes(digest[8:], "big") % modulus
