"""Faults of every day that other checkers of nodes have looked for since long: mounts, disks, memory, the kernel, the
driver's parts, ports that the jobs need. Where a rate was published, the class says where; others are our choice."""

import random
from collections.abc import Callable
from typing import Final

from drains.churn import ASSUMED
from drains.events import BARE, DAY, HGX, HOUR, LOG, MINUTE, EventClass, Look, Variant, register
from drains.healthy import ARRAY, BOND, CPU, DIMMS, EDAC, LEGS
from drains.machine import MOUNTS, NET, RDMA, Machine

EVERYDAY: Final[list[EventClass]] = []
_SERVERS: Final = tuple(kind for kind in BARE if kind != "workstation_boards")
_LLAMA_YEARS: Final = 2048 * 54 / 365
_LLAMA: Final = "Llama 3 (arXiv 2407.21783, table 5), {} of 419 interruptions in 54 days of 2,048 nodes"
DRAM: Final = "Schroeder, Pinheiro, Weber: DRAM errors in the wild (SIGMETRICS 2009), a machine and year: "


def fault(
    name: str, rate: float, source: str, kinds: tuple[str, ...] = (), prior: str = ASSUMED, warns: bool = False
) -> Callable[[Look], Look]:
    """Makes the function below it a class of faults, `rate` of them a node and year."""
    return register(EVERYDAY, name, True, rate, source, prior, kinds, warns)


@fault("mount of fstab missing", 0.2, "fstab(5); systemd.mount(5): jobs start without a mount that is nofail")
def _unmounted(rng: random.Random, machine: Machine, age: float) -> Variant:
    point, nofail, boot = rng.choice(("/scratch", "/scratch", "/home")), rng.random() < 0.5, rng.random() < 0.7
    if boot:
        machine.restart(age + 150)
    if nofail:
        machine.sub("etc/fstab", rf"( {point} \S+ \S+)", r"\1,nofail")
    machine.unmount(point)
    return Variant(f"{point} not mounted{', since the boot' if boot else ''}{', nofail' if nofail else ''}", 8 * HOUR)


@fault("NVMe controller dead", 3 / _LLAMA_YEARS, "Linux, drivers/nvme/host/pci.c", (), _LLAMA.format(3))
def _nvme_dead(rng: random.Random, machine: Machine, age: float) -> Variant:
    """The file system stays in the table of mounts, and statvfs answers from memory."""
    number, gone = rng.choice((0, 1)), rng.random() < 0.5
    disk = f"nvme{number}"
    machine.say(age + 32, f"nvme {disk}: I/O 96 QID 7 timeout, completion polled")
    machine.say(age, f"nvme {disk}: controller is down; will reset: CSTS=0xffffffff, PCI_STATUS=0xffff")
    machine.say(max(age - 2, 0), f"nvme {disk}: Disabling device after reset failure: -19")
    for block in (64, 1208, 8192):
        machine.say(max(age - 3, 0), f"I/O error, dev {disk}n1, sector {block} op 0x1:(WRITE) flags 0x800 phys_seg 4")
    if gone:
        machine.remove(f"sys/class/nvme/{disk}")
    else:
        machine.write(f"sys/class/nvme/{disk}/state", "dead")
    return Variant(f"{disk} dead{' and gone' if gone else ''}, below {'/' if number == 0 else '/scratch'}", DAY)


def _array_of_scratch(machine: Machine, level: str, disks: int, lost: int) -> None:
    """/scratch is on an array md126 of `disks` disks, of which `lost` failed."""
    for path in (MOUNTS, "etc/fstab"):
        machine.sub(path, "^/dev/nvme1n1 ", "/dev/md126 ")
    shown = " ".join(f"nvme{3 + at}n1[{at}]{'(F)' if at >= disks - lost else ''}" for at in range(disks))
    state = f"[{disks}/{disks - lost}] [{'U' * (disks - lost)}{'_' * lost}]" if level != "raid0" else "512k chunks"
    machine.sub(
        "proc/mdstat",
        r"^unused",
        f"md126 : active {level} {shown}\n      15002423296 blocks super 1.2 {state}\n\nunused",
    )
    broken = lost > (level == "raid5")
    folder = "sys/block/md126/md"
    machine.write(f"{folder}/array_state", "broken" if broken and level == "raid0" else "clean")
    for name, text in (("level", level), ("raid_disks", disks), ("degraded", lost), ("sync_action", "idle")):
        machine.write(f"{folder}/{name}", str(text))


