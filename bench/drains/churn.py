"""Ordinary churn: what happens to healthy nodes every day and must drain none of them."""

import random
from collections.abc import Callable
from typing import Final

from drains.events import (
    BARE,
    DAY,
    ECC,
    HGX,
    HOUR,
    LOG,
    MINUTE,
    NEWER,
    SMALL,
    EventClass,
    Look,
    Variant,
    process,
    register,
    xid,
)
from drains.machine import NET, PCI, RDMA, Machine

ASSUMED: Final = "assumed"
_CATALOGUE: Final = "NVIDIA Xid catalogue (docs.nvidia.com/deploy/xid-errors, 2025-10)"
_EXCEPTIONS: Final = (
    "Graphics SM Warp Exception on (GPC {gpc}, TPC 2, SM 1): Out Of Range Address",
    "Graphics Exception: ESR 0x50ef30=0x210000d 0x50ef34=0x4 0x50ef28=0xf812b60 0x50ef2c=0x1174",
    "Graphics SM Warp Exception on (GPC {gpc}, TPC 0, SM 0): Illegal Instruction Encoding",
    "Ch {channel:08x}",
)
_FAULTS: Final = (
    "Ch {channel:08x}, intr 00000000. MMU Fault: ENGINE GRAPHICS GPC{gpc} GPCCLIENT_T1_4 faulted @ 0x7f2e_5a000000. "
    "Fault is of type FAULT_PDE ACCESS_TYPE_VIRT_READ",
    "channel 0x{channel:08x}, intr 00000000. MMU Fault: ENGINE CE5 HUBCLIENT_CE1 faulted @ 0x7fd4_9b200000. "
    "Fault is of type FAULT_PTE ACCESS_TYPE_VIRT_WRITE",
)
_CLASS_ERROR: Final = ("Class Error: ChId {channel:04x}, Class 0000cbc0, Offset 000002c4, Data 00000000, ErrorCode 04",)
_CHANNEL: Final = ("Ch {channel:08x}", "channel 0x{channel:08x}", "Ch {channel:08x}, errorString CTX SWITCH TIMEOUT")
_SENTINEL: Final = "NVIDIA/NVSentinel#1629, #1710: Xids after the end of jobs, on 77 healthy nodes"

_NOBODY: Final = "pid='<unknown>', name=<unknown>"
_REMAPPING: Final = f"{_NOBODY}, Row Remapper: New row (0x7c0c58d) marked for remapping, reset gpu to activate."

CHURN: Final[list[EventClass]] = []


def churn(
    name: str, rate: float, source: str, kinds: tuple[str, ...] = (), prior: str = ASSUMED
) -> Callable[[Look], Look]:
    """Makes the function below it a class of harmless events, `rate` of them a node and year."""
    return register(CHURN, name, False, rate, source, prior, kinds)


def _application(code: int, texts: tuple[str, ...], after: tuple[int, ...] = ()) -> Look:
    """A program's own fault: Xid `code` on some GPUs, and the Xids that the end of the program leaves."""

    def look(rng: random.Random, machine: Machine, age: float) -> Variant:
        count = machine.base.expected_gpus
        gpus = rng.sample(range(count), rng.randint(1, min(8, count)))
        driver = machine.base.nvml["driver_version"]
        program, text, repeats = process(rng, driver), rng.choice(texts), rng.choice((1, 1, 2, 7))
        channel, follows = rng.randrange(1, 64), rng.random() < 0.6
        for gpu in gpus:
            for repeat in range(repeats):
                said = f"{program}, {text.format(channel=channel, gpc=channel % 8)}"
                xid(machine, age + repeat * 0.01, gpu, code, said)
            for later in after if follows else ():
                xid(machine, max(age - 0.1, 0.0), gpu, later, f"{program}, channel 0x{channel:08x}")
        named = program.partition(",")[0]
        return Variant(f"Xid {code} on {len(gpus)} GPUs, {repeats} lines each, as {named}", LOG)

    return look


