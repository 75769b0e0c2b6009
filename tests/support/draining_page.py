"""Generates docs/draining.md: `cd tests && python -m support.draining_page`.

For each code that is critical on a recorded machine: a healthy situation that looks like it, what keeps the two apart,
and the machines that prove it.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from support.coverage import look_alikes, raised_by_probes
from support.materialise import expectation, names
from support.paths import REPOSITORY

PAGE: Final = REPOSITORY / "docs" / "draining.md"


class Argument(NamedTuple):
    healthy: str  # a healthy situation that looks like the fault
    apart: str  # what keeps the two apart


_ARGUMENTS: Final = {
    "ACS_ENABLED": Argument(
        "The firmware, or the kernel with its IOMMU, sets ACS on at each switch of each node of a fleet; a host of "
        "virtual machines needs it.",
        "On at all switches is a setting: a warning. Critical is a switch that differs from the others.",
    ),
    "DISK_FULL": Argument(
        "auditd fills its disk by design, cachefilesd what there is; a stick, the recovery partition, a service's "
        "tmpfs, a disk of datasets that nobody writes to.",
        "Places at which no job writes are warnings, file systems mounted read-only are not judged, and with 16 GiB "
        "left nothing is critical.",
    ),
    "FABRIC_MANAGER_DOWN": Argument(
        "Its service waits for the driver after boot; it runs in another PID namespace; a board whose switches are not "
        "seen may have it elsewhere.",
        "A grace after boot; `unknown` where not all processes are seen; boards known by name alone are warnings.",
    ),
    "FABRIC_NOT_READY": Argument(
        "After boot the fabric manager still trains links; on a host with FABRIC_MODE=1 a GPU waits for its partition.",
        "The time since boot (ten minutes), and the manager's own file.",
    ),
    "GPU_BUSY": Argument(
        "A health tool of the site (dcgmproftester, nvbandwidth) or a service of the system is on the GPU.",
        "The account that runs the process, as the kernel has it: below 1000 is a warning. A name is nobody's proof.",
    ),
    "GPU_CLOCKS_LOW": Argument(
        "Somebody set a power limit or a clock on purpose, for one GPU or all; boards of two makers; a rack's budget.",
        "What was asked of the driver is a setting: a warning. Critical is a limit that something else enforces on one "
        "GPU, and a highest clock below those of the same board and firmware.",
    ),
    "GPU_DRIVER_HUNG": Argument(
        "Without persistence mode a GPU is started by whoever asks for it; a reset of another GPU holds the driver's "
        "locks for seconds.",
        "Each call has its own limit: 8 s for a reading, 18 s for a call that starts a GPU nobody holds.",
    ),
    "GPU_ECC_UNCORRECTED": Argument(
        "An error that was contained, or remapped long ago; the board's lifetime count.",
        "The driver's recovery action, a row without a spare, or the GPU's own threshold make it critical.",
    ),
    "GPU_LOST": Argument(
        "A container that may not open the GPU; a driver too old to say what it wants; an IMEX domain that is away.",
        "Which error NVML returns, and which action the driver asks for.",
    ),
    "GPU_MISSING": Argument(
        "A GPU lent to a virtual machine by vfio-pci, Grace's or Xen's driver; a container with some of the GPUs; a "
        "display card of another model.",
        "The driver that is bound to the device, the container's confinement, and the models of the others.",
    ),
    "GPU_ROW_REMAP_FAILED": Argument(
        "Rows that were remapped, or wait for it.", "The GPU itself says that a spare is missing."
    ),
    "GPU_THROTTLED": Argument(
        "The site's power is short, and pulls the brake of all GPUs; a busy GPU at its power cap.",
        "A brake of all GPUs of a node at once is a warning, and a power cap none. Older drivers' limits of the board "
        "are a warning.",
    ),
    "GPU_TOO_HOT": Argument(
        "A GPU that is warm within its limits; a margin that boards report wrongly.",
        "The board's own limits, and a second reading that agrees with the margin.",
    ),
    "GPU_XID": Argument(
        "A kernel of a user's that never ends times out (109); a reset after the error leaves no line in the log; "
        "drivers before 570 do not say what they want.",
        "A line alone is a warning. Critical needs a witness: the driver's request, a GPU that does not answer, links "
        "down, memory that failed, or the same error over hours, by other processes, on one GPU alone.",
    ),
    "MEMLOCK_LIMIT": Argument(
        "A node of Ethernet NICs, whose RDMA devices the driver makes by itself, trains over TCP.",
        "InfiniBand, EFA, nvidia_peermem or the site's nccl.conf show that RDMA is used; else a warning.",
    ),
    "MOUNT_HUNG": Argument(
        "A user's rclone or sshfs died; a pod's volume; the backup filer is in maintenance.",
        "The kernel writes down which user mounted a FUSE file system; parallel file systems, and the places in "
        "`mounts.jobs`, are what jobs need. All else is a warning.",
    ),
    "NCCL_ENV_HARMFUL": Argument(
        "A site's own nccl.conf; a variable of a plugin; what a user sets for a job.",
        "Only a file of root's can be critical, and only what breaks jobs on hardware that is there.",
    ),
    "NVLINK_DOWN": Argument(
        "Boards without a bridge beside bridged ones; a guest with a part of a board, whose links are off.",
        "Without a switch, only fewer links than earlier in this boot are critical. With one, fewer than the board's, "
        "but for a guest whose GPUs all have the same number.",
    ),
    "P2P_DISABLED": Argument(
        "Peer-to-peer that a key, confidential computing or the firmware switches off for all; boards without it.",
        "Refused for all pairs, or by a key, is a setting: a warning. Critical is one GPU that its peers cannot reach.",
    ),
    "PCIE_AER_ERRORS": Argument(
        "A driver asks a device for what it does not support: a nonfatal error of no hardware.",
        "Nonfatal and corrected errors are warnings, in counters as in the log. Fatal ones are critical.",
    ),
    "PCIE_LINK_DEGRADED": Argument(
        "A cloud's slot has half of the GPU's lanes; a slot of bare metal has; idle GPUs lower their speed; virtual "
        "functions have no link.",
        "Both ends have to be seen, and to be able to do more. Peers alone are a warning.",
    ),
    "PEERMEM_MISSING": Argument(
        "GPUDirect RDMA by DMA-BUF, which needs no module.", "The kernel's and the driver's versions."
    ),
    "RDMA_DEVICE_MISSING": Argument(
        "A NIC lent to a guest; an Ethernet NIC for storage; a container without /dev/infiniband; a GPU "
        "beside which no NIC was ever put in.",
        "The driver that is bound, the peers of the same model, and whether this is a container. A hole in the "
        "board's layout is critical where the kernel's log says that a device went there.",
    ),
    "RDMA_DRIVER_ERROR": Argument(
        "One command of the firmware timed out, and it went on; a NIC was taken out and put back.",
        "The NIC's state now: its RDMA device, its ports. Three commands that timed out need no other witness.",
    ),
    "RDMA_ERRORS_RISING": Argument(
        "Counts of long ago, a driver that counts under other names, a peer that died.",
        "Only the increase counts, and only counters of the link itself are critical.",
    ),
    "RDMA_GID_WRONG": Argument(
        "A NIC for storage without an address; a site that pins another GID.",
        "The GPUs' NICs, and the site's nccl.conf.",
    ),
    "RDMA_LINK_FLAPPING": Argument(
        "A leaf switch is upgraded and restarts three times; the row lost power.",
        "Losses within two hours, or of all ports together, are a warning. Critical are losses that go on.",
    ),
    "RDMA_NETDEV_DOWN": Argument(
        "InfiniBand without IP, which RDMA does not need.", "The link layer, and what the port's peers have."
    ),
    "RDMA_PORT_DOWN": Argument(
        "A port that was never cabled, or that somebody switched off; ports to which the subnet manager has not come "
        "yet, after boot or since it was restarted.",
        "Whether it had a link in this boot, its physical state, how many the GPUs need, ten minutes after boot, and "
        "five minutes while all InfiniBand ports wait.",
    ),
    "RDMA_RATE_LOW": Argument(
        "A slower NIC for storage.", "Peers of the same model that the GPUs use, and one lane of four."
    ),
    "RDMA_RENAMED": Argument("Names that a site chose.", "The names that the site's own configuration uses."),
    "RING_FAILED": Argument("A ring of long ago.", "Its age."),
    "RING_SLOW": Argument("A ring of hours ago, or one that was slow for all.", "Its age, and the other nodes' pairs."),
}

_HEAD: Final = """# What takes a node away

