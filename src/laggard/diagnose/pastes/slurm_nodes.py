"""The format `sinfo, scontrol show node`: nodes that Slurm took out of service, and for what reason.

Source: Slurm (src/sinfo/opts.c, src/common/node_info.c of 20.11 to 25.05).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from laggard.diagnose.pastes.drain_reasons import drain_reason
from laggard.diagnose.pastes.paste_format import paste_format
from laggard.diagnose.pastes.section import Section, parts_of
from laggard.model import Finding
from laggard.probes.probe import Fact, finding

_HEAD: Final = re.compile(
    r"^(?:REASON\s+USER\s+TIMESTAMP\b.*NODELIST|PARTITION\s.*\bSTATE\b.*|NODELIST\s.*\bSTATE\b.*|NodeName=\S+ .*)\s*$",
    re.MULTILINE,
)
_REASONS: Final = re.compile(r"^REASON\s+USER\s+TIMESTAMP\b.*NODELIST\s*$")
_ROW: Final = re.compile(
    r"^(\S.{0,400}?)\s+([\w.()-]+)\s+(\d{4}-\d\d-\d\dT\S+|Unknown|None)\s+(?:([a-z*~#!%$@^+_-]+)\s+)?(\S+)\s*$"
)
_NODE: Final = re.compile(r"^NodeName=(\S+)", re.MULTILINE)
_REASON: Final = re.compile(r"^[^\S\n]*Reason=(.{1,1000}?)(?: \[([\w.-]+)@([^\]\n]+)\])?\s*$", re.MULTILINE)
_STATE: Final = re.compile(r"\bState=(\S+)")
_OUT: Final = re.compile(r"DOWN|DRAIN|FAIL|NOT_RESPONDING|INVALID_REG", re.IGNORECASE)
_ON_PURPOSE: Final = re.compile(r"REBOOT|MAINT|POWER|PLANNED", re.IGNORECASE)
_DEAD: Final = re.compile(r"(?:down|fail|unk)\w*\*?|\w+\*")
MAX_NODES: Final = 4096


def read(section: Section) -> Iterator[Finding | Fact]:
    blocks = [(head[1], block) for head, block in parts_of(_NODE, section.text, MAX_NODES)]
    told: set[str] = set()
    for name, block in blocks:
        for found in _judge_node(name, block):
            told.add(name)
            yield found
    lines = section.text.split("\n")[: MAX_NODES * 4]
    rows = [match for match in map(_ROW.match, _after_head(lines, _REASONS)) if match]
    yield Fact("nodes", len(blocks) + len(rows))
    if not rows and any(_REASONS.match(line.rstrip()) for line in lines):
        yield Fact("no_node_has_a_reason", True)  # a heading alone is all that `sinfo -R` prints then
    for match in rows[:MAX_NODES]:
        if match[5] not in told:
            told.add(match[5])
            yield from _finding(match[5], match[4] or "drained or down", match[1], match[2], match[3])
    yield from _states(lines, bool(rows or blocks))


def _judge_node(name: str, block: str) -> Iterator[Finding]:
    state, reason = _STATE.search(block), _REASON.search(block)
    if state and _OUT.search(state[1]) and not _ON_PURPOSE.search(state[1]):
        text = reason[1] if reason else "no reason is given"
        yield from _finding(name, state[1], text, (reason and reason[2]) or "", (reason and reason[3]) or "")


def _after_head(lines: list[str], head: re.Pattern[str]) -> Iterator[str]:
    """Yields the lines of a table, up to an empty one."""
    inside = False
    for line in lines:
        if head.match(line.rstrip()):
            inside = True
        elif not line.strip():
            inside = False
        elif inside:
            yield line


def _states(lines: list[str], told: bool) -> Iterator[Finding | Fact]:
    """Judges sinfo's table of states: nodes that do not answer. `sinfo -R` tells why others are drained."""
    head = next((line.split() for line in lines if "STATE" in line and "NODELIST" in line and "REASON" not in line), [])
    if not head:
        return
    out = [line.split() for line in lines if len(line.split()) == len(head)]
    place, names = head.index("STATE"), head.index("NODELIST")
    states = {row[names]: row[place] for row in out if row != head}
    bad = {names: state for names, state in states.items() if _DEAD.fullmatch(state)}
    yield Fact("nodes_out", {name: state for name, state in states.items() if _OUT.search(state)})
    for name, state in bad.items() if not told else ():
        yield from _finding(name, state, "Not responding" if state.endswith("*") else "no reason is given", "", "")


def _finding(name: str, state: str, reason: str, user: str, when: str) -> Iterator[Finding]:
    row = drain_reason(reason)
    if row.severity is None:
        return
    yield finding(
        row.code,
        f"node {name}",
        f"is {state}, the reason: {reason.strip()}",
        severity=row.severity,
        evidence={"reason": reason.strip(), "set_by": user or None, "since": when or None, "state": state},
        fix=row.fix,
        commands=(f"scontrol show node {name}", "sinfo -R -o '%60E %12u %19H %N'"),
    )


SLURM_NODES: Final = paste_format("sinfo, scontrol show node", _HEAD, read)
