"""Real faults, and what a node shows of each. Rates and repair times are those of a public trace of 400 nodes over 349
days: stepfun-ai/InfiniteHBD-Trace@7aacdc8 (Apache-2.0), fault_trace.json; `n of 584` is its count."""

import random
from collections.abc import Callable
from typing import Final

from drains.churn import ERRORS
from drains.events import BARE, ECC, HGX, HOUR, MINUTE, ROCE, EventClass, Look, Variant, register, xid
from drains.machine import MOUNTS, NET, PCI, RDMA, Machine

_NOBODY: Final = "pid='<unknown>', name=<unknown>"
_NODE_YEARS: Final = 400 * 348.98 / 365
_TRACE: Final = "InfiniteHBD-Trace@7aacdc8, {} of 584: {}"
_LOST_FIELDS: Final = (
    "ecc_volatile", "ecc_aggregate", "rows", "recovery_action", "throttled_nanoseconds", "temperature_celsius",
    "links", "link_errors", "fabric", "clocks_event_reasons", "persistence", "processes",
)  # fmt: skip
FAULTS: Final[list[EventClass]] = []


def _fault(name: str, count: float, source: str, what: str, kinds: tuple[str, ...]) -> Callable[[Look], Look]:
    """Makes the function below it a class of faults, `count` of them in the trace."""
    return register(FAULTS, name, True, count / _NODE_YEARS, source, what, kinds)


def _of(count: int, what: str) -> str:
    return _TRACE.format(count, what)


def _asks(machine: Machine, gpu: int, action: int, age: float, text: str) -> None:
    """The driver asks for an action: NVML's field and Xid 154, where it has them (570 and newer)."""
    if not machine.driver.startswith("535"):
        machine.gpu(gpu)["recovery_action"] = action
        xid(
            machine,
            max(age - 0.2, 0),
            gpu,
            154,
            f"GPU recovery action changed from 0x0 (None) to 0x{action:x} ({text})",
        )


@_fault("GPU off the bus", 6, "Xid catalogue: 79; nvml.h: GPU_IS_LOST", _of(6, "GPU lost, not found"), BARE)
def _gpu_lost(rng: random.Random, machine: Machine, age: float) -> Variant:
    """The GPU fell off the bus. NVML says so in each call, gives no handle, or, after a driver restart, lists one less;
    the kernel's log has Xid 79, and at a start only a line without an Xid."""
    gpu, form = rng.randrange(machine.base.expected_gpus), rng.choice(("calls", "handle", "unlisted", "at_start"))

    address = str(machine.base.nvml["gpus"][gpu]["bus_id"])
    if form == "at_start":
        machine.restart(age + 60)
        machine.say(age + 40, f"NVRM: The NVIDIA GPU {address} (PCI ID: 10de:2330) installed in this system has "
                    "fallen off the bus and is not responding to commands.")  # fmt: skip
    else:
        xid(machine, age, gpu, 79, "pid='<unknown>', name=<unknown>, GPU has fallen off the bus.")
        machine.say(age, f"NVRM: GPU {address}: GPU has fallen off the bus.")
    one = machine.gpu(gpu)
    if form == "calls":
        one.update(dict.fromkeys(_LOST_FIELDS))
        one["errors"] = {**one.get("errors", {}), **dict.fromkeys(_LOST_FIELDS, "GPU_IS_LOST")}
    elif form == "handle":
        machine.gpus[gpu] = {"index": gpu, "errors": {"handle": "UNKNOWN"}}
    else:
        machine.unlist(gpu)

    return Variant(f"GPU {gpu} off the bus ({form})", 71 * HOUR)


