"""The advice about the host: locked memory, NUMA, CPU affinity and frequency, PCIe, and GPUDirect, with which NICs
read the GPUs' memory."""

from __future__ import annotations

from laggard.recommend.advice.situation import Rule, for_each_finding
from laggard.recommend.advice.values import Gain

HOST_SOURCE = "NCCL's user guide, troubleshooting; the findings' own pages"
HOST_RULE = Rule(
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
        HOST_SOURCE,
    ),
    HOST_SOURCE,
)


PCIE_SOURCE = (
    "NCCL's user guide, troubleshooting; NVIDIA/nccl#949: 56 % slower with ACS; INDIS at SC25: a performance killer"
)
PCIE_RULE = Rule(
    "pcie",
    for_each_finding(
        {
            "ACS_ENABLED": ("pcie", "ACS"),
            "IOMMU_ENABLED": ("host", "iommu"),
            "PCIE_MAX_READ_REQUEST_LOW": ("pcie", "MaxReadReq"),
            "PCIE_LINK_DEGRADED": ("pcie", "link"),
        },
        Gain("rule", None, 1.0, 2.3),
        PCIE_SOURCE,
    ),
    PCIE_SOURCE,
)


GPUDIRECT_SOURCE = "NVIDIA/nccl#1412: 33 to 93 GB/s with nvidia_peermem; NCCL's user guide, troubleshooting"
GPUDIRECT_RULE = Rule(
    "gpudirect",
    for_each_finding(
        {"GPUDIRECT_OFF": ("host", "GPUDirect RDMA"), "PEERMEM_MISSING": ("host", "nvidia_peermem")},
        Gain("rule", None, 1.0, 2.8),
        GPUDIRECT_SOURCE,
    ),
    GPUDIRECT_SOURCE,
)
