"""The rules for local disks, arrays and file systems, and the arrays in /proc/mdstat as values. Pure.

Sources: Linux, drivers/nvme/host, block/blk-core.c, drivers/scsi/sd.c, drivers/md (md_seq_show,
raid10_status), fs/ext4/super.c, fs/xfs, fs/btrfs; md(4).
"""

from __future__ import annotations

from typing import Final, NamedTuple

from laggard.kernel_rules.rule import CRITICAL, WARNING, Rule
from laggard.kit.words import lazy_pattern

_DISK: Final = "Save what is on it, look at its health, and replace it."
_SMART: Final = ("smartctl -a /dev/{device}", "dmesg -T | grep {device}")
_NVME: Final = ("nvme list", "nvme smart-log /dev/{device}")
_NVME_BACK: Final = r"nvme (?P<device>nvme\d+): (?:pci function|\d+/\d+/\d+ default/read/poll queues)"
"""What the driver writes when a controller has started: after a reset that worked, or when it was found anew."""
_GREP_XFS: Final = ("dmesg -T | grep -i xfs",)
_XFS_MOUNTED: Final = r"XFS \((?P<device>[\w!-]+)\): (?:Mounting V\d|Ending clean mount)"
"""A shutdown lasts until the file system is unmounted (fs/xfs/xfs_fsops.c, xfs_do_force_shutdown)."""
_EXT4: Final = ("dmesg -T | grep -iE 'ext4|xfs|I/O error'", "grep -w ro /proc/self/mounts")
_EXT4_MOUNTED: Final = r"EXT4-fs \((?P<device>[\w!-]+)\): (?:re-mounted(?! \S+ ro\b)|mounted filesystem(?! \S+ ro\b))"
_CHECK: Final = "Look at the disk below it first; then unmount the file system and check it (`fsck`, `xfs_repair`)."
_NO_DISCARD: Final = r"(?!.{0,60}\bop 0x[39]:)"
"""What discards and writes of zeroes ask for, a sound disk may refuse."""

CONTROLLER: Final = Rule(
    "nvme", r"nvme (?P<device>nvme\d+): (?:Removing after probe failure|Disabling device after reset failure"
         r"|Device not ready; aborting (?:reset|initiali[sz]ation)|failed to (?:reset|restart) controller"
         r"|Identify Controller failed|Unable to change power state)", "DISK_FAILED", CRITICAL, "{device}",
         "is dead: its controller does not come back after a reset", _DISK, _NVME, _NVME_BACK, WARNING,
         witness="controller")  # fmt: skip
ARRAY: Final = Rule(
    "md/raid", r"md/(?P<level>raid\d+):(?P<device>md\w+): Disk failure on (?P<disk>\w+)", "DISK_FAILED", WARNING,
         "the array {device}", "lost its disk {disk} and runs degraded ({level})",
         "Replace the disk and add the new one.", ("cat /proc/mdstat", "mdadm --detail /dev/{device}"),
         r"md: (?P<device>md\w+): recovery done")  # fmt: skip
READ_ONLY: Final = Rule("EXT4-fs",
         r"EXT4-fs (?:\((?P<device>[\w!-]+)\): Remounting filesystem read-only|error \(device (?P<on>[\w!-]+)\).{0,160}"
         r"Remounting filesystem read-only)", "DISK_FAILED", CRITICAL, "the ext4 on {device}{on}",
         "became read-only after an error: nothing can be written to it", _CHECK, _EXT4, _EXT4_MOUNTED, WARNING,
         witness="file system")  # fmt: skip

