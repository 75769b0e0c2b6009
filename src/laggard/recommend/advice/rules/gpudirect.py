"""GPUDirect: NICs that read the GPUs' memory without a copy in the host's."""

from __future__ import annotations

from laggard.recommend.advice.rule import Rule, for_each_finding
from laggard.recommend.advice.values import Gain

SOURCE = "NVIDIA/nccl#1412: 33 to 93 GB/s with nvidia_peermem; NCCL's user guide, troubleshooting"
RULE = Rule(
    "gpudirect",
    for_each_finding(
        {"GPUDIRECT_OFF": ("host", "GPUDirect RDMA"), "PEERMEM_MISSING": ("host", "nvidia_peermem")},
        Gain("rule", None, 1.0, 2.8),
        SOURCE,
    ),
    SOURCE,
)
