"""RDMA_LINK_FLAPPING and RDMA_ERRORS_RISING: ports whose error counters increase.

Their values prove nothing: a healthy link may carry a count of years ago.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from operator import itemgetter
from typing import Final

import msgspec

from laggard.kernel_rules.devices import link_changes
from laggard.kit.majority import grouped
from laggard.kit.words import counted, lazy_pattern
from laggard.model import Finding, Severity
from laggard.probes.errors import NotApplicable, NotFound, Unknown, Unreadable, or_none
from laggard.probes.host.counter_history import CounterHistory, Increase, SaveCounters
from laggard.probes.host.host import Host
from laggard.probes.host.kernel_log import SPREAD_SECONDS, messages_of
from laggard.probes.host.virtualization import read_uptime
from laggard.probes.probe import RDMA, Count, Fact, NotNegative, Probe, rules, say
from laggard.probes.rdma.model.node import node_ports
from laggard.probes.rdma.model.sysfs import NET, Port, RdmaThresholds, gpu_paths, netdev_name, read_ports
from laggard.probes.rows import STARTING_SECONDS

HOUR: Final = 3600.0


class CounterLimit(msgspec.Struct, frozen=True):
    """An increase by more than `most` in `period` seconds is a finding."""

    most: float
    period: float
    critical: bool
    meaning: str


@cache
def limits() -> Mapping[str, CounterLimit]:
    """Those of rules/rdma_counters.ini, by counter."""
    rows = ((row, row.pattern.split()) for row in rules("rdma_counters"))
    return {
        name: CounterLimit(float(most), float(period), row.kind == "critical", row.says)
        for row, (name, most, period) in rows
    }


TRAFFIC_COUNTERS: Final[Mapping[str, tuple[str, int]]] = {
    # In words of four bytes, for any number of lanes (InfiniBand Architecture Specification 16.1.3.5, PortXmitData).
    "counters/port_xmit_data": ("sent_bytes_per_second", 4),
    "counters/port_rcv_data": ("received_bytes_per_second", 4),
    # rxe, RDMA in software, has these instead.
    "hw_counters/sent_pkts": ("sent_packets_per_second", 1),
    "hw_counters/rcvd_pkts": ("received_packets_per_second", 1),
}
"""Counters of traffic: the name of their rate in the facts, and how many units one count is."""


_CARRIER_DOWNS: Final = "carrier_down_count"
_LINK_DOWNS: Final = ("counters/link_downed", "hw_counters/link_downed", _CARRIER_DOWNS)
"""The counters of the same events: of the port, of rxe's port, and of the network device."""
_MIN_DOWNS = 1
_READY: Final = lazy_pattern(r"IPv6: ADDRCONF\(NETDEV_CHANGE\): (\S{1,40}): link becomes ready")
_MANY: Final = 4.0
"""The multiple of `flaps` from which a link is lost more often than an upgrade restarts a switch, however soon. Our own
choice."""


class RdmaErrorThresholds(RdmaThresholds, frozen=True):
    flaps: Count = 3
    """Losses of the link within `flap_seconds` from which it is critical; one is a warning. gpud takes 3 in 12 hours,
    Azure's node check 5 in 24."""

    flap_seconds: NotNegative = 12 * HOUR


