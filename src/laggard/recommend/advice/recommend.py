"""All rules of a recommendation, and what they say together of whatever is known. Pure."""

from __future__ import annotations

from typing import Final

from laggard.recommend.advice.decide import decide
from laggard.recommend.advice.rules import small_messages
from laggard.recommend.advice.rules.communication import (
    ACCUMULATION_RULE,
    BUCKETS_RULE,
    COLLECTIVE_RULE,
    LAYERED_ACCUMULATION_RULE,
    OVERLAP_RULE,
)
from laggard.recommend.advice.rules.host import GPUDIRECT_RULE, HOST_RULE, PCIE_RULE
from laggard.recommend.advice.rules.memory import MODEL_STATES_RULE, OFFLOAD_RULE, RECOMPUTATION_RULE
from laggard.recommend.advice.rules.network import (
    MIXED_NICS_RULE,
    QUEUE_PAIRS_RULE,
    ROCE_RULE,
    TCP_FALLBACK_RULE,
    TRAFFIC_CLASS_RULE,
)
from laggard.recommend.advice.rules.slow_ranks import (
    DATA_LOADER_RULE,
    DEBUG_VARIABLES_RULE,
    GARBAGE_COLLECTION_RULE,
    OWN_PROGRAM_RULE,
    SLOW_RANK_RULE,
)
from laggard.recommend.advice.rules.variables import PROVIDER_RULE, VARIABLES_RULE
from laggard.recommend.advice.situation import Rule, Situation
from laggard.recommend.advice.values import Recommendation

RULES: Final[tuple[Rule, ...]] = (
    TCP_FALLBACK_RULE,
    SLOW_RANK_RULE,
    OWN_PROGRAM_RULE,
    GPUDIRECT_RULE,
    PCIE_RULE,
    ROCE_RULE,
    TRAFFIC_CLASS_RULE,
    HOST_RULE,
    VARIABLES_RULE,
    DEBUG_VARIABLES_RULE,
    PROVIDER_RULE,
    QUEUE_PAIRS_RULE,
    DATA_LOADER_RULE,
    GARBAGE_COLLECTION_RULE,
    ACCUMULATION_RULE,
    OVERLAP_RULE,
    BUCKETS_RULE,
    COLLECTIVE_RULE,
    OFFLOAD_RULE,
    MODEL_STATES_RULE,
    RECOMPUTATION_RULE,
    MIXED_NICS_RULE,
    small_messages.RULE,
    LAYERED_ACCUMULATION_RULE,
)


def recommend(situation: Situation) -> Recommendation:
    return decide(situation, RULES)
