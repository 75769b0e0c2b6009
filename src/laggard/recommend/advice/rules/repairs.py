"""The advice that repairs what findings tell of: TCP in place of RDMA, RoCE as switches and NICs are set up, and the
host: locked memory, NUMA, CPU affinity and frequency, PCIe, and GPUDirect, with which NICs read the GPUs' memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec

from laggard.recommend.advice.situation import Situation, for_each_finding, repair, variable
from laggard.recommend.advice.values import Gain, Item

TCP_FALLBACK_SOURCE: Final = (
    "PMBS at SC25, Pretraining LLMs at Scale: TCP slowed the backward pass 12 times; jingchaozhang.github.io, "
    "InfiniBand and Ethernet for fine-tuning at scale: 26 to 57 times"
)
_GAIN: Final = Gain("rule", 12.0, 1.5, 57.0)
_ELSEWHERE: Final = Gain("rule", None, 1.0, 57.0)
_CHOICES: Final = {"NCCL_IB_DISABLE": ("1",), "NCCL_NET": ("Socket",), "NCCL_NET_PLUGIN": ("none",)}


def judge_tcp_fallback(situation: Situation) -> Iterator[Item]:
    found = situation.finding("TCP_FALLBACK")
    if found is None:
        return
    chosen = [name for name in _CHOICES if gain_without(name, situation.environment.get(name, ""))]
    for name in chosen:
        current = situation.environment[name]
        apply, revert = variable(name, current, None)
        item = repair(found, "nccl_env", name, _GAIN, TCP_FALLBACK_SOURCE, current, None)
        yield msgspec.structs.replace(item, apply=apply, revert=revert, commands=(apply,))
    if not chosen:
        yield repair(found, "host", "transport", _GAIN, TCP_FALLBACK_SOURCE, "TCP", "RDMA")


def gain_without(name: str, value: str) -> Gain | None:
    """Returns what removing a variable gains that has NCCL choose TCP, where the nodes have RDMA; None for others."""
    return _ELSEWHERE if value.lower() in [each.lower() for each in _CHOICES.get(name, ())] else None


ROCE_SOURCE = "NVIDIA/nccl#378 and #306: below 1 GB/s without flow control; NCCL's user guide, RoCE"
judge_roce = for_each_finding(
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
    ROCE_SOURCE,
)


HOST_SOURCE = "NCCL's user guide, troubleshooting; the findings' own pages"
judge_host = for_each_finding(
    {
        "MEMLOCK_LIMIT": ("host", "memlock"),
        "NUMA_MISMATCH": ("launcher", "NUMA binding"),
        "CPU_AFFINITY": ("launcher", "CPU affinity"),
        "CPU_GOVERNOR": ("host", "CPU governor"),
        "SHM_INSTEAD_OF_P2P": ("host", "peer access of GPUs"),
        "P2P_DISABLED": ("host", "peer access of GPUs"),
    },
    Gain("rule"),
    HOST_SOURCE,
)


PCIE_SOURCE = (
    "NCCL's user guide, troubleshooting; NVIDIA/nccl#949: 56 % slower with ACS; INDIS at SC25: a performance killer"
)
judge_pcie = for_each_finding(
    {
        "ACS_ENABLED": ("pcie", "ACS"),
        "IOMMU_ENABLED": ("host", "iommu"),
        "PCIE_MAX_READ_REQUEST_LOW": ("pcie", "MaxReadReq"),
        "PCIE_LINK_DEGRADED": ("pcie", "link"),
    },
    Gain("rule", None, 1.0, 2.3),
    PCIE_SOURCE,
)


GPUDIRECT_SOURCE = "NVIDIA/nccl#1412: 33 to 93 GB/s with nvidia_peermem; NCCL's user guide, troubleshooting"
judge_gpudirect = for_each_finding(
    {"GPUDIRECT_OFF": ("host", "GPUDirect RDMA"), "PEERMEM_MISSING": ("host", "nvidia_peermem")},
    Gain("rule", None, 1.0, 2.8),
    GPUDIRECT_SOURCE,
)
