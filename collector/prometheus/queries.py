"""PromQL about one job. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

STEPS = "laggard_rank_steps_total"
STEP_SECONDS = "laggard_rank_step_seconds_total"
OWN_SECONDS = "laggard_rank_own_seconds_total"
INPUT_SECONDS = "laggard_rank_input_seconds_total"
PHASE_SECONDS = "laggard_rank_phase_seconds_total"
COLLECTIVES = "laggard_rank_collectives_total"
COLLECTIVE_SECONDS = "laggard_rank_collective_seconds_total"
LAST_PROGRESS = "laggard_rank_last_progress_timestamp_seconds"
LAST_BEAT = "laggard_rank_last_beat_timestamp_seconds"
IN_FLIGHT = "laggard_rank_in_flight_seconds"
UP = "laggard_rank_up"
INFO = "laggard_rank_info"
FINDING = "laggard_finding"
PROBED = "laggard_agent_probe_round_seconds"

FIRST_RANKS = ("rank=~", "[0-9]|[1-9][0-9]")
"""The first hundred ranks."""


MAX_RANKS = 1500
"""The most ranks that a query names: some 12,000 characters, where VictoriaMetrics takes 16,384 by default
(-search.maxQueryLen)."""


class Job(NamedTuple):
    """A job by its labels; `user` empty: not known. `cluster`: empty where its series have no such label; None: not
    known, whichever. Two clusters that write into one store may have jobs of one name."""

    job_id: str
    user: str = ""
    cluster: str | None = None


def selector(metric: str, job: Job | None, *more: tuple[str, str]) -> str:
    """`metric{job_id="...",user="..."}`; `more` are pairs of a label with its operator, and a value."""
    asked = [] if job is None else [("job_id=", job.job_id), *([("user=", job.user)] if job.user else [])]
    if job is not None and job.cluster is not None:
        asked.append(("cluster=", job.cluster))
    return f"{metric}{{{','.join(f'{name}{quoted(value)}' for name, value in (*asked, *more))}}}"


def parts(ranks: Sequence[int]) -> list[Sequence[int]]:
    """The ranks in parts that one query may name."""
    return [ranks[first : first + MAX_RANKS] for first in range(0, len(ranks), MAX_RANKS)]


def among(ranks: Iterable[int]) -> tuple[str, str]:
    """The matcher that selects these ranks."""
    return "rank=~", "|".join(map(str, ranks))


def quoted(text: str) -> str:
    """A string of PromQL, whatever is in it."""
    escaped = "".join(_ESCAPES.get(character, character) for character in text)
    return f'"{escaped}"'


_ESCAPES = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r", "\0": "\\x00"}
