"""What the two probes of lossless Ethernet share: which network devices to ask, and what is said of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, Literal, NamedTuple

from laggard.majority import majority
from laggard.model import Finding
from laggard.probes.errors import NotApplicable, NotFound, Unknown
from laggard.probes.host.host import Host
from laggard.probes.probe import Fact, finding
from laggard.probes.rdma.model.fabric import fabric
from laggard.probes.rdma.model.netdev import netdev_name
from laggard.probes.rdma.model.port import Port
from laggard.probes.rdma.model.sysfs import RdmaThresholds, finish, gpu_paths, read_ports

Priorities = tuple[int, ...]
_NAMES: Final = {"PFC_OFF": "priority flow control", "ECN_OFF": "congestion control by ECN"}


class RoceThresholds(RdmaThresholds, frozen=True):
    expect: Literal["on", "off", "alike"] = "on"
    """`off`: this fabric does without, and a port that has it on differs; `alike`: only differences are findings."""


def roce_netdevs(host: Host, thresholds: RdmaThresholds) -> tuple[dict[str, Port], list[str]]:
    """The network devices of the active RoCE ports that jobs use, and what could not be read. Raises NotApplicable
    where there is none."""
    ports, _, unread = read_ports(host, thresholds.ignore, thresholds.soft)
    node = fabric(ports, gpu_paths(host))
    complaints = list(unread)
    found: dict[str, Port] = {}
    for port in node.ports:
        if port.kind == node.compute and port.ethernet and port.active:
            try:
                name = netdev_name(host, port)
            except Unknown as error:
                complaints.append(str(error))
                continue
            if name:
                found[name] = port
            else:
                complaints.append(f"the network device of {port.name} is not told")
    if not found and not complaints:
        raise NotApplicable("no active RoCE port that jobs use")
    return found, complaints


class Setting(NamedTuple):
    """One of the two. `absent`: what a driver that knows nothing of it lacks; `commands`: with `{netdev}`."""

    code: str
    absent: str
    fix: str
    commands: Sequence[str]


def look_at_priorities(
    host: Host, thresholds: RoceThresholds, setting: Setting, read: Callable[[Host, str], Priorities]
) -> Iterator[Finding | Fact]:
    """`read`: for which priorities a network device has it on; raises NotFound where its driver does not tell."""
    ports, complaints = roce_netdevs(host, thresholds)
    enabled: dict[str, Priorities] = {}
    silent: list[str] = []
    for name in ports:
        try:
            enabled[name] = read(host, name)
        except NotFound:
            silent.append(name)
        except Unknown as error:
            complaints.append(str(error))
    yield Fact("priorities", enabled)
    yield from _judge(setting, enabled, ports, thresholds.expect)
    finish(complaints + ([f"the driver of {silent[0]} has no {setting.absent}"] if silent and enabled else []))
    if silent:
        raise NotApplicable(f"the driver of {', '.join(silent)} has no {setting.absent}")


def _judge(
    setting: Setting, enabled: Mapping[str, Priorities], ports: Mapping[str, Port], expect: str
) -> Iterator[Finding]:
    if not enabled:
        return
    usual = majority(enabled.values(), fewest=2)
    wanted = () if expect == "off" else usual or ()
    odd = [name for name, priorities in enabled.items() if priorities != wanted and (wanted or expect == "off")]
    if expect == "on" and not wanted:  # no port of most, or no majority at all: those without it are the fault
        odd = [name for name, priorities in enabled.items() if not priorities]
    for name in odd[:1] if len(odd) == len(enabled) else odd:
        yield finding(
            setting.code,
            ports[name].name,
            _summary(setting.code, enabled[name], wanted, len(odd), len(enabled)),
            evidence={"netdev": name, "priorities": {one: list(those) for one, those in enabled.items()}},
            fix=setting.fix,
            commands=[command.format(netdev=name) for command in setting.commands],
        )


def _summary(code: str, own: Priorities, wanted: Priorities, odd: int, all_ports: int) -> str:
    what = _NAMES[code]
    has = f"has {what} on for priority {_listed(own)}" if own else f"has {what} off"
    if odd == all_ports:
        return has + (f", as all {all_ports} RoCE ports" if all_ports > 1 else "")
    return f"{has}, its peers {'on for priority ' + _listed(wanted) if wanted else 'not'}"


def _listed(priorities: Priorities) -> str:
    return ", ".join(map(str, priorities))