@fault("md array failed", 0.01, "Linux, drivers/md/raid5.c: Cannot continue operation; md.rst: broken", _SERVERS)
def _array_failed(rng: random.Random, machine: Machine, age: float) -> Variant:
    level, lost = rng.choice((("raid0", 1), ("raid5", 2)))
    _array_of_scratch(machine, level, 4, lost if age >= 0 else 0)
    if age >= 0:
        for at in range(lost):
            name = f"md/{'raid' if level == 'raid5' else level}:md126"
            machine.say(age + 40 * at, f"{name}: Disk failure on nvme{6 - at}n1, disabling device.")
        if level == "raid5":
            machine.say(age, "md/raid:md126: Cannot continue operation (2/4 failed).")
        machine.say(age, "Buffer I/O error on dev md126, logical block 375060582, lost async page write")
    return Variant(f"{level} of /scratch lost {lost} of 4 disks", DAY, set_up=True)


@fault("md array degraded", 0.02, "Linux, Documentation/admin-guide/md.rst: degraded", _SERVERS, warns=True)
def _array_degraded(rng: random.Random, machine: Machine, age: float) -> Variant:
    root = rng.random() < 0.5
    if root and age >= 0:
        machine.sub("proc/mdstat", r"nvme2n1p3\[1\]", "nvme2n1p3[1](F)")
        machine.sub("proc/mdstat", r"\[2/2\] \[UU\]", "[2/1] [U_]")
        machine.write(f"{ARRAY}/degraded", "1")
    elif not root:
        _array_of_scratch(machine, "raid5", 4, int(age >= 0))
    name, disk = ("raid1:md127", "nvme2n1p3") if root else ("raid:md126", "nvme6n1")
    if age >= 0:
        machine.say(age, f"md/{name}: Disk failure on {disk}, disabling device.")
        machine.say(age, f"md/{name}: Operation continuing on {1 if root else 3} devices.")
    return Variant(f"array of {'/' if root else '/scratch'} runs without one disk", 3 * DAY, set_up=True)


