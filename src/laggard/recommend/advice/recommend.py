"""All rules of a recommendation, and what they say together of whatever is known. Pure."""

from __future__ import annotations

from typing import Final

from laggard.nccl.variables import shown
from laggard.recommend.advice.decide import decide
from laggard.recommend.advice.rules import (
    communication,
    memory,
    network_settings,
    repairs,
    slow_ranks,
    small_messages,
    variables,
)
from laggard.recommend.advice.situation import Rule, Situation
from laggard.recommend.advice.values import Recommendation

RULES: Final[tuple[Rule, ...]] = (
    repairs.judge_tcp_fallback,
    slow_ranks.judge_slow_rank,
    slow_ranks.judge_own_program,
    repairs.judge_gpudirect,
    repairs.judge_pcie,
    repairs.judge_roce,
    network_settings.judge_traffic_class,
    repairs.judge_host,
    variables.judge_variables,
    slow_ranks.judge_debug_variables,
    variables.judge_provider,
    network_settings.judge_queue_pairs,
    slow_ranks.judge_data_loader,
    slow_ranks.judge_garbage_collection,
    communication.judge_accumulation,
    communication.judge_overlap,
    communication.judge_buckets,
    communication.judge_collective,
    memory.judge_offload,
    memory.judge_model_states,
    memory.judge_recomputation,
    network_settings.judge_mixed_nics,
    small_messages.judge,
    communication.judge_layered_accumulation,
)


def recommend(situation: Situation) -> Recommendation:
    return decide(situation, RULES, shown(situation.environment))