@_fault("uncontained ECC errors", 50, "Xid catalogue: 48, 95", _of(60, "DBE; 10 as failed remapping, assumed"), ECC)
def _uncontained(rng: random.Random, machine: Machine, age: float) -> Variant:
    """An error in memory that ECC cannot correct and that was not contained: Xid 48 and 95, the counter since the
    driver was loaded, and a reset is asked for."""
    gpu, errors, with_48 = rng.randrange(machine.base.expected_gpus), rng.choice((1, 4, 130)), rng.random() < 0.7

    if with_48:
        where = "detected on GPU in the framebuffer at partition 5, subpartition 1."
        xid(machine, age, gpu, 48, f"{_NOBODY}, An uncorrectable double bit error (DBE) has been {where}")
    xid(machine, age, gpu, 95, "pid='<unknown>', name=<unknown>, Uncontained: LTC TAG (0x2,0x0). RST: Yes, D-RST: No")
    one = machine.gpu(gpu)
    for name in ("ecc_volatile", "ecc_aggregate"):
        one[name] = (one[name] or 0) + errors
    one["rows"] = {**one["rows"], "uncorrectable": one["rows"]["uncorrectable"] + 1, "pending": True}
    _asks(machine, gpu, 1, age, "GPU Reset Required")

    says = f"{errors} uncontained errors on GPU {gpu}{', with Xid 48' if with_48 else ''}"
    return Variant(says, 4 * HOUR, counters=True)


@_fault("row remapping failed", 10, "Xid catalogue: 64", "assumed: 10 of the trace's 60 DBE", ECC)
def _remap_failed(rng: random.Random, machine: Machine, age: float) -> Variant:
    gpu, after_reset = rng.randrange(machine.base.expected_gpus), rng.random() < 0.5

    if after_reset:
        machine.restart(age + 500)
    else:
        row = "Row Remapper: Error recording remapping of row (0x0000000007c0c58d): no spare rows"
        xid(machine, age, gpu, 64, f"{_NOBODY}, {row}")
    one = machine.gpu(gpu)
    one["ecc_aggregate"] = (one["ecc_aggregate"] or 0) + 9
    one["rows"] = {"correctable": 0, "uncorrectable": 8, "pending": not after_reset, "failed": True}

    return Variant(f"no spare row left on GPU {gpu}{', seen after a reboot' if after_reset else ''}", 4 * HOUR)


@_fault("GPU firmware halted", 44, "Xid catalogue: 46, 62, 119, 120", _of(44, "unknown error 40, Xid 4"), BARE)
def _firmware(rng: random.Random, machine: Machine, age: float) -> Variant:
    """The GPU's firmware gives no answer or its controller halted (Xid 119, 120, 62, 46), and a reset is asked for."""
    gpu, code, handle = rng.randrange(machine.base.expected_gpus), rng.choice((119, 120, 62, 46)), rng.random() < 0.3

    for repeat in range(3):
        xid(machine, age + repeat * 6, gpu, code, ERRORS[code])
    _asks(machine, gpu, 1, age, "GPU Reset Required")
    if handle and age > MINUTE:
        machine.gpus[gpu % len(machine.gpus)] = {"index": gpu, "errors": {"handle": "UNKNOWN"}}

    return Variant(f"Xid {code} on GPU {gpu}{', then no handle' if handle else ''}", 6 * HOUR)


@_fault("NVLink error (Xid 74)", 7, "Xid catalogue: 74", _of(7, "7 of 11 Xid errors"), HGX)
def _nvlink_error(rng: random.Random, machine: Machine, age: float) -> Variant:
    """A fatal NVLink error (Xid 74): one link is down, or the whole GPU asks for a reset."""
    gpu, links = rng.randrange(machine.base.expected_gpus), rng.choice((1, 2, 18))

    xid(machine, age, gpu, 74, ERRORS[74])
    one = machine.gpu(gpu)
    one["links"] = [at >= links for at in range(len(one["links"]))]
    _asks(machine, gpu, 1, age, "GPU Reset Required")

    return Variant(f"Xid 74, {links} NVLinks of GPU {gpu} down", 14 * HOUR)


@_fault("NVLink never up", 3, "nvml.h: nvmlDeviceGetNvLinkState", _of(3, "P2P bandwidth low"), HGX)
def _nvlink_down(rng: random.Random, machine: Machine, age: float) -> Variant:
    """A link did not train at the last start: no line of the log has it any more."""
    gpu, links = rng.randrange(machine.base.expected_gpus), rng.choice((1, 2, 6))

    one = machine.gpu(gpu)
    one["links"] = [at >= links for at in range(len(one["links"]))]

    return Variant(f"{links} NVLinks of GPU {gpu} never came up", 890 * HOUR, steady=True)


