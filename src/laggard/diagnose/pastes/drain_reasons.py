"""The reasons for which Slurm or an administrator takes a node out of service, as rows of a table. Pure.

Sources: Slurm (src/slurmctld/node_mgr.c, src/slurmd/slurmd/req.c, src/slurmctld/ping_nodes.c), LBNL's Node
Health Check.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from laggard.model import Severity


class DrainReason(NamedTuple):
    pattern: str
    code: str
    severity: Severity | None
    """None: planned, and no fault."""
    fix: str


_LOG = "Read slurmctld's and slurmd's log of that time; then resume the node: scontrol update node=NODE state=resume."
REASONS: Final[tuple[DrainReason, ...]] = (
    DrainReason(r"gres/\S* ?count|gres/gpu|gpu count|missing gpu|gpus? missing|gpu \d+ (?:of|/) ?\d+|fewer gpus",
        "GPU_MISSING", Severity.CRITICAL,
        "A GPU does not answer: see nvidia-smi and the kernel's log for its Xid. Restart the node; then reseat it."),
    DrainReason(r"low realmem|low real ?memory|dimm|memory (?:size|missing|lost)", "HOST_MEMORY_LOW", Severity.CRITICAL,
        "Memory modules are missing or were switched off after errors (dmidecode -t 17, ipmitool sel elist); where "
        "the node has always had so much, lower RealMemory in slurm.conf."),
    DrainReason(r"kill task failed|unkillable|step(?:d)? not terminated|job (?:not )?ending", "NODE_DRAINED",
        Severity.CRITICAL, "A process of a job could not be killed: it waits in the kernel (state D) for a file system "
        "or a driver. Find it, and what it waits for, before the node is restarted: ps -eo pid,stat,wchan:30,cmd | "
        "grep ' D'."),
    DrainReason(r"\bxid|fallen off|gpu.{0,20}(?:error|fail|lost|bad|fault|fell)", "GPU_XID", Severity.CRITICAL,
        "Read the kernel's log for the Xid: dmesg -T | grep Xid; it tells what to do with the GPU."),
    DrainReason(r"\becc\b|row.?remap|uncorrect|\bdbe\b", "GPU_ECC_UNCORRECTED", Severity.CRITICAL,
        "Look at the GPUs' ECC errors and remapped rows: nvidia-smi -q -d ECC,ROW_REMAPPER; and at the host's memory."),
    DrainReason(r"nvlink|nvswitch|fabric ?manager", "FABRIC_NOT_READY", Severity.CRITICAL,
        "Check the fabric manager and the NVLinks: systemctl status nvidia-fabricmanager, nvidia-smi nvlink -s."),
    DrainReason(r"\bib\d?\b|infiniband|\bmlx\d|\bhca\b|\bnic\b|\broce\b|link down|port down", "RDMA_PORT_DOWN",
        Severity.CRITICAL, "Check the port and its cable: ibstat, mlxlink -d DEVICE -m -c."),
    DrainReason(r"no space|disk full|full disk|low tmpdisk|/\S* (?:is )?full|fs_(?:free|used|size|inodes)", "DISK_FULL",
        Severity.CRITICAL, "Remove what fills the disk: df -h, df -i."),
    DrainReason(r"\bmounts?\b|mounted|lustre|\bnfs\b|gpfs|beegfs|weka|stale file|file ?system", "MOUNT_HUNG",
        Severity.CRITICAL, "Check the mounts of that node and their server."),
    DrainReason(
        r"prolog|epilog|health ?check|nhc:|batch job complete f|unexpectedly rebooted|not respon|low socket|low cpu|"
        r"invalid|duplicate jobid|node configuration differs|cgroup|plugin", "NODE_DRAINED", Severity.CRITICAL, _LOG),
    DrainReason(
        r"maint|upgrade|update|kernel|reboot|firmware|reserv|planned|burn.?in|patch|install|test|replac|rma\b|decom|reimag"
        r"|power|scheduled|move|debug", "NODE_DRAINED", None, _LOG),
)  # fmt: skip
"""The first that is found in a reason counts; the last one is of what is planned."""
OTHER: Final = DrainReason("", "NODE_DRAINED", Severity.WARNING, _LOG)
_COMPILED: Final = tuple((re.compile(row.pattern, re.IGNORECASE), row) for row in REASONS)


_BROKEN: Final = re.compile(
    r"fail|error|fault|lost|missing|\bdown\b|\bno[t ]|\blow\b|xid|uncorrect|\becc\b|\bbad\b|dead|hung|hang|unkill|stuck"
    r"|stale|fell|fallen|throttl|mismatch|reported|time(?:d )?out|invalid|unexpected|panic|broken|\bhot\b",
    re.IGNORECASE,
)
_PLANNED: Final = re.compile(
    r"maint|upgrad|updat|firmware|reserv|planned|burn.?in|patch|install|decom|reimag|scheduled|migrat", re.IGNORECASE
)


def drain_reason(text: str) -> DrainReason:
    """The row of a reason. What somebody plans for GPUs, links or mounts is no fault of theirs."""
    if _PLANNED.search(text[:400]) and not _BROKEN.search(text[:400]):
        return REASONS[-1]
    return next((row for pattern, row in _COMPILED if pattern.search(text[:400])), OTHER)
