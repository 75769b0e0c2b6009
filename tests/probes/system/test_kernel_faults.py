"""What the kernel says of disks, memory and itself: each fault, and the machines that look like it and are sound."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from support.host_files import MOUNTS
from support.judge import judge

from laggard.model import Verdict
from laggard.probes.system.kernel_faults import PROBE

UPTIME = 864000.0
READ_ONLY = {"proc/self/mounts": MOUNTS.replace("/scratch xfs rw,", "/scratch xfs ro,")}
FSTAB = "# made by the installer\n/dev/nvme1n1 /scratch xfs defaults,nofail 0 2\n"
ROOT_READ_ONLY = {"proc/self/mounts": MOUNTS.replace("/ ext4 rw,", "/ ext4 ro,")}
ABORTED = (
    "EXT4-fs error (device dm-0): ext4_journal_check_start:83: comm slurmd: Detected aborted journal",
    "Aborting journal on device dm-0-8.",
    "EXT4-fs (dm-0): Remounting filesystem read-only",
)
GONE = (
    "nvme nvme1: controller is down; will reset: CSTS=0xffffffff",
    "nvme nvme1: Disabling device after reset failure: -19",
)
ERRORS = ("blk_update_request: I/O error, dev sda, sector 4096 op 0x0:(READ) flags 0x80700",) * 3
BLOCKS = {f"sys/class/block/{name}/size": "1\n" for name in ("sda", "sda3", "nvme0n1", "nvme0n1p1", "nvme1n1", "dm-0")}
VOLUME = {**BLOCKS, "sys/class/block/sda3/holders/dm-0/size": "1\n", "sys/class/block/dm-0/dm/name": "system-root\n"}
FAILED_PAGE = "Memory failure: 0x1f8b13: recovery action for dirty LRU page: Recovered"
STALL = "rcu: INFO: rcu_sched self-detected stall on CPU"
HUNG = "INFO: task kworker/3:1+xfs-conv/nvme1n1:412 blocked for more than 122 seconds."
WAITS = {"proc/412/status": "Name:\tkworker/3:1-xfs-conv/nvme1n1\nState:\tD (disk sleep)\n"}
HOT = "CPU12: Package temperature above threshold, cpu clock throttled (total events = 1)"


def kmsg(*texts: str, ago: float = 600.0, apart: float = 1.0) -> dict[str, str]:
    """The kernel's log with these records, the first so many seconds ago."""
    times = (int((UPTIME - ago + number * apart) * 1e6) for number in range(len(texts)))
    lines = (f"3,{number},{at},-;{text}\n" for number, (at, text) in enumerate(zip(times, texts, strict=True)))
    return {"laggard/kmsg": "".join(lines)}


def md(level: str, members: str, state: str = "active", more: str = "") -> dict[str, str]:
    up = members.count("U")
    head = f"md5 : {state} {level} sdb1[1] sda1[0]\n      1046528 blocks super 1.2 [{len(members)}/{up}] [{members}]\n"
    return {"proc/mdstat": f"Personalities : [{level}]\n{head}{more}\nunused devices: <none>\n"}


SICK: dict[str, tuple[Mapping[str, str], str]] = {
    "the root became read-only": ({**kmsg(*ABORTED), **ROOT_READ_ONLY}, "DISK_FAILED the ext4 on dm-0"),
    "a file system that is shut down, by its options": (
        {"proc/self/mounts": MOUNTS.replace("/ ext4 rw,", "/ ext4 rw,emergency_ro,")},
        "DISK_FAILED /",
    ),
    "the disk of a mount is gone": (
        {**{name: text for name, text in BLOCKS.items() if "nvme1n1" not in name}},
        "DISK_FAILED /scratch",
    ),
    "a controller was given up, and its disk is mounted": (
        {**kmsg(*GONE, ago=300000.0), "sys/class/nvme/nvme1/state": "live\n"},
        "DISK_FAILED nvme1",
    ),
    "a controller resets for ten minutes": (
        {**kmsg(GONE[0]), "sys/class/nvme/nvme1/state": "resetting\n"},
        "DISK_FAILED nvme1",
    ),
    "errors of the disk below a volume": ({**kmsg(*ERRORS), **VOLUME}, "DISK_FAILED sda"),
    "errors of a disk and of the file system on it": (
        kmsg(
            "I/O error, dev nvme1n1, sector 9 op 0x0:(READ)", *("XFS (nvme1n1): metadata I/O error in x error 5",) * 2
        ),
        "DISK_FAILED nvme1n1",
    ),
    "raid5 without two disks": (md("raid5", "UU__"), "DISK_FAILED md5"),
    "raid6 whose next disk takes the data": (md("raid6", "UU__"), "DISK_FAILED md5"),
    "a page of memory failed, and is out of use": (
        {**kmsg(FAILED_PAGE, ago=500000.0), "proc/meminfo": "MemTotal: 9 kB\nHardwareCorrupted:     4 kB\n"},
        "MACHINE_CHECK the host",
    ),
    "a stall of RCU that goes on": (kmsg(STALL, STALL, ago=250.0, apart=180.0), "KERNEL_FAULT the kernel"),
    "a process of the kernel hangs": (
        {**kmsg(HUNG, ago=90000.0), **WAITS},
        "KERNEL_FAULT the process kworker/3:1+xfs-conv/nvme1n1",
    ),
}

