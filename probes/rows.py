"""What must be there, and is not: the one way in which all rows are judged, each for one kind of thing. And which of
equal things is slower than it may be.

What must be there say a site's line, the machine's own tables, and the machine's own past, in this order. A line or a
table makes it critical; the past alone is a warning, since parts are also taken out on purpose. What most nodes have
the collector compares: see the facts. Amounts are numbers, so that all kinds of things compare alike.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias

from laggard.kit.words import listed
from laggard.model import Finding, Severity
from laggard.probes.errors import NotApplicable, NotFound, Unknown, Unreadable
from laggard.probes.host.counter_history import LEARNT, SaveCounters
from laggard.probes.host.host import Host
from laggard.probes.host.virtualization import has_just_booted, loaded_modules
from laggard.probes.probe import Fact, matches_any, section

STARTING_SECONDS: Final = 600.0
"""The time after boot in which something may not be there yet; as long as RDMA ports have (ACTIVATING_SECONDS)."""

_SITE, _OWN, _PAST = "by a site's line", "by its own tables", "as in earlier boots"
_MAX_ITEMS: Final = 64


Told: TypeAlias = Iterator[Finding | Fact | SaveCounters | Unreadable]
"""What a probe yields."""


class Item(NamedTuple):
    """One thing: how much of it is there, and how much the machine's own tables ask for."""

    name: str
    there: int
    wanted: int = 0
    severity: Severity = Severity.CRITICAL
    """How bad it is if there is less than is asked for."""
    lasting: bool = False
    """Whether a boot brings it: then it is a fact for the fleet, and wanted in the next boots."""
    says: str = ""
    """What is wrong with this one, in place of the row's words."""
    share: float = 1.0
    """Of what is wanted, what is enough."""


class Row(NamedTuple):
    """One kind of thing. `read`: what is there and what the tables ask for, with the items that a site's line names.
    Raises NotFound without such a table, and NotApplicable where what is seen here is not the machine's. What is said
    of an item is a section of rules/TABLE.ini: `says`, and `less` where a part of it is there, with both amounts in
    `unit` and what is `named`."""

    name: str
    read: Callable[[Host, Collection[str]], Iterable[Item]] = lambda host, asked: ()
    table: str = "system"
    section: str = ""
    """Empty: that of the row's name."""
    named: Mapping[str, str] = {}
    unit: int = 1
    starting_seconds: float = STARTING_SECONDS


def judge(host: Host, row: Row, site: Mapping[str, int] | None = None, ignore: Sequence[str] = ()) -> Told:
    """The findings of one row. `site`: the amounts that a site's line asks for, 0: none; `ignore`: of names."""
    lines = {name: amount for name, amount in (site or {}).items() if amount}
    try:
        items = {item.name: item for item in row.read(host, lines)}
    except (NotApplicable, Unknown) as error:
        if lines or not isinstance(error, (NotApplicable, NotFound)):  # what a site asks for and is not seen is unknown
            yield Unreadable(str(error))
        return
    prefix, earlier = f"{LEARNT}{row.name} ", host.counter_history.earlier.items()
    past = {name.removeprefix(prefix): amount for name, amount in earlier if name.startswith(prefix)}
    booting = has_just_booted(host, row.starting_seconds)
    short: dict[tuple[Severity, str, str], list[Item]] = {}
    for name in {**past, **items, **lines}:
        item = items.get(name, Item(name, 0))
        source = _SITE if name in lines else _OWN if item.wanted else _PAST
        wanted = lines.get(name) or item.wanted or past.get(name, 0)
        severity = {_SITE: Severity.CRITICAL, _PAST: Severity.WARNING}.get(source, item.severity)
        if item.there < wanted * item.share and not matches_any(name, ignore):
            place = Severity.WARNING if booting else severity, source, item.says
            short.setdefault(place, []).append(item._replace(wanted=wanted))
    for (severity, source, _), missing in short.items():
        yield _finding(row, severity, source, missing)
    lasting = [(item.name, item.there) for item in items.values() if item.lasting and item.there and not booting]
    if lasting:
        yield SaveCounters({prefix + name: amount for name, amount in lasting[:_MAX_ITEMS]})
        yield Fact(row.name, dict(lasting[:_MAX_ITEMS]))


def judge_items(host: Host, row: Row, items: Iterable[Item], site: Mapping[str, int] | None = None) -> Told:
    """The same of items that were read before."""
    yield from judge(host, row._replace(read=lambda *_: items), site)


def _finding(row: Row, severity: Severity, source: str, missing: Sequence[Item]) -> Finding:
    words = section(row.table, row.section or row.name)
    there, wanted = missing[0].there / row.unit, missing[0].wanted / row.unit
    said = words.more["less"] if there and "less" in words.more else words.says
    shown = {"there": there, "wanted": wanted, "missing": wanted - there}
    form = ".0f" if row.unit == 1 else ".4g"
    evidence = {item.name: {"is": item.there, "wanted": item.wanted} for item in missing[:_MAX_ITEMS]}
    words = words._replace(
        device=listed([item.name for item in missing], 3), says=missing[0].says or f"{said} ({source})"
    )
    amounts = {name: format(amount, form) for name, amount in shown.items()}
    return words.found({"wanted": source, "items": evidence}, severity, **{**amounts, **row.named})


SLOWER: Final = 0.75
"""The share of its peers' pace below which one of equal things is at fault. GPUs of one model under one load differ by
8 % on average, and by 22 % at most (Sinha et al., Not All GPUs Are Created Equal, SC22): that much is no fault. A
synchronous job runs at the pace of its slowest part."""


def holds_back(pace: float, of_all: Collection[float], share: float = SLOWER) -> bool:
    """Whether a part at `pace` holds its peers back: most of all are faster by more than equal ones differ. Where half
    of them or more are as slow, they were set so."""
    return 2 * sum(pace < share * other for other in of_all) > len(of_all) > 2


# Modules and device files, of which a site's line tells, and probes of what their devices need.


def _modules(host: Host, asked: Collection[str]) -> Iterator[Item]:
    """Those that are loaded or built in. In a name `-` is `_` to the kernel."""
    loaded = {*loaded_modules(host), *host.names("/sys/module")} if asked else ()
    return (Item(name, int(name.replace("-", "_") in loaded)) for name in asked)


def _files(host: Host, asked: Collection[str]) -> Iterator[Item]:
    if asked and "null" not in host.entries("/dev"):
        raise NotFound("/dev is not shown here")
    return (Item(name, int(name.rpartition("/")[2] in host.names(name.rpartition("/")[0]))) for name in asked)


MODULES: Final = Row("modules", _modules)
FILES: Final = Row("device_files", _files)
