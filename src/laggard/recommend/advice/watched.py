"""A recommendation on a job whose configuration nobody gives, as a collector or a recording knows it: from its timings,
the verdict on them, and its nodes' findings. Pure."""

from __future__ import annotations

from typing import Final

from laggard.recommend.advice.decide import decide
from laggard.recommend.advice.rules import host, network, slow_ranks, small_messages
from laggard.recommend.advice.situation import Rule, Situation
from laggard.recommend.advice.values import Recommendation

WATCHED_RULES: Final[tuple[Rule, ...]] = (
    network.TCP_FALLBACK_RULE,
    slow_ranks.SLOW_RANK_RULE,
    slow_ranks.OWN_PROGRAM_RULE,
    host.GPUDIRECT_RULE,
    host.PCIE_RULE,
    network.ROCE_RULE,
    host.HOST_RULE,
    slow_ranks.DEBUG_VARIABLES_RULE,
    slow_ranks.DATA_LOADER_RULE,
    slow_ranks.GARBAGE_COLLECTION_RULE,
    small_messages.RULE,
)
"""The rules that need no configuration, in the registry's order. The others, with what they import, are not loaded:
they would have nothing to say."""


def recommend_watched(situation: Situation) -> Recommendation:
    return decide(situation, WATCHED_RULES)
