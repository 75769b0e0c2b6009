"""A recommendation on a job whose configuration nobody gives, as a collector or a recording knows it: from its timings,
the verdict on them, and its nodes' findings. Pure."""

from __future__ import annotations

from typing import Final

from laggard.recommend.advice.decide import decide
from laggard.recommend.advice.rule import Rule
from laggard.recommend.advice.rules import small_messages
from laggard.recommend.advice.rules.host import GPUDIRECT_RULE, HOST_RULE, PCIE_RULE
from laggard.recommend.advice.rules.network import ROCE_RULE, TCP_FALLBACK_RULE
from laggard.recommend.advice.rules.slow_ranks import (
    DATA_LOADER_RULE,
    DEBUG_VARIABLES_RULE,
    GARBAGE_COLLECTION_RULE,
    OWN_PROGRAM_RULE,
    SLOW_RANK_RULE,
)
from laggard.recommend.advice.situation import Situation
from laggard.recommend.advice.values import Recommendation

WATCHED_RULES: Final[tuple[Rule, ...]] = (
    TCP_FALLBACK_RULE,
    SLOW_RANK_RULE,
    OWN_PROGRAM_RULE,
    GPUDIRECT_RULE,
    PCIE_RULE,
    ROCE_RULE,
    HOST_RULE,
    DEBUG_VARIABLES_RULE,
    DATA_LOADER_RULE,
    GARBAGE_COLLECTION_RULE,
    small_messages.RULE,
)
"""The rules that need no configuration, in the registry's order. The others, with what they import, are not loaded:
they would have nothing to say."""


def recommend_watched(situation: Situation) -> Recommendation:
    return decide(situation, WATCHED_RULES)
