"""What fit nodes show that is nearest to the faults of recurring_faults."""

import random

from drains.churn import churn
from drains.events import BARE, DAY, HGX, HOUR, LOG, MINUTE, Variant
from drains.machine import NET, RDMA, Machine


@churn("driver of the NICs loaded anew", 0.5, "mlx5_core: all ports go and come back; IPv6: link becomes ready", HGX)
def _reload(rng: random.Random, machine: Machine, age: float) -> Variant:
    times = rng.choice((1, 2, 3))
    for number in range(min(times, 1 + int(age // (10 * MINUTE)))):
        for port in machine.ports():
            at = max(age - number * 10 * MINUTE, 0)
            machine.say(at, f"IPv6: ADDRCONF(NETDEV_CHANGE): {port.netdev}: link becomes ready")
    return Variant(f"drivers of all NICs loaded anew, {times} times", LOG, marks=(10 * MINUTE, 20 * MINUTE))


@churn("switch of the Ethernet upgraded", 1.0, "Linux, igb: NIC Link is Down")
def _switch(rng: random.Random, machine: Machine, age: float) -> Variant:
    times, line = rng.choice((1, 3, 5)), "igb 0000:02:00.0 eno1: igb: eno1 NIC Link is {}"
    machine.write(f"{NET}/eno1/operstate", "up")
    machine.write(f"{NET}/eno1/speed", "1000")
    for number in range(min(times, 1 + int(age // (15 * MINUTE)))):
        at = max(age - number * 15 * MINUTE, 0)
        machine.say(at + 60, line.format("Down"))
        machine.say(at, line.format("Up 1000 Mbps Full Duplex, Flow Control: RX/TX"))
    return Variant(f"the switch of eno1 restarted {times} times", LOG, marks=(15 * MINUTE, 30 * MINUTE, HOUR))


@churn("clocks of a part set for its job", 0.3, "nvidia-smi manual: -ac", HGX)
def _half(rng: random.Random, machine: Machine, age: float) -> Variant:
    """A job's owner has the clocks of half of the GPUs, all that the job has, set lower."""
    for number in range(machine.base.expected_gpus // 2):
        one = machine.gpu(number)
        one["application_sm_mhz"] = int(one["default_sm_mhz"] * 0.6) // 15 * 15
    return Variant("application clock at 60 % on half of the GPUs", 6 * HOUR, steady=True)


@churn("display and monitoring on a GPU", 2.0, "DCGM, nvidia-persistenced, Xorg: root's", BARE)
def _services(rng: random.Random, machine: Machine, age: float) -> Variant:
    name, unit = rng.choice(
        (("Xorg", "display-manager"), ("nv-hostengine", "nvidia-dcgm"), ("dcgmproftester1", "cron"))
    )
    machine.start(70042, name, "S", DAY, f"/system.slice/{unit}.service", 0)
    machine.gpu(0)["processes"] = [{"pid": 70042, "used_bytes": 300 << 20}]
    return Variant(f"{name} of root's on GPU 0", DAY, steady=True)


@churn("a retimer's one loss a week", 3.0, "IBTA PortCounters LinkDownedCounter", HGX)
def _seldom(rng: random.Random, machine: Machine, age: float) -> Variant:
    device = rng.choice(machine.base.compute_ports)
    machine.add(f"{RDMA}/{device}/ports/1/counters/link_downed", 1)
    machine.add(f"{NET}/{machine.netdev(device)}/carrier_down_count", 1)
    machine.say(age, f"IPv6: ADDRCONF(NETDEV_CHANGE): {machine.netdev(device)}: link becomes ready")
    return Variant(f"{device} lost its link once", DAY, counters=True)
