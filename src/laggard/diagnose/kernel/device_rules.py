"""The rules for the clients of network file systems, and for NICs, PCIe and the IOMMU, beside those of
laggard.kernel_rules.devices.

Sources for file systems: Linux, fs/ceph, fs/nfs, fs/smb/client; Lustre, lustre/ptlrpc/import.c; logs of IBM Storage
Scale (mmfs.log), of BeeGFS' client and of WekaFS.

For networks: Linux, drivers/net/ethernet/mellanox/mlx5/core (events.c, main.c, cmd.c), net/sched/sch_generic.c,
drivers/pci/pcie (aer.c, err.c, dpc.c), drivers/pci/hotplug/pciehp_ctrl.c, drivers/pci/pci.c (__pcie_print_link_status),
drivers/iommu (intel/dmar.c, amd/iommu.c, arm/arm-smmu-v3).
"""

from __future__ import annotations

from typing import Final

from laggard.kernel_rules.rule import ADDRESS, CRITICAL, WARNING, Rule

_SERVER: Final = "Check the file server and the network to it; processes on its mounts hang or fail until it answers."
_LUSTRE: Final = ("lfs check servers", "lctl get_param *.*.import | grep -E 'target|state'")
_TARGET: Final = r"(?P<device>[\w-]+?-(?:MDT|OST)[0-9a-f]{4}|MGS)"
_RESTORED: Final = rf"Lustre: (?:{_TARGET}|MGC\S*)[\w.@-]*: Connection restored"

