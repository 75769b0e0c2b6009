"""The parts that a user may read of the findings on a node that others may share. Pure.

A finding's words and evidence are free text and values of a probe. Some name processes, users, jobs, paths or other
nodes. So each code of the catalogue stands in one of these sets, which a test checks; a code in none is not shown.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from msgspec import structs

from laggard.accepted import without_mark
from laggard.catalogue.findings import FINDINGS
from laggard.model import Finding, Fix
from laggard.wire.node_finding import NodeFinding

WHOLE: Final = frozenset(
    (
        *("MEMLOCK_LIMIT", "OPEN_FILES_LIMIT", "CLOCK_SKEW", "CPU_GOVERNOR", "CPU_AFFINITY", "HUGE_SWAP"),
        *("GPU_MISSING", "GPU_LOST", "GPU_ECC_UNCORRECTED", "GPU_ROW_REMAP_PENDING", "GPU_ROW_REMAP_FAILED"),
        *("GPU_THROTTLED", "GPU_TOO_HOT", "GPU_CLOCKS_LOW", "GPU_PERSISTENCE_OFF"),
        *("NVLINK_DOWN", "NVLINK_ERRORS", "FABRIC_MANAGER_DOWN", "P2P_DISABLED"),
        *("RDMA_DEVICE_MISSING", "RDMA_PORT_DOWN", "RDMA_RATE_LOW", "RDMA_LINK_FLAPPING", "RDMA_ERRORS_RISING"),
        *("RDMA_MTU_LOW", "RDMA_GID_WRONG", "RDMA_FIRMWARE_MIXED", "RDMA_NETDEV_DOWN", "RDMA_RENAMED"),
        *("PFC_OFF", "ECN_OFF", "NIC_MIXED", "PEERMEM_MISSING", "PCIE_LINK_DEGRADED", "PCIE_MAX_READ_REQUEST_LOW"),
        *("PCIE_AER_ERRORS", "ACS_ENABLED", "IOMMU_ENABLED", "NUMA_MISMATCH"),
    )
)
"""The findings about hardware and the machine's settings alone."""

WITH_DEVICE: Final = frozenset(
    (
        *("GPU_XID", "GPU_BUSY", "GPU_DRIVER_HUNG", "GPU_DRIVER_FAILED", "FABRIC_NOT_READY", "RDMA_DRIVER_ERROR"),
        *("MACHINE_CHECK", "CLOCK_SOURCE_SLOW", "GPU_DIAG_FAILED"),
    )
)
"""The findings whose device is shown, but not their words: these may have a process or a line of the kernel's log,
their device is hardware."""

CODE_ALONE: Final = frozenset(
    (
        *("DISK_FULL", "DISK_FAILED", "KERNEL_FAULT", "MOUNT_HUNG", "FLEET_OUTLIER", "RING_SLOW", "RING_FAILED"),
        *("GPU_SLOW", "GPU_MEMORY_SLOW", "GPU_WRONG_RESULT"),  # a ring finds them, too
        *("NODE_DRAINED", "HOST_MEMORY_LOW", "NETWORK_DROPS"),  # an admin's reason; the processes that take it
    )
)
"""The findings of which the code alone is shown: their device and words may be a user's path, a user, or other
nodes."""

OF_A_JOB: Final = frozenset(
    (
        *("NCCL_ENV_UNKNOWN", "NCCL_ENV_HARMFUL", "NCCL_ENV_INERT", "TCP_FALLBACK", "GPUDIRECT_OFF"),
        *("SHM_INSTEAD_OF_P2P", "NCCL_VERSION_MIXED", "NCCL_DIAGNOSTICS", "NCCL_WQE_SLOW", "OFI_SENDRECV"),
        *("NCCL_TUNER_ONE_CHANNEL", "NCCL_TUNER_TABLE", "DEEPSPEED_CONFIG", "RANK_LATE", "HOOK_BLIND"),
        *("JOB_COLLECTIVE_TIMEOUT", "JOB_NCCL_ERROR", "JOB_GPU_OUT_OF_MEMORY", "JOB_HOST_OUT_OF_MEMORY"),
        *("JOB_CUDA_ERROR", "JOB_SEGFAULT", "JOB_KILLED", "JOB_PREEMPTED", "JOB_DATALOADER_DIED", "JOB_DISK_FULL"),
        *("JOB_STORAGE_ERROR", "JOB_RENDEZVOUS_FAILED", "JOB_NAN_LOSS", "JOB_EXCEPTION", "JOB_STALE_LOCK"),
        *("POD_NOT_STARTED", "TEST_MEASURED_NOTHING", "STEP_TIME_LOST"),
    )
)
"""The findings about jobs: they are shown to the user whose job it is, where the finding says whose (`owner` in its
evidence)."""

ELSEWHERE: Final = "this node"

_SUMMARIES: Final[Mapping[str, str]] = {it.code: it.summary for it in FINDINGS}


def shown_to(found: NodeFinding, uid: int) -> NodeFinding | None:
    """The part that user `uid` may read of a finding on a node of their job; None: nothing."""
    found = structs.replace(found, finding=without_mark(found.finding))  # root's own words
    code = found.finding.code
    if code in WHOLE or (code in OF_A_JOB and _is_of(found.finding, uid)):
        return found
    if code in WITH_DEVICE:
        return structs.replace(found, finding=_in_catalogue_words(found.finding, found.finding.device))
    if code in CODE_ALONE:
        return structs.replace(found, finding=_in_catalogue_words(found.finding, ELSEWHERE))
    return None


def _is_of(finding: Finding, uid: int) -> bool:
    owner = finding.evidence.get("owner")
    return type(owner) is int and owner == uid


def _in_catalogue_words(finding: Finding, device: str) -> Finding:
    """The finding with nothing of what the node's agent says about it but code, severity and device."""
    return Finding(
        code=finding.code,
        severity=finding.severity,
        device=device,
        summary=_SUMMARIES[finding.code],
        evidence={},
        fix=Fix("Tell an operator of the cluster, who sees the evidence."),
        doc=finding.doc,
    )