@_fault("driver hangs", 9, "calls in state D", _of(9, "nvidia-smi timeout"), HGX)
def _hung(rng: random.Random, machine: Machine, age: float) -> Variant:
    """A call into the driver does not return, so that nvidia-smi hangs."""
    gpu = rng.randrange(machine.base.expected_gpus)

    machine.nvml["gpus"] = []
    machine.nvml["hung"] = {
        "doing": f"ecc_volatile of GPU {gpu}", "seconds": 31.0, "patience_seconds": 8.0, "pid": 4821, "state": "D",
    }  # fmt: skip
    if age > 3 * MINUTE:
        machine.say(age - 3 * MINUTE, "INFO: task nvidia-smi:4821 blocked for more than 120 seconds.")

    return Variant(f"a call about GPU {gpu} does not return", 25 * HOUR)


@_fault("GPU's PCIe link narrow", 25, "Linux sysfs: current_link_width", _of(25, "GPU PCI link width low"), BARE)
def _pcie_narrow(rng: random.Random, machine: Machine, age: float) -> Variant:
    gpu, width = rng.randrange(machine.base.expected_gpus), rng.choice((8, 4, 1))

    machine.write(f"{PCI}/{machine.base.nvml['gpus'][gpu]['bus_id']}/current_link_width", str(width))

    return Variant(f"GPU {gpu} at {width} lanes of 16", 72 * HOUR, steady=True)


@_fault("NIC's PCIe link narrow", 1, "Linux sysfs: current_link_width", _of(1, "NIC PCI link width low"), HGX)
def _nic_narrow(rng: random.Random, machine: Machine, age: float) -> Variant:
    device, width = rng.choice(machine.base.compute_ports), rng.choice((8, 4))

    machine.write(f"{PCI}/{machine.base.address_of(device)}/current_link_width", str(width))

    return Variant(f"{device} at {width} lanes of 16", 18 * HOUR, steady=True)


@_fault("port down", 40, "IBTA port states", _of(40, "Link Down"), HGX)
def _port_down(rng: random.Random, machine: Machine, age: float) -> Variant:
    device, phys = rng.choice(machine.base.compute_ports), rng.choice(("2: Polling", "3: Disabled"))
    at_boot = rng.random() < 0.2

    if at_boot:
        machine.restart(age + 100)
    machine.set_port(device, "1: DOWN", phys)
    if not at_boot:
        machine.add(f"{RDMA}/{device}/ports/1/counters/link_downed", 1)
        machine.add(f"{NET}/{machine.netdev(device)}/carrier_down_count", 1)
        machine.say(age, f"mlx5_core {machine.base.address_of(device)} {machine.netdev(device)}: Link down")

    return Variant(f"{device} down ({phys[3:]}){', from boot on' if at_boot else ''}", 50 * HOUR, counters=True)


@_fault("port slow", 10, "Linux sysfs: rate", _of(10, "NIC link speed low"), HGX)
def _port_slow(rng: random.Random, machine: Machine, age: float) -> Variant:
    device = rng.choice(machine.base.compute_ports)
    rate = rng.choice(("200 Gb/sec (2X NDR)", "100 Gb/sec (1X NDR)", "200 Gb/sec (4X HDR)"))

    machine.set_port(device, "4: ACTIVE", "5: LinkUp", rate)

    return Variant(f"{device} at {rate}", 256 * HOUR, steady=True)