NETWORK_FILE_SYSTEM_RULES: Final[tuple[Rule, ...]] = (
    Rule("was evicted by", r"This client was evicted by (?P<device>[\w-]+)", "MOUNT_HUNG", CRITICAL,
         "Lustre's {device}", "evicted this client: what used it failed with I/O errors", _SERVER, _LUSTRE, _RESTORED,
         WARNING),
    Rule("was lost; in progress", rf"Connection to {_TARGET} \(at (?P<server>\S+)\) was lost; in progress",
         "MOUNT_HUNG", CRITICAL, "Lustre's {device}",
         "cannot be reached at {server}, and nothing in this log says that the connection was restored", _SERVER,
         _LUSTRE, _RESTORED),
    Rule("hung", r"ceph: (?:\[[^\]]*\]: )?(?P<device>mds\d+) hung", "MOUNT_HUNG", CRITICAL, "CephFS' {device} (ceph)",
         "does not answer", _SERVER, ("ceph status", "ceph fs status"),
         r"ceph: (?:\[[^\]]*\]: )?(?P<device>mds\d+) (?:came back|recovery completed)"),
    Rule("reconnect", r"ceph: (?:\[[^\]]*\]: )?(?P<device>mds\d+) reconnect denied", "MOUNT_HUNG", CRITICAL,
         "CephFS' {device} (ceph)", "denied this client the reconnect: its requests and locks are lost",
         "Unmount the file system and mount it again; look why the client was evicted.", ("ceph status",
         "ceph osd blocklist ls")),
    Rule("caps stale", r"ceph: (?:\[[^\]]*\]: )?(?P<device>mds\d+) caps stale", "MOUNT_HUNG", WARNING,
         "CephFS' {device} (ceph)", "did not renew this client's capabilities", _SERVER, ("ceph status",),
         r"ceph: (?:\[[^\]]*\]: )?(?P<device>mds\d+) (?:caps renewed|came back|recovery completed)"),
    Rule("session lost, hunting", r"libceph: (?P<device>mon\d+) .{0,160}session lost, hunting", "MOUNT_HUNG", WARNING,
         "Ceph's {device}", "cannot be reached", _SERVER, ("ceph status",),
         r"libceph: mon\d+ .{0,160}session established"),
    Rule("Lock reclaim failed", r"NFS: (?P<device>nfs4_reclaim_open_state): Lock reclaim failed", "MOUNT_HUNG", WARNING,
         "an NFS server", "no longer knew this client's locks", _SERVER),
    Rule("check lease failed",
         r"NFS: state manager: .{0,160}failed on NFSv4 server (?P<device>\S+) with error (?P<error>\d+)", "MOUNT_HUNG",
         WARNING, "NFS server {device}", "refuses this client (error {error})", _SERVER),
    Rule("has not responded in", r"CIFS: (?:VFS: )?\\+(?P<device>\S+?):? has not responded in \d+ seconds",
         "MOUNT_HUNG", WARNING, "SMB server {device}", "does not answer", _SERVER),
    Rule("ENOSPC", r"wekafsio: .{0,400}ENOSPC\([1-9]|wekafsio: .{0,400}=> -28\b", "DISK_FULL", CRITICAL, "WekaFS",
         "is full: writes return ENOSPC (No space left on device)", "Make room on the file system, or raise its quota.",
         ("df -h -t wekafs", "weka fs")),
    Rule("wekafs",
         r"wekafs\w*: .{0,160}(?:not responding|timed out|hung|[Dd]river (?:is )?not (?:attached|ready)|shut(?:ting)? "
         r"down)", "MOUNT_HUNG", CRITICAL, "WekaFS", "does not answer", _SERVER, ("weka local status",)),
    Rule("Lost membership", r"Lost membership in cluster (?P<cluster>[\w.-]+?)\.? Unmount", "MOUNT_HUNG", CRITICAL,
         "GPFS", "lost its membership in the cluster {cluster}, and its file systems were unmounted",
         "Check the network to the cluster's managers, then `mmgetstate` and `mmmount all`.", ("mmgetstate -a",
         "mmlsmount all -L")),
    Rule("xpelled", r"(?:(?P<by>\S{1,60}(?: \S{1,60})?) )?expelled this node|This node (?:has been|is being) expelled",
         "MOUNT_HUNG", CRITICAL, "GPFS", "expelled this node from its cluster",
         "Check the network to the cluster's managers, then `mmgetstate` and `mmmount all`.", ("mmgetstate -a",
         "mmhealth node show")),
    Rule("nmounting file system",
         r"Unmounting file system (?P<device>\S+) for|(?:Forced|forced) unmount of (?P<other>\S+)", "MOUNT_HUNG",
         CRITICAL, "GPFS {device}{other}", "was unmounted by force",
         "Look above it in the log for the reason, then `mmmount`.", ("mmgetstate -a", "mmlsmount all -L"),
         r"(?:Mounted|mounted) file system (?P<device>\S+)"),
    Rule("onnect", r"(?:Connect failed(?: on all available routes)?|Unable to connect to(?: server)?): "
         r"beegfs-(?P<kind>\w+) (?P<device>\S+) \[ID: \d+\](?:@(?P<at>[\d.]+))?", "MOUNT_HUNG", CRITICAL,
         "BeeGFS {kind} server {device}", "cannot be reached {at}", _SERVER,
         ("beegfs-ctl --listnodes --nodetype=storage --reachable",), r"Connected: beegfs-\w+ (?P<device>\S+) \[ID"),
    Rule("beegfs-", r"(?:Receive timed out from:?|Communication error.{0,160}?[Nn]ode:) "
         r"beegfs-(?P<kind>\w+) (?P<device>\S+) \[ID",
         "MOUNT_HUNG", WARNING, "BeeGFS {kind} server {device}", "did not answer in time", _SERVER,
         ("beegfs-check-servers",), r"Connected: beegfs-\w+ (?P<device>\S+) \[ID"),
)  # fmt: skip


_NICS: Final = r"(?:mlx5_core|mlx4_core|bnxt_en|ice|i40e|irdma|efa|ena|qede?|cxgb4|hns3|ionic)"
_RESET_NIC: Final = "Reset the NIC (`mlxfwreset`) or restart the node; then look for newer firmware."
_RESEAT: Final = "Reseat the card or its riser; look at other cards in that slot, and for newer firmware of the board."
_LSPCI: Final = ("lspci -vv -s {device}", "dmesg -T | grep {device}")
_PLUGGED: Final = rf"mlx5_core {ADDRESS}: Port module event: module \d+, Cable plugged"
_OTHER: Final = r"\b(?P<other>[0-9a-f]{4}:[0-9a-f:.]{7})"
_NETDEV: Final = r"(?P<device>(?:eth|en|ib|bond|mlx|hsn|roce|rdma|gpu|p\d|v[a-z])[\w.-]{0,14})"
_LINK_FIX: Final = "Check the cable, the transceiver and the switch's port, unless somebody set the port down."
_RECOVERED: Final = rf"{ADDRESS}: AER: device recovery successful"