for _name, _rate, _code, _texts, _after, _means, _kinds in (
    ("illegal address (Xid 13)", 6.0, 13, _EXCEPTIONS, (43, 45), "13 is RESTART_APP", ()),
    ("page fault (Xid 31)", 6.0, 31, _FAULTS, (43, 45), "31 is RESTART_APP", ()),
    ("channel reset (Xid 43)", 3.0, 43, _CHANNEL, (45,), "43 is IGNORE, the GPU remains healthy", ()),
    ("killed (Xid 45)", 10.0, 45, _CHANNEL, (), f"logged when an application aborts; {_SENTINEL}", ()),
    ("fault in a switch (Xid 44, 69)", 0.5, 69, _CLASS_ERROR, (), "69 is RESTART_APP, 44 IGNORE", ()),
    ("video decoder (Xid 68)", 0.5, 68, ("Ch {channel:08x}, NVDEC0 exception",), (), "68 is RESTART_APP", ()),
    ("peer refused (Xid 137)", 0.2, 137, ("Ch {channel:08x}, NVLink: remote translation error",), (),
     "137 is IGNORE", HGX),
):  # fmt: skip
    churn(f"app: {_name}", _rate, f"{_CATALOGUE}: {_means}", _kinds)(_application(_code, _texts, _after))


@churn("memory error, contained (Xid 94)", 0.6, f"{_CATALOGUE}: 94 is RESTART_APP, 63 IGNORE", ECC)
def _contained(rng: random.Random, machine: Machine, age: float) -> Variant:
    """A memory error that was contained: the program ends, the page is offlined, a row waits for the next reset."""
    gpu, program, errors = rng.randrange(machine.base.expected_gpus), process(rng, ""), rng.choice((1, 1, 2))
    remap = rng.random() < 0.7

    xid(machine, age, gpu, 94, f"{program}, Contained: CE User Channel (0x9). RST: No, D-RST: No")
    one = machine.gpu(gpu)
    one["ecc_volatile"] = (one["ecc_volatile"] or 0) + errors
    one["ecc_aggregate"] = (one["ecc_aggregate"] or 0) + errors
    if remap:
        xid(machine, age, gpu, 63, _REMAPPING)
        rows = one["rows"]
        one["rows"] = {**rows, "uncorrectable": rows["uncorrectable"] + 1, "pending": True}

    says = f"contained memory error on GPU {gpu}{', a row waits for a reset' if remap else ''}"
    return Variant(says, rng.choice((8 * HOUR, 30 * HOUR)), counters=True)


@churn("rows remapped by a reset (Xid 63)", 0.5, "NVIDIA GPU memory error management", ECC)
def _remapped(rng: random.Random, machine: Machine, age: float) -> Variant:
    """The row was remapped by a reset: counts of the board's life stay, nothing waits."""
    gpu, rows, reboot = rng.randrange(machine.base.expected_gpus), rng.choice((1, 2, 5)), rng.random() < 0.5

    if reboot:
        machine.restart(age + 200)
    else:
        _reload(machine, age + 100)
    xid(machine, age + 4000, gpu, 63, _REMAPPING)
    one = machine.gpu(gpu)
    one["rows"] = {**one["rows"], "uncorrectable": one["rows"]["uncorrectable"] + rows}
    one["ecc_aggregate"] = (one["ecc_aggregate"] or 0) + rows

    return Variant(f"{rows} rows of GPU {gpu} were remapped, by a {'reboot' if reboot else 'reset'}", DAY)


def _reload(machine: Machine, age: float, driver: str = "") -> None:
    """The driver was unloaded and loaded again."""
    machine.say(age + 20, "nvidia-nvlink: Unregistered Nvlink Core, major device number 234")
    machine.say(age, "nvidia-nvlink: Nvlink Core is being initialized, major device number 234")
    version = driver or machine.driver
    machine.say(age, f"NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  {version}  Release Build")


