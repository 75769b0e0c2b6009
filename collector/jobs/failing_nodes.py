"""The nodes that fail their health checks, in one line: the answer of a cluster in which no job runs. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from laggard.model import Note, Severity
from laggard.text.words import counted, joined, natural, printable_line
from laggard.wire.node_finding import NodeFinding
from laggard.wire.nodes import NodeRow

_MAX_CODES: Final = 3  # of one node
_MAX_KINDS: Final = 3  # of nodes with other findings
_MAX_NAMES: Final = 4  # of nodes with the same findings
_MAX_NAME_CHARACTERS: Final = 64


def failing_note(nodes: Sequence[NodeRow], findings: Sequence[NodeFinding]) -> Note | None:
    """The nodes by what is wrong with them, what most of them have first, of thousands as of two in one line; None
    where no node fails. `findings`: the worst first."""
    alike = _by_codes([row for row in nodes if row.verdict == "fail"], findings)
    if not alike:
        return None
    failing = sum(map(len, alike.values()))
    most = sorted(alike.items(), key=lambda item: (-len(item[1]), item[0]))
    told = [f"{_codes_text(codes)} on {_names_text(names)}" for codes, names in most[:_MAX_KINDS]]
    left = sum(len(names) for _, names in most[_MAX_KINDS:])
    told += [f"other findings on {counted(left, 'node')}"] if left else []
    them, verb = ("it", "fails") if failing == 1 else ("them", "fail")
    first = next((codes[0] for codes, _ in most if codes), "")
    how = f"laggard findings explain {first}" if first else "laggard healthcheck there says what is wrong"
    text = f"{failing} of {counted(len(nodes), 'node')} {verb} the health checks: {'; '.join(told)}"
    return Note("nodes_failing", f"{text}. Keep jobs off {them} until that is mended: {how}")


def _by_codes(rows: Sequence[NodeRow], findings: Sequence[NodeFinding]) -> Mapping[tuple[str, ...], list[str]]:
    """The names of nodes by the codes of their critical findings, which are why they fail."""
    codes: dict[str, dict[str, None]] = {row.url: {} for row in rows}
    for found in findings:
        if found.url in codes and found.finding.severity is Severity.CRITICAL:
            codes[found.url][found.finding.code] = None
    alike: dict[tuple[str, ...], list[str]] = {}
    for row in rows:
        alike.setdefault(tuple(codes[row.url]), []).append(row.node or row.url.partition("://")[2])
    return alike


def _codes_text(codes: Sequence[str]) -> str:
    more = [f"{len(codes) - _MAX_CODES} more"] if len(codes) > _MAX_CODES else []
    return joined([*codes[:_MAX_CODES], *more]) or "something without a code"


def _names_text(names: Sequence[str]) -> str:
    shown = [printable_line(name, _MAX_NAME_CHARACTERS) for name in sorted(names, key=natural)[:_MAX_NAMES]]
    more = [f"{len(names) - len(shown)} more"] if len(names) > len(shown) else []
    return joined([*shown, *more])
