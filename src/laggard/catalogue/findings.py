"""All finding codes: the one place that defines them. Documentation and tests are made from it."""

from __future__ import annotations

import os
from typing import NamedTuple

import laggard
from laggard.kit.environment import ENV_RUNBOOKS
from laggard.kit.errors import UsageError
from laggard.model import Severity

REBOOT, RESET, REPLACE, OPERATOR, USER = ACTIONS = ("REBOOT", "RESET", "REPLACE", "OPERATOR", "USER")
"""Restart the node, reset the device, put in another part, let a person look, or let the user change the job."""


class FindingType(NamedTuple):
    """A finding code with its usual severity and its meaning in one line. Its page is docs/findings/CODE.md."""

    code: str
    severity: Severity
    summary: str
    action: str = OPERATOR
    """What ends it, one of ACTIONS, for programs; a finding that knows better has its own."""
    later: str = ""
    """The part that will raise the code, while nothing raises it yet."""

    @property
    def doc(self) -> str:
        """The path of its page in the repository; its address where LAGGARD_RUNBOOKS has that of a copy of it."""
        base = os.environ.get(ENV_RUNBOOKS, "")
        return os.path.join(base if base.startswith(("http://", "https://")) else "", f"docs/findings/{self.code}.md")


FINDINGS: tuple[FindingType, ...] = (
    FindingType("MEMLOCK_LIMIT", Severity.CRITICAL, "Locked memory is limited: RDMA cannot register its buffers."),
    FindingType("OPEN_FILES_LIMIT", Severity.WARNING, "Too few open files are allowed for a large job's sockets."),
    FindingType("CLOCK_SKEW", Severity.WARNING, "The clock is not synchronised, or is off by more than is tolerable."),
    FindingType("DISK_FULL", Severity.CRITICAL, "A file system that jobs write to is full or nearly so."),
    FindingType("GPU_DRIVER_HUNG", Severity.CRITICAL, "A call into NVIDIA's driver does not return.", REBOOT),
    FindingType("GPU_DRIVER_FAILED", Severity.CRITICAL, "NVIDIA's driver does not start or fit the node's software."),
    FindingType("GPU_DIAG_FAILED", Severity.CRITICAL, "A vendor's own diagnostics failed a GPU.", REPLACE),
    FindingType("GPU_MISSING", Severity.CRITICAL, "Fewer GPUs answer than the node has.", REBOOT),
    FindingType("GPU_LOST", Severity.CRITICAL, "A GPU no longer answers, or the driver wants it reset.", REBOOT),
    FindingType(
        "GPU_ECC_UNCORRECTED", Severity.CRITICAL, "A GPU's memory had errors that ECC could not correct.", RESET
    ),
    FindingType(
        "GPU_ROW_REMAP_PENDING", Severity.WARNING, "A faulty row of memory is replaced at the next GPU reset.", RESET
    ),
    FindingType(
        "GPU_ROW_REMAP_FAILED", Severity.CRITICAL, "A faulty row of GPU memory could not be replaced.", REPLACE
    ),
    FindingType(
        "GPU_XID", Severity.CRITICAL, "The driver logged an error of a GPU that is not an application's.", RESET
    ),
    FindingType("GPU_THROTTLED", Severity.CRITICAL, "A GPU ran slower for heat, protection or its power supply."),
    FindingType("GPU_TOO_HOT", Severity.CRITICAL, "A GPU is at its own temperature limits."),
    FindingType(
        "GPU_CLOCKS_LOW", Severity.CRITICAL, "A GPU is held, or set, to lower clocks or power than it could have."
    ),
    FindingType("GPU_PERSISTENCE_OFF", Severity.WARNING, "The driver stops GPUs that nobody uses, and restarts them."),
    FindingType("GPU_BUSY", Severity.CRITICAL, "A process uses a GPU that a job is about to get."),
    FindingType("NVLINK_DOWN", Severity.CRITICAL, "A GPU has fewer NVLinks up than its board or its peers.", RESET),
    FindingType("NVLINK_ERRORS", Severity.WARNING, "A GPU's NVLinks retrain or repeat more than they should."),
    FindingType("FABRIC_MANAGER_DOWN", Severity.CRITICAL, "The fabric manager does not run on a node with NVSwitches."),
    FindingType(
        "FABRIC_NOT_READY", Severity.CRITICAL, "A GPU is not, or not well, connected to the NVLink fabric.", RESET
    ),
    FindingType("P2P_DISABLED", Severity.CRITICAL, "GPUs that should reach each other's memory may not."),
    FindingType(
        "JOBS_FAIL_AT_ONCE", Severity.CRITICAL, "Each job, of several users, fails within seconds of its start."
    ),
    FindingType("FLEET_OUTLIER", Severity.WARNING, "The node differs from the majority of nodes with its hardware."),
    FindingType(
        "RDMA_DEVICE_MISSING", Severity.CRITICAL, "A NIC has no RDMA device, or programs cannot open it.", REBOOT
    ),
    FindingType("RDMA_PORT_DOWN", Severity.CRITICAL, "An RDMA port that jobs use is not active."),
    FindingType("RDMA_RATE_LOW", Severity.CRITICAL, "An RDMA port runs slower than its peers."),
    FindingType("RDMA_LINK_FLAPPING", Severity.WARNING, "An RDMA port loses its link and gets it back."),
    FindingType("RDMA_ERRORS_RISING", Severity.WARNING, "An RDMA port's error counters grow too fast."),
    FindingType("RDMA_MTU_LOW", Severity.WARNING, "A RoCE port's packets are smaller than its peers' or than it can."),
    FindingType("RDMA_GID_WRONG", Severity.CRITICAL, "A RoCE port has no routable RoCE v2 address."),
    FindingType("RDMA_FIRMWARE_MIXED", Severity.WARNING, "NICs of one board run different firmware."),
    FindingType("RDMA_NETDEV_DOWN", Severity.CRITICAL, "The network device behind an RDMA port is down."),
    FindingType("NETWORK_DROPS", Severity.CRITICAL, "A host drops or delays packets: a firewall, or traffic shaping."),
    FindingType("RDMA_RENAMED", Severity.CRITICAL, "RDMA devices do not have the names that jobs are told to use."),
    FindingType("PFC_OFF", Severity.WARNING, "A RoCE port has no priority flow control, or not its peers'."),
    FindingType("ECN_OFF", Severity.WARNING, "A RoCE port does not react to congestion marks."),
    FindingType("NIC_MIXED", Severity.WARNING, "The GPUs of a machine have NICs of different kinds."),
    FindingType(
        "RDMA_DRIVER_ERROR", Severity.CRITICAL, "A NIC's driver logged that its firmware or hardware failed.", REBOOT
    ),
    FindingType("PEERMEM_MISSING", Severity.CRITICAL, "Neither nvidia_peermem nor DMA-BUF: no GPUDirect RDMA."),
    FindingType("CPU_BUSY", Severity.WARNING, "Processes of no job keep the processors busy."),
    FindingType("CPU_SLOW", Severity.WARNING, "The board holds all processors far below their base frequency."),
    FindingType("CPU_GOVERNOR", Severity.WARNING, "The CPUs' frequency governor saves power."),
    FindingType(
        "PCIE_LINK_DEGRADED", Severity.CRITICAL, "A PCIe link is slower or narrower than it should be.", REBOOT
    ),
    FindingType("PCIE_MAX_READ_REQUEST_LOW", Severity.WARNING, "A device reads memory in too small pieces."),
    FindingType("PCIE_AER_ERRORS", Severity.CRITICAL, "A PCIe device reports errors."),
    FindingType("ACS_ENABLED", Severity.CRITICAL, "A PCIe bridge keeps GPUs and NICs from direct exchange."),
    FindingType("IOMMU_ENABLED", Severity.WARNING, "The IOMMU translates what GPUs and NICs read and write."),
    FindingType("NUMA_MISMATCH", Severity.WARNING, "A GPU and its nearest NIC are on different processors."),
    FindingType("CPU_AFFINITY", Severity.WARNING, "The CPUs that jobs may use do not reach the GPUs' NUMA nodes."),
    FindingType("HUGE_SWAP", Severity.WARNING, "The machine swaps to disk: its memory was or is short."),
    FindingType(
        "HOST_MEMORY_LOW", Severity.CRITICAL, "The host's memory is used up, or less than the host should have."
    ),
    FindingType(
        "KERNEL_LIMIT_REACHED", Severity.CRITICAL, "What the kernel has only so much of is used up, and new ones fail."
    ),
    FindingType("MOUNT_MISSING", Severity.CRITICAL, "A file system that must be there is not, or is read-only."),
    FindingType("CPU_MISSING", Severity.WARNING, "Processors are offline, or fewer than the node should have."),
    FindingType("SHM_SMALL", Severity.CRITICAL, "/dev/shm is too small for the ranks and data loaders of a GPU node."),
    FindingType("MODULE_MISSING", Severity.CRITICAL, "A kernel module or device file that jobs need is not there."),
    FindingType("SERVICE_DOWN", Severity.CRITICAL, "A service that starts at boot, and that jobs need, does not run."),
    FindingType("FILE_MODE_WRONG", Severity.CRITICAL, "A place that all jobs use has another kind, number or mode."),
    FindingType("JOB_LEFTOVERS", Severity.WARNING, "Processes of a job that has ended are still there."),
    FindingType("BOND_DEGRADED", Severity.WARNING, "A link of a bond (LAG) is down, and the others carry its load."),
    FindingType("RDMA_PKEY_MISSING", Severity.CRITICAL, "A port lacks a partition key that its peers have."),
    FindingType("NODE_DRAINED", Severity.CRITICAL, "The scheduler gives a node no jobs, for a fault of it."),
    FindingType("MOUNT_HUNG", Severity.CRITICAL, "A network file system does not answer."),
    FindingType("SITE_CHECK_FAILED", Severity.CRITICAL, "A check of the site's own, or of NHC's, failed."),
    FindingType("NCCL_ENV_UNKNOWN", Severity.WARNING, "An NCCL variable that nothing reads: most often a typo.", USER),
    FindingType("NCCL_ENV_HARMFUL", Severity.WARNING, "An NCCL variable switches a fast path off or is dangerous."),
    FindingType("NCCL_ENV_INERT", Severity.INFO, "An NCCL variable that has no effect here.", USER),
    FindingType("TCP_FALLBACK", Severity.CRITICAL, "NCCL uses TCP although RDMA is there."),
    FindingType("GPUDIRECT_OFF", Severity.CRITICAL, "RDMA goes through host memory."),
    FindingType("SHM_INSTEAD_OF_P2P", Severity.CRITICAL, "GPUs of a node talk by host memory."),
    FindingType("NCCL_VERSION_MIXED", Severity.CRITICAL, "Ranks of one job run different NCCLs."),
    FindingType("NCCL_DIAGNOSTICS", Severity.WARNING, "NCCL's own diagnostics found something wrong."),
    FindingType("NCCL_WQE_SLOW", Severity.WARNING, "Transfers of an RDMA NIC took longer than NCCL's threshold."),
    FindingType("OFI_SENDRECV", Severity.WARNING, "AWS's plugin sends and receives in place of writing by RDMA."),
    FindingType("NCCL_TUNER_ONE_CHANNEL", Severity.CRITICAL, "A tuner table leaves NCCL one channel."),
    FindingType("NCCL_TUNER_TABLE", Severity.WARNING, "A row of a tuner table means something else than it says."),
    FindingType("DEEPSPEED_CONFIG", Severity.WARNING, "A DeepSpeed configuration contradicts itself.", USER),
    FindingType("RING_SLOW", Severity.CRITICAL, "An all-reduce is slower than its peers'."),
    FindingType("RING_FAILED", Severity.CRITICAL, "An all-reduce failed or gave wrong results."),
    FindingType("TEST_MEASURED_NOTHING", Severity.WARNING, "A test of collectives ran on single ranks.", USER),
    FindingType("MACHINE_CHECK", Severity.CRITICAL, "The CPU or the host's memory reports hardware errors.", REPLACE),
    FindingType(
        "KERNEL_FAULT", Severity.CRITICAL, "The kernel panicked, crashed, or hangs on a CPU or in a process.", REBOOT
    ),
    FindingType("DISK_FAILED", Severity.CRITICAL, "A local disk, its array or its file system failed.", REPLACE),
    FindingType("CLOCK_SOURCE_SLOW", Severity.WARNING, "The kernel reads the time from a slow source."),
    FindingType("JOB_COLLECTIVE_TIMEOUT", Severity.CRITICAL, "A collective did not end: a rank had not come to it."),
    FindingType("JOB_NCCL_ERROR", Severity.CRITICAL, "NCCL failed: network, peer, or wrong use."),
    FindingType("JOB_GPU_OUT_OF_MEMORY", Severity.CRITICAL, "A rank ran out of GPU memory.", USER),
    FindingType(
        "JOB_HOST_OUT_OF_MEMORY", Severity.CRITICAL, "A process was killed, or failed, for want of host memory.", USER
    ),
    FindingType("JOB_CUDA_ERROR", Severity.CRITICAL, "A CUDA call or kernel of a rank failed."),
    FindingType("JOB_SEGFAULT", Severity.CRITICAL, "A process of the job crashed in native code.", USER),
    FindingType("JOB_KILLED", Severity.CRITICAL, "Somebody ended a process of the job, or its node was lost."),
    FindingType("JOB_PREEMPTED", Severity.CRITICAL, "The scheduler ended the job."),
    FindingType("JOB_DATALOADER_DIED", Severity.CRITICAL, "A worker of a DataLoader died or hung.", USER),
    FindingType("JOB_DISK_FULL", Severity.CRITICAL, "A rank could not write: no room, or no quota.", USER),
    FindingType("JOB_STORAGE_ERROR", Severity.CRITICAL, "A file system failed while a rank used it."),
    FindingType("JOB_RENDEZVOUS_FAILED", Severity.CRITICAL, "The ranks did not find each other at the start.", USER),
    FindingType("POD_NOT_STARTED", Severity.CRITICAL, "Kubernetes cannot start a pod, or took it off its node."),
    FindingType("JOB_STALE_LOCK", Severity.WARNING, "Processes wait for a lock file that a dead build left.", USER),
    FindingType("JOB_NAN_LOSS", Severity.CRITICAL, "The loss became NaN.", USER),
    FindingType("JOB_EXCEPTION", Severity.CRITICAL, "The program of a rank raised an exception.", USER),
    FindingType("RANK_LATE", Severity.WARNING, "A rank is regularly the last to come to its job's collectives."),
    FindingType("STEP_TIME_LOST", Severity.WARNING, "All ranks lose much of each step to what is no computing.", USER),
    FindingType("HOOK_BLIND", Severity.INFO, "The hooks do not see all that a training process does.", USER),
    FindingType("GPU_SLOW", Severity.CRITICAL, "A GPU computes slower than its peers."),
    FindingType("GPU_MEMORY_SLOW", Severity.CRITICAL, "A GPU's memory is slower than its peers'."),
    FindingType("GPU_WRONG_RESULT", Severity.CRITICAL, "A GPU computes wrong results.", REPLACE),
)

_FINDINGS_BY_CODE = {it.code: it for it in FINDINGS}


def finding_type(code: str) -> FindingType:
    return _FINDINGS_BY_CODE[code]


def read_page(code: str) -> str:
    """Returns the page of `code`, which is installed with the package. Raises UsageError where it is not there."""
    path = os.path.join(os.path.dirname(os.path.abspath(laggard.__file__)), "findings", f"{code}.md")
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except OSError as error:
        raise UsageError(f"the page of {code} is not installed: {path}: {error.strerror}") from None


def find_type(code: str) -> FindingType:
    """The type of the code that a person has typed. Raises UsageError."""
    import difflib  # slow, and for people alone

    wanted = code.upper().replace("-", "_")
    codes = [finding_type.code for finding_type in FINDINGS]
    if wanted in codes:
        return FINDINGS[codes.index(wanted)]
    similar = difflib.get_close_matches(wanted, codes, n=1)
    hint = f"did you mean {similar[0]}? " if similar else ""
    raise UsageError(f"no finding has the code {code!r}; {hint}`laggard findings list` lists them all")