ERRORS: Final = {
    46: "pid='<unknown>', name=<unknown>, GPU stopped processing",
    62: "2c5e06d3 00006b6c 00000000 202f4a4e 202f0eba 2026e6b2 00000089 00000000",
    74: "NVLink: fatal error detected on link 14(0x0, 0x0, 0x10000, 0x0, 0x0, 0x0, 0x0)",
    109: "pid=81922, name=python, Ch 0000000e, errorString CTX SWITCH TIMEOUT, Info 0x8c025",
    119: "pid=2512, name=nvidia-smi, Timeout after 6s of waiting for RPC response from GPU0 GSP! "
    "Expected function 76 (GSP_RM_CONTROL) (0x20802a02 0x1c).",
    120: "pid=2512, name=python, GSP task exception: unexpected fault",
    143: "pid='<unknown>', name=<unknown>, GPU initialization error",
}  # fmt: skip


@churn("reset after an error", 0.8, f"{_CATALOGUE}: RESET_GPU was done; Xid 154 from R565 on")
def _reset(rng: random.Random, machine: Machine, age: float) -> Variant:
    """A GPU met an error that asks for a reset, was reset, and works: the log's old line is all that is left. Drivers
    from 565 on log the request and its end (Xid 154); older ones log neither."""
    gpu, code = rng.randrange(machine.base.expected_gpus), rng.choice(sorted(ERRORS))
    old = machine.base.nvml["driver_version"].startswith("535")
    reload = rng.random() < 0.3
    before = rng.choice((5 * MINUTE, 40 * MINUTE, 3 * HOUR))

    xid(machine, age + before, gpu, code, ERRORS[code])
    if reload:
        _reload(machine, age)
    elif not old:
        change = "GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)"
        xid(machine, age + before - 1, gpu, 154, change)
        xid(machine, age, gpu, 154, "GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)")

    how = "the driver was reloaded" if reload else "nvidia-smi --gpu-reset"
    return Variant(f"Xid {code} on GPU {gpu}, then {how}: it works", DAY)


@churn("hung kernel killed (Xid 109)", 0.3, f"{_CATALOGUE}: 154's action holds, and it is none", NEWER)
def _recovered_by_itself(rng: random.Random, machine: Machine, age: float) -> Variant:
    """A user's kernel that never ended was killed: a switch of contexts timed out; the driver asks for nothing."""
    gpu, program = rng.randrange(machine.base.expected_gpus), process(rng, "")

    xid(machine, age, gpu, 109, f"{program}, Ch 0000000e, errorString CTX SWITCH TIMEOUT, Info 0x8c025")
    xid(machine, max(age - 0.5, 0), gpu, 45, f"{program}, Ch 0000000e")

    return Variant(f"Xid 109 of a hung kernel on GPU {gpu}; recovery action: none", LOG)


@churn("driver upgraded in place", 2.0, "open-gpu-kernel-modules, nv.c: the line of a driver that is loaded")
def _upgrade(rng: random.Random, machine: Machine, age: float) -> Variant:
    """The driver was upgraded without a reboot; the log still has what the old one wrote."""
    new, left = rng.choice(("550.127.05", "570.133.20", "580.105.08", "595.58.03")), rng.random() < 0.6
    code, gpu = rng.choice(sorted(ERRORS)), rng.randrange(machine.base.expected_gpus)

    if left:
        xid(machine, age + 5 * HOUR, gpu, code, ERRORS[code])
    _reload(machine, age + 90, new)
    machine.nvml["driver_version"] = new
    machine.write("sys/module/nvidia/version", new)
    machine.sub("proc/driver/nvidia/version", r"x86_64  \S+", f"x86_64  {new}")
    for one in machine.gpus:  # counters since the driver was loaded begin anew
        one["throttled_nanoseconds"] = {name: 0 for name in one["throttled_nanoseconds"]}

    before = f", Xid {code} before" if left else ""
    return Variant(f"driver upgraded to {new} in place{before}", DAY, counters=True)