class PortCounters(msgspec.Struct, frozen=True):
    port: Port
    errors: dict[str, int]
    traffic: dict[str, int]
    not_readable: tuple[str, ...]  # the file is there and cannot be read: a driver's EINVAL
    history: CounterHistory
    logged: tuple[float, ...] = ()
    """How many seconds ago the kernel's log says that the link was lost."""

    @property
    def to_save(self) -> dict[str, int]:
        return {f"{self.port.name} {name}": value for name, value in (self.errors | self.traffic).items()}

    @property
    def traffic_rates(self) -> dict[str, float]:
        """The rates by their name in the facts, of counters that have a snapshot."""
        return {
            rate: round(increase.count * unit / increase.seconds, 1)
            for name, (rate, unit) in TRAFFIC_COUNTERS.items()
            if (increase := self.increase(name))
        }

    def increase(self, name: str, seconds: float = 0.0) -> Increase | None:
        value = (self.errors | self.traffic).get(name)
        return None if value is None else self.history.increase(f"{self.port.name} {name}", value, seconds)

    def losses(self, seconds: float) -> list[Increase]:
        """Of the link, as each counter and the log have them: these tell of the same events."""
        logged = Increase(sum(ago <= seconds for ago in self.logged), seconds)
        return [increase for name in _LINK_DOWNS if (increase := self.increase(name, seconds))] + [logged]

    def spread_of_losses(self, seconds: float) -> float:
        """The seconds between the first and the last loss of the link within `seconds`, at least."""
        known = ((name, self.errors[name]) for name in _LINK_DOWNS if name in self.errors)
        spreads = (self.history.spread(f"{self.port.name} {name}", value, seconds) for name, value in known)
        logged = [ago for ago in self.logged if ago <= seconds] or [0.0]
        return max(*spreads, max(logged) - min(logged), 0.0)


def check(host: Host, thresholds: RdmaErrorThresholds) -> Iterator[Finding | Fact | SaveCounters | Unreadable]:
    readings = read_ports(host, thresholds.ignore, thresholds.soft)
    node = node_ports(readings.ports, gpu_paths(host))
    logged = _logged_losses(host)
    read = [_read(host, port, logged) for port in node.ports]
    yield SaveCounters({name: value for each in read for name, value in each.to_save.items()})
    yield from _facts(read)
    of_jobs = [each for each in read if node.may_serve(each.port)]
    together = _have_lost_links_together(of_jobs, thresholds)
    for each in read:
        compute = node.may_serve(each.port)
        yield from _judge_flaps(each, thresholds, compute, together)
        yield from _judge_errors(each, compute)
    without = [each for each in read if not each.errors]
    # A driver that counts something has other names for it, and no file is missing.
    others = [each for each in without if not each.not_readable and host.names(f"{each.port.folder}/hw_counters")]
    if others:
        yield Fact("no_known_counter", [each.port.name for each in others])
    yield from readings.unreadable
    yield from (
        Unreadable(f"no error counter of {each.port.name} can be read") for each in without if each not in others
    )
    if others and len(others) == len(read):
        raise NotApplicable(f"the driver of {others[0].port.name} counts no errors under a name that laggard knows")


def _facts(read: list[PortCounters]) -> Iterator[Fact]:
    not_readable = {each.port.name: each.not_readable for each in read if each.not_readable}
    if not_readable:
        yield Fact("not_readable", not_readable)
    rates = {each.port.name: own for each in read if (own := each.traffic_rates)}
    if rates:
        yield Fact("traffic", rates)


def _logged_losses(host: Host) -> Mapping[str, tuple[float, ...]]:
    """How many seconds ago each network device lost its link, as far as the kernel's log goes back. Over InfiniBand
    the driver says nothing, and IPv6 each time that the link is back."""
    uptime, messages = or_none(read_uptime, host) or 0.0, messages_of(or_none(host.kernel_log) or "")
    lost = [(it.device, it.seconds) for it in link_changes(messages) if it.down]
    ready = [(found[1], at) for at, text in messages if "ready" in text and (found := _READY.match(text))]
    ready = [(device, at) for device, at in ready if at is not None and at > STARTING_SECONDS]
    ago: dict[str, tuple[float, ...]] = {}
    for events in (grouped(lost, itemgetter(0)), grouped(ready, itemgetter(0))):
        for device, times in events.items():
            known = tuple(max(0.0, uptime - at) for _, at in times if at is not None)
            ago[device] = max(ago.get(device, ()), known, key=len)  # both tell of the same
    return ago


def _read(host: Host, port: Port, logged: Mapping[str, tuple[float, ...]]) -> PortCounters:
    values: dict[str, int] = {}
    not_readable: list[str] = []
    for name, path in _paths(host, port).items():
        try:
            value = parse_count(host.read(path))
        except NotFound:
            continue
        except Unknown:
            value = None
        if value is None:
            not_readable.append(name)
        else:
            values[name] = value
    traffic = {name: values.pop(name) for name in TRAFFIC_COUNTERS if name in values}
    of_errors = tuple(name for name in not_readable if name not in TRAFFIC_COUNTERS)
    own = logged.get(or_none(netdev_name, host, port) or "", ())
    return PortCounters(port, values, traffic, of_errors, host.counter_history, own)


