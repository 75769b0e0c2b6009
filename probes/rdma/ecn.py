"""ECN_OFF: RoCE ports that jobs use and that do not react to congestion marks (DCQCN), by /sys/class/net/X/ecn.

Only NVIDIA's own driver (MLNX_OFED, DOCA) has these files: `roce_np`, the notification point, answers marked packets
with congestion notifications; `roce_rp`, the reaction point, slows down when it receives them. Both are set by
priority.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from laggard.model import Finding
from laggard.probes.errors import NotFound, Unknown
from laggard.probes.host.host import Host
from laggard.probes.probe import RDMA, Fact, Probe
from laggard.probes.rdma.model.sysfs import NET
from laggard.probes.rdma.rules.roce_priorities import Priorities, RoceSetting, RoceThresholds, check_priorities

_ECN: Final = RoceSetting(
    "ECN_OFF",
    "ECN settings to show; NVIDIA's own does",
    "Turn DCQCN on for the priority of the RDMA traffic, both as notification and as reaction point, and ECN marking "
    'on the switches; or, where this network runs without it, set it so in the profile (roce_ecn.expect: "off").',
    (
        "grep . /sys/class/net/{netdev}/ecn/roce_*/enable/*",
        "echo 1 > /sys/class/net/{netdev}/ecn/roce_np/enable/3",
        "echo 1 > /sys/class/net/{netdev}/ecn/roce_rp/enable/3",
    ),
)


def check(host: Host, thresholds: RoceThresholds) -> Iterator[Finding | Fact]:
    return check_priorities(host, thresholds, _ECN, _read)


def _read(host: Host, netdev: str) -> Priorities:
    if "ecn" not in host.entries(f"{NET}/{netdev}"):
        raise NotFound(f"{NET}/{netdev} has no ecn folder")
    return _both(_priorities(host, netdev, "roce_np"), _priorities(host, netdev, "roce_rp"))


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


PROBE: Final = Probe("roce_ecn", check, RoceThresholds(), group=RDMA)
