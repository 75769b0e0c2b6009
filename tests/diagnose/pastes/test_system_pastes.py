"""`laggard diagnose`: pasted output of Slurm's and the system's tools, each fault beside its healthy look-alike."""

from __future__ import annotations

import pytest
from support.diagnosed import diagnose_text

Rows = list[tuple[str, str, str]]


def found(text: str) -> Rows:
    return [(each.code, each.severity.value, each.device) for each in diagnose_text(text).findings]


SINFO = "REASON               USER      TIMESTAMP           NODELIST\n{:<20} {:<9} 2025-05-12T03:11:22 {}\n"
NODE = "NodeName={0} Arch=x86_64 CoresPerSocket=56 \n   Gres=gpu:h100:8(S:0-1)\n   State={1} ThreadsPerCore=2\n{2}\n"
REASON = "   Reason={} [slurm@2025-05-12T03:11:22]"
STATES = "PARTITION AVAIL  TIMELIMIT  NODES  STATE NODELIST\n{}"

MAX_SHOWN = 64
"""The findings of one tool, however long a paste is."""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (SINFO.format("gres/gpu count repor", "slurm", "g1"), [("GPU_MISSING", "critical", "node g1")]),
        (SINFO.format("Kill task failed", "root", "g[1,7]"), [("NODE_DRAINED", "critical", "node g[1,7]")]),
        (SINFO.format("ask alice", "bob", "g1"), [("NODE_DRAINED", "warning", "node g1")]),
        (SINFO.format("maint: firmware Tues", "admin", "g[1-4]"), []),
        (SINFO.format("Reboot ASAP", "root", "g1"), []),
        (
            NODE.format("g1", "IDLE+DRAIN+INVALID_REG", REASON.format("Low RealMemory (reported:1999264 < 100.00%)")),
            [("HOST_MEMORY_LOW", "critical", "node g1")],
        ),
        (NODE.format("g1", "DOWN*+DRAIN", REASON.format("Not responding")), [("NODE_DRAINED", "critical", "node g1")]),
        (NODE.format("g1", "DOWN*", ""), [("NODE_DRAINED", "warning", "node g1")]),
        (NODE.format("g1", "IDLE", ""), []),
        (NODE.format("g1", "MIXED+DRAIN+REBOOT_REQUESTED", REASON.format("Reboot ASAP")), []),
        (STATES.format("gpu*         up 2-00:00:00      1  down* cn-9\n"), [("NODE_DRAINED", "critical", "node cn-9")]),
        (STATES.format("gpu*         up 2-00:00:00     14   idle cn-[1-14]\ngpu* up infinite 2 drain cn-[1-2]\n"), []),
    ],
)
def test_slurm_nodes(text: str, expected: Rows) -> None:
    assert found(text) == expected


SACCT = (
    "JobID          State ExitCode             NodeList \n-------- ----------- -------- -------------------- \n"
    "900      {:<11}    {} {:>20} \n900.0    {:<11}    {} {:>20} \n"
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (SACCT.format("FAILED", "1:0", "n1", "OUT_OF_ME+", "0:9", "n1"),
         [("JOB_HOST_OUT_OF_MEMORY", "critical", "job 900")]),
        (SACCT.format("TIMEOUT", "0:0", "n1", "CANCELLED", "0:9", "n1"), [("JOB_PREEMPTED", "critical", "job 900")]),
        ("JobID|State|ExitCode\n7|PREEMPTED|0:0\n7.batch|CANCELLED|0:15\n", [("JOB_PREEMPTED", "critical", "job 7")]),
        (SACCT.format("COMPLETED", "0:0", "n1", "CANCELLED", "0:15", "n1"), []),
        (SACCT.format("RUNNING", "0:0", "n1", "RUNNING", "0:0", "n1"), []),
    ],
)  # fmt: skip
def test_slurm_jobs(text: str, expected: Rows) -> None:
    assert found(text) == expected


