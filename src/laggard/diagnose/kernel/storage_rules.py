"""The rules for disks, arrays, local file systems and the clients of network file systems.

Sources: Linux, drivers/nvme/host, block/blk-core.c, drivers/md, fs/ext4/super.c, fs/xfs, fs/btrfs, fs/ceph, fs/nfs,
fs/smb/client; Lustre, lustre/ptlrpc/import.c; logs of IBM Storage Scale (mmfs.log), of BeeGFS' client and of WekaFS.
"""

from __future__ import annotations

from typing import Final

from laggard.diagnose.kernel.rule import CRITICAL, WARNING, KernelRule, rule

_DISK: Final = "Save what is on it, look at its health, and replace it."
_SMART: Final = ("smartctl -a /dev/{device}", "dmesg -T | grep {device}")
_NVME: Final = ("nvme list", "nvme smart-log /dev/{device}")
_CHECK: Final = "Look at the disk below it first; then unmount the file system and check it (`fsck`, `xfs_repair`)."
_SERVER: Final = "Check the file server and the network to it; processes on its mounts hang or fail until it answers."
_LUSTRE: Final = ("lfs check servers", "lctl get_param *.*.import | grep -E 'target|state'")
_TARGET: Final = r"(?P<device>[\w-]+?-(?:MDT|OST)[0-9a-f]{4}|MGS)"
_NO_DISCARD: Final = r"(?!.{0,60}\bop 0x[39]:)"
"""What discards and writes of zeroes ask for, a sound disk may refuse."""
_RESTORED: Final = rf"Lustre: (?:{_TARGET}|MGC\S*)[\w.@-]*: Connection restored"

