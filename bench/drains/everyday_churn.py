"""Harmless look-alikes of the faults of every day: what fit nodes show that must drain none of them."""

import random
from typing import Final

from drains.churn import churn
from drains.events import BARE, DAY, HGX, HOUR, LOG, MINUTE, Look, Variant
from drains.everyday_faults import DRAM, alike, mismatch, without_uvm
from drains.healthy import CPU, DIMMS, EDAC
from drains.machine import MOUNTS, NET, PCI, RDMA, Machine

_GIB: Final = 1 << 30


_RW: Final = "rw,relatime"
_PLACES: Final[tuple[tuple[str, float, str, tuple[tuple[str, float, float, str], ...]], ...]] = (
    ("lines of fstab that are not mounted", 0.2, "fstab(5): noauto; systemd.mount(5): x-systemd.automount", (
        ("", 0, 0, "/dev/sdb1 /mnt/rescue ext4 noauto,ro 0 0"),
        ("", 0, 0, "/dev/cdrom /media/cdrom iso9660 ro,user,noauto 0 0"),
        ("", 0, 0, "/swapfile none swap sw,noauto 0 0"),
        ("systemd-1 /archive autofs rw,relatime,fd=48,pgrp=1,timeout=0", 0, 0,
         "nfs.example:/archive /archive nfs4 noauto,x-systemd.automount,_netdev 0 0"),
        ("systemd-1 /local autofs rw,relatime,fd=49,pgrp=1,timeout=0", 0, 0,
         "/dev/nvme7n1 /local xfs x-systemd.automount,nofail 0 0"))),
    ("read-only by design", 0.3, "mount(8): squashfs, iso9660, ro exports of software and data sets", (
        ("/dev/loop4 /opt/images/ngc squashfs ro,nodev,relatime", 40, 0, ""),
        ("/dev/loop9 /snap/lxd/29619 squashfs ro,nodev,relatime,errors=continue", 1, 0, ""),
        ("/dev/sr1 /media/tools iso9660 ro,relatime", 4, 0, ""),
        ("nfs.example:/apps /apps nfs4 ro,relatime,vers=4.2,hard", 0, 0, "nfs.example:/apps /apps nfs4 ro,hard 0 0"),
        ("/dev/mapper/system-usr /usr ext4 ro,relatime", 400, 90, "/dev/mapper/system-usr /usr ext4 ro 0 0"),
        ("/dev/mapper/sets /datasets xfs ro,norecovery,relatime", 900, 9, "/dev/mapper/sets /datasets xfs ro 0 0"))),
    ("full partition of no use to jobs", 0.3, "auditd.conf, cachefilesd.conf (bstop), and others", (
        (f"/dev/mapper/system-audit /var/log/audit xfs {_RW}", 8, 0.16, ""),
        (f"/dev/nvme2n1 /var/cache/fscache ext4 {_RW}", 1024, 29.7, ""),
        (f"/dev/nvme0n1p9 /recovery vfat {_RW}", 2, 0, ""),
        (f"/dev/sdb1 /run/media/ops/STICK exfat {_RW}", 32, 0, ""),
        (f"/dev/md3 /datasets ext4 {_RW}", 7168, 57, ""),
        (f"tmpfs /srv/tftp tmpfs {_RW}", 0.0625, 0, ""))),
    ("cache disk full by design", 0.2, "BeeOND, DAOS, CVMFS, alluxio: they take the whole disk", (
        (f"/dev/md125 /mnt/beeond_store xfs {_RW}", 12000, 20, "/dev/md125 /mnt/beeond_store xfs defaults 0 0"),
        (f"/dev/nvme5n1 /srv/cvmfs-cache xfs {_RW}", 7000, 3, "/dev/nvme5n1 /srv/cvmfs-cache xfs defaults 0 0"),
        (f"/dev/nvme6n1 /cache0 xfs {_RW}", 12000, 0, "/dev/nvme6n1 /cache0 xfs defaults 0 0"))),
)  # fmt: skip
"""How places are set up: class, rate, source, and each variant's mount, its size and what is left in GiB, and line of
fstab."""


def _place(name: str, variants: tuple[tuple[str, float, float, str], ...]) -> Look:
    def look(rng: random.Random, machine: Machine, age: float) -> Variant:
        mount, size, left, line = rng.choice(variants)
        point = (mount or line).split()[1]
        if mount:
            machine.mount(mount, int(size * _GIB), int(left * _GIB))
        if " nfs4 " in mount:
            machine.replies[point] = {}
        if line:
            machine.append("etc/fstab", line)
        return Variant(f"{point}: {name}", 60 * DAY, steady=True)

    return look


