"""Which faults of a host stand before which failures of its ranks: the causes that the joiner knows, as a table."""

from __future__ import annotations

from typing import Final

from laggard.diagnose.job.events import Event, Weight

HARDWARE: Final = frozenset((
    "GPU_LOST", "GPU_ECC_UNCORRECTED", "GPU_XID", "GPU_DRIVER_FAILED", "GPU_DRIVER_HUNG", "GPU_MISSING",
    "GPU_ROW_REMAP_FAILED", "GPU_DIAG_FAILED", "NVLINK_DOWN", "FABRIC_NOT_READY", "FABRIC_MANAGER_DOWN",
    "PCIE_AER_ERRORS", "MACHINE_CHECK", "KERNEL_FAULT",
))  # fmt: skip
PORTS: Final = frozenset((
    "RDMA_NETDEV_DOWN", "RDMA_PORT_DOWN", "RDMA_DEVICE_MISSING", "RDMA_DRIVER_ERROR", "RDMA_LINK_FLAPPING",
    "NETWORK_DROPS",
))  # fmt: skip
STORAGE: Final = frozenset(("DISK_FULL", "DISK_FAILED", "MOUNT_HUNG"))
MEMORY: Final = frozenset(("JOB_HOST_OUT_OF_MEMORY",))
LOST: Final = frozenset(("JOB_KILLED", "JOB_SEGFAULT", "NODE_DRAINED"))
"""The codes by which another source than the job's output says that a rank or a node is lost."""

_BEFORE: Final[dict[str, frozenset[str]]] = {
    "JOB_CUDA_ERROR": HARDWARE,
    "JOB_NCCL_ERROR": HARDWARE | PORTS,
    "JOB_SEGFAULT": HARDWARE | STORAGE,
    "JOB_KILLED": HARDWARE | MEMORY,
    "JOB_DATALOADER_DIED": MEMORY | STORAGE,
    "JOB_STORAGE_ERROR": STORAGE,
    "JOB_DISK_FULL": STORAGE,
    "JOB_HOST_OUT_OF_MEMORY": MEMORY,
}
_BEFORE_WAITING: Final = HARDWARE | PORTS | STORAGE | MEMORY | LOST
WAITING: Final = (Weight.WAITED, Weight.SUMMARY)


def faults_before(event: Event) -> frozenset[str]:
    """Returns the codes of the faults that can be why this event came. What a program raised itself has none."""
    if event.weight in WAITING:
        return _BEFORE_WAITING
    return _BEFORE.get(event.code, frozenset())