@churn("reboot", 4.0, "nvml.h: NVML_GPU_FABRIC_STATE_IN_PROGRESS; IBTA: INIT until the subnet manager activates")
def _reboot(rng: random.Random, machine: Machine, age: float) -> Variant:
    """A planned reboot. For a minute the fabric is being connected and InfiniBand waits for its subnet manager."""
    fabric = rng.choice((20.0, 50.0, 80.0))
    offset = rng.choice((0.0, 0.02))

    machine.restart(age + 45)
    if machine.base.has_switches and age < fabric:
        for one in machine.gpus:
            one["fabric"] = {"state": 2, "status": 0, "health_mask": 0}
    for port in machine.ports():
        if not port.ethernet and age < fabric:
            machine.set_port(port.device, "2: INIT", "5: LinkUp")
    if age < 4 * MINUTE:
        machine.facts["clock"] = {**machine.facts["clock"], "status": 64, "state": 5, "offset_seconds": offset}
    for port in machine.ports():
        if port.netdev:
            machine.write(f"{NET}/{port.netdev}/carrier_up_count", "1")

    return Variant(f"reboot; the fabric takes {fabric:.0f} s", 2 * HOUR, marks=(fabric, 4 * MINUTE))


@churn("repaired, old journal", 0.5, "journald keeps earlier boots")
def _old_journal(rng: random.Random, machine: Machine, age: float) -> Variant:
    """The node was repaired and rebooted; the journal still holds the fault of the boot before."""
    gpu, code = rng.randrange(machine.base.expected_gpus), rng.choice((79, 48, 95, 119))
    text = {79: "pid='<unknown>', name=<unknown>, GPU has fallen off the bus.", 119: ERRORS[119]}.get(
        code, "pid='<unknown>', name=<unknown>, DBE (double bit error) detected"
    )
    gap = rng.choice((30 * MINUTE, 5 * HOUR))

    machine.restart(age + 300)
    xid(machine, age + 300 + gap, gpu, code, text)

    return Variant(f"repaired and rebooted; Xid {code} of {gap / HOUR:g} h ago in the journal", 6 * HOUR)


@churn("MIG divided", 0.3, "NVIDIA MIG user guide: no NVLink peer-to-peer with MIG", HGX)
def _mig(rng: random.Random, machine: Machine, age: float) -> Variant:
    """GPUs are divided by MIG: links of such a GPU read as down, peers cannot be reached."""
    count = machine.base.expected_gpus
    which = list(range(count)) if rng.random() < 0.5 else rng.sample(range(count), rng.randint(1, count - 1))

    for number in which:
        one = machine.gpu(number)
        one["mig"] = True
        if one["links"]:
            one["links"] = [False] * len(one["links"])

    return Variant(f"MIG on {len(which)} of {count} GPUs", 3 * DAY, steady=True)


@churn("GPU lent to a guest", 0.2, "Linux, Documentation/driver-api/vfio.rst", BARE)
def _lent(rng: random.Random, machine: Machine, age: float) -> Variant:
    """A GPU is given to a guest: bound to vfio-pci or a variant of it (Linux, drivers/vfio/pci/nvgrace-gpu)."""
    number = rng.randrange(machine.base.expected_gpus)
    driver = rng.choice(("vfio-pci", "nvgrace_gpu_vfio_pci", "pci-stub"))

    address = str(machine.base.nvml["gpus"][number]["bus_id"])
    machine.unlist(number)
    machine.remove(f"sys/bus/pci/drivers/nvidia/{address}")
    machine.write(f"sys/bus/pci/drivers/{driver}/{address}/enable", "1")

    return Variant(f"GPU {number} given to a guest, by {driver}", 2 * DAY, steady=True)


