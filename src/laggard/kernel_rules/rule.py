"""A rule for kernel logs: the form of a record that says that something is wrong, and the one that says that it is
right again. Records are judged by a table of them: what was found of which device, and what closed it since. Pure, and
bounded."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Final, NamedTuple

from laggard.kit.words import compiled
from laggard.model import Severity

if TYPE_CHECKING:
    from laggard.catalogue.rules import Row

STARTS: Final = r"^Linux version \d"
"""The first record of a kernel that starts."""


class Rule(NamedTuple):
    word: str
    """A part of every record that the pattern takes: few records are searched."""
    pattern: str
    """The group `device` names the device within `named`; `summary` may quote the other groups."""
    code: str
    severity: Severity
    named: str
    """The device of the finding, with `{device}` for the group."""
    summary: str
    fix: str
    commands: tuple[str, ...] = ()
    closed_by: str = ""
    """The form of a record that says that it is right again: for the device of its group `device`, without one for all
    devices. Also the start of a kernel closes what a rule with `closed_by` found."""
    after: Severity | None = None
    """The severity of what was closed; None: it is no finding."""
    least: int = 1
    """The number of records from which on they are a finding."""
    settle_seconds: float = 0.0
    """The time within which nothing closes it: a driver's start reports what failed before it is loaded."""
    is_usual_at_start: bool = False
    """True: healthy devices say so when their driver has just started."""
    witness: str = ""
    """The kind of what /proc or /sys shows while the fault lasts, by which a probe judges the live log; empty: no probe
    does. See laggard.probes.system.kernel_faults."""

    def commands_for(self, device: str) -> tuple[str, ...]:
        return tuple(command.replace("{device}", device) for command in self.commands)


def rule_of(row: Row, word: str) -> Rule:
    """That of a row of rules as data. `word`: see Rule."""
    more = row.more
    return Rule(
        word,
        row.pattern,
        row.code,
        row.severity or Severity.CRITICAL,
        row.device,
        row.says,
        row.fix.text,
        row.fix.commands,
        more.get("closed", ""),
        Severity(more["after"]) if "after" in more else None,
        int(more.get("least", 1)),
        float(more.get("settle", 0)),
        "usual_at_start" in more,
        more.get("witness", ""),
    )


@cache
def rules(table: str) -> Mapping[str, Rule]:
    """The rules of TABLE.ini in their order, by the names of their sections: see laggard.catalogue.rules."""
    from laggard.catalogue.rules import read_table  # where they are asked for first: a node without a log needs none

    rows = read_table(os.path.join(os.path.dirname(__file__), f"{table}.ini")).rows
    return {row.kind: rule_of(row, row.more["word"]) for row in rows}


def rules_of(table: str, *kinds: str) -> tuple[Rule, ...]:
    """Those of TABLE.ini whose names begin so."""
    return tuple(rule for name, rule in rules(table).items() if name.startswith(kinds))


@cache
def live_rules() -> tuple[Rule, ...]:
    """Those with a witness, by which probes judge the live log."""
    found = (rule for table in ("host", "disks", "devices") for rule in rules(table).values())
    return tuple(rule for rule in found if rule.witness)


_BEGIN: Final = (
    "nvme nvme|I/O error, dev |blk_update_request: |print_req_error: |critical |sd |EXT4-fs |Aborting journal|XFS (|"
    "BTRFS|watchdog: |NMI watchdog: |rcu: |INFO: rcu_|INFO: task |BUG: |kernel BUG at |Oops|Internal error: Oops|"
    "general protection fault|invalid opcode: |divide error: |stack segment: |EDAC |mce: |CPU|Memory failure: |"
    "[Hardware Error]|{|Out of memory: Kill|pcieport |nvidia |mlx5_core |bnxt_en |ice |i40e |ixgbe |igb |igc |tg3 |"
    "e1000e |qede "
)
LIVE_BEGINNINGS: Final = tuple(_BEGIN.split("|"))
"""The beginnings of the records that the rules with a witness take, and of those that close them. So text of a user in
the middle of a record says nothing, and few records are searched."""