NIC_RULES: Final[tuple[Rule, ...]] = (
    Rule("able unplugged",
         rf"mlx5_core {ADDRESS}: .{{0,160}}Port module event: module (?P<module>\d+), Cable unplugged",
         "RDMA_NETDEV_DOWN", WARNING, "NIC {device}",
         "lost its cable or transceiver (module {module}: Cable unplugged), and did not get it back in this log",
         "Plug it in again, or replace cable and transceiver.", _LSPCI, _PLUGGED, is_usual_at_start=True),
    Rule("Port module event[error]",
         rf"mlx5_core {ADDRESS}: .{{0,160}}Port module event\[error\]: module (?P<module>\d+), (?P<why>.{{1,80}})",
         "RDMA_DRIVER_ERROR", WARNING, "NIC {device}", "reports an error of its transceiver {module}: {why}",
         "Replace the cable or transceiver, or use one that the NIC supports.", _LSPCI, _PLUGGED),
    Rule("mlx5_core", rf"mlx5_core {ADDRESS}: (?P<why>.{{0,160}}?(?:Firmware over \d+ MS in \S+ state|Waiting for FW "
         rf"initialization, " rf"timeout"
         r"|device is unavailable|probe_one:.{0,60}failed|mlx5_(?:load|init)_one:?.{0,60}failed"
         r"|init_one:.{0,60}failed|Failed " r"initializing"
         r"|enable_hca failed|mlx5_function_(?:setup|enable).{0,60}failed).{0,60})", "RDMA_DRIVER_ERROR", CRITICAL,
         "NIC {device}", "cannot be started by its driver: {why}", _RESET_NIC, _LSPCI,
         rf"mlx5_core {ADDRESS}: .{{0,160}}(?:[Hh]ealth recovery succeeded|E-Switch: Total vports"
         r"|Port module event: )"),
    Rule("failed with error", rf"{_NICS}(?: {ADDRESS})?: probe (?:of (?P<at>\S+)|with driver \w+) failed with error",
         "RDMA_DRIVER_ERROR", CRITICAL, "NIC {device}{at}", "cannot be started by its driver", _RESET_NIC),
    Rule("D3cold", rf"{_NICS} {ADDRESS}: .{{0,160}}D3cold to D0", "RDMA_DRIVER_ERROR", CRITICAL, "NIC {device}",
         "cannot be reached on PCIe any more", _RESEAT, _LSPCI),
    Rule("NETDEV WATCHDOG", r"NETDEV WATCHDOG: (?P<device>\S+) \((?P<driver>[^)]+)\): transmit queue \d+ timed out",
         "RDMA_DRIVER_ERROR", WARNING, "NIC {device} ({driver})", "does not send: a transmit queue timed out",
         _RESET_NIC),
    Rule("ink is", rf"^(?:.{{0,60}}?: )?{_NETDEV}:? (?:\w+: )?(?:NIC )?[Ll]ink is (?:[Dd]own|DOWN)",
         "RDMA_NETDEV_DOWN", WARNING, "{device}", "lost its link, and did not get it back in this log", _LINK_FIX,
         ("ip -br link", "ethtool {device}"),
         rf"^(?:.{{0,60}}?: )?{_NETDEV}:? (?:\w+: )?(?:NIC )?[Ll]ink is (?:[Uu]p|UP)"),
    Rule("link status definitely down",
         r"^(?P<bond>[\w.-]{1,20}): (?:\(slave (?P<device>[\w.-]{1,20})\): )?link status definitely down"
         r"(?: for interface (?P<other>[\w.-]{1,20}))?", "RDMA_NETDEV_DOWN", WARNING, "{device}{other}",
         "lost its link, says the bond {bond}", _LINK_FIX, ("cat /proc/net/bonding/{device}",),
         r"\(slave (?P<device>[\w.-]{1,20})\): link status definitely up"),
    Rule("irmware",
         rf"(?:bnxt_en|ice) {ADDRESS}(?: \S+)?: (?P<why>.{{0,160}}(?:[Ff]irmware (?:fatal|is not responding|not "
         rf"responsive)" r"|[Ff]W fatal|Fatal firmware).{0,60})", "RDMA_DRIVER_ERROR", CRITICAL, "NIC {device}",
         "has firmware that failed: {why}", _RESET_NIC, _LSPCI),
)  # fmt: skip