DISK_RULES: Final[tuple[Rule, ...]] = (
    CONTROLLER,
    Rule("nvme", r"nvme (?P<device>nvme\d+): (?:controller is down|I/O (?:tag )?\d+ .{0,160}timeout)", "DISK_FAILED",
         WARNING, "{device}", "does not answer in time", _DISK, _NVME, _NVME_BACK, WARNING, witness="controller"),
    Rule("I/O error", r"(?<!Buffer )\bI/O error,? (?:on )?dev(?:ice)? (?P<device>(?!fd\d|sr\d|loop|zram|nbd)[\w-]+),"
         + _NO_DISCARD,
         "DISK_FAILED", WARNING, "{device}", "has I/O errors", _DISK, _SMART, witness="disk"),
    Rule("critical", r"critical (?P<kind>medium|target|nexus) error,? dev (?P<device>(?!fd\d|sr\d|loop)[\w-]+)"
         + _NO_DISCARD,
         "DISK_FAILED", CRITICAL, "{device}", "has errors of its medium ({kind} error)", _DISK, _SMART,
         witness="disk"),
    Rule("Sense Key", r"sd \S+ \[(?P<device>\w+)\].{0,160}Sense Key ?: ?(?P<kind>Medium Error|Hardware Error)",
         "DISK_FAILED", CRITICAL, "{device}", "reports a {kind}", _DISK, _SMART, witness="disk"),
    Rule("offline", r"sd \S+ \[(?P<device>\w+)\].{0,160}(?:rejecting I/O to offline device|[Dd]evice offlined)",
         "DISK_FAILED", CRITICAL, "{device}", "was taken offline by the kernel", _DISK, _SMART, witness="disk"),
    Rule("md/raid",
         r"md/(?P<level>raid\d+):(?P<device>md\w+): Disk failure on (?P<disk>\w+).{0,160}(?P<end>failing array)",
         "DISK_FAILED", CRITICAL, "the array {device}", "has failed with its disk {disk} ({level})", _DISK,
         ("cat /proc/mdstat", "mdadm --detail /dev/{device}")),
    ARRAY,
    Rule("active with",
         r"md/(?P<level>raid\d+):(?P<device>md\w+): active with (?P<has>\d+) out of (?!(?P=has)\b)(?P<of>\d+) \w+",
         "DISK_FAILED", WARNING, "the array {device}", "runs degraded: {has} of {of} disks ({level})",
         "Replace the disk that is missing and add the new one.", ("cat /proc/mdstat",
         "mdadm --detail /dev/{device}"), r"md: (?P<device>md\w+): recovery done"),
    READ_ONLY,
    Rule("EXT4-fs error", r"EXT4-fs error \(device (?P<device>[\w!-]+)\)", "DISK_FAILED", CRITICAL,
         "the ext4 on {device}", "has errors", _CHECK, _EXT4, _EXT4_MOUNTED, WARNING, witness="file system"),
    Rule("mounting fs with errors", r"EXT4-fs \((?P<device>[\w!-]+)\): warning: mounting fs with errors", "DISK_FAILED",
         WARNING, "the ext4 on {device}", "was mounted although it had errors", _CHECK),
    Rule("Aborting journal", r"Aborting journal on (?:device )?(?P<device>[\w!:-]+?)(?:-\d+)?\.?$", "DISK_FAILED",
         CRITICAL, "the file system on {device}", "gave up its journal: nothing can be written to it", _CHECK,
         (), _EXT4_MOUNTED, WARNING, witness="file system"),
    Rule("hut", r"XFS \((?P<device>[\w!-]+)\): (?P<why>.{0,160}?(?:[Ss]hutting down|has been shut down"
         r"|xfs_do_force_shutdown).{0,60})", "DISK_FAILED", CRITICAL, "the XFS on {device}", "has failed: {why}",
         _CHECK, _GREP_XFS, _XFS_MOUNTED, WARNING, witness="shutdown"),
    Rule("XFS", r"XFS \((?P<device>[\w!-]+)\): (?P<why>.{0,160}?(?:[Cc]orruption|Internal error|log I/O error"
         r"|metadata I/O error).{0,60})", "DISK_FAILED", CRITICAL, "the XFS on {device}", "has failed: {why}", _CHECK,
         _GREP_XFS, _XFS_MOUNTED, WARNING, witness="file system"),
    Rule("BTRFS",
         r"BTRFS(?: error| critical|:? .{0,160})? \(device (?P<device>[\w!-]+?)(?: state \w+)?\)(?P<why>.{0,160}"
         r"(?:forced " r"readonly" r"|corrupt(?! \d)|errno=-5|unable to fixup|parent transid).{0,60})", "DISK_FAILED",
         CRITICAL, "the btrfs on {device}", "has failed{why}", _CHECK, witness="file system"),
    Rule("rror 28", r"EXT4-fs \((?P<device>[\w!-]+)\): .{0,160}with error 28", "DISK_FULL", CRITICAL,
         "the ext4 on {device}", "is full", "Make room on it.", ("df -h", "df -i")),
)  # fmt: skip

LIVE_RULES: Final = tuple(rule for rule in DISK_RULES if rule.witness)
"""The rules that probes judge the live log by: those of arrays are not needed where /proc/mdstat is."""

_ARRAY: Final = lazy_pattern(r"(md\S{1,32}) : (?:in)?active (?:\([\w-]+\) )*(\w*)")
_MEMBERS: Final = lazy_pattern(r"\[\d+/\d+\] \[([U_]+)\]")
_COPIES: Final = lazy_pattern(r"([1-9]) (?:near|far|offset)-copies")
_REBUILDS: Final = lazy_pattern(r"\b(?:recovery|resync|reshape) *=")
_MAY_LACK: Final = {"linear": 0, "raid0": 0, "raid4": 1, "raid5": 1, "raid6": 2}
"""How many disks an array can do without; raid1 needs one."""


class Array(NamedTuple):
    name: str
    level: str
    members: str
    """`U` for each disk that is up, `_` for each that is not."""
    copies: int
    """How many disks next to one another hold the same, in raid10."""
    rebuilds: bool

    @property
    def failed(self) -> bool:
        """Whether data are lost, or two disks are gone and the next one takes the data."""
        lacks = self.members.count("_")
        if self.level == "raid10":
            return any(
                set(self.members[at : at + self.copies]) == {"_"} for at in range(0, len(self.members), self.copies)
            )
        may_lack = _MAY_LACK.get(self.level, len(self.members) - 1)
        return lacks > may_lack or lacks == may_lack >= 2


def incomplete_arrays(mdstat: str) -> list[Array]:
    """Returns the arrays that lack a disk. Levels without spare disks list none."""
    found: list[Array] = []
    for part in f"\n{mdstat}".split("\nmd")[1:]:
        text = f"md{part}"
        head, members, copies = _ARRAY.match(text), _MEMBERS.search(text), _COPIES.search(text)
        if head and members and "_" in members[1]:
            count = int(copies[1]) if copies else 2
            found.append(Array(head[1], head[2], members[1], count, bool(_REBUILDS.search(text))))
    return found
