"""PFC_OFF and ECN_OFF: RoCE ports that jobs use without priority flow control, or that do not react to congestion marks
(DCQCN). The two probes differ in how a setting is read, which is on or off by priority.

PFC is read by the kernel's Data Center Bridging, ECN by /sys/class/net/X/ecn. Only NVIDIA's own driver (MLNX_OFED,
DOCA) has these files: `roce_np`, the notification point, answers marked packets with congestion notifications;
`roce_rp`, the reaction point, slows down when it receives them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Final, Literal

import msgspec

from laggard.kit.majority import majority
from laggard.model import Finding
from laggard.probes.errors import NotApplicable, NotFound, Unknown, Unreadable
from laggard.probes.host.host import Host
from laggard.probes.probe import RDMA, Fact, Probe, say
from laggard.probes.rdma.model.node import node_ports
from laggard.probes.rdma.model.sysfs import NET, Port, RdmaThresholds, gpu_paths, netdev_name, read_ports

Priorities = tuple[int, ...]


class RoceThresholds(RdmaThresholds, frozen=True):
    expect: Literal["on", "off", "alike"] = "on"
    """`off`: this network runs without it, and a port that has it on is a finding; `alike`: only differences are."""


class RoceSetting(msgspec.Struct, frozen=True):
    """The setting that one of the two probes judges."""

    kind: str
    """Its section of rules/rdma.ini."""
    name: str
    read: Callable[[Host, str], Priorities]
    """Returns the priorities for which a network device has it on. Raises NotFound where its driver does not tell."""
    missing_support: str
    """Completes "the driver of eth0 has no ...", for a driver that does not report the setting."""


def _check(setting: RoceSetting, host: Host, thresholds: RoceThresholds) -> Iterator[Finding | Fact | Unreadable]:
    """Raises NotApplicable where no port has a driver that reports the setting; where only some have, the others are
    unreadable."""
    ports, unreadable = _roce_ports(host, thresholds)
    yield from unreadable
    enabled: dict[str, Priorities] = {}
    unsupported: list[str] = []
    for name in ports:
        try:
            enabled[name] = setting.read(host, name)
        except NotFound:
            unsupported.append(name)
        except Unknown as error:
            yield Unreadable(str(error))
    yield Fact("priorities", enabled)
    yield from _judge(setting, enabled, ports, thresholds.expect)
    if unsupported and enabled:
        yield Unreadable(f"the driver of {unsupported[0]} has no {setting.missing_support}")
    elif unsupported:
        raise NotApplicable(f"the driver of {', '.join(unsupported)} has no {setting.missing_support}")


def _roce_ports(host: Host, thresholds: RdmaThresholds) -> tuple[dict[str, Port], list[Unreadable]]:
    """The active RoCE ports that jobs use, by network device. Raises NotApplicable where there is none."""
    readings = read_ports(host, thresholds.ignore, thresholds.soft)
    node = node_ports(readings.ports, gpu_paths(host))
    unreadable = list(readings.unreadable)
    found: dict[str, Port] = {}
    for port in node.ports:
        if port.kind == node.compute_kind and port.ethernet and port.active:
            try:
                name = netdev_name(host, port)
                if not name:
                    raise Unknown(f"the network device of {port.name} is not known")
                found[name] = port
            except Unknown as error:
                unreadable.append(Unreadable(str(error)))
    if not found and not unreadable:
        raise NotApplicable("no active RoCE port that jobs use")
    return found, unreadable


def _judge(
    setting: RoceSetting, enabled: Mapping[str, Priorities], ports: Mapping[str, Port], expect: str
) -> Iterator[Finding]:
    if not enabled:
        return
    usual = majority(enabled.values(), fewest=2)
    wanted = () if expect == "off" else usual or ()
    wrong = [name for name, priorities in enabled.items() if priorities != wanted and (wanted or expect == "off")]
    if expect == "on" and not wanted:  # most ports have it off, or no majority has: those that have it off are wrong
        wrong = [name for name, priorities in enabled.items() if not priorities]
    for name in wrong:
        evidence = {"netdev": name, "priorities": {netdev: list(on) for netdev, on in enabled.items()}}
        told = _summary(setting.name, enabled[name], None if len(wrong) == len(enabled) else wanted)
        yield say("rdma", setting.kind, ports[name].name, evidence, told=told, netdev=name)


def _summary(name: str, own: Priorities, peers: Priorities | None) -> str:
    """`peers`: what these have; None: the same."""
    state = f"has {name} on for priority {_listed(own)}" if own else f"has {name} off"
    return state if peers is None else f"{state}, its peers {'on for priority ' + _listed(peers) if peers else 'not'}"


def _listed(priorities: Priorities) -> str:
    return ", ".join(map(str, priorities))


def _read_ecn(host: Host, netdev: str) -> Priorities:
    """The priorities for which it is on at both points."""
    if "ecn" not in host.entries(f"{NET}/{netdev}"):
        raise NotFound(f"{NET}/{netdev} has no ecn folder")
    points = [f"{NET}/{netdev}/ecn/{point}/enable" for point in ("roce_np", "roce_rp")]
    on = [[_is_on(host, f"{folder}/{priority}") for priority in range(8)] for folder in points]
    return tuple(priority for priority in range(8) if on[0][priority] and on[1][priority])


def _is_on(host: Host, path: str) -> bool:
    text = host.read(path).strip()
    if text not in ("0", "1"):
        raise Unknown(f"{path} holds neither 0 nor 1: {text[:20]!r}")
    return text == "1"


_PFC: Final = RoceSetting(
    "pfc",
    "priority flow control",
    lambda host, netdev: host.pfc(netdev).priorities,
    "priority flow control (DCB)",
)
_ECN: Final = RoceSetting("ecn", "congestion control by ECN", _read_ecn, "ECN settings to show; NVIDIA's own does")

PROBES: Final = (
    Probe("roce_pfc", partial(_check, _PFC), RoceThresholds(), group=RDMA),
    Probe("roce_ecn", partial(_check, _ECN), RoceThresholds(), group=RDMA),
)
