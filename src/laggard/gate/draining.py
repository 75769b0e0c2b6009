"""What takes a node away, code by code: the probe that finds it, and on the code's page a healthy situation that looks
like it, and what keeps the two apart. docs/draining.md and `laggard healthcheck --explain-drain` are made of it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, NamedTuple

from laggard.catalogue.findings import read_page
from laggard.kit.words import lazy_pattern

DRAINING_CODES: Final[Mapping[str, str]] = {
    "ACS_ENABLED": "acs",
    **dict.fromkeys(("DISK_FAILED", "KERNEL_FAULT", "MACHINE_CHECK"), "kernel_faults"),
    "DISK_FULL": "disks",
    "FABRIC_MANAGER_DOWN": "fabric_manager",
    "FABRIC_NOT_READY": "fabric",
    "GPU_BUSY": "gpu_busy",
    "GPU_CLOCKS_LOW": "gpu_clocks",
    **dict.fromkeys(("GPU_DRIVER_FAILED", "GPU_DRIVER_HUNG", "MODULE_MISSING"), "gpu_driver"),
    "GPU_ECC_UNCORRECTED": "gpu_ecc",
    "GPU_LOST": "gpu_lost",
    "GPU_MISSING": "gpu_count",
    "GPU_ROW_REMAP_FAILED": "gpu_rows",
    "GPU_MEMORY_SLOW": "active_memory",
    **dict.fromkeys(("GPU_SLOW", "GPU_WRONG_RESULT"), "active_matmul"),
    "GPU_THROTTLED": "gpu_throttle",
    "GPU_TOO_HOT": "gpu_temperature",
    "GPU_XID": "gpu_xid",
    **dict.fromkeys(
        ("FILE_MODE_WRONG", "HOST_MEMORY_LOW", "KERNEL_LIMIT_REACHED", "MOUNT_MISSING", "SERVICE_DOWN", "SHM_SMALL"),
        "expected",
    ),
    "JOBS_FAIL_AT_ONCE": "jobs",
    "MEMLOCK_LIMIT": "limits",
    "MOUNT_HUNG": "mounts",
    "NCCL_ENV_HARMFUL": "nccl_env",
    "NVLINK_DOWN": "nvlink",
    "P2P_DISABLED": "gpu_p2p",
    "PCIE_AER_ERRORS": "pcie_errors",
    "PCIE_LINK_DEGRADED": "pcie_links",
    "PEERMEM_MISSING": "peermem",
    **dict.fromkeys(("RDMA_DEVICE_MISSING", "RDMA_PKEY_MISSING", "RDMA_RENAMED"), "rdma_devices"),
    "RDMA_DRIVER_ERROR": "rdma_driver",
    **dict.fromkeys(("RDMA_ERRORS_RISING", "RDMA_LINK_FLAPPING"), "rdma_errors"),
    **dict.fromkeys(("RDMA_GID_WRONG", "RDMA_NETDEV_DOWN"), "rdma_net"),
    **dict.fromkeys(("RDMA_PORT_DOWN", "RDMA_RATE_LOW"), "rdma_ports"),
    **dict.fromkeys(("RING_FAILED", "RING_SLOW"), "ring"),
    "SITE_CHECK_FAILED": "site_checks",
}
"""The probe whose finding of this code can be critical, by code."""

_RULE: Final = lazy_pattern(
    r"^- Healthy, and looks like it: (.+?)\n- What keeps them apart: (.+?)\n\n", re.MULTILINE | re.DOTALL
)


class DrainingRule(NamedTuple):
    healthy: str
    """A healthy situation that looks like the fault."""
    apart: str
    """The means that keep the two apart: the rule, and its witnesses."""


def read_rule(code: str) -> DrainingRule:
    """What the page of `code` says; empty where it says nothing. Raises UsageError where the page is not installed."""
    found = _RULE.search(read_page(code))
    return DrainingRule(*(" ".join(text.split()) for text in found.groups())) if found else DrainingRule("", "")
