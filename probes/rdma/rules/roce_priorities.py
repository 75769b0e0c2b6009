"""PFC_OFF and ECN_OFF: which priorities of RoCE ports have a setting on. The two probes differ in how it is read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, Literal, NamedTuple

from laggard.kit.majority import majority
from laggard.model import Finding
from laggard.probes.errors import NotApplicable, NotFound, Unknown, Unreadable, raise_if_unreadable
from laggard.probes.host.host import Host
from laggard.probes.probe import Fact, finding
from laggard.probes.rdma.model.sysfs import Port, RdmaThresholds, gpu_paths, netdev_name, node_ports, read_ports

Priorities = tuple[int, ...]
_NAMES: Final = {"PFC_OFF": "priority flow control", "ECN_OFF": "congestion control by ECN"}


class RoceThresholds(RdmaThresholds, frozen=True):
    expect: Literal["on", "off", "alike"] = "on"
    """`off`: this network runs without it, and a port that has it on is a finding; `alike`: only differences are."""


class RoceSetting(NamedTuple):
    """The setting that one of the two probes judges."""

    code: str
    missing_support: str
    """Completes "the driver of eth0 has no ...", for a driver that does not report the setting."""
    fix: str
    commands: Sequence[str]
    """The commands, with `{netdev}` where the network device belongs."""


class RocePorts(NamedTuple):
    """The active RoCE ports that jobs use, by network device."""

    by_netdev: dict[str, Port]
    unreadable: tuple[Unreadable, ...]


def check_priorities(
    host: Host, thresholds: RoceThresholds, setting: RoceSetting, read: Callable[[Host, str], Priorities]
) -> Iterator[Finding | Fact]:
    """Judges one setting. `read` returns the priorities for which a network device has it on, and raises NotFound where
    its driver does not report it. Raises NotApplicable where no port has such a driver, Unknown where some have."""
    ports, not_read = read_roce_ports(host, thresholds)
    enabled: dict[str, Priorities] = {}
    unsupported: list[str] = []
    unreadable = list(not_read)
    for name in ports:
        try:
            enabled[name] = read(host, name)
        except NotFound:
            unsupported.append(name)
        except Unknown as error:
            unreadable.append(Unreadable(str(error)))
    yield Fact("priorities", enabled)
    yield from _judge(setting, enabled, ports, thresholds.expect)
    if unsupported and enabled:
        unreadable.append(Unreadable(f"the driver of {unsupported[0]} has no {setting.missing_support}"))
    raise_if_unreadable(unreadable)
    if unsupported:
        raise NotApplicable(f"the driver of {', '.join(unsupported)} has no {setting.missing_support}")


def read_roce_ports(host: Host, thresholds: RdmaThresholds) -> RocePorts:
    """Raises NotApplicable where there is no active RoCE port that jobs use."""
    readings = read_ports(host, thresholds.ignore, thresholds.soft)
    node = node_ports(readings.ports, gpu_paths(host))
    unreadable = list(readings.unreadable)
    found: dict[str, Port] = {}
    for port in node.ports:
        if port.kind == node.compute_kind and port.ethernet and port.active:
            try:
                name = netdev_name(host, port)
            except Unknown as error:
                unreadable.append(Unreadable(str(error)))
                continue
            if name:
                found[name] = port
            else:
                unreadable.append(Unreadable(f"the network device of {port.name} is not known"))
    if not found and not unreadable:
        raise NotApplicable("no active RoCE port that jobs use")
    return RocePorts(found, tuple(unreadable))


def _judge(
    setting: RoceSetting, enabled: Mapping[str, Priorities], ports: Mapping[str, Port], expect: str
) -> Iterator[Finding]:
    if not enabled:
        return
    usual = majority(enabled.values(), fewest=2)
    wanted = () if expect == "off" else usual or ()
    wrong = [name for name, priorities in enabled.items() if priorities != wanted and (wanted or expect == "off")]
    if (
        expect == "on" and not wanted
    ):  # most ports have it off, or there is no majority: those that have it off are wrong
        wrong = [name for name, priorities in enabled.items() if not priorities]
    for name in wrong[:1] if len(wrong) == len(enabled) else wrong:
        yield finding(
            setting.code,
            ports[name].name,
            _summary(setting.code, enabled[name], wanted, len(wrong), len(enabled)),
            evidence={"netdev": name, "priorities": {netdev: list(on) for netdev, on in enabled.items()}},
            fix=setting.fix,
            commands=[command.format(netdev=name) for command in setting.commands],
        )


def _summary(code: str, own: Priorities, wanted: Priorities, wrong: int, all_ports: int) -> str:
    name = _NAMES[code]
    state = f"has {name} on for priority {_listed(own)}" if own else f"has {name} off"
    if wrong == all_ports:
        return state + (f", as all {all_ports} RoCE ports" if all_ports > 1 else "")
    return f"{state}, its peers {'on for priority ' + _listed(wanted) if wanted else 'not'}"


def _listed(priorities: Priorities) -> str:
    return ", ".join(map(str, priorities))
