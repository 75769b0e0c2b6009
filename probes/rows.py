"""What must be there, and is not: the one way in which all rows are judged, each for one kind of thing.

What must be there say a site's line, the machine's own tables, and the machine's own past, in this order. A line or a
table makes it critical; the past alone is a warning, since parts are also taken out on purpose. What most nodes have the
collector compares: see the facts. Amounts are numbers by item, so that all kinds of things compare alike.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from laggard.kit.words import listed
from laggard.model import Finding, Severity
from laggard.probes.errors import NotApplicable, NotFound, Unknown, Unreadable
from laggard.probes.host.counter_history import LEARNT, SaveCounters
from laggard.probes.host.host import Host
from laggard.probes.host.virtualization import has_just_booted, loaded_modules
from laggard.probes.probe import Fact, finding, matches_any

STARTING_SECONDS: Final = 600.0
"""The time after boot in which something may not be there yet; as long as RDMA ports have (ACTIVATING_SECONDS)."""

_MAX_NAMED: Final = 3
_MAX_ITEMS: Final = 64


class Wanted(NamedTuple):
    """An amount that must be there, and how bad it is if it is not."""

    amount: int
    severity: Severity = Severity.CRITICAL


def nothing(host: Host) -> Mapping[str, Wanted]:
    return {}


def nothing_there(host: Host, items: Collection[str]) -> Mapping[str, int]:
    return {}


class Row(NamedTuple):
    """One kind of thing. `there`: what there is, of the items that are asked for at least; `missing`: what is said of
    an item, with what is there of it and what is wanted, in `unit`."""

    name: str
    code: str
    there: Callable[[Host, Collection[str]], Mapping[str, int]]
    missing: str
    fix: str
    commands: tuple[str, ...]
    wanted: Callable[[Host], Mapping[str, Wanted]] = nothing
    """The amounts that the machine's own tables ask for. Raises NotFound without such a table, and NotApplicable where
    what is seen here is not the machine's."""
    share: float = 1.0
    """Of an amount, what is enough."""
    lasting: Callable[[Host, Iterable[str]], Iterable[str]] | None = None
    """Those of the items that a boot brings: facts for the fleet, and wanted from the next boots."""
    unit: int = 1


def judge(
    host: Host, row: Row, site: Mapping[str, int] | None = None, ignore: Sequence[str] = ()
) -> Iterator[Finding | Fact | SaveCounters | Unreadable]:
    """The findings of one row. `site`: the amounts that a site's line asks for; `ignore`: patterns of items."""
    lines = {item: Wanted(amount) for item, amount in (site or {}).items()}
    try:
        own = _own(host, row)
        there = row.there(host, {*own, *lines})
    except NotApplicable:
        return
    except Unknown as error:
        if lines or not isinstance(error, NotFound):
            yield Unreadable(str(error))
        return
    booting = has_just_booted(host, STARTING_SECONDS)
    prefix = f"{LEARNT}{row.name} "
    past = {
        name.removeprefix(prefix): Wanted(amount, Severity.WARNING)
        for name, amount in host.counter_history.earlier.items()
        if name.startswith(prefix)
    }
    short: dict[tuple[Severity, str], dict[str, int]] = {}
    for item, wanted in {**past, **own, **lines}.items():
        if there.get(item, 0) < wanted.amount * row.share and not matches_any(item, ignore):
            severity = Severity.WARNING if booting else wanted.severity
            source = (
                "by a site's line" if item in lines else "by its own tables" if item in own else "as in earlier boots"
            )
            short.setdefault((severity, source), {})[item] = wanted.amount
    for (severity, source), items in short.items():
        yield _finding(row, severity, source, items, there)
    if row.lasting is not None and not booting:
        lasting = {item: there[item] for item in list(row.lasting(host, there))[:_MAX_ITEMS]}
        yield SaveCounters({prefix + item: amount for item, amount in lasting.items()})
        yield Fact(row.name, lasting)


def _own(host: Host, row: Row) -> Mapping[str, Wanted]:
    try:
        return row.wanted(host)
    except NotFound:  # a machine without this table
        return {}


def _finding(row: Row, severity: Severity, source: str, items: Mapping[str, int], there: Mapping[str, int]) -> Finding:
    item, amount = next(iter(items.items()))
    told = {item: {"is": there.get(item, 0), "wanted": amount} for item, amount in list(items.items())[:_MAX_ITEMS]}
    summary = row.missing.format(there=there.get(item, 0) / row.unit, wanted=amount / row.unit)
    return finding(
        row.code,
        listed([*items], _MAX_NAMED),
        f"{summary} ({source})",
        severity=severity,
        evidence={"wanted": source, "items": told},
        fix=row.fix,
        commands=row.commands,
    )


# Modules and device files, of which a site's line tells, and probes of what their devices need.


def _there_modules(host: Host, items: Collection[str]) -> Mapping[str, int]:
    """Those of the modules `items` that are loaded or built in. In a name `-` is `_` to the kernel."""
    loaded = {*loaded_modules(host), *host.names("/sys/module")} if items else ()
    return {item: 1 for item in items if item.replace("-", "_") in loaded}


def _there_files(host: Host, items: Collection[str]) -> Mapping[str, int]:
    """Those of the device files `items` that are there."""
    if items and "null" not in host.entries("/dev"):
        raise NotFound("/dev is not shown here")
    return {item: 1 for item in items if item.rpartition("/")[2] in host.names(item.rpartition("/")[0])}


MODULES: Final = Row(
    "modules", "MODULE_MISSING", _there_modules, "is not loaded",
    "Load the module, and at boot by a line in /etc/modules-load.d; where that fails, the kernel's log says why.",
    ("lsmod", "systemctl status systemd-modules-load", "dmesg -T | tail -n 50"),
)  # fmt: skip
FILES: Final = Row(
    "device_files", "MODULE_MISSING", _there_files, "is not there",
    "Load the driver that makes the device file (NVIDIA's: `nvidia-modprobe -c 0 -u`); udev's log says why it did not.",
    ("ls -l /dev", "journalctl -b -u systemd-udevd"),
)  # fmt: skip