DISK_RULES: Final[tuple[KernelRule, ...]] = (
    rule("nvme", r"nvme (?P<device>nvme\d+): (?:Removing after probe failure|Disabling device after reset failure"
         r"|Device not ready; aborting (?:reset|initiali[sz]ation)|failed to (?:reset|restart) controller"
         r"|Identify Controller failed|Unable to change power state)", "DISK_FAILED", CRITICAL, "{device}",
         "is dead: its controller does not come back after a reset", _DISK, _NVME),
    rule("nvme", r"nvme (?P<device>nvme\d+): (?:controller is down|I/O (?:tag )?\d+ .{0,160}timeout)", "DISK_FAILED",
         WARNING, "{device}", "does not answer in time", _DISK, _NVME),
    rule("I/O error", r"(?<!Buffer )\bI/O error,? (?:on )?dev(?:ice)? (?P<device>(?!fd\d|sr\d|loop|zram|nbd)[\w-]+),"
         + _NO_DISCARD,
         "DISK_FAILED", WARNING, "{device}", "has I/O errors", _DISK, _SMART),
    rule("critical", r"critical (?P<kind>medium|target|nexus) error,? dev (?P<device>(?!fd\d|sr\d|loop)[\w-]+)"
         + _NO_DISCARD,
         "DISK_FAILED", CRITICAL, "{device}", "has errors of its medium ({kind} error)", _DISK, _SMART),
    rule("Sense Key", r"sd \S+ \[(?P<device>\w+)\].{0,160}Sense Key ?: ?(?P<kind>Medium Error|Hardware Error)",
         "DISK_FAILED", CRITICAL, "{device}", "reports a {kind}", _DISK, _SMART),
    rule("offline", r"sd \S+ \[(?P<device>\w+)\].{0,160}(?:rejecting I/O to offline device|[Dd]evice offlined)",
         "DISK_FAILED", CRITICAL, "{device}", "was taken offline by the kernel", _DISK, _SMART),
    rule("md/raid",
         r"md/(?P<level>raid\d+):(?P<device>md\w+): Disk failure on (?P<disk>\w+).{0,160}(?P<end>failing array)",
         "DISK_FAILED", CRITICAL, "the array {device}", "has failed with its disk {disk} ({level})", _DISK,
         ("cat /proc/mdstat", "mdadm --detail /dev/{device}")),
    rule("md/raid", r"md/(?P<level>raid\d+):(?P<device>md\w+): Disk failure on (?P<disk>\w+)", "DISK_FAILED", WARNING,
         "the array {device}", "lost its disk {disk} and runs degraded ({level})",
         "Replace the disk and add the new one.", ("cat /proc/mdstat", "mdadm --detail /dev/{device}"),
         r"md: (?P<device>md\w+): recovery done"),
    rule("active with",
         r"md/(?P<level>raid\d+):(?P<device>md\w+): active with (?P<has>\d+) out of (?!(?P=has)\b)(?P<of>\d+) \w+",
         "DISK_FAILED", WARNING, "the array {device}", "runs degraded: {has} of {of} disks ({level})",
         "Replace the disk that is missing and add the new one.", ("cat /proc/mdstat",
         "mdadm --detail /dev/{device}"), r"md: (?P<device>md\w+): recovery done"),
    rule("EXT4-fs",
         r"EXT4-fs (?:\((?P<device>[\w!-]+)\): Remounting filesystem read-only|error \(device (?P<on>[\w!-]+)\).{0,160}"
         r"Remounting filesystem read-only)", "DISK_FAILED", CRITICAL, "the ext4 on {device}{on}",
         "became read-only after an error: nothing can be written to it", _CHECK, ("dmesg -T | grep -i ext4",)),
    rule("EXT4-fs error", r"EXT4-fs error \(device (?P<device>[\w!-]+)\)", "DISK_FAILED", CRITICAL,
         "the ext4 on {device}", "has errors", _CHECK, ("dmesg -T | grep -i ext4",)),
    rule("mounting fs with errors", r"EXT4-fs \((?P<device>[\w!-]+)\): warning: mounting fs with errors", "DISK_FAILED",
         WARNING, "the ext4 on {device}", "was mounted although it had errors", _CHECK),
    rule("Aborting journal", r"Aborting journal on (?:device )?(?P<device>[\w!:-]+?)(?:-\d+)?\.?$", "DISK_FAILED",
         CRITICAL, "the file system on {device}", "gave up its journal: nothing can be written to it", _CHECK),
    rule("XFS",
         r"XFS \((?P<device>[\w!-]+)\): (?P<why>.{0,160}?(?:[Cc]orruption|[Ss]hutting down|has been shut down|Internal "
         r"error" r"|log I/O error|metadata I/O error|xfs_do_force_shutdown).{0,60})", "DISK_FAILED", CRITICAL,
         "the XFS on {device}", "has failed: {why}", _CHECK, ("dmesg -T | grep -i xfs",)),
    rule("BTRFS",
         r"BTRFS(?: error| critical|:? .{0,160})? \(device (?P<device>[\w!-]+?)(?: state \w+)?\)(?P<why>.{0,160}"
         r"(?:forced " r"readonly" r"|corrupt(?! \d)|errno=-5|unable to fixup|parent transid).{0,60})", "DISK_FAILED",
         CRITICAL, "the btrfs on {device}", "has failed{why}", _CHECK),
    rule("rror 28", r"EXT4-fs \((?P<device>[\w!-]+)\): .{0,160}with error 28", "DISK_FULL", CRITICAL,
         "the ext4 on {device}", "is full", "Make room on it.", ("df -h", "df -i")),
)  # fmt: skip

