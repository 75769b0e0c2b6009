"""PCIe: ACS and the IOMMU send transfers between devices through the host bridge; links and read requests bound
them."""

from __future__ import annotations

from laggard.recommend.advice.rule import Rule, for_each_finding
from laggard.recommend.advice.values import Gain

SOURCE = (
    "NCCL's user guide, troubleshooting; NVIDIA/nccl#949: 56 % slower with ACS; INDIS at SC25: a performance killer"
)
RULE = Rule(
    "pcie",
    for_each_finding(
        {
            "ACS_ENABLED": ("pcie", "ACS"),
            "IOMMU_ENABLED": ("host", "iommu"),
            "PCIE_MAX_READ_REQUEST_LOW": ("pcie", "MaxReadReq"),
            "PCIE_LINK_DEGRADED": ("pcie", "link"),
        },
        Gain("rule", None, 1.0, 2.3),
        SOURCE,
    ),
    SOURCE,
)