@churn("storage NIC taken out", 0.2, "Linux, mlx5/core/health.c: poll_health", HGX)
def _nic_taken_out(rng: random.Random, machine: Machine, age: float) -> Variant:
    """A storage NIC was removed from the bus and rescanned (firmware update, SR-IOV): the driver writes that it lost
    it, then starts it anew."""
    device, back = rng.choice(("mlx5_1", "mlx5_6")), rng.random() < 0.7

    address = machine.base.address_of(device)
    line = f"mlx5_core {address}: poll_health:816:(pid 0): device's health compromised - reached miss count"
    machine.say(age + 30, line)
    if back and age > 2 * MINUTE:
        machine.say(age - 100, f"mlx5_core {address}: firmware version: 22.41.1000")
    else:
        machine.remove(f"{RDMA}/{device}")
        machine.remove(f"{PCI}/{address}")

    return Variant(f"{device} (storage) taken from the bus{', rescanned' if back else ''}", DAY)


@churn("storage port unused", 0.3, "IBTA physical states Polling and Disabled", HGX)
def _never_cabled(rng: random.Random, machine: Machine, age: float) -> Variant:
    """A storage port that nobody cabled, or that was set down for maintenance."""
    device, how = rng.choice(("mlx5_1", "mlx5_6")), rng.choice(("never", "no longer"))

    machine.set_port(device, "1: DOWN", "3: Disabled" if how == "no longer" else "2: Polling")
    netdev = machine.netdev(device)
    machine.write(f"{NET}/{netdev}/carrier_up_count", "0" if how == "never" else "1")

    return Variant(f"storage port {device}: {how} used", 30 * DAY, steady=True)