def _paths(host: Host, port: Port) -> dict[str, str]:
    """Returns the files of all counters that some driver has, by the counter's name."""
    paths = {name: f"{port.folder}/{name}" for name in (*_LINK_DOWNS[:2], *limits(), *TRAFFIC_COUNTERS)}
    netdev = or_none(netdev_name, host, port)
    if netdev:
        paths[_CARRIER_DOWNS] = f"{NET}/{netdev}/{_CARRIER_DOWNS}"
    return paths


def parse_count(text: str) -> int | None:
    """Parses a counter of at most 64 bits; None for anything else, as `N/A (no PMA)`."""
    text = text.strip()
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 20 and int(text) < 1 << 63 else None


def _have_lost_links_together(read: Sequence[PortCounters], thresholds: RdmaErrorThresholds) -> bool:
    """Returns whether two ports or more, and each of them, lost the link: a switch restarted, or the row lost power."""
    lost = [any(it.count >= _MIN_DOWNS for it in each.losses(thresholds.flap_seconds)) for each in read]
    return len(lost) > 1 and all(lost)


def _judge_flaps(
    counters: PortCounters, thresholds: RdmaErrorThresholds, compute: bool, together: bool
) -> Iterator[Finding]:
    """Takes the largest increase. A switch that is upgraded takes the links of its ports away several times within an
    hour or two; a bad cable goes on. A port that no GPU needs carries files: its losses are critical where they are
    both many and spread. `together`: all ports did so."""
    increases = counters.losses(thresholds.flap_seconds)
    downs = max((increase.per(thresholds.flap_seconds) for increase in increases), default=0.0)
    if downs < _MIN_DOWNS:
        return
    spread = counters.spread_of_losses(thresholds.flap_seconds)
    signs = (spread >= SPREAD_SECONDS, downs >= _MANY * thresholds.flaps)
    goes_on = not together and (any(signs) if compute else all(signs))
    increase = max(increases, key=lambda increase: increase.count)
    evidence: dict[str, object] = {
        "losses": increase.count,
        "seconds": round(increase.seconds),
        "spread_over_seconds": round(spread),
        "all_ports_did": together,
        **{name: counters.errors[name] for name in _LINK_DOWNS if name in counters.errors},
    }
    severity = Severity.CRITICAL if downs >= thresholds.flaps and goes_on else Severity.WARNING
    told = {"times": counted(increase.count, "time"), "time": _time(increase.seconds), "device": counters.port.device}
    yield say("rdma", "flapping", counters.port.name, evidence, severity, **told)


def _judge_errors(counters: PortCounters, compute: bool) -> Iterator[Finding]:
    """Makes one finding for a port, of its worst counter; the others are in the evidence."""
    rising = {
        name: increase
        for name, limit in limits().items()
        if (increase := counters.increase(name, limit.period)) and increase.per(limit.period) > limit.most
    }
    if not rising:
        return
    worst = min(rising, key=lambda name: not limits()[name].critical)
    increase, limit, short = rising[worst], limits()[worst], worst.rpartition("/")[2]
    evidence = {
        "counter": short,
        "growth": increase.count,
        "seconds": round(increase.seconds),
        "value": counters.errors[worst],
        "most": limit.most,
        "per_seconds": limit.period,
        "also": {name.rpartition("/")[2]: increase.count for name, increase in rising.items() if name != worst},
    }
    severity = Severity.CRITICAL if compute and limit.critical else Severity.WARNING
    told = {"count": increase.count, "counter": short, "time": _time(increase.seconds), "meaning": limit.meaning}
    yield say("rdma", "errors_rising", counters.port.name, evidence, severity, device=counters.port.device, **told)


def _time(seconds: float) -> str:
    for unit, size in (("h", HOUR), ("min", 60.0)):
        if seconds >= 2 * size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds:.0f} s"


PROBE: Final = Probe("rdma_errors", check, RdmaErrorThresholds(), group=RDMA)