NETWORK_FILE_SYSTEM_RULES: Final[tuple[KernelRule, ...]] = (
    rule("was evicted by", r"This client was evicted by (?P<device>[\w-]+)", "MOUNT_HUNG", CRITICAL,
         "Lustre's {device}", "evicted this client: what used it failed with I/O errors", _SERVER, _LUSTRE, _RESTORED,
         WARNING),
    rule("was lost; in progress", rf"Connection to {_TARGET} \(at (?P<server>\S+)\) was lost; in progress",
         "MOUNT_HUNG", CRITICAL, "Lustre's {device}",
         "cannot be reached at {server}, and nothing in this log says that the connection was restored", _SERVER,
         _LUSTRE, _RESTORED),
    rule("hung", r"ceph: (?:\[[^\]]*\]: )?(?P<device>mds\d+) hung", "MOUNT_HUNG", CRITICAL, "CephFS' {device} (ceph)",
         "does not answer", _SERVER, ("ceph status", "ceph fs status"),
         r"ceph: (?:\[[^\]]*\]: )?(?P<device>mds\d+) (?:came back|recovery completed)"),
    rule("reconnect", r"ceph: (?:\[[^\]]*\]: )?(?P<device>mds\d+) reconnect denied", "MOUNT_HUNG", CRITICAL,
         "CephFS' {device} (ceph)", "denied this client the reconnect: its requests and locks are lost",
         "Unmount the file system and mount it again; look why the client was evicted.", ("ceph status",
         "ceph osd blocklist ls")),
    rule("caps stale", r"ceph: (?:\[[^\]]*\]: )?(?P<device>mds\d+) caps stale", "MOUNT_HUNG", WARNING,
         "CephFS' {device} (ceph)", "did not renew this client's capabilities", _SERVER, ("ceph status",),
         r"ceph: (?:\[[^\]]*\]: )?(?P<device>mds\d+) (?:caps renewed|came back|recovery completed)"),
    rule("session lost, hunting", r"libceph: (?P<device>mon\d+) .{0,160}session lost, hunting", "MOUNT_HUNG", WARNING,
         "Ceph's {device}", "cannot be reached", _SERVER, ("ceph status",),
         r"libceph: mon\d+ .{0,160}session established"),
    rule("Lock reclaim failed", r"NFS: (?P<device>nfs4_reclaim_open_state): Lock reclaim failed", "MOUNT_HUNG", WARNING,
         "an NFS server", "no longer knew this client's locks", _SERVER),
    rule("check lease failed",
         r"NFS: state manager: .{0,160}failed on NFSv4 server (?P<device>\S+) with error (?P<error>\d+)", "MOUNT_HUNG",
         WARNING, "NFS server {device}", "refuses this client (error {error})", _SERVER),
    rule("has not responded in", r"CIFS: (?:VFS: )?\\+(?P<device>\S+?):? has not responded in \d+ seconds",
         "MOUNT_HUNG", WARNING, "SMB server {device}", "does not answer", _SERVER),
    rule("ENOSPC", r"wekafsio: .{0,400}ENOSPC\([1-9]|wekafsio: .{0,400}=> -28\b", "DISK_FULL", CRITICAL, "WekaFS",
         "is full: writes return ENOSPC (No space left on device)", "Make room on the file system, or raise its quota.",
         ("df -h -t wekafs", "weka fs")),
    rule("wekafs",
         r"wekafs\w*: .{0,160}(?:not responding|timed out|hung|[Dd]river (?:is )?not (?:attached|ready)|shut(?:ting)? "
         r"down)", "MOUNT_HUNG", CRITICAL, "WekaFS", "does not answer", _SERVER, ("weka local status",)),
    rule("Lost membership", r"Lost membership in cluster (?P<cluster>[\w.-]+?)\.? Unmount", "MOUNT_HUNG", CRITICAL,
         "GPFS", "lost its membership in the cluster {cluster}, and its file systems were unmounted",
         "Check the network to the cluster's managers, then `mmgetstate` and `mmmount all`.", ("mmgetstate -a",
         "mmlsmount all -L")),
    rule("xpelled", r"(?:(?P<by>\S{1,60}(?: \S{1,60})?) )?expelled this node|This node (?:has been|is being) expelled",
         "MOUNT_HUNG", CRITICAL, "GPFS", "expelled this node from its cluster",
         "Check the network to the cluster's managers, then `mmgetstate` and `mmmount all`.", ("mmgetstate -a",
         "mmhealth node show")),
    rule("nmounting file system",
         r"Unmounting file system (?P<device>\S+) for|(?:Forced|forced) unmount of (?P<other>\S+)", "MOUNT_HUNG",
         CRITICAL, "GPFS {device}{other}", "was unmounted by force",
         "Look above it in the log for the reason, then `mmmount`.", ("mmgetstate -a", "mmlsmount all -L"),
         r"(?:Mounted|mounted) file system (?P<device>\S+)"),
    rule("onnect", r"(?:Connect failed(?: on all available routes)?|Unable to connect to(?: server)?): "
         r"beegfs-(?P<kind>\w+) (?P<device>\S+) \[ID: \d+\](?:@(?P<at>[\d.]+))?", "MOUNT_HUNG", CRITICAL,
         "BeeGFS {kind} server {device}", "cannot be reached {at}", _SERVER,
         ("beegfs-ctl --listnodes --nodetype=storage --reachable",), r"Connected: beegfs-\w+ (?P<device>\S+) \[ID"),
    rule("beegfs-", r"(?:Receive timed out from:?|Communication error.{0,160}?[Nn]ode:) "
         r"beegfs-(?P<kind>\w+) (?P<device>\S+) \[ID",
         "MOUNT_HUNG", WARNING, "BeeGFS {kind} server {device}", "did not answer in time", _SERVER,
         ("beegfs-check-servers",), r"Connected: beegfs-\w+ (?P<device>\S+) \[ID"),
)  # fmt: skip