PCI_RULES: Final[tuple[Rule, ...]] = (
    Rule("(Fatal)",
         rf"pcieport (?P<port>\S+): AER: (?:Multiple )?Uncorrect(?:ed|able) \(Fatal\) error (?:message )?received"
         rf"(?: from|:) {ADDRESS}", "PCIE_AER_ERRORS", CRITICAL, "{device}",
         "had a fatal PCIe error (AER), seen by the port {port}", _RESEAT, _LSPCI, _RECOVERED, WARNING),
    Rule("AER", rf"{ADDRESS}: AER: (?P<why>can't recover \(.{{1,60}}\)|device recovery failed)",
         "PCIE_AER_ERRORS", CRITICAL, "{device}", "did not recover from a PCIe error: {why}", _RESEAT, _LSPCI),
    Rule("DPC", rf"pcieport {ADDRESS}: DPC: (?:containment event|unmasked uncorrectable error|ERR_(?:NON)?FATAL)",
         "PCIE_AER_ERRORS", CRITICAL, "the link below the PCIe port {device}",
         "was cut off after an error (DPC, Downstream Port Containment)", _RESEAT, _LSPCI, _RECOVERED, WARNING),
    Rule("pciehp", rf"pcieport {ADDRESS}: pciehp: Slot\((?P<slot>[^)]*)\): (?P<why>Link Down|Card not present)",
         "PCIE_AER_ERRORS", WARNING, "the slot {slot} below the PCIe port {device}",
         "lost its card: {why}, unless somebody took it out", _RESEAT, _LSPCI,
         rf"pcieport {ADDRESS}: pciehp: Slot\([^)]*\): (?:Link Up|Card present)"),
    Rule("available PCIe bandwidth",
         rf"{ADDRESS}: (?P<has>[\d.]+ Gb/s) available PCIe bandwidth, limited by [\d.]+ GT/s (?:PCIe )?"
         r"(?P<width>x(?:1|2|4|8)) link at (?P<at>\S+) \(capable of (?P<can>[\d.]+ Gb/s) with [\d.]+ GT/s (?:PCIe "
         r")?(?P<full>x16|x8)(?<!(?P=width)) link", "PCIE_LINK_DEGRADED", WARNING, "{device}",
         "has a PCIe link of width {width} where it can have {full}: {has} in place of {can}, limited at {at}",
         "Reseat the card and its riser; look at the slot's width in the board's manual.", _LSPCI),
    Rule("DMAR:",
         r"DMAR: \[DMA (?P<way>Read|Write)[^\]]*\] Request device \[(?P<device>[0-9a-f:.]+)\].{0,160}?fault (?:addr"
         r"|reason)", "IOMMU_ENABLED", WARNING, "{device}", "was refused by the IOMMU: DMA {way} fault",
         "Boot with `iommu=pt`, or turn " "the IOMMU off where no virtual machine needs it.", ("cat /proc/cmdline",
         "lspci -s {device}")),
    Rule("IO_PAGE_FAULT",
         rf"(?:nvidia|amdgpu|habanalabs|mlx5_core|bnxt_en) {ADDRESS}: AMD-Vi: Event logged \[IO_PAGE_FAULT",
         "IOMMU_ENABLED", CRITICAL, "{device}", "was refused by the IOMMU: IO_PAGE_FAULT", "Boot with `iommu=pt`, or "
         "turn the IOMMU off where no virtual machine needs it.", ("cat /proc/cmdline", "lspci -s {device}")),
    Rule("IO_PAGE_FAULT",
         rf"AMD-Vi: Event logged \[IO_PAGE_FAULT device={ADDRESS}|{_OTHER}: AMD-Vi: Event logged \[IO_PAGE_FAULT",
         "IOMMU_ENABLED", WARNING, "{device}{other}", "was refused by the IOMMU: IO_PAGE_FAULT",
         "Boot with `iommu=pt`, or " "turn the IOMMU off where no virtual machine needs it.", ("cat /proc/cmdline",
         "lspci -s {device}")),
)  # fmt: skip
