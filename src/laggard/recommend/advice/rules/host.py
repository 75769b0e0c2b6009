"""The host: locked memory, NUMA, CPU affinity and frequency, and the paths between the GPUs of a node."""

from __future__ import annotations

from laggard.recommend.advice.rule import Rule, for_each_finding
from laggard.recommend.advice.values import Gain

SOURCE = "NCCL's user guide, troubleshooting; the findings' own pages"
RULE = Rule(
    "host",
    for_each_finding(
        {
            "MEMLOCK_LIMIT": ("host", "memlock"),
            "NUMA_MISMATCH": ("launcher", "NUMA binding"),
            "CPU_AFFINITY": ("launcher", "CPU affinity"),
            "CPU_GOVERNOR": ("host", "CPU governor"),
            "SHM_INSTEAD_OF_P2P": ("host", "peer access of GPUs"),
            "P2P_DISABLED": ("host", "peer access of GPUs"),
        },
        Gain("rule"),
        SOURCE,
    ),
    SOURCE,
)
