"""A recommendation from a job's timings and the verdict on them alone, as a recording has them. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from laggard.locate.job_timings import JobTimings
from laggard.model import Culprit
from laggard.recommend.advice.decide import decide
from laggard.recommend.advice.rules import slow_ranks, small_messages
from laggard.recommend.advice.situation import Rule, Situation, with_job
from laggard.recommend.advice.values import Recommendation

TIMING_RULES: Final[tuple[Rule, ...]] = (
    slow_ranks.SLOW_RANK_RULE,
    slow_ranks.OWN_PROGRAM_RULE,
    slow_ranks.DEBUG_VARIABLES_RULE,
    slow_ranks.DATA_LOADER_RULE,
    slow_ranks.GARBAGE_COLLECTION_RULE,
    small_messages.RULE,
)
"""The rules that need no more than a recording, in the registry's order. The others, with what they import, are not
loaded: they would have nothing to say."""


def recommend_by_timings(timings: JobTimings, culprits: Sequence[Culprit]) -> Recommendation:
    return decide(with_job(Situation(), timings, culprits), TIMING_RULES)
