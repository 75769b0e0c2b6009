"""All rules of a recommendation, and what they say together of whatever is known. Pure."""

from __future__ import annotations

from typing import Final

from laggard.nccl.variables import shown
from laggard.recommend.advice.decide import decide
from laggard.recommend.advice.rules import (
    communication,
    host,
    memory,
    network,
    network_settings,
    slow_ranks,
    small_messages,
    variables,
)
from laggard.recommend.advice.situation import Rule, Situation
from laggard.recommend.advice.values import Recommendation

RULES: Final[tuple[Rule, ...]] = (
    network.TCP_FALLBACK_RULE,
    slow_ranks.SLOW_RANK_RULE,
    slow_ranks.OWN_PROGRAM_RULE,
    host.GPUDIRECT_RULE,
    host.PCIE_RULE,
    network.ROCE_RULE,
    network_settings.TRAFFIC_CLASS_RULE,
    host.HOST_RULE,
    variables.VARIABLES_RULE,
    slow_ranks.DEBUG_VARIABLES_RULE,
    variables.PROVIDER_RULE,
    network_settings.QUEUE_PAIRS_RULE,
    slow_ranks.DATA_LOADER_RULE,
    slow_ranks.GARBAGE_COLLECTION_RULE,
    communication.ACCUMULATION_RULE,
    communication.OVERLAP_RULE,
    communication.BUCKETS_RULE,
    communication.COLLECTIVE_RULE,
    memory.OFFLOAD_RULE,
    memory.MODEL_STATES_RULE,
    memory.RECOMPUTATION_RULE,
    network_settings.MIXED_NICS_RULE,
    small_messages.RULE,
    communication.LAYERED_ACCUMULATION_RULE,
)


def recommend(situation: Situation) -> Recommendation:
    return decide(situation, RULES, shown(situation.environment))
