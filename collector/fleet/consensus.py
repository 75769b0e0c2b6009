"""FLEET_OUTLIER: nodes that differ from the majority of their kind. One pure function from facts to findings.

What is compared is what should be the same (fleet_facts.py), within one kind of hardware. It takes a strict majority
of the nodes whose value is known to say what is normal: a tie says nothing, and a value that is not known is no
difference. When many differ at once the fleet is being changed, and each single node is no news: one note.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from laggard.catalogue.findings import finding_kind
from laggard.collector.fleet.compared_facts import COMPARABLES, Comparable, Values, hardware_kind, value_of
from laggard.model import Finding, Fix, Note
from laggard.text.words import counted, one_line

CODE = "FLEET_OUTLIER"

FEWEST_NODES = 3
"""Of two nodes that differ neither is the odd one."""

MANY_RATIO = 0.25
"""More outliers than this share of the nodes (and more than one) are a change under way, not so many faults."""

MOST_NOTES = 32
_NAMED = 6

Facts = Mapping[str, Any]


class Consensus(NamedTuple):
    """What comparing the nodes says: the findings by node, and what could not be said, or not of single nodes."""

    findings: Mapping[str, tuple[Finding, ...]]
    notes: tuple[Note, ...]


def consensus(nodes: Mapping[str, Facts]) -> Consensus:
    """Compares the nodes' facts, kind by kind. The order of `nodes` does not matter; a node is any unique name."""
    kinds: dict[str, list[str]] = {}
    strangers = []
    for node in sorted(nodes):
        kind = hardware_kind(nodes[node])
        if kind is not None:
            kinds.setdefault(kind, []).append(node)
        elif nodes[node]:
            strangers.append(node)
    notes = [_strangers_note(strangers)] if strangers else []
    findings: dict[str, list[Finding]] = {}
    for kind, members in sorted(kinds.items()):
        if len(members) < FEWEST_NODES:
            notes.append(_few_note(kind, members))
            continue
        for comparable in COMPARABLES:
            for said in _compare(kind, comparable, {node: value_of(nodes[node], comparable) for node in members}):
                if isinstance(said, Note):
                    notes.append(said)
                else:
                    findings.setdefault(said[0], []).append(said[1])
    return Consensus({node: tuple(found) for node, found in sorted(findings.items())}, _bounded(notes))


def _compare(
    kind: str, comparable: Comparable, values: Mapping[str, Values | None]
) -> Iterator[Note | tuple[str, Finding]]:
    known = {node: value for node, value in values.items() if value is not None}
    if len(known) < FEWEST_NODES:
        return
    ranked = sorted(Counter(known.values()).items(), key=lambda item: (-item[1], item[0]))
    usual, holders = ranked[0]
    outliers = [node for node in known if known[node] != usual]
    if not outliers:
        return
    if 2 * holders <= len(known):
        yield Note(
            "fleet_tie", f"{comparable.name}: no majority among {len(known)} nodes of {_short(kind)}: {_counts(ranked)}"
        )
    elif len(outliers) > max(1, MANY_RATIO * len(known)):
        text = (
            f"{comparable.name}: {len(outliers)} of {len(known)} nodes of {_short(kind)} differ from the majority, "
            f"as in a rolling update: {_counts(ranked)}; for example {_names(outliers)}"
        )
        yield Note("fleet_changing", text)
    else:
        for node in outliers:
            yield node, _finding(kind, comparable, known[node], usual, holders, len(known))


def _finding(kind: str, comparable: Comparable, value: Values, usual: Values, holders: int, known: int) -> Finding:
    described = finding_kind(CODE)
    return Finding(
        code=CODE,
        severity=described.severity,
        device=comparable.name,
        summary=f"is {_text(value)}; {holders} of {known} nodes of the same hardware have {_text(usual)}",
        evidence={
            "value": _text(value),
            "majority_value": _text(usual),
            "nodes_with_majority": holders,
            "nodes_compared": known,
            "hardware": _short(kind),
        },
        fix=Fix(comparable.fix, (comparable.look,)),
        doc=described.doc,
    )


def _few_note(kind: str, members: Sequence[str]) -> Note:
    text = (
        f"{counted(len(members), 'node')} of {_short(kind)} ({_names(members)}): {FEWEST_NODES} are needed to compare"
    )
    return Note("fleet_small", text, node=members[0] if len(members) == 1 else None)


def _strangers_note(nodes: Sequence[str]) -> Note:
    text = f"{counted(len(nodes), 'node')} not compared, their hardware is not known: {_names(nodes)}"
    return Note("fleet_unknown", text)


def _bounded(notes: Sequence[Note]) -> tuple[Note, ...]:
    if len(notes) <= MOST_NOTES:
        return tuple(notes)
    return (*notes[: MOST_NOTES - 1], Note("fleet_more", f"and {len(notes) - MOST_NOTES + 1} more notes of this sort"))


def _counts(ranked: Sequence[tuple[Values, int]]) -> str:
    told = ", ".join(f"{_text(value)} on {count}" for value, count in ranked[:_NAMED])
    return told + (f" and {len(ranked) - _NAMED} more values" if len(ranked) > _NAMED else "")


def _names(nodes: Sequence[str]) -> str:
    told = ", ".join(_short(node) for node in nodes[:_NAMED])
    return told + (f" and {len(nodes) - _NAMED} more" if len(nodes) > _NAMED else "")


def _text(value: Values) -> str:
    return _short(", ".join(value))


def _short(text: str, most: int = 120) -> str:
    clean = one_line(text)
    return clean if len(clean) <= most else clean[: most - 3] + "..."