_MAX_HITS: Final = 256
"""The most pairs of a rule and a device that one log is judged by."""
_LATEST: Final = 64

Key = tuple[int, str]
"""The place of a rule in its table, and the device in small letters."""


class Hit(NamedTuple):
    """What one rule found of one device."""

    times: int
    first: int
    """The place of its first record, which orders findings."""
    last: str
    groups: Mapping[str, str]
    latest: tuple[float | None, ...] = ()
    """When its last records were written, the last one last."""
    place: int = 0
    """The place of its last record."""
    closed: int = 0
    """The place of the record that closed it; 0: none did."""
    modules: tuple[str, ...] = ()
    trace: tuple[str, ...] = ()
    """What a trace says of where the kernel was."""

    @property
    def seconds(self) -> float | None:
        return self.latest[-1] if self.latest else None


class RuleJudge:
    """Takes records in order and holds what the rules found in them. Of several rules that take one record the first
    counts. `is_foreign` tells records that may be of somebody else than the kernel: these say nothing."""

    def __init__(self, rules: Sequence[Rule], is_foreign: Callable[[str], bool] | None = None) -> None:
        self.rules = rules
        self._is_foreign = is_foreign or (lambda text: False)
        self.hits: dict[Key, Hit] = {}
        self.records = 0
        self._closing = [f"{rule.closed_by}|{STARTS}" if rule.closed_by else "" for rule in rules]

    def take(self, text: str, seconds: float | None) -> bool:
        """Judges one record; returns whether a rule knows it."""
        self.records += 1
        known = self._close(text, seconds)
        for number, rule in enumerate(self.rules):
            if rule.word in text and (found := self._search(rule.pattern, text)):
                groups = {name: value or "" for name, value in found.groupdict().items()}
                if self.counts(rule, groups, seconds):
                    self.hit(number, groups, text, seconds)
                return True
        return known

    def open(self) -> Iterator[tuple[Rule, Hit]]:
        """Yields what nothing closed, in the order of the rules."""
        for (number, _), hit in sorted(self.hits.items(), key=lambda each: each[0]):
            if not hit.closed and hit.times >= self.rules[number].least:
                yield self.rules[number], hit

    def counts(self, rule: Rule, groups: Mapping[str, str], seconds: float | None) -> bool:
        """Whether a record that the rule takes is held."""
        return True

    def hit(self, number: int, groups: Mapping[str, str], text: str, seconds: float | None) -> Key | None:
        """Holds one more record of a rule; returns where, and None where there is no room."""
        key = number, groups.get("device", "").lower()
        before = self.hits.get(key)
        if before is None and len(self.hits) >= _MAX_HITS:
            return None
        start = before or Hit(0, self.records, "", groups)
        latest = (*start.latest, seconds)[-_LATEST:]
        self.hits[key] = start._replace(
            times=start.times + 1, last=text, groups=groups, latest=latest, place=self.records, closed=0
        )
        return key

    def _search(self, pattern: str, text: str) -> re.Match[str] | None:
        found = compiled(pattern).search(text)
        return None if found is None or self._is_foreign(text) else found

    def _close(self, text: str, seconds: float | None) -> bool:
        closed = False
        for (number, device), hit in self.hits.items():
            closing = self._closing[number]
            if hit.closed or not closing or not (found := self._search(closing, text)):
                continue
            if _is_settling(self.rules[number], hit, seconds):
                continue
            named = found.groupdict().get("device")
            if named is None or named.lower() == device:
                self.hits[number, device] = hit._replace(closed=self.records)
                closed = True
        return closed


def _is_settling(rule: Rule, hit: Hit, seconds: float | None) -> bool:
    if not rule.settle_seconds:
        return False
    return hit.seconds is None or seconds is None or 0 <= seconds - hit.seconds <= rule.settle_seconds
