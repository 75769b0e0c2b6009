"""All rules of a recommendation, one line each."""

from __future__ import annotations

from typing import Final

from laggard.recommend.advice.rule import Rule
from laggard.recommend.advice.rules import (
    accumulation,
    buckets,
    collective,
    data_loader,
    debug_variables,
    garbage_collection,
    gpudirect,
    host,
    layered_accumulation,
    mixed_nics,
    model_states,
    offload,
    overlap,
    own_program,
    pcie,
    provider,
    queue_pairs,
    recomputation,
    roce,
    slow_rank,
    small_messages,
    tcp_fallback,
    traffic_class,
    variables,
)

RULES: Final[tuple[Rule, ...]] = (
    tcp_fallback.RULE,
    slow_rank.RULE,
    own_program.RULE,
    gpudirect.RULE,
    pcie.RULE,
    roce.RULE,
    traffic_class.RULE,
    host.RULE,
    variables.RULE,
    debug_variables.RULE,
    provider.RULE,
    queue_pairs.RULE,
    data_loader.RULE,
    garbage_collection.RULE,
    accumulation.RULE,
    overlap.RULE,
    buckets.RULE,
    collective.RULE,
    offload.RULE,
    model_states.RULE,
    recomputation.RULE,
    mixed_nics.RULE,
    small_messages.RULE,
    layered_accumulation.RULE,
)