SOUND: dict[str, tuple[Mapping[str, str], str]] = {
    "the root became read-only, and was remounted": (kmsg(*ABORTED), ""),
    "the same, by the log": (kmsg(*ABORTED, "EXT4-fs (dm-0): re-mounted. Opts: (null). Quota mode: none."), ""),
    "read-only as /etc/fstab wants it": ({**READ_ONLY, "etc/fstab": FSTAB.replace("defaults", "ro")}, ""),
    "read-only, and mounted by hand": ({**READ_ONLY, "etc/fstab": FSTAB.replace("defaults", "noauto")}, ""),
    "one mount of it is read-only": (
        {
            "proc/self/mounts": READ_ONLY["proc/self/mounts"] + "/dev/nvme1n1 /var/spool xfs rw 0 0\n",
            "etc/fstab": FSTAB,
        },
        "",
    ),
    "a controller was found anew": (
        {**kmsg(*GONE, "nvme nvme1: pci function 0000:1a:00.0"), "sys/class/nvme/nvme1/state": "live\n"},
        "",
    ),
    "a controller that nothing is mounted from": (
        kmsg(*(text.replace("nvme1", "nvme7") for text in GONE)),
        "DISK_FAILED nvme7",
    ),
    "a controller resets": (
        {**kmsg(GONE[0], ago=9.0), "sys/class/nvme/nvme1/state": "resetting\n"},
        "DISK_FAILED nvme1",
    ),
    "errors of one path of several": (
        {**kmsg(*ERRORS), **VOLUME, "sys/class/block/dm-0/dm/uuid": "mpath-3600508b400105e21\n"},
        "DISK_FAILED sda",
    ),
    "errors of a disk that was pulled": (
        {**kmsg(*ERRORS), **{name: "1\n" for name in BLOCKS if "/sda" not in name}},
        "",
    ),
    "one error": (kmsg("critical medium error, dev nvme1n1, sector 9 op 0x0:(READ)"), "DISK_FAILED nvme1n1"),
    "errors of yesterday": (kmsg(*(ERRORS[0].replace("sda", "nvme1n1"),) * 9, ago=90000.0), ""),
    "raid1 with one disk": (md("raid1", "U_"), "DISK_FAILED md5"),
    "an array of sound disks that is checked": (
        md("raid6", "UUUU", more="      [>....]  check =  0.1% (9/9) finish=9min\n"),
        "",
    ),
    "an array that waits for its rebuild": (md("raid5", "U_U", more="        resync=DELAYED\n"), "DISK_FAILED md5"),
    "pages were taken out of use for corrected errors": (
        {"proc/meminfo": "MemTotal: 9 kB\nHardwareCorrupted:     4 kB\n"},
        "",
    ),
    "a stall of RCU, once": (kmsg(STALL, ago=250.0), "KERNEL_FAULT the kernel"),
    "a crash that the kernel does not know of": (
        {**kmsg("Oops: 0000 [#1] SMP"), "proc/sys/kernel/tainted": "12289\n"},
        "",
    ),
    "a process that ran since": (
        {**kmsg(HUNG), **WAITS, "proc/412/sched": "se.exec_start    :     863999123.456789\n"},
        "",
    ),
    "a process of another name": ({**kmsg(HUNG), "proc/412/status": "Name:\tdd\nState:\tD (disk sleep)\n"}, ""),
    "processors were hot": (kmsg(HOT, HOT.split(" above")[0] + "/speed normal"), ""),
    "processors are hot": (kmsg(HOT), "MACHINE_CHECK the processors"),
    "a panic of another boot, as pstore tells it": (kmsg("pstore: Kernel panic - not syncing: Fatal exception"), ""),
}


def found_on(root: Path, changes: Mapping[str, str]) -> list[str]:
    for name, text in changes.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        path.write_text(text)
    report = judge(root, [PROBE])
    assert [probe.verdict for probe in report.probes] != [Verdict.UNKNOWN], report.probes[0].reason
    return [f"{found.severity.value} {found.code} {found.device}" for found in report.findings]


@pytest.mark.parametrize("says", SICK)
def test_what_is_so_now_takes_the_node_away(says: str, copy_of: Callable[[str], Path]) -> None:
    changes, due = SICK[says]
    assert found_on(copy_of("plain"), changes) == [f"critical {due}"], says


@pytest.mark.parametrize("says", SOUND)
def test_what_was_repaired_or_is_told_alone_does_not(says: str, copy_of: Callable[[str], Path]) -> None:
    changes, due = SOUND[says]
    assert found_on(copy_of("plain"), changes) == ([f"warning {due}"] if due else []), says


def test_a_log_that_cannot_be_read_hides_no_state(copy_of: Callable[[str], Path]) -> None:
    root = copy_of("disk_controller_dead")
    (root / "laggard/kmsg").unlink()
    report = judge(root, [PROBE])
    assert [found.device for found in report.findings] == ["nvme1"]
    assert report.probes[0].verdict.value == "fail"
