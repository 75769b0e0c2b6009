"""RoCE: lossless priorities, congestion marks, MTU and addresses."""

from __future__ import annotations

from laggard.recommend.advice.rule import Rule, for_each_finding
from laggard.recommend.advice.values import Gain

SOURCE = "NVIDIA/nccl#378 and #306: below 1 GB/s without flow control; NCCL's user guide, RoCE"
RULE = Rule(
    "roce",
    for_each_finding(
        {
            "PFC_OFF": ("nic", "PFC"),
            "ECN_OFF": ("nic", "ECN"),
            "RDMA_MTU_LOW": ("nic", "MTU"),
            "RDMA_GID_WRONG": ("nic", "GID"),
            "NIC_MIXED": ("nccl_env", "NCCL_IB_HCA"),
            "RDMA_RATE_LOW": ("nic", "rate"),
            "RDMA_ERRORS_RISING": ("nic", "errors"),
        },
        Gain("rule"),
        SOURCE,
    ),
    SOURCE,
)