@fault("memory missing", 2 / _LLAMA_YEARS, "Linux: MemTotal; EDAC: size_mb of the modules", BARE, _LLAMA.format(2))
def _memory_missing(rng: random.Random, machine: Machine, age: float) -> Variant:
    """The firmware mapped out modules at the last boot."""
    lost = rng.choice((1, 2, 8))
    machine.restart(age + 200)
    for field in ("MemTotal", "MemFree", "MemAvailable"):
        before = int(machine.read("proc/meminfo").split(f"{field}:")[1].split()[0])
        machine.sub("proc/meminfo", rf"^{field}: .*", f"{field}: {before * (DIMMS - lost) // DIMMS} kB")
    for slot in range(lost):
        machine.remove(f"{EDAC}/mc1/dimm{slot}")
    each = int(machine.read(f"{EDAC}/mc0/dimm0/size"))
    machine.write(f"{EDAC}/mc1/size_mb", str(each * (DIMMS // 2 - lost)))
    return Variant(f"{lost} of {DIMMS} memory modules mapped out", 3 * DAY)


@fault("memory used up on an idle node", 0.2, "Linux, Documentation/filesystems/proc.rst: MemAvailable")
def _memory_used(rng: random.Random, machine: Machine, age: float) -> Variant:
    """What an ended job or the kernel left; no job is there that uses it."""
    form = rng.choice(("SUnreclaim", "HugePages_Total", "AnonPages"))
    total = int(machine.read("proc/meminfo").split()[1])
    for field in ("MemFree", "MemAvailable"):
        machine.sub("proc/meminfo", rf"^{field}: .*", f"{field}: {total // 50} kB")
    if form == "AnonPages":
        machine.start(70031, "python", "S", 5 * HOUR, "/system.slice/slurmstepd.scope/job_66/step_0/user/task_0")
        machine.write("proc/70031/statm", f"{total // 4} {total * 19 // 80} 9000 1 0 {total * 19 // 80} 0")
    machine.sub("proc/meminfo", rf"^{form}: .*\n", "")
    pages = f"{form}: {total * 19 // 20 // 2048}" if form.startswith("Huge") else f"{form}: {total * 19 // 20} kB"
    machine.append("proc/meminfo", pages)
    return Variant(f"98 % of the memory gone, as {form}, and no job is there", 12 * HOUR, steady=True)


@fault("uncorrected memory errors", 0.013, "Linux, edac_mc.c, memory-failure.c", BARE, DRAM + "1.3 % have one")
def _uncorrected(rng: random.Random, machine: Machine, age: float) -> Variant:
    count, slot, killed = rng.choice((1, 3, 40)), rng.randrange(DIMMS // 2), rng.random() < 0.7
    machine.add(f"{EDAC}/mc0/ue_count", count)
    machine.add(f"{EDAC}/mc0/dimm{slot}/dimm_ue_count", count)
    machine.add(f"{EDAC}/mc0/ce_count", 300 * count)
    machine.sub("proc/meminfo", r"^HardwareCorrupted: .*", f"HardwareCorrupted: {4 * count} kB")
    where = f"CPU_SrcID#0_MC#0_Chan#{slot}_DIMM#0 (channel:{slot} slot:0 page:0x1f8b13 offset:0x0 grain:32)"
    machine.say(age, "mce: [Hardware Error]: Machine check events logged")
    machine.say(age, f"EDAC MC0: {count} UE memory read error on {where}")
    if killed:
        machine.say(age, "Memory failure: 0x1f8b13: Sending SIGBUS to python:81233 due to hardware memory corruption")
    says = f"{count} uncorrected errors of module {slot}{', a process killed' if killed else ''}"
    return Variant(says, 2 * DAY, counters=True)


@fault("soft lockup that goes on", 0.05, "Linux, kernel/watchdog.c: watchdog_timer_fn")
def _lockup(rng: random.Random, machine: Machine, age: float) -> Variant:
    cpu, name = rng.randrange(8), rng.choice(("python", "kworker/34:1", "nvidia-smi", "ll_ost_io00_012"))
    machine.start(70011, name, "R", age + 26, "/system.slice/slurmstepd.scope/job_77/step_0")
    for number in range(1 + min(int(age // 26), 60)):
        stuck = 26 + 26 * (int(age // 26) - number)
        machine.say(
            26 * number + age % 26, f"watchdog: BUG: soft lockup - CPU#{cpu} stuck for {stuck}s! [{name}:70011]"
        )
    machine.say(
        max(age - 40, 0), f"rcu: \t{cpu}-....: (14999 ticks this GP) idle=1f7/1/0x4000000000000000 softirq=81/81"
    )
    machine.write("proc/sys/kernel/tainted", str(12288 | 1 << 14))
    return Variant(f"CPU {cpu} in the kernel for {name} and never back", 6 * HOUR)


@fault("kernel oops", 0.05, "Linux, arch/x86/mm/fault.c, arch/x86/kernel/dumpstack.c; taint flag D")
def _oops(rng: random.Random, machine: Machine, age: float) -> Variant:
    where = rng.choice(("nvidia_p2p_put_pages+0x5c/0x120 [nvidia]", "xfs_buf_item_release+0x44/0xf0 [xfs]",
                        "cl_page_put+0x1c3/0x3f0 [obdclass]", "__list_del_entry_valid+0x25/0x90"))  # fmt: skip
    first = rng.choice(
        (
            ("BUG: kernel NULL pointer dereference, address: 0000000000000038", "Oops: 0002 [#1] PREEMPT SMP NOPTI"),
            ("BUG: unable to handle page fault for address: ffffb2f4c0a6f008", "Oops: 0000 [#1] PREEMPT SMP NOPTI"),
            ("general protection fault, probably for non-canonical address 0xdead000000000108: 0000 [#1] SMP NOPTI",),
        )
    )
    for text in (*first, f"RIP: 0010:{where}", "---[ end trace 0000000000000000 ]---"):
        machine.say(age, text)
    machine.write("proc/sys/kernel/tainted", str(12288 | 1 << 7))
    return Variant(f"oops in {where}", 2 * DAY)


@fault("task in state D for an hour", 0.1, "Linux, kernel/hung_task.c: each 120 s, ten times; proc(5)")
def _task_stuck(rng: random.Random, machine: Machine, age: float) -> Variant:
    """A process of an ended job waits in the kernel for good, and keeps its GPU's memory or its files."""
    since = age + HOUR
    where = rng.choice(("io_schedule", "nvidia_close_callback", "rpc_wait_bit_killable", "xlog_grant_head_wait"))
    machine.start(70003, "python", "D", since, "/system.slice/slurmstepd.scope/job_66/step_0/user/task_0")
    machine.write("proc/70003/wchan", where)
    for number in range(1, 11):
        text = f"INFO: task python:70003 blocked for more than {number * 120 + number // 2} seconds."
        machine.say(since - number * 122, text)
    return Variant(f"python in state D for an hour, in {where}", 12 * HOUR)


@fault("nvidia_uvm not loaded", 0.05, "soperator#2684: NVML answers, cuInit fails with 999")
def _no_uvm(rng: random.Random, machine: Machine, age: float) -> Variant:
    boot = rng.random() < 0.7
    if boot:
        machine.restart(age + 200)
    without_uvm(machine)
    return Variant(f"nvidia_uvm not loaded{', since the boot' if boot else ''}", 6 * HOUR)


def without_uvm(machine: Machine) -> None:
    machine.sub("proc/modules", r"^nvidia_uvm .*\n", "")
    for path in ("sys/module/nvidia_uvm", "dev/nvidia-uvm"):
        machine.remove(path)


@fault("device file of a GPU gone", 0.02, "NVIDIA driver README: /dev/nvidiaN; NVML lists the GPU", BARE)
def _no_file(rng: random.Random, machine: Machine, age: float) -> Variant:
    minor = rng.randrange(machine.base.expected_gpus)
    machine.remove(f"dev/nvidia{minor}")
    return Variant(f"/dev/nvidia{minor} gone", DAY, steady=True)


@fault("driver never built for this kernel", 0.1, "dkms(8); NVIDIA GPUs on the bus and no driver bound")
def _unbuilt(rng: random.Random, machine: Machine, age: float) -> Variant:
    kernel = rng.choice(("5.15.0-119-generic", "6.8.0-60-generic"))
    machine.restart(age + 180)
    machine.without_driver()
    machine.write("proc/sys/kernel/osrelease", kernel)
    return Variant(f"no driver for the new kernel {kernel}", 10 * HOUR, counters=True)  # earlier looks saw none either


@fault("library of another version for days", 0.1, "nvml.h: NVML_ERROR_LIB_RM_VERSION_MISMATCH")
def _mismatch(rng: random.Random, machine: Machine, age: float) -> Variant:
    logged = rng.random() < 0.5
    mismatch(machine)
    for number in range(3 if logged else 0):
        said = "NVRM: API mismatch: the client has the version 595.58.03, but this kernel module has the version"
        machine.say(age * (1 - number / 4), f"{said} {machine.driver}.")
    return Variant("the library is newer than the loaded driver", 3 * DAY, counters=True)


def mismatch(machine: Machine) -> None:
    machine.nvml.update(gpus=[], p2p_read=[], p2p_write=[], error="LIB_RM_VERSION_MISMATCH")


@fault("/dev/shm tiny", 0.02, "shm_overview(7); tmpfs(5): size=; data loaders end by SIGBUS")
def _tiny(rng: random.Random, machine: Machine, age: float) -> Variant:
    mebibytes = rng.choice((64, 512))
    machine.sub(MOUNTS, r" /dev/shm tmpfs rw", f" /dev/shm tmpfs rw,size={mebibytes << 10}k")
    machine.size("/dev/shm", mebibytes << 20, mebibytes << 20)
    return Variant(f"/dev/shm has {mebibytes} MiB", 5 * DAY, steady=True)


def alike(machine: Machine) -> None:
    """The storage NICs are of the compute NICs' model, as on boards with ten ConnectX-7."""
    model = machine.base.compute_ports[0]
    for device in ("mlx5_1", "mlx5_6"):
        for name in ("board_id", "hca_type", "fw_ver", "device/device", "device/subsystem_device", "ports/1/rate"):
            if text := machine.read(f"{RDMA}/{model}/{name}"):
                machine.write(f"{RDMA}/{device}/{name}", text)
        if machine.read(f"{RDMA}/{model}/ports/1/link_layer") != "Ethernet":
            for name, text in (
                ("device/class", "0x020700"),
                ("ports/1/link_layer", "InfiniBand"),
                ("ports/1/lid", "0x4"),
            ):
                machine.write(f"{RDMA}/{device}/{name}", text + (device[-1] if name.endswith("lid") else ""))


@fault("rail down beside a spare of the same model", 0.05, "IBTA port states; boards with ten ConnectX-7", HGX)
def _rail(rng: random.Random, machine: Machine, age: float) -> Variant:
    device, how = rng.choice(machine.base.compute_ports), rng.choice(("2: Polling", "3: Disabled"))
    alike(machine)
    if age >= 0:
        machine.set_port(device, "1: DOWN", how)
        machine.add(f"{RDMA}/{device}/ports/1/counters/link_downed", 1)
        machine.add(f"{NET}/{machine.netdev(device)}/carrier_down_count", 1)
    return Variant(f"{device} down; ten NICs are alike", DAY, counters=True, set_up=True)


@fault("pkey lost from one port", 0.02, "IBTA: P_Key table; 0x7fff: limited member", ("hgx_h100_ib",))
def _pkey(rng: random.Random, machine: Machine, age: float) -> Variant:
    device, first = rng.choice(machine.base.compute_ports), rng.choice(("0x7fff", "0xffff"))
    machine.write(f"{RDMA}/{device}/ports/1/pkeys/0", first)
    machine.write(f"{RDMA}/{device}/ports/1/pkeys/1", "0x0000")
    return Variant(f"{device} is in the default partition alone ({first})", DAY, steady=True)


@fault("leg of a LAG down", 0.1, "Linux, Documentation/networking/bonding.rst", HGX, warns=True)
def _leg(rng: random.Random, machine: Machine, age: float) -> Variant:
    name = rng.choice(LEGS)
    machine.sub(BOND, rf"(Slave Interface: {name}\nMII Status: )up", r"\1down")
    machine.write(f"{NET}/{name}/operstate", "down")
    machine.write(f"{NET}/{name}/carrier", "0")
    machine.say(age, f"bond0: (slave {name}): link status definitely down, disabling slave")
    return Variant(f"{name} of bond0 down", LOG, steady=True)


@fault("processors held down (PROCHOT)", 0.02, "Intel SDM 3B, 15.8.4.1; sysfs thermal_throttle", HGX, warns=True)
def _prochot(rng: random.Random, machine: Machine, age: float) -> Variant:
    khz = rng.choice((800_000, 1_200_000))
    for place in (machine.base.root / CPU).glob("cpufreq/policy*"):
        machine.write(f"{CPU}/cpufreq/{place.name}/scaling_cur_freq", str(khz))
        counter = f"{CPU}/cpu{place.name[len('policy') :]}/thermal_throttle/package_throttle_count"
        machine.add(counter, 1 + int(age / 10))
    if age > MINUTE:
        machine.say(
            age - MINUTE,
            "mce: CPU12: Package temperature/speed above threshold, cpu clock throttled (total events = 7)",
        )
    return Variant(f"all processors held at {khz // 1000} MHz", DAY, counters=True)
