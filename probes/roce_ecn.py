"""ECN_OFF: whether the RoCE ports that jobs use react to congestion marks (DCQCN), from /sys/class/net/X/ecn.

Only NVIDIA's own driver (MLNX_OFED, DOCA) has these files: `roce_np`, the notification point, answers marked packets
with congestion notifications; `roce_rp`, the reaction point, slows down on them. Both are switched by priority.
"""

from __future__ import annotations

from collections.abc import Iterator

from laggard.model import Finding
from laggard.probes.host import Host
from laggard.probes.rdma import finish
from laggard.probes.rdma_netdev import NET
from laggard.probes.roce import Priorities, RoceThresholds, judge_priorities, roce_netdevs
from laggard.probes.shape import Fact, NotApplicable, Unknown

_FIX = (
    "Turn DCQCN on for the priority of the RDMA traffic, both as notification and as reaction point, and ECN marking "
    'on the switches; or tell the profile that this fabric does without (roce_ecn.expect: "off").'
)
_COMMANDS = (
    "grep . /sys/class/net/{netdev}/ecn/roce_*/enable/*",
    "echo 1 > /sys/class/net/{netdev}/ecn/roce_np/enable/3",
    "echo 1 > /sys/class/net/{netdev}/ecn/roce_rp/enable/3",
)


def look_at_roce_ecn(host: Host, thresholds: RoceThresholds) -> Iterator[Finding | Fact]:
    ports, complaints = roce_netdevs(host, thresholds)
    enabled: dict[str, Priorities] = {}
    silent: list[str] = []
    for name in ports:
        try:
            if "ecn" in host.entries(f"{NET}/{name}"):
                enabled[name] = _both(_priorities(host, name, "roce_np"), _priorities(host, name, "roce_rp"))
            else:
                silent.append(name)
        except Unknown as error:
            complaints.append(str(error))
    yield Fact("priorities", enabled)
    yield from judge_priorities("ECN_OFF", enabled, ports, thresholds.expect, _FIX, _COMMANDS)
    finish(complaints + ([f"{NET}/{silent[0]} has no ecn folder"] if silent and enabled else []))
    if silent:
        raise NotApplicable(f"the driver of {', '.join(silent)} shows no ECN settings; NVIDIA's own does")


def _priorities(host: Host, netdev: str, point: str) -> Priorities:
    folder = f"{NET}/{netdev}/ecn/{point}/enable"
    return tuple(priority for priority in range(8) if _is_on(host, f"{folder}/{priority}"))


def _is_on(host: Host, path: str) -> bool:
    text = host.read(path).strip()
    if text not in ("0", "1"):
        raise Unknown(f"{path} holds neither 0 nor 1: {text[:20]!r}")
    return text == "1"


def _both(one: Priorities, other: Priorities) -> Priorities:
    return tuple(priority for priority in one if priority in other)
