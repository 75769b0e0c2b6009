"""RDMA_LINK_FLAPPING and RDMA_ERRORS_RISING: how the ports' counters grew since earlier looks. Their absolute values
say nothing: a healthy link may carry a count of years ago.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from laggard.model import Finding, Severity
from laggard.probes.errors import NotFound, Unknown
from laggard.probes.host.counter_history import CounterHistory, Increase, SaveCounters
from laggard.probes.host.host import Host
from laggard.probes.probe import Fact, Probe, finding
from laggard.probes.rdma.model.fabric import fabric
from laggard.probes.rdma.model.netdev import NET, netdev_name
from laggard.probes.rdma.model.port import Port
from laggard.probes.rdma.model.sysfs import RdmaThresholds, finish, gpu_paths, read_ports
from laggard.probes.rdma.rules.counter_limits import HOUR, LIMITS, SATURATED
from laggard.probes.rdma.rules.traffic import FLOWS, traffic

_CARRIER: Final = "carrier_down_count"
_DOWNS: Final = ("counters/link_downed", "hw_counters/link_downed", _CARRIER)  # one of the same; rxe has the second
_LEAST_DOWNS = 1


class RdmaErrorThresholds(RdmaThresholds, frozen=True):
    flaps: int = 3
    """Losses of the link within `flap_seconds` from which it is critical; one is a warning. gpud takes 3 in 12 hours,
    Azure's node check 5 in 24."""

    flap_seconds: float = 12 * HOUR


class Counters(NamedTuple):
    port: Port
    values: dict[str, int]
    flows: dict[str, int]
    refused: tuple[str, ...]  # there, and not readable: a driver's EINVAL


def check(host: Host, thresholds: RdmaErrorThresholds) -> Iterator[Finding | Fact | SaveCounters]:
    ports, _, unread = read_ports(host, thresholds.ignore, thresholds.soft)
    node = fabric(ports, gpu_paths(host))
    complaints = list(unread)
    read = [_read(host, port) for port in node.ports]
    yield SaveCounters({f"{one.port.name} {name}": v for one in read for name, v in (one.values | one.flows).items()})
    yield from _facts(read)
    yield from traffic(((one.port.name, one.flows) for one in read), host.counter_history)
    for one in read:
        compute = one.port.kind == node.compute
        yield from _judge_flaps(one, host.counter_history, thresholds, compute)
        yield from _judge_errors(one, host.counter_history, compute)
        if not one.values:
            complaints.append(f"no error counter of {one.port.name} can be read")
    finish(complaints)


def _facts(read: list[Counters]) -> Iterator[Fact]:
    full = {
        one.port.name: names
        for one in read
        if (names := [name for name, value in one.values.items() if value == SATURATED.get(name)])
    }
    if full:
        yield Fact("at_their_limit", full)  # they cannot increase until they are reset
    refused = {one.port.name: one.refused for one in read if one.refused}
    if refused:
        yield Fact("not_readable", refused)


def _read(host: Host, port: Port) -> Counters:
    values: dict[str, int] = {}
    refused: list[str] = []
    names = {name: f"{port.folder}/{name}" for name in (*_DOWNS[:2], *LIMITS, *FLOWS)}
    try:
        netdev = netdev_name(host, port)
    except Unknown:
        netdev = ""
    if netdev:
        names[_CARRIER] = f"{NET}/{netdev}/{_CARRIER}"
    for name, path in names.items():
        try:
            value = parse_count(host.read(path))
        except NotFound:
            continue
        except Unknown:
            value = None
        if value is None:
            refused.append(name)
        else:
            values[name] = value
    flows = {name: values.pop(name) for name in FLOWS if name in values}
    return Counters(port, values, flows, tuple(name for name in refused if name not in FLOWS))


def parse_count(text: str) -> int | None:
    """A counter of 64 bits at most; `N/A (no PMA)` and the like are none."""
    text = text.strip()
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 20 and int(text) < 1 << 63 else None


def _increase(one: Counters, history: CounterHistory, name: str, seconds: float) -> Increase | None:
    value = one.values.get(name)
    return None if value is None else history.increase(f"{one.port.name} {name}", value, seconds)


def _judge_flaps(
    one: Counters, history: CounterHistory, thresholds: RdmaErrorThresholds, compute: bool
) -> Iterator[Finding]:
    """The counts are of the same events, by the port and by the network device: the largest counts."""
    long = [increase for name in _DOWNS if (increase := _increase(one, history, name, thresholds.flap_seconds))]
    downs = max((increase.per(thresholds.flap_seconds) for increase in long), default=0.0)
    if downs < _LEAST_DOWNS:
        return
    increase = max(long, key=lambda increase: increase.count)
    yield finding(
        "RDMA_LINK_FLAPPING",
        one.port.name,
        f"lost its link {increase.count} times in {_time(increase.seconds)}",
        severity=Severity.CRITICAL if compute and downs >= thresholds.flaps else Severity.WARNING,
        evidence={
            "losses": increase.count,
            "seconds": round(increase.seconds),
            "critical_from": thresholds.flaps,
            "state": one.port.state_text,
            **{name: one.values[name] for name in _DOWNS if name in one.values},
        },
        fix="Reseat or swap the cable and the transceiver; look into the switch's log at the same times.",
        commands=(f"mlxlink -d {one.port.device} --show_module --show_counters", "dmesg -T | grep -i 'link down'"),
    )


def _judge_errors(one: Counters, history: CounterHistory, compute: bool) -> Iterator[Finding]:
    """One finding a port, of its worst counter; the others stand in the evidence."""
    rising = {
        name: increase
        for name, limit in LIMITS.items()
        if (increase := _increase(one, history, name, limit.period)) and increase.per(limit.period) > limit.most
    }
    if not rising:
        return
    worst = min(rising, key=lambda name: not LIMITS[name].critical)
    increase, limit, short = rising[worst], LIMITS[worst], worst.rpartition("/")[2]
    critical = compute and limit.critical
    yield finding(
        "RDMA_ERRORS_RISING",
        one.port.name,
        f"counted {increase.count} {short} in {_time(increase.seconds)}: {limit.meaning}",
        severity=Severity.CRITICAL if critical else Severity.WARNING,
        evidence={
            "counter": short,
            "growth": increase.count,
            "seconds": round(increase.seconds),
            "value": one.values[worst],
            "most": limit.most,
            "per_seconds": limit.period,
            "also": {name.rpartition("/")[2]: increase.count for name, increase in rising.items() if name != worst},
        },
        fix="Errors of the link: cable, transceiver, switch port. Losses beyond it: PFC, ECN and the switches' drops.",
        commands=(f"perfquery -x -C {one.port.device}", f"mlxlink -d {one.port.device} --show_counters --show_fec"),
    )


def _time(seconds: float) -> str:
    for unit, size in (("h", HOUR), ("min", 60.0)):
        if seconds >= 2 * size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds:.0f} s"


PROBE: Final = Probe("rdma_errors", check, RdmaErrorThresholds())
