"""Faults that each look may find well, as the link is up again; that only equal parts show; and of what must be there.
Their fit look-alikes are in recurring_churn. Rates are our choice."""

import random
from typing import Final

from drains.events import BARE, DAY, HGX, HOUR, LOG, MINUTE, Variant
from drains.everyday_faults import fault
from drains.machine import NET, RDMA, Machine

SESSION: Final = "/user.slice/user-1007.slice/session-4.scope"
CPU: Final = "sys/devices/system/cpu"


@fault("one GPU's clock set far below its peers", 0.05, "nvmlDeviceGetApplicationsClock; NVIDIA: -ac", HGX)
def _one_clock(rng: random.Random, machine: Machine, age: float) -> Variant:
    share, one = rng.choice((0.45, 0.6, 0.7)), machine.gpu(rng.randrange(machine.base.expected_gpus))
    one["application_sm_mhz"] = int(one["default_sm_mhz"] * share) // 15 * 15
    return Variant(f"application clock at {share:.0%} on one GPU, left behind", DAY, steady=True)


@fault("one GPU held by heat, its peers not", 0.05, "nvmlClocksEventReasonHwThermalSlowdown", HGX)
def _one_hot(rng: random.Random, machine: Machine, age: float) -> Variant:
    number = rng.randrange(machine.base.expected_gpus)
    for one in machine.gpus:
        one.update(clocks_event_reasons=0, sm_mhz=1980)
    one = machine.gpu(number)
    one.update(clocks_event_reasons=0x40, sm_mhz=rng.choice((345, 780, 1200)))
    counted = dict(one["throttled_nanoseconds"] or {})
    kind = "hw_thermal" if "hw_thermal" in counted else "thermal"
    one["throttled_nanoseconds"] = {**counted, kind: counted.get(kind, 0) + int(max(age, 0) * 1e9)}
    return Variant(f"GPU {number} at {one['sm_mhz']} MHz by heat", DAY, counters=True)


@fault("one socket held down", 0.02, "Intel SDM 3B, 15.8.4.1; sysfs thermal_throttle", HGX)
def _one_socket(rng: random.Random, machine: Machine, age: float) -> Variant:
    policies = sorted((machine.base.root / CPU).glob("cpufreq/policy*"), key=lambda it: int(it.name[6:]))
    for at, place in enumerate(policies):
        second = at >= len(policies) // 2
        machine.write(f"{CPU}/cpu{place.name[6:]}/topology/physical_package_id", str(int(second)))
        if second:
            machine.write(f"{CPU}/cpufreq/{place.name}/scaling_cur_freq", "800000")
            machine.add(f"{CPU}/cpu{place.name[6:]}/thermal_throttle/package_throttle_count", 1 + int(max(age, 0) / 10))
    return Variant("the second socket at 800 MHz", DAY, counters=True)


@fault("a link lost each half an hour", 0.1, "gpud: 3 in 12 hours; Azure node checks: 5 in 24", HGX)
def _flaps(rng: random.Random, machine: Machine, age: float) -> Variant:
    device, every = rng.choice(machine.base.compute_ports), rng.choice((20, 30, 45)) * MINUTE
    times = 1 + int(max(age, 0) // every)
    machine.add(f"{RDMA}/{device}/ports/1/counters/link_downed", times)
    machine.add(f"{NET}/{machine.netdev(device)}/carrier_down_count", times)
    for number in range(min(times, 60)):
        back = f"IPv6: ADDRCONF(NETDEV_CHANGE): {machine.netdev(device)}: link becomes ready"
        machine.say(max(age - (times - 1 - number) * every, 0), back)
    marks = (3 * every, 2 * HOUR + every, 4 * HOUR)
    return Variant(f"{device} loses its link each {every / MINUTE:.0f} min", DAY, counters=True, marks=marks)


@fault("an NVMe controller reset each half an hour", 0.05, "Linux, drivers/nvme/host/pci.c")
def _resets(rng: random.Random, machine: Machine, age: float) -> Variant:
    every = rng.choice((20, 40)) * MINUTE
    for number in range(min(1 + int(max(age, 0) // every), 60)):
        at = max(age - number * every, 0)
        machine.say(at, "nvme nvme1: controller is down; will reset: CSTS=0x3, PCI_STATUS=0x10")
        machine.say(max(at - 7, 0), "nvme nvme1: 64/0/0 default/read/poll queues")
    return Variant("the controller below /scratch is reset again and again", DAY, marks=(2 * HOUR + every, 4 * HOUR))


@fault("a user's process past SLURM on a GPU", 0.3, "pam_slurm_adopt(8); NHC check_ps_unauth_users", BARE)
def _past_slurm(rng: random.Random, machine: Machine, age: float) -> Variant:
    number = rng.randrange(machine.base.expected_gpus)
    machine.start(70041, "python", "R", max(age, 1), SESSION, 1007)
    machine.gpu(number)["processes"] = [{"pid": 70041, "used_bytes": 60 << 30}]
    return Variant(f"a user who came by ssh computes on GPU {number}", 6 * HOUR, steady=True)


@fault("cgroups without the controller of memory", 0.02, "cgroup.conf(5); kernel-parameters: cgroup_disable=")
def _no_controller(rng: random.Random, machine: Machine, age: float) -> Variant:
    machine.write("etc/slurm/cgroup.conf", "ConstrainCores=yes\nConstrainRAMSpace=yes")
    if age >= 0:
        machine.restart(age + 150)
        machine.write("sys/fs/cgroup/cgroup.controllers", "cpuset cpu io pids rdma misc")
    return Variant("booted with cgroup_disable=memory", DAY, set_up=True)


@fault("no resolver", 0.05, "resolv.conf(5); systemd-resolved.service(8)")
def _no_names(rng: random.Random, machine: Machine, age: float) -> Variant:
    listens = "   sl  local_address rem_address\n  312: {}:{} 00000000:0000 07"
    machine.write("etc/nsswitch.conf", "passwd: files\nhosts: files dns")
    machine.write("etc/resolv.conf", "nameserver 127.0.0.53")
    address, port = ("3500007F", "0035") if age < 0 else ("00000000", "006F")
    machine.write("proc/net/udp", listens.format(address, port))
    return Variant("resolv.conf names this machine, where nothing listens", DAY, set_up=True)


@fault("an Ethernet link that came back slower", 0.05, "IEEE 802.3: 1000BASE-T needs four pairs; igb: SmartSpeed")
def _slower_link(rng: random.Random, machine: Machine, age: float) -> Variant:
    line, folder = "igb 0000:02:00.0 eno1: igb: eno1 NIC Link is {}", f"{NET}/eno1"
    machine.write(f"{folder}/operstate", "up")
    machine.write(f"{folder}/speed", "1000" if age < 0 else "100")
    machine.say(machine.uptime - 12, line.format("Up 1000 Mbps Full Duplex, Flow Control: RX/TX"))
    if age >= 0:
        machine.say(age + 4, line.format("Down"))
        machine.say(age, line.format("Up 100 Mbps Full Duplex, Flow Control: RX/TX"))
    return Variant("eno1 came back with 100 Mb/s", LOG, set_up=True)