@churn("leaf switch upgraded", 1.0, "IBTA PortCounters LinkDownedCounter", HGX)
def _leaf_switch(rng: random.Random, machine: Machine, age: float) -> Variant:
    """The leaf switch of a rail is upgraded: its port goes away and comes back, once to three times in a night."""
    device, times = rng.choice(machine.base.compute_ports), rng.choice((1, 2, 3, 3))
    down, every = rng.choice((100.0, 200.0)), 25 * MINUTE
    end = (times - 1) * every + down

    begun = min(times, 1 + int(age // every))
    if age < end and age % every < down:
        machine.set_port(device, "1: DOWN", "2: Polling")
    machine.add(f"{RDMA}/{device}/ports/1/counters/link_downed", begun)
    machine.add(f"{NET}/{machine.netdev(device)}/carrier_down_count", begun)
    for number in range(begun):
        line = f"mlx5_core {machine.base.address_of(device)} {machine.netdev(device)}: Link down"
        machine.say(max(age - number * every, 0.0), line)

    return Variant(f"leaf switch of {device} upgraded: {times} restarts", 14 * HOUR, counters=True, not_judged=end)


@churn("subnet manager restarted or moved", 3.0, "IBTA: INIT until the subnet manager activates", ("hgx_h100_ib",))
def _subnet_manager(rng: random.Random, machine: Machine, age: float) -> Variant:
    """The subnet manager was restarted, or another one took over: all ports are in INIT until it has swept."""
    lasts, moved = rng.choice((20.0, 45.0, 90.0, 120.0)), rng.random() < 0.5

    for port in machine.ports():
        if not port.ethernet:
            machine.set_port(port.device, "2: INIT", "5: LinkUp")
            machine.write(f"{RDMA}/{port.device}/ports/1/sm_lid", "0x7" if moved else "0x1")

    return Variant(f"subnet manager {'moved' if moved else 'restarted'}: INIT for {lasts:.0f} s", lasts, steady=True)


@churn("one firmware command timed out", 0.8, "Linux, mlx5/core/cmd.c: completion arrived after timeout", HGX)
def _command_timeout(rng: random.Random, machine: Machine, age: float) -> Variant:
    """One command of a NIC's firmware timed out and completed later (Linux, mlx5/core/cmd.c)."""
    device = rng.choice(machine.base.ports)
    command = rng.choice(("ACCESS_REG(0x805)", "QUERY_VPORT_COUNTER(0x770)", "MODIFY_CQ(0x403)"))

    address = machine.base.address_of(device)
    late = f"{command} timeout. Will cause a leak of a command resource"
    machine.say(age, f"mlx5_core {address}: wait_func:1195:(pid 27318): {late}")
    if age > 1:
        done = "Command completion arrived after timeout (entry idx = 2)."
        machine.say(age - 1, f"mlx5_core {address}: mlx5_cmd_comp_handler:1707:(pid 0): {done}")

    return Variant(f"one command of {device} timed out and completed: {command}", LOG)


@churn("a peer died", 4.0, "NVIDIA: Understanding mlx5 hw counters (rnr_nak_retry_err, local_ack_timeout_err)", HGX)
def _peer_died(rng: random.Random, machine: Machine, age: float) -> Variant:
    """Another node of the job died: retries run out here, and no bit was damaged."""
    count, device = rng.choice((3, 40, 900)), rng.choice(machine.base.compute_ports)

    folder = f"{RDMA}/{device}/ports/1/hw_counters"
    machine.add(f"{folder}/local_ack_timeout_err", count * 7)
    machine.add(f"{folder}/rnr_nak_retry_err", count)
    machine.add(f"{folder}/packet_seq_err", count)

    return Variant(f"a peer died: {count} retries ran out on {device}", 4 * HOUR, counters=True)


@churn("congestion", 3.0, "NVIDIA: Understanding mlx5 hw counters (out_of_sequence, roce_slow_restart)", HGX)
def _congestion(rng: random.Random, machine: Machine, age: float) -> Variant:
    count, device = rng.choice((20_000, 3_000_000)), rng.choice(machine.base.compute_ports)

    folder = f"{RDMA}/{device}/ports/1"
    machine.add(f"{folder}/counters/port_xmit_discards", count)
    machine.add(f"{folder}/hw_counters/out_of_sequence", count * 3)
    machine.add(f"{folder}/hw_counters/roce_slow_restart", count // 10)

    return Variant(f"congestion: {count} packets thrown away on {device}", 4 * HOUR, counters=True)


@churn("counts of years", 0.1, "leptonai/gpud testdata: link_downed 255 on an active port", HGX)
def _old_counters(rng: random.Random, machine: Machine, age: float) -> Variant:
    """Counters of years ago, at their highest value (leptonai/gpud, testdata of an H100 node: link_downed = 255)."""
    device = rng.choice(machine.base.compute_ports)

    folder = f"{RDMA}/{device}/ports/1/counters"
    machine.write(f"{folder}/link_downed", "255")
    machine.write(f"{folder}/symbol_error", "65535")
    machine.gpu(0)["ecc_aggregate"] = 7

    return Variant(f"{device} carries the counts of years", 30 * DAY, counters=True, steady=True)


@churn("idle PCIe links", 20.0, "nvidia-smi manual, pcie.link.gen.current", SMALL)
def _idle_pcie(rng: random.Random, machine: Machine, age: float) -> Variant:
    """Idle GPUs run their links slower (nvidia-smi's manual: "may be reduced when the GPU is not in use")."""
    count = machine.base.expected_gpus
    which = list(range(count)) if rng.random() < 0.4 else rng.sample(range(count), rng.randint(1, count))
    speed = rng.choice(("2.5", "5.0"))

    for number in which:
        machine.write(f"{PCI}/{machine.gpu(number)['bus_id']}/current_link_speed", f"{speed} GT/s PCIe")
    for number, one in enumerate(machine.gpus):
        if number not in which:
            one.update(clocks_event_reasons=0, sm_mhz=1700, temperature_celsius=62, processes=[{"pid": 4711}])

    return Variant(f"{len(which)} of {count} GPUs idle at {speed} GT/s", 5 * HOUR, steady=True)


@churn("user's or pod's FUSE mount", 3.0, "Linux fuse: ENOTCONN after the daemon's end")
def _fuse(rng: random.Random, machine: Machine, age: float) -> Variant:
    """A user's FUSE mount whose program died or hangs, or that of a pod that is gone."""
    point, kind, source = rng.choice(
        (
            ("/home/ann/data", "fuse.sshfs", "ann@login:/data"),
            ("/tmp/ben/bucket", "fuse.rclone", "s3:bucket"),
            ("/scratch/eve/mnt", "fuse.gcsfuse", "models"),
            ("/var/lib/kubelet/pods/3f0a5c1e/volumes/kubernetes.io~csi/data/mount", "fuse.mountpoint-s3", "mountpoint"),
        )
    )  # fmt: skip
    dead, shared = rng.random() < 0.6, rng.random() < 0.5
    options = f"rw,nosuid,nodev,relatime,user_id=1000,group_id=1000{',allow_other' if shared else ''}"
    if "kubelet" in point:
        options = "rw,nosuid,nodev,noatime,user_id=0,group_id=0,default_permissions,allow_other"

    machine.mount(f"{source} {point} {kind} {options}")
    machine.replies[point] = {"error": "Transport endpoint is not connected"} if dead else {"silent_seconds": 3.0}

    says = f"{kind} at {point[:32]} {'died' if dead else 'hangs'}{', allow_other' if shared else ''}"
    return Variant(says, 10 * HOUR, steady=True)


@churn("power or clock set on purpose", 1.5, "nvidia-smi manual: -pl, -ac")
def _power_cap(rng: random.Random, machine: Machine, age: float) -> Variant:
    """An administrator or a job's owner set power or clocks lower on purpose, on all GPUs or on one. One clock that is
    far below its peers' is a fault, whoever set it: the next job waits for it."""
    whole, what, share = rng.random() < 0.5, rng.choice(("watts", "clock")), rng.choice((0.6, 0.71, 0.86))
    share = share if whole or what == "watts" else rng.choice((0.8, 0.86))
    which = range(machine.base.expected_gpus) if whole else (rng.randrange(machine.base.expected_gpus),)

    for number in which:
        one = machine.gpu(number)
        if what == "watts":
            one["power_limit_watts"] = round(one["default_power_limit_watts"] * share)
        elif one["application_sm_mhz"]:
            one["application_sm_mhz"] = int(one["default_sm_mhz"] * share) // 15 * 15

    named = "power limit" if what == "watts" else "application clock"
    return Variant(f"{named} at {share:.0%} on {'all GPUs' if whole else 'one GPU'}, on purpose", 6 * HOUR, steady=True)


@churn("busy at the power limit", 20.0, "nvml.h: nvmlClocksEventReasonSwPowerCap is no fault")
def _at_the_cap(rng: random.Random, machine: Machine, age: float) -> Variant:
    """A busy node at its power limit (SwPowerCap), a little warm: 3 % of the time by the driver's limit."""
    hot = rng.choice((0.0, 0.01, 0.05))

    for one in machine.gpus:
        counted = one["throttled_nanoseconds"]
        if "sw_thermal" in counted:
            counted["sw_thermal"] += int(age * hot * 1e9)
        one.update(clocks_event_reasons=0x4, temperature_celsius=68, memory_temperature_celsius=86, sm_mhz=1455,
                   margin_celsius=15, processes=[{"pid": 4711, "used_bytes": 70 << 30}])  # fmt: skip

    return Variant(f"busy at the power limit, {hot:.0%} of the time warm", 12 * HOUR, counters=True)


@churn("power brake by the facility", 0.3, "nvml.h: HwPowerBrakeSlowdown, asserted from outside", HGX)
def _brake(rng: random.Random, machine: Machine, age: float) -> Variant:
    """The facility pulled the power brake for some minutes (demand response, a power supply that was swapped)."""
    lasts = rng.choice((3 * MINUTE, 12 * MINUTE))

    for one in machine.gpus:
        counted = one["throttled_nanoseconds"]
        name = "hw_power_brake" if "hw_power_brake" in counted else "board_limit"
        counted[name] += int(min(age, lasts) * 1e9)
        if age < lasts:
            one["clocks_event_reasons"] = 0x88

    return Variant(f"power brake by the facility for {lasts / MINUTE:.0f} min, on all GPUs", 2 * HOUR, counters=True)


@churn("margin of a cool GPU", 0.1, "leptonai/gpud@035de368", HGX)
def _cool_margin(rng: random.Random, machine: Machine, age: float) -> Variant:
    """Cool H100 whose margin reads 0 or -5 (leptonai/gpud@035de368)."""
    gpu, margin = rng.randrange(machine.base.expected_gpus), rng.choice((0, -5))

    machine.gpu(gpu)["margin_celsius"] = margin

    return Variant(f"cool GPU {gpu} reports a margin of {margin} C", DAY, steady=True)


@churn("unsupported PCIe request", 0.3, "PCIe base specification 6.2.3: Unsupported Request is advisory", BARE)
def _unsupported_request(rng: random.Random, machine: Machine, age: float) -> Variant:
    """One request that a device does not support, reported by AER while a driver probed it."""
    number = rng.randrange(machine.base.expected_gpus)

    address = machine.base.nvml["gpus"][number]["bus_id"]
    path = f"{PCI}/{address}/aer_dev_nonfatal"
    if text := machine.read(path):
        machine.write(path, text.replace("TOTAL_ERR_NONFATAL 0", "UnsupReq 1\nTOTAL_ERR_NONFATAL 1"))
    error = "severity=Uncorrected (Non-Fatal), type=Transaction Layer, (Requester ID)"
    machine.say(age, f"nvidia {address}: AER: PCIe Bus Error: {error}")
    machine.say(age, f"nvidia {address}:    [20] UnsupReq               (First)")

    return Variant(f"one unsupported request of GPU {number}", 4 * HOUR, counters=True)


@churn("corrected PCIe errors", 2.0, "PCIe base specification: corrected by replay", BARE)
def _corrected(rng: random.Random, machine: Machine, age: float) -> Variant:
    count, number = rng.choice((1, 12, 60)), rng.randrange(machine.base.expected_gpus)

    address = machine.base.nvml["gpus"][number]["bus_id"]
    path = f"{PCI}/{address}/aer_dev_correctable"
    if text := machine.read(path):
        machine.write(path, text.replace("TOTAL_ERR_COR 0", f"BadTLP {count}\nTOTAL_ERR_COR {count}"))

    return Variant(f"{count} corrected PCIe errors of GPU {number}", 6 * HOUR, counters=True)


@churn("persistence mode off", 0.2, "nvidia-smi manual: -pm")
def _persistence_off(rng: random.Random, machine: Machine, age: float) -> Variant:
    for one in machine.gpus:
        one["persistence"] = False

    return Variant("persistence mode is off", 10 * DAY, steady=True)


@churn("diagnostics by others", 2.0, "DCGM user guide: dcgmproftester")
def _diagnostics(rng: random.Random, machine: Machine, age: float) -> Variant:
    """dcgmproftester or nvbandwidth of an administrator or of another tool: processes and full load for minutes."""
    which = rng.sample(range(machine.base.expected_gpus), rng.randint(1, machine.base.expected_gpus))

    for number in which:
        machine.gpu(number).update(
            processes=[{"pid": 91234, "used_bytes": 2 << 30}],
            clocks_event_reasons=0x4,
            temperature_celsius=72,
            sm_mhz=1395,
        )

    return Variant(f"dcgmproftester on {len(which)} GPUs", 10 * MINUTE, steady=True)


@churn("fabric manager restarted", 0.5, "NVIDIA fabric manager user guide: running jobs go on", HGX)
def _fabric_restart(rng: random.Random, machine: Machine, age: float) -> Variant:
    """The fabric manager was restarted by its package's update: GPUs stay registered, jobs go on."""
    lasts = rng.choice((15.0, 40.0))

    machine.remove("proc/3120")
    machine.remove("run/nvidia-fabricmanager/nv-fabricmanager.pid")

    return Variant(f"fabric manager restarted, away for {lasts:.0f} s", lasts, steady=True)
