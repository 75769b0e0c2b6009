"""What takes a node away, code by code: the probe that finds it, a healthy situation that looks like it, and what keeps
the two apart. docs/draining.md and `laggard healthcheck --explain-drain` are made of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple


class DrainingCode(NamedTuple):
    probe: str
    """The probe whose finding of this code can be critical."""
    healthy: str
    """A healthy situation that looks like the fault."""
    apart: str
    """The means that keep the two apart: the rule, and its witnesses."""


DRAINING_CODES: Final[Mapping[str, DrainingCode]] = {
    "ACS_ENABLED": DrainingCode(
        "acs",
        "The firmware, or the kernel with its IOMMU, sets ACS on at each switch of each node of a fleet; a host of "
        "virtual machines needs it.",
        "On at all switches is a setting: a warning. Critical is a switch that differs from the others.",
    ),
    "DISK_FAILED": DrainingCode(
        "kernel_faults",
        "A file system that was mounted again, an array that is rebuilt, a reset that worked, a stick with errors.",
        "/proc/mdstat, the controller's state, the superblock against /etc/fstab; lines that no repair followed.",
    ),
    "DISK_FULL": DrainingCode(
        "disks",
        "auditd fills its disk by design, a burst buffer's daemon its store, cachefilesd what there is; a root in "
        "memory is as full as its image; a stick; a disk that a running job has filled, and takes away again.",
        "Who may write there, and whose files fill it: where daemons alone do, it is a warning, and so it is until the "
        "user's jobs have ended. With 32 GiB left nothing is critical.",
    ),
    "FABRIC_MANAGER_DOWN": DrainingCode(
        "fabric_manager",
        "Its service waits for the driver after boot; it runs in another PID namespace; a board whose switches are not "
        "seen may have it elsewhere.",
        "A grace after boot; `unknown` where not all processes are seen; boards known by name alone are warnings.",
    ),
    "FABRIC_NOT_READY": DrainingCode(
        "fabric",
        "After boot the fabric manager still trains links; on a host with FABRIC_MODE=1 a GPU waits for its partition.",
        "The time since boot (ten minutes), and the manager's own file.",
    ),
    "GPU_BUSY": DrainingCode(
        "gpu_busy",
        "A health tool of the site (dcgmproftester, nvbandwidth) or a service of the system is on the GPU; another job "
        "shares it (gres/shard, gres/mps), or is suspended on it.",
        "The job of the process' cgroup, and whether its slurmstepd lives; then the account that runs the process, as "
        "the kernel has it: below 1000 is a warning. A name is nobody's proof.",
    ),
    "GPU_CLOCKS_LOW": DrainingCode(
        "gpu_clocks",
        "Somebody set a power limit or a clock on purpose, for one GPU or all; boards of two makers; a rack's budget.",
        "A limit is a warning, whoever set it, until it costs speed. Critical is one that keeps the clocks of a GPU "
        "at work far below its peers', and a highest clock below those of the same board and firmware.",
    ),
    "GPU_DRIVER_FAILED": DrainingCode(
        "gpu_driver",
        "The driver is built and loaded after boot, or in an upgrade; a container has another library than the host.",
        "Half an hour since boot, or since the driver last answered; in a container it stays `unknown`.",
    ),
    "GPU_DRIVER_HUNG": DrainingCode(
        "gpu_driver",
        "Without persistence mode a GPU is started by whoever asks for it; a reset of another GPU holds the driver's "
        "locks for seconds.",
        "Each call has its own limit: 8 s for a reading, 18 s for a call that starts a GPU nobody holds.",
    ),
    "GPU_ECC_UNCORRECTED": DrainingCode(
        "gpu_ecc",
        "An error that was contained, or remapped long ago; the board's lifetime count.",
        "The driver's recovery action, a row without a spare, or the GPU's own threshold make it critical.",
    ),
    "GPU_LOST": DrainingCode(
        "gpu_lost",
        "A container that may not open the GPU; a driver too old to say what it wants; an IMEX domain that is away.",
        "Which error NVML returns, and which action the driver asks for.",
    ),
    "GPU_MISSING": DrainingCode(
        "gpu_count",
        "A GPU lent to a virtual machine by vfio-pci, Grace's or Xen's driver; a container with some of the GPUs; a "
        "display card of another model.",
        "The driver that is bound to the device, the container's confinement, and the models of the others.",
    ),
    "GPU_ROW_REMAP_FAILED": DrainingCode(
        "gpu_rows", "Rows that were remapped, or wait for it.", "The GPU itself says that a spare is missing."
    ),
    "GPU_MEMORY_SLOW": DrainingCode(
        "active_memory",
        "The GPU is warm, or something else used it meanwhile; boards of two kinds.",
        "A GPU in use is not measured. Peers of the same model decide, and less than 0.7 of them is critical.",
    ),
    "GPU_SLOW": DrainingCode(
        "active_matmul",
        "GPUs of one model differ by some percent; a power limit that somebody set for all.",
        "A GPU in use is not measured. Peers of the same model decide, and less than 0.7 of them is critical.",
    ),
    "GPU_THROTTLED": DrainingCode(
        "gpu_throttle",
        "The site's power is short, and pulls the brake of all GPUs; a busy GPU at its power cap.",
        "A brake of all GPUs of a node at once is a warning, and a power cap none. Older drivers' limits of the board "
        "are a warning.",
    ),
    "GPU_TOO_HOT": DrainingCode(
        "gpu_temperature",
        "A GPU that is warm within its limits; a margin that boards report wrongly.",
        "The board's own limits, and a second reading that agrees with the margin.",
    ),
    "GPU_WRONG_RESULT": DrainingCode(
        "active_matmul",
        "Another order of summation, another library; no memory left; CUDA that does not start.",
        "The results are integers, exact in any order, and known from the CPU. An error of CUDA counts where only a "
        "GPU's fault causes it; others are unknown.",
    ),
    "GPU_XID": DrainingCode(
        "gpu_xid",
        "A kernel of a user's that never ends times out (109); a reset after the error leaves no line in the log; "
        "drivers before 570 do not say what they want.",
        "A line alone is a warning. Critical needs a witness: the driver's request, a GPU that does not answer, links "
        "down, memory that failed, or the same error over hours, by other processes, on one GPU alone.",
    ),
    "KERNEL_FAULT": DrainingCode(
        "kernel_faults",
        "A lockup of long ago, a process that waited for its disk and runs again, the crash of a program.",
        "A lockup goes on, a process is in state D and did not run since, a kernel that crashed is marked (taint D).",
    ),
    "MACHINE_CHECK": DrainingCode(
        "kernel_faults",
        "Errors that were corrected, a processor that was hot, machine checks that are told at boot, of before it.",
        "EDAC's count of uncorrected errors, or memory out of use (HardwareCorrupted) with a line that says why.",
    ),
    "HOST_MEMORY_LOW": DrainingCode(
        "expected",
        "A job has the memory; it is set aside in huge pages; the kernel was told to use less (mem=).",
        "Used-up memory counts while no step of SLURM's runs. The firmware counts the modules, and 4 % may be gone.",
    ),
    "JOBS_FAIL_AT_ONCE": DrainingCode(
        "jobs",
        "One user's broken program or array; short jobs that do well; scancel and time limits; a file server that is "
        "away, so that jobs fail everywhere.",
        "Three users in a row, none of whose jobs ran; the signal that ended a job; the collector compares with the "
        "other nodes.",
    ),
    "MEMLOCK_LIMIT": DrainingCode(
        "limits",
        "A node of Ethernet NICs, whose RDMA devices the driver makes by itself, trains over TCP.",
        "InfiniBand, EFA, nvidia_peermem or the site's nccl.conf show that RDMA is used; else a warning.",
    ),
    "MOUNT_HUNG": DrainingCode(
        "mounts",
        "A user's rclone or sshfs died; a pod's volume; the backup filer is in maintenance.",
        "The kernel writes down which user mounted a FUSE file system, and whether others may use it. What root mounts "
        "for all is for jobs, unless it is mounted soft, or by an automounter for whoever asked.",
    ),
    "MODULE_MISSING": DrainingCode(
        "gpu_driver",
        "nvidia_uvm is loaded for the first program that uses CUDA (nvidia-modprobe); a host of vGPUs needs none.",
        "Whether nvidia-modprobe is there; device files are looked for when NVML has had them made.",
    ),
    "MOUNT_MISSING": DrainingCode(
        "expected",
        "A line of fstab with noauto, an automounter's file system that nobody uses, a disk with nofail that is not "
        "there, a place that no job needs.",
        "fstab's options, the kernel's table of mounts, whether the device is there; ten minutes after boot.",
    ),
    "SERVICE_DOWN": DrainingCode(
        "expected",
        "A package enabled a service that nobody has set up; a masked one; munge beside Slurm's own authentication.",
        "systemd's own answer; critical only munge under slurmd, where users are looked up, the automounter of homes.",
    ),
    "FILE_MODE_WRONG": DrainingCode(
        "expected",
        "Device files of GPUs for a group; a link in the place of /tmp; a folder without its sticky bit.",
        "What all users need of each place; the driver's own DeviceFileMode; ten minutes after boot.",
    ),
    "NCCL_ENV_HARMFUL": DrainingCode(
        "nccl_env",
        "A site's own nccl.conf; a variable of a plugin; what a user sets for a job.",
        "Only a file of root's can be critical, and only what breaks jobs on hardware that is there.",
    ),
    "NVLINK_DOWN": DrainingCode(
        "nvlink",
        "Boards without a bridge beside bridged ones; a guest with a part of a board, whose links are off.",
        "Without a switch, only fewer links than earlier in this boot are critical. With one, fewer than the board's, "
        "but for a guest whose GPUs all have the same number.",
    ),
    "P2P_DISABLED": DrainingCode(
        "gpu_p2p",
        "Peer-to-peer that a key, confidential computing or the firmware switches off for all; boards without it; a "
        "display card.",
        "Peers are of one model, all with NVLinks or all without. Refused for all pairs, or by a key, is a setting: a "
        "warning. Critical is one GPU that its peers cannot reach.",
    ),
    "PCIE_AER_ERRORS": DrainingCode(
        "pcie_errors",
        "A driver asks a device for what it does not support: a nonfatal error of no hardware.",
        "Nonfatal and corrected errors are warnings, in counters as in the log. Fatal ones are critical.",
    ),
    "PCIE_LINK_DEGRADED": DrainingCode(
        "pcie_links",
        "A cloud's slot has half of the GPU's lanes; a slot of bare metal has; idle GPUs lower their speed; virtual "
        "functions have no link.",
        "Both ends have to be seen, and to be able to do more. Peers alone are a warning.",
    ),
    "PEERMEM_MISSING": DrainingCode(
        "peermem", "GPUDirect RDMA by DMA-BUF, which needs no module.", "The kernel's and the driver's versions."
    ),
    "RDMA_DEVICE_MISSING": DrainingCode(
        "rdma_devices",
        "A NIC lent to a guest; an Ethernet NIC for storage; a container without /dev/infiniband; a GPU "
        "beside which no NIC was ever put in.",
        "The driver that is bound, the peers of the same model, and whether this is a container. A hole in the "
        "board's layout is critical where the kernel's log says that a device went there.",
    ),
    "RDMA_DRIVER_ERROR": DrainingCode(
        "rdma_driver",
        "One command of the firmware timed out, and it went on; a NIC was taken out and put back.",
        "The NIC's state now: its RDMA device, its ports. Three commands that timed out need no other witness.",
    ),
    "RDMA_ERRORS_RISING": DrainingCode(
        "rdma_errors",
        "Counts of long ago, a driver that counts under other names, a peer that died.",
        "Only the increase counts, and only counters of the link itself are critical.",
    ),
    "RDMA_GID_WRONG": DrainingCode(
        "rdma_net",
        "A NIC for storage without an address; a site that pins another GID.",
        "The GPUs' NICs, and the site's nccl.conf.",
    ),
    "RDMA_LINK_FLAPPING": DrainingCode(
        "rdma_errors",
        "A leaf switch is upgraded and restarts three times; the row lost power.",
        "Losses within two hours, or of all ports together, are a warning. Critical are losses that go on.",
    ),
    "RDMA_NETDEV_DOWN": DrainingCode(
        "rdma_net",
        "InfiniBand without IP, which RDMA does not need.",
        "The link layer, and what the port's peers have.",
    ),
    "RDMA_PKEY_MISSING": DrainingCode(
        "rdma_devices",
        "A storage port of the same model has keys of its own; a port waits for the subnet manager.",
        "For each GPU, what one of its nearest active ports has is there; most GPUs decide.",
    ),
    "RDMA_PORT_DOWN": DrainingCode(
        "rdma_ports",
        "A port that was never cabled, or that somebody switched off; one for storage, of the model that GPUs have; "
        "ports to which the subnet manager has not come yet, after boot or since it was restarted.",
        "Whether it is beside a GPU, as others of its model are; where places do not tell, whether it had a link in "
        "this boot, and how many the GPUs need. Ten minutes after boot, and five while all InfiniBand ports wait.",
    ),
    "RDMA_RATE_LOW": DrainingCode(
        "rdma_ports", "A slower NIC for storage.", "Peers of the same model beside GPUs, and one lane of four."
    ),
    "RDMA_RENAMED": DrainingCode(
        "rdma_devices", "Names that a site chose.", "The names that the site's own configuration uses."
    ),
    "KERNEL_LIMIT_REACHED": DrainingCode(
        "expected",
        "The limit was reached hours ago, and is not now; a limit beyond all use, as of open files.",
        "What is in use now, by the kernel's own counts.",
    ),
    "SHM_SMALL": DrainingCode(
        "expected", "A container has a /dev/shm of its own.", "The mounts that each runtime makes in a container."
    ),
    "RING_FAILED": DrainingCode("ring", "A ring of long ago.", "Its age."),
    "RING_SLOW": DrainingCode(
        "ring", "A ring of hours ago, or one that was slow for all.", "Its age, and the other nodes' pairs."
    ),
    "SITE_CHECK_FAILED": DrainingCode(
        "site_checks",
        "A check that hangs, that is missing, that crashes, or that is for other nodes; one whose line says warning.",
        "Critical is an exit status of which the check's own line says so, or NHC's word that its check failed. All "
        "else is `unknown`.",
    ),
}