@_fault("link flaps", 5, "IBTA LinkDownedCounter; carrier_down_count", "assumed: 5", HGX)
def _flapping(rng: random.Random, machine: Machine, age: float) -> Variant:
    device, every = rng.choice(machine.base.compute_ports), rng.choice((2 * MINUTE, 20 * MINUTE, HOUR))

    times = 1 + int(age // every)
    machine.add(f"{RDMA}/{device}/ports/1/counters/link_downed", times)
    machine.add(f"{NET}/{machine.netdev(device)}/carrier_down_count", times)
    for number in range(min(times, 40)):
        machine.say(
            age - number * every, f"mlx5_core {machine.base.address_of(device)} {machine.netdev(device)}: Link down"
        )

    return Variant(f"{device} loses its link each {every / MINUTE:.0f} min", 24 * HOUR, counters=True)


@_fault("bits damaged", 5, "IBTA SymbolErrorCounter, BER 1e-12: 120 an hour", "assumed: 5", HGX)
def _bits_damaged(rng: random.Random, machine: Machine, age: float) -> Variant:
    device, per_hour = rng.choice(machine.base.compute_ports), rng.choice((400, 30_000))

    machine.add(f"{RDMA}/{device}/ports/1/counters/symbol_error", int(per_hour * age / HOUR))

    return Variant(f"{device}: {per_hour} symbol errors an hour", 24 * HOUR, counters=True)


@_fault("NIC lost", 8, "Linux, mlx5/core/health.c", _of(8, "NIC lost"), HGX)
def _nic_lost(rng: random.Random, machine: Machine, age: float) -> Variant:
    """The NIC's firmware failed and its driver gave RDMA up, or it is gone from the bus."""
    device, gone = rng.choice(machine.base.compute_ports), rng.random() < 0.4

    address = machine.base.address_of(device)
    machine.say(age, f"mlx5_core {address}: poll_health:816:(pid 0): device's health compromised - reached miss count")
    machine.remove(f"{RDMA}/{device}")
    if gone:
        machine.say(age, f"pcieport: pciehp: Slot(7): Link Down, {address}")
        machine.remove(f"{PCI}/{address}")
        machine.remove(f"sys/bus/pci/drivers/mlx5_core/{address}")
    else:
        folder = (machine.base.root / RDMA / device).resolve().parent.relative_to(machine.base.root.resolve())
        machine.remove(str(folder))

    return Variant(f"{device} {'gone from the bus' if gone else 'without an RDMA device'}", 3 * HOUR)


@_fault("no RoCE address", 11, "Linux sysfs: ports/1/gids", _of(11, "Rnic Gid error"), ROCE)
def _gid(rng: random.Random, machine: Machine, age: float) -> Variant:
    device = rng.choice(machine.base.compute_ports)

    for index in (2, 3):
        machine.write(f"{RDMA}/{device}/ports/1/gids/{index}", ":".join(["0000"] * 8))

    return Variant(f"{device} has no address for RoCE", HOUR, steady=True)


@_fault("GPU too hot", 2, "nvml.h: HwThermalSlowdown", _of(2, "GPU temperature high"), HGX)
def _hot(rng: random.Random, machine: Machine, age: float) -> Variant:
    gpu, share = rng.randrange(machine.base.expected_gpus), rng.choice((0.4, 0.9))

    one = machine.gpu(gpu)
    counted = one["throttled_nanoseconds"]
    counted["hw_thermal" if "hw_thermal" in counted else "thermal"] += int(age * share * 1e9)
    one.update(clocks_event_reasons=0x48, temperature_celsius=91, memory_temperature_celsius=97, margin_celsius=-3,
               sm_mhz=600, processes=[{"pid": 4711}])  # fmt: skip

    return Variant(f"GPU {gpu} slowed down by heat {share:.0%} of the time", 200 * HOUR, counters=True)


@_fault("NVLink fabric failed", 3, "nvml.h: fabric state and status; SXid 20034", "assumed: 3", HGX)
def _fabric(rng: random.Random, machine: Machine, age: float) -> Variant:
    """The fabric is not there: the fabric manager failed at boot, or a GPU's registration did."""
    form, gpu = rng.choice(("manager", "gpu", "switch")), rng.randrange(machine.base.expected_gpus)

    if form == "switch":
        machine.say(age, "nvidia-nvswitch1: SXid (PCI:0000:84:00.0): 20034, Fatal, Link 30 LTSSM Fault Up")
        machine.gpu(gpu)["links"] = [at != 3 for at in range(18)]
    else:
        machine.restart(age + 400)
        if form == "manager":
            machine.remove("proc/3120")
            machine.remove("run/nvidia-fabricmanager/nv-fabricmanager.pid")
        failed = {"state": 2, "status": 0} if form == "manager" else {"state": 3, "status": 999}
        for one in machine.gpus if form == "manager" else [machine.gpu(gpu)]:
            one["fabric"] = {**failed, "health_mask": 0}
    return Variant(f"NVLink fabric: {form} failed", 12 * HOUR)


@_fault("file server gone", 20, "Linux NFS client", "assumed: 20", ())
def _mount(rng: random.Random, machine: Machine, age: float) -> Variant:
    """The file server of the jobs' home is gone."""

    machine.replies["/home"] = {"silent_seconds": 3.0}
    if age > 3 * MINUTE:
        machine.say(age - 3 * MINUTE, "nfs: server nfs.example not responding, still trying")

    return Variant("/home (NFS) does not answer", 3 * HOUR)


@_fault("disk full", 10, "Linux: statvfs(3)", "assumed: 10", ())
def _disk_full(rng: random.Random, machine: Machine, age: float) -> Variant:
    point, free = rng.choice(("/", "/scratch")), rng.choice((0, 4 << 30))  # no room for a checkpoint

    total = machine.facts["file_systems"][point]["total_bytes"]
    machine.size(point, total, free, "0" if point == "/" else "1001")  # where every user may write, one has

    return Variant(f"{point} has {free >> 30} GiB left", 5 * HOUR, steady=True)


@_fault("file system read-only", 3, "Linux ext4: errors=remount-ro", _of(3, "FS read-only, disk FS errors"), ())
def _read_only(rng: random.Random, machine: Machine, age: float) -> Variant:
    """The kernel made a file system read-only after errors. XFS shuts down instead and stays `rw` in the table of
    mounts; the log's older lines may be gone (Linux, fs/ext4/super.c, fs/xfs/xfs_fsops.c)."""
    point, kind, logged = rng.choice(
        (("/", "ext4", True), ("/scratch", "xfs", True), ("/scratch", "ext4", rng.random() < 0.7))
    )
    disk = "dm-0" if point == "/" else "nvme1n1"
    machine.sub("etc/fstab", r" /scratch xfs ", f" /scratch {kind if point != '/' else 'xfs'} ")

    if kind == "xfs":
        machine.say(age + 1, f"XFS ({disk}): log I/O error -5")
        shut = "Log I/O Error (0x2) detected at xlog_ioend_work+0x6b/0x90 [xfs] (fs/xfs/xfs_log.c:1378).  "
        machine.say(age, f"XFS ({disk}): {shut}Shutting down filesystem.")
        machine.say(age, f"XFS ({disk}): Please unmount the filesystem and rectify the problem(s)")
    else:
        machine.sub(MOUNTS, rf" {point} \w+ rw,", f" {point} ext4 ro,")
        for text in ("EXT4-fs error (device {}): ext4_journal_check_start:83: Detected aborted journal",
                     "EXT4-fs ({}): Remounting filesystem read-only") if logged else ():  # fmt: skip
            machine.say(age, text.format(disk))

    says = f"{point} ({kind}) is {'shut down' if kind == 'xfs' else 'read-only'} after errors"
    return Variant(says + ("" if logged else ", of which the log has nothing any more"), 2 * HOUR, steady=True)


@_fault("machine check", 2, "Linux x86 MCE", _of(2, "machine check exception"), BARE)
def _machine_check(rng: random.Random, machine: Machine, age: float) -> Variant:
    machine.restart(age + 300)
    machine.say(age + 1, "mce: [Hardware Error]: CPU 34: Machine Check: 0 Bank 7: be00000000801136")
    machine.say(age, "mce: [Hardware Error]: Machine check events logged")

    return Variant("machine check of a CPU", 48 * HOUR)


NOT_SIMULATED: Final = {
    "fans, power supplies, battery, board, riser, RAID card": 68,
    "silent data corruption, failed stress test, unknown, taken off for a look": 268,
    "single-bit ECC, kubelet, kernel panic, firmware, changes, tests": 17,
}
"""What the trace has besides, by count: a BMC sees it, or a test, or nobody, and no passive check of the node."""