for _name, _rate, _source, _places in _PLACES:
    churn(_name, _rate, _source)(_place(_name, _places))


@churn("md check or resync", 12.0, "Linux, Documentation/admin-guide/md.rst: sync_action; mdcheck: monthly", BARE)
def _resync(rng: random.Random, machine: Machine, age: float) -> Variant:
    action, done = rng.choice(("check", "resync")), rng.choice((0.4, 12.6, 88.1))
    bar = f"      [==>..................]  {action} = {done}% (118008064/936571904) finish=68.1min speed=200112K/sec"
    machine.sub("proc/mdstat", r"^( +\d+ blocks super 1.2 \[2/2\] \[UU\])", rf"\1\n{bar}")
    machine.write("sys/block/md127/md/sync_action", action)
    if action == "resync":
        machine.write("sys/block/md127/md/array_state", "active")
    machine.say(age, f"md: {'data-check' if action == 'check' else 'resync'} of RAID array md127")
    return Variant(f"{action} of the array below /", 2 * HOUR, steady=True)


@churn("corrected memory errors", 0.32, "Linux, drivers/edac/edac_mc.c", BARE, DRAM + "about a third have one")
def _corrected(rng: random.Random, machine: Machine, age: float) -> Variant:
    count, slot = rng.choice((1, 14, 900)), rng.randrange(DIMMS // 2)
    machine.add(f"{EDAC}/mc0/ce_count", count)
    machine.add(f"{EDAC}/mc0/dimm{slot}/dimm_ce_count", count)
    where = f"CPU_SrcID#0_MC#0_Chan#{slot}_DIMM#0 (channel:{slot} slot:0 page:0x1f8b13 offset:0x0 grain:32)"
    machine.say(age, "mce: [Hardware Error]: Machine check events logged")
    machine.say(age, f"EDAC MC0: {min(count, 99)} CE memory read error on {where}")
    return Variant(f"{count} corrected errors of memory module {slot}", DAY, counters=True)


_STEP: Final = "/system.slice/slurmstepd.scope/job_4711"
_KILLED: Final = "total-vm:941292512kB, anon-rss:671088640kB, file-rss:8192kB, shmem-rss:0kB"
_END: Final = "---[ end trace 0000000000000000 ]---"
_LINES: Final[tuple[tuple[str, float, str, float, tuple[tuple[str, ...], ...]], ...]] = (
    ("soft lockup of days ago", 0.3, "Linux, kernel/watchdog.c; the task went on", 3 * DAY, (
        ("watchdog: BUG: soft lockup - CPU#7 stuck for 26s! [python:8122]",),
        ("watchdog: BUG: soft lockup - CPU#3 stuck for 26s! [kworker/3:1:411]",
         "watchdog: BUG: soft lockup - CPU#3 stuck for 52s! [kworker/3:1:411]"))),
    ("warning of the kernel", 0.5, "Linux, kernel/panic.c: __warn", 0.0, (
        ("WARNING: CPU: 12 PID: 0 at net/sched/sch_generic.c:467 dev_watchdog+0x277/0x280", "Call Trace:", _END),
        ("WARNING: CPU: 1 PID: 81922 at mm/page_alloc.c:5532 __alloc_pages+0x1f6/0x230", "Call Trace:", _END))),
    ("segfault of a job", 6.0, "Linux, arch/x86/mm/fault.c: show_signal_msg", 0.0, (
        ("python[81922]: segfault at 7f3c ip 00007f3c8d2a sp 00007ffe0f28 error 4 in libnccl.so.2.27.5[7f3c8c+d0d]",),
        ("traps: pt_main_thread[81922] general protection fault ip:7f9a sp:7ffd error:0 in libcudart.so.12",))),
    ("job out of memory in its cgroup", 8.0, "Linux, mm/oom_kill.c: CONSTRAINT_MEMCG", 0.0, (
        ("python invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=0",
         f"oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),oom_memcg={_STEP},"
         f"task_memcg={_STEP}/step_0/user/task_0,task=python,pid=81922,uid=1001",
         f"Memory cgroup out of memory: Killed process 81922 (python) {_KILLED}, UID:1001 oom_score_adj:0"),)),
    ("hung task that ended", 2.0, "Linux, kernel/hung_task.c; a slow file server or a checkpoint", 0.0, (
        ("INFO: task python:81922 blocked for more than 120 seconds.",),
        tuple(f"INFO: task kworker/u448:3:911 blocked for more than {120 * n} seconds." for n in range(1, 11)),
        tuple(f"INFO: task nvidia-smi:81922 blocked for more than {120 * n} seconds." for n in (1, 2, 3)))),
    ("file server answers again", 4.0, "Linux, net/sunrpc/clnt.c: server OK", 0.0, (
        ("nfs: server nfs.example not responding, still trying", "nfs: server nfs.example OK"),
        ("nfs: server nfs.example not responding, still trying",) * 4 + ("nfs: server nfs.example OK",) * 4)),
    ("disk's command timed out", 0.3, "Linux, drivers/nvme/host/pci.c: nvme_timeout", 0.0, (
        ("nvme nvme1: I/O 12 QID 3 timeout, aborting", "nvme nvme1: Abort status: 0x0"),
        ("nvme nvme1: I/O 12 QID 3 timeout, aborting", "nvme nvme1: Abort status: 0x0",
         "nvme nvme1: I/O 12 QID 3 timeout, reset controller", "nvme nvme1: 64/0/0 default/read/poll queues"))),
)  # fmt: skip
"""What the kernel says of what is over: class, rate, source, how old it is at least, and the lines of each variant."""


def _over(older: float, variants: tuple[tuple[str, ...], ...]) -> Look:
    """The kernel's lines, each a while before the next one."""

    def look(rng: random.Random, machine: Machine, age: float) -> Variant:
        lines = rng.choice(variants)
        who = lines[0].partition(":")[0]
        apart = {"INFO": 122.0, "watchdog": 26.0, "nfs": 20.0}.get(who, 0.0)
        for number, line in enumerate(reversed(lines)):
            machine.say(age + older + number * apart, line)
        if taint := {"watchdog": 1 << 14, "WARNING": 1 << 9}.get(who):
            machine.write("proc/sys/kernel/tainted", str(12288 | taint))
        return Variant(f"{lines[0][:60]}: {len(lines)} lines", LOG)

    return look


for _name, _rate, _source, _older, _variants in _LINES:
    churn(_name, _rate, _source)(_over(_older, _variants))


@churn("nvidia_uvm loaded late at boot", 2.0, "systemd-modules-load(8); nvidia-modprobe: at the first use")
def _late_module(rng: random.Random, machine: Machine, age: float) -> Variant:
    late = rng.choice((20.0, 50.0))
    machine.restart(age + 35)
    if age < late:
        without_uvm(machine)
    return Variant(f"nvidia_uvm comes {35 + late:.0f} s after the boot", 2 * HOUR, marks=(late,))


@churn("driver upgrade in progress", 1.0, "NVIDIA driver installation guide: packages first, then the module")
def _upgrading(rng: random.Random, machine: Machine, age: float) -> Variant:
    library, lasts = rng.random() < 0.6, rng.choice((3 * MINUTE, 8 * MINUTE))
    if library:
        mismatch(machine)
    else:
        machine.without_driver()
    how = "replaced: the library is newer" if library else "unloaded"
    return Variant(f"driver {how} for {lasts / 60:.0f} min", lasts)


@churn("neighbour's process (shard, MPS, suspended)", 6.0, "slurm.conf(5): gres/shard, gres/mps, PreemptMode")
def _neighbour(rng: random.Random, machine: Machine, age: float) -> Variant:
    form, group = rng.choice(("shard", "MPS", "suspended")), "/system.slice/slurmstepd.scope/job_11"
    machine.start(70000, "slurmstepd", "S", age + 60, f"{group}/slurm", 0)
    machine.start(70001, "python", "T" if form == "suspended" else "R", age + 50, f"{group}/step_0/user/task_0")
    pids = [70001]
    if form == "MPS":
        machine.start(70002, "nvidia-cuda-mps-server", "S", age + HOUR, "/system.slice/nvidia-mps.service", 0)
        pids.append(70002)
    machine.gpu(0).update(processes=[{"pid": pid, "used_bytes": 8 * _GIB} for pid in pids])
    machine.facts["environ"] = {"SLURM_JOB_GPUS": "0", "SLURM_JOB_ID": "12"}
    machine.write("proc/self/limits", machine.read("proc/2212/limits"))
    return Variant(f"another job's process is on GPU 0 ({form})", 5 * HOUR, steady=True)


@churn("card for a display", 0.05, "DGX Station A100: a T1000", ("hgx_h100_roce", "workstation_bridge"))
def _display(rng: random.Random, machine: Machine, age: float) -> Variant:
    name, address = rng.choice(("NVIDIA T1000 8GB", "NVIDIA RTX A400")), "0000:05:00.0"
    count = machine.base.expected_gpus
    missing = ("fabric", "rows", "ecc_volatile", "ecc_aggregate", "margin_celsius", "memory_temperature_celsius",
               "links", "link_errors", "slowdown_margin_celsius", "gpu_max_margin_celsius", "repair",
               "sram_threshold_exceeded")  # fmt: skip
    watts = dict.fromkeys(("power_limit_watts", "default_power_limit_watts", "enforced_power_limit_watts"), 50.0)
    card = {**machine.gpus[0], **dict.fromkeys(missing), **watts, "index": count, "minor": count, "name": name,
            "uuid": "GPU-0000000d-5f1e-4c1a-8a6d-2b7c9d1e000d", "bus_id": address, "board_part": "900-5G172",
            "max_sm_mhz": 2100, "application_sm_mhz": None, "default_sm_mhz": None,
            "errors": dict.fromkeys(missing, "NOT_SUPPORTED")}  # fmt: skip
    machine.gpus.append(card)
    for kind in ("p2p_read", "p2p_write"):
        machine.nvml[kind] = [[*row, 1] for row in machine.nvml[kind]] + [[1] * count + [None]]
    for field, text in (("vendor", "0x10de"), ("device", "0x1fb0"), ("class", "0x030000"), ("numa_node", "0"),
                        ("current_link_width", "4"), ("max_link_width", "4"), ("current_link_speed", "8.0 GT/s PCIe"),
                        ("max_link_speed", "8.0 GT/s PCIe")):  # fmt: skip
        machine.write(f"{PCI}/{address}/{field}", text)
    machine.write(f"sys/bus/pci/drivers/nvidia/{address}/enable", "1")
    machine.write(f"dev/nvidia{count}", "")
    return Variant(f"a {name} beside the {count} GPUs", 90 * DAY, steady=True)


@churn("BMC caps the GPUs of a job", 1.0, "DMTF Redfish: PowerLimitWatts; nvml.h: nvmlDeviceGetEnforcedPowerLimit", HGX)
def _bmc_cap(rng: random.Random, machine: Machine, age: float) -> Variant:
    which, watts = rng.sample(range(8), rng.choice((1, 2, 4))), rng.choice((450.0, 500.0, 600.0))
    for number in which:
        machine.gpu(number)["enforced_power_limit_watts"] = watts
    return Variant(f"{len(which)} GPUs capped at {watts:.0f} W from outside", 6 * HOUR, steady=True)


@churn("diskless root", 0.05, "dracut.cmdline(7): rd.live.overlay; Warewulf: root in a tmpfs", BARE)
def _diskless(rng: random.Random, machine: Machine, age: float) -> Variant:
    form, left = rng.choice(("overlay", "tmpfs")), rng.choice((_GIB // 5, _GIB))
    overlay = (
        "LiveOS_rootfs / overlay rw,relatime,lowerdir=/run/rootfsbase,upperdir=/run/overlayfs,workdir=/run/ovlwork"
    )
    machine.sub(
        MOUNTS, r"^/dev/mapper/system-root / .*", f"{overlay if form == 'overlay' else 'tmpfs / tmpfs rw,relatime'} 0 0"
    )
    machine.sub("etc/fstab", r"^/dev/mapper/system-root / .*\n", "")
    machine.size("/", 2 * _GIB if form == "overlay" else 8 * _GIB, left)
    if form == "overlay":
        machine.mount("/dev/loop0 /run/rootfsbase squashfs ro,relatime", 3 * _GIB)
    machine.mount("/dev/nvme0n1p2 /tmp xfs rw,relatime", 800 * _GIB, 700 * _GIB)
    return Variant(f"root is an {form} in memory with {left / _GIB:.1f} GiB left", 90 * DAY, steady=True)


@churn("fifth or second port not cabled", 0.2, "IBTA: Polling; BlueField-3 user manual", HGX)
def _spare_port(rng: random.Random, machine: Machine, age: float) -> Variant:
    form, device = rng.choice(("fifth", "DPU", "same model")), "mlx5_6"
    if form == "fifth":
        device, absent = "mlx5_9", ("mlx5_5", "mlx5_7", "mlx5_8")
        for one in absent:
            address = machine.base.address_of(one)
            for path in (f"{RDMA}/{one}", f"{NET}/{machine.netdev(one)}", f"{PCI}/{address}"):
                machine.remove(path)
            machine.remove(f"sys/bus/pci/drivers/mlx5_core/{address}")
    elif form == "DPU":
        for one in ("mlx5_1", "mlx5_6"):
            for name, text in (("hca_type", "MT41692"), ("board_id", "MT_0000000884"), ("device/device", "0xa2dc")):
                machine.write(f"{RDMA}/{one}/{name}", text)
    else:
        alike(machine)
    machine.set_port(device, "1: DOWN", "2: Polling")
    for name in ("carrier_up_count", "carrier_down_count"):
        machine.write(f"{NET}/{machine.netdev(device)}/{name}", "0")
    return Variant(f"{device} never cabled ({form})", 60 * DAY, steady=True)


@churn("processors isolated for jobs", 0.05, "Linux, kernel-parameters.txt: isolcpus", HGX)
def _isolated(rng: random.Random, machine: Machine, age: float) -> Variant:
    count = int(machine.read(f"{CPU}/present").split("-")[1]) + 1
    half = count // 2
    cpus = rng.choice((f"1-{half - 1},{half + 1}-{count - 1}", f"4-{count - 1}"))
    machine.write(f"{CPU}/isolated", cpus)
    machine.write("proc/cmdline", f"{machine.read('proc/cmdline')} isolcpus={cpus}")
    return Variant(f"isolcpus={cpus}", 90 * DAY, steady=True)


@churn("idle processors at their lowest clock", 20.0, "Linux, Documentation/admin-guide/pm/intel_pstate.rst", HGX)
def _idle(rng: random.Random, machine: Machine, age: float) -> Variant:
    for place in (machine.base.root / CPU).glob("cpufreq/policy*"):
        machine.write(f"{CPU}/cpufreq/{place.name}/scaling_cur_freq", "800000")
    return Variant("all processors idle at 800 MHz", 3 * HOUR, steady=True)


@churn("memory full of cache, or of its job", 30.0, "Linux, Documentation/filesystems/proc.rst: MemFree, MemAvailable")
def _full_memory(rng: random.Random, machine: Machine, age: float) -> Variant:
    cache = rng.random() < 0.6
    total = int(machine.read("proc/meminfo").split()[1])
    machine.sub("proc/meminfo", r"^MemFree: .*", f"MemFree: {total // 100} kB")
    if cache:
        machine.sub("proc/meminfo", r"^Cached: .*", f"Cached: {total * 9 // 10} kB")
    else:
        machine.sub("proc/meminfo", r"^MemAvailable: .*", f"MemAvailable: {total // 40} kB")
        machine.start(70021, "slurmstepd", "S", age + 60, "/system.slice/slurmstepd.scope/job_12/slurm", 0)
        machine.start(70022, "python", "R", age + 50, "/system.slice/slurmstepd.scope/job_12/step_0/user/task_0")
        machine.write("proc/70022/statm", f"{total // 4} {total * 9 // 40} 9000 1 0 {total * 9 // 40} 0")
        busy = 0.9 * int(machine.read(f"{CPU}/present").split("-")[1])
        machine.write("proc/loadavg", f"{busy:.2f} {busy:.2f} {busy:.2f} 98/3120 81222")
    by = "the page cache" if cache else "the job that asked for it"
    return Variant(f"99 % of the memory in use, by {by}", 9 * HOUR, steady=True)


@churn("memory a little less since a boot", 0.3, "Linux, Documentation/admin-guide/kdump: crashkernel=")
def _less_memory(rng: random.Random, machine: Machine, age: float) -> Variant:
    mebibytes = rng.choice((256, 512, 1024))
    machine.restart(age + 200)
    total = int(machine.read("proc/meminfo").split()[1])
    machine.sub("proc/meminfo", r"^MemTotal: .*", f"MemTotal: {total - (mebibytes << 10)} kB")
    machine.write("proc/cmdline", f"{machine.read('proc/cmdline')} crashkernel={mebibytes}M")
    return Variant(f"a newer kernel keeps {mebibytes} MiB for crash dumps", 20 * DAY, marks=(HOUR,))