DF = "Filesystem      Size  Used Avail Use% Mounted on\n"
INODES = "Filesystem        Inodes     IUsed IFree IUse% Mounted on\n"
FREE = "               total        used        free      shared  buff/cache   available\nMem: {}\nSwap:  0  0  0\n"
NUMA = (
    "available: 2 nodes (0-1)\nnode 0 cpus: 0 1 2 3\nnode 0 size: 515641 MB\nnode 0 free: 488112 MB\n"
    "node 1 cpus: {}\nnode 1 size: {} MB\nnode 1 free: 0 MB\n"
)
ULIMIT = "core file size              (blocks, -c) 0\nmax locked memory           (kbytes, -l) {}\n"
PS = "  90111 {}    {}                 {} python train.py\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (DF + "/dev/nvme0n1p2  438G  438G     0 100% /\n", [("DISK_FULL", "critical", "/")]),
        (DF + "shm              64M   64M     0 100% /dev/shm\n", [("DISK_FULL", "critical", "/dev/shm")]),
        (DF + "nas:/a/long/name\n    200T  200T     0 100% /home\n", [("DISK_FULL", "critical", "/home")]),
        (DF + "nas:/home       200T  196T  4.0T  98% /home\n", [("DISK_FULL", "warning", "/home")]),
        (INODES + "/dev/md0       915456000 915456000     0  100% /scratch\n", [("DISK_FULL", "critical", "/scratch")]),
        (DF + "/dev/loop0       64M   64M     0 100% /snap/core20/2318\n/dev/sr0 4G 4G 0 100% /media/cd\n", []),
        (DF + "efivarfs        512K  500K   12K  98% /sys/firmware/efi/efivars\n/dev/sda1 9G 8G 1G 86% /\n", []),
        (FREE.format("1007 994 3 611 9 1"), [("HOST_MEMORY_LOW", "critical", "the host's memory")]),
        (FREE.format("1.0Ti 141Gi 6.1Gi 12Gi 859Gi 848Gi"), []),
        ("MemTotal:       1056784 kB\nMemFree:  1000 kB\nMemAvailable:       3000 kB\n",
         [("HOST_MEMORY_LOW", "critical", "the host's memory")]),
        (NUMA.format("4 5 6 7", 0), [("HOST_MEMORY_LOW", "critical", "NUMA node 1")]),
        (NUMA.format("4 5 6 7", 200000), [("HOST_MEMORY_LOW", "warning", "NUMA node 1")]),
        (NUMA.format("", 0), []),  # Grace: a GPU's node
        (NUMA.format("4 5 6 7", 516000), []),
        (ULIMIT.format(64), [("MEMLOCK_LIMIT", "warning", "locked memory")]),
        (ULIMIT.format(64) + "Couldn't allocate MR\n", [("MEMLOCK_LIMIT", "critical", "locked memory")]),
        (ULIMIT.format("unlimited"), []),
        (PS.format("D", "ldlm_completion_ast", "08:11:22"), [("MOUNT_HUNG", "critical", "Lustre")]),
        (PS.format("Ds", "rpc_wait_bit_killable", "2-08:11:22"), [("MOUNT_HUNG", "critical", "NFS")]),
        (PS.format("D", "rpc_wait_bit_killable", "00:05"), []),
        (PS.format("S", "ldlm_completion_ast", "08:11:22"), []),
    ],
)  # fmt: skip
def test_system(text: str, expected: Rows) -> None:
    assert found(text) == expected


def test_several_tools_in_one_paste_are_each_judged_with_their_hosts() -> None:
    text = (
        f"ada@n1:~$ df -h\n{DF}/dev/sda1  9G  9G     0 100% /\nada@n1:~$ ssh n2 free -g\n"
        f"{FREE.format('1007 994 3 611 9 1')}$ srun -N1 -w n3 bash -c 'ulimit -a'\n{ULIMIT.format(64)}"
    )
    diagnosis = diagnose_text(text)
    hosts = {each.code: each.evidence["host"] for each in diagnosis.findings}
    assert hosts == {"DISK_FULL": "n1", "HOST_MEMORY_LOW": "n2", "MEMLOCK_LIMIT": "n3"}
    assert diagnosis.files[0].kind == "df, free, numactl -H, ulimit -a"


@pytest.mark.parametrize(
    "line", [DF + "a 1 1 1 100% /\n", FREE, PS.format("D", "ldlm_x", "x"), SACCT, NODE, SINFO, "$ df\n"]
)
def test_any_text_is_judged_within_bounds(line: str) -> None:
    for text in (line * 5_000, line + "1 a D " * 60_000):
        assert len(diagnose_text(text).findings) <= MAX_SHOWN