`python -m support.draining_page` in `tests/` generates this page from the recorded machines in `tests/data/machines`.

A critical finding takes a node out of service: SLURM drains it, Kubernetes taints it. So each code that probes can make
critical has an answer to the question what healthy machine looks like it, and two machines that show it: one that is
taken, and one, as like it as can be, that stays. A machine that stays has no finding, or a warning.

The rules behind the answers:

- A comparison is made of what both ends can do, as far as both are seen. Elsewhere peers decide, and peers alone are a
  warning.
- What somebody has set, for one device or for all, is a warning: only its owner knows whether it is meant.
- What a log says is a warning until something that is true now confirms it.
- The witness is the kernel's, the driver's or the hardware's. A name that a user can choose proves nothing.
- After boot there is a time in which things are not ready yet: `CONNECTING_SECONDS` of the fabric,
  `ACTIVATING_SECONDS` of RDMA ports, `STARTING_SECONDS` of the fabric manager. What is not ready later is critical.
- What is the same everywhere on a node is more likely a setting, the site's power or a switch than eight faults.

| code | healthy, and looks like it | what keeps them apart | is taken | stays |
|---|---|---|---|---|
"""


def critical_codes() -> list[str]:
    """The codes that are critical on some recorded machine."""
    return [code for code in sorted(raised_by_probes()) if _taken(code)]


def staying(code: str) -> list[str]:
    """The machines that look like the fault `code` and are not taken for it: with a warning, or without a finding."""
    warned = [name for name in names() if "warning" in _severities(name, code) and not _is_critical(name, code)]
    return [*warned, *look_alikes(code)]


def page() -> str:
    return _HEAD + "".join(_row(code) for code in critical_codes())


def _taken(code: str) -> list[str]:
    return [name for name in names() if _is_critical(name, code)]


def _is_critical(name: str, code: str) -> bool:
    return "critical" in _severities(name, code)


def _severities(name: str, code: str) -> set[str]:
    return {severity for found, severity, _ in expectation(name)["findings"] if found == code}


def _row(code: str) -> str:
    argument = _ARGUMENTS[code]
    cells = (f"[{code}](findings/{code}.md)", *argument, ", ".join(_taken(code)), ", ".join(staying(code)))
    return f"| {' | '.join(cells)} |\n"


if __name__ == "__main__":
    PAGE.write_text(page())
