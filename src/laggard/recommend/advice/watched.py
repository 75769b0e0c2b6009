"""A recommendation on a job whose configuration nobody gives, as a collector or a recording knows it: from its timings,
the verdict on them, and its nodes' findings. Pure."""

from __future__ import annotations

from typing import Final

from laggard.recommend.advice.decide import decide
from laggard.recommend.advice.rules import repairs, slow_ranks, small_messages
from laggard.recommend.advice.situation import Rule, Situation
from laggard.recommend.advice.values import Recommendation

WATCHED_RULES: Final[tuple[Rule, ...]] = (
    repairs.judge_tcp_fallback,
    slow_ranks.judge_slow_rank,
    slow_ranks.judge_own_program,
    repairs.judge_gpudirect,
    repairs.judge_pcie,
    repairs.judge_roce,
    repairs.judge_host,
    slow_ranks.judge_debug_variables,
    slow_ranks.judge_data_loader,
    slow_ranks.judge_garbage_collection,
    small_messages.judge,
)
"""The rules that need no configuration, in the registry's order. The others, with what they import, are not loaded:
they would have nothing to say."""


def recommend_watched(situation: Situation) -> Recommendation:
    return decide(situation, WATCHED_RULES)
