"""FLEET_OUTLIER: nodes that differ from the majority of nodes with their hardware. Pure: from facts to findings.

Only what should be the same everywhere is compared (compared_facts.py), and only among nodes of the same hardware. What
is usual takes a strict majority of the nodes whose value is known: a tie proves nothing, and a value that is not known
is no difference. Where many nodes differ at once the fleet is being changed, and no single node is at fault: then there
is one note in place of findings.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from laggard.catalogue.findings import finding_type
from laggard.collector.fleet.compared_facts import COMPARED_FACTS, ComparedFact, ComparedNode, Values, compared_node
from laggard.majority import majority
from laggard.model import Finding, Fix, Note
from laggard.text.words import counted, printable_line

CODE = "FLEET_OUTLIER"

MIN_NODES = 3
"""The least number of nodes: where two differ, neither is the outlier."""

MANY_RATIO = 0.25
"""The largest share of the nodes that may be outliers. More (and more than one) are a change under way, not as many
faults."""

MAX_NOTES = 32
_MAX_NAMES = 6
_MAX_TEXT = 120

Facts = Mapping[str, Any]


class Consensus(NamedTuple):
    """The result of comparing the nodes: the findings by node, and notes on what could not be compared and on what
    holds for many nodes at once."""

    findings: Mapping[str, tuple[Finding, ...]]
    notes: tuple[Note, ...]


def consensus(nodes: Mapping[str, Facts]) -> Consensus:
    """Compares the nodes' facts, hardware by hardware. `nodes`: facts by any unique name of the node; their order does
    not matter."""
    return consensus_of({node: compared_node(facts) for node, facts in nodes.items()})


def consensus_of(nodes: Mapping[str, ComparedNode]) -> Consensus:
    """The same of facts that were read before."""
    by_hardware: dict[str, list[str]] = {}
    unknown = []
    for node in sorted(nodes):
        hardware = nodes[node].hardware
        if hardware is not None:
            by_hardware.setdefault(hardware, []).append(node)
        elif nodes[node].has_facts:
            unknown.append(node)
    notes = [_unknown_hardware_note(unknown)] if unknown else []
    findings: dict[str, list[Finding]] = {}
    for hardware, members in sorted(by_hardware.items()):
        if len(members) < MIN_NODES:
            notes.append(_too_few_note(hardware, members))
            continue
        for place, fact in enumerate(COMPARED_FACTS):
            for result in _compare(hardware, fact, {node: nodes[node].values[place] for node in members}):
                if isinstance(result, Note):
                    notes.append(result)
                else:
                    node, finding = result
                    findings.setdefault(node, []).append(finding)
    return Consensus({node: tuple(found) for node, found in sorted(findings.items())}, _bounded(notes))


def _compare(
    hardware: str, fact: ComparedFact, values: Mapping[str, Values | None]
) -> Iterator[Note | tuple[str, Finding]]:
    """Compares one fact of all nodes of the same hardware: a note, or the outliers with their findings, or nothing."""
    known = {node: value for node, value in values.items() if value is not None}
    if len(known) < MIN_NODES:
        return
    usual = majority(known.values())
    if usual is None:
        text = f"{fact.name}: no majority among {len(known)} nodes of {_short(hardware)}: {_counts(known.values())}"
        yield Note("fleet_tie", text)
        return
    outliers = [node for node in known if known[node] != usual]
    if len(outliers) > max(1, MANY_RATIO * len(known)):
        text = (
            f"{fact.name}: {len(outliers)} of {len(known)} nodes of {_short(hardware)} differ from the majority, "
            f"as in a rolling update: {_counts(known.values())}; for example {_names(outliers)}"
        )
        yield Note("fleet_changing", text)
    else:
        for node in outliers:
            yield node, _finding(hardware, fact, known[node], usual, len(known) - len(outliers), len(known))


def _finding(hardware: str, fact: ComparedFact, value: Values, usual: Values, holders: int, known: int) -> Finding:
    described = finding_type(CODE)
    return Finding(
        code=CODE,
        severity=described.severity,
        device=fact.name,
        summary=f"is {_text(value)}; {holders} of {known} nodes of the same hardware have {_text(usual)}",
        evidence={
            "value": _text(value),
            "majority_value": _text(usual),
            "nodes_with_majority": holders,
            "nodes_compared": known,
            "hardware": _short(hardware),
        },
        fix=Fix(fact.fix, (fact.command,)),
        doc=described.doc,
    )


def _too_few_note(hardware: str, nodes: Sequence[str]) -> Note:
    text = f"{counted(len(nodes), 'node')} of {_short(hardware)} ({_names(nodes)}): {MIN_NODES} are needed to compare"
    return Note("fleet_small", text, node=nodes[0] if len(nodes) == 1 else None)


def _unknown_hardware_note(nodes: Sequence[str]) -> Note:
    text = f"{counted(len(nodes), 'node')} not compared, their hardware is not known: {_names(nodes)}"
    return Note("fleet_unknown", text)


def _bounded(notes: Sequence[Note]) -> tuple[Note, ...]:
    if len(notes) <= MAX_NOTES:
        return tuple(notes)
    return (*notes[: MAX_NOTES - 1], Note("fleet_more", f"and {len(notes) - MAX_NOTES + 1} more notes of this sort"))


def _counts(values: Iterable[Values]) -> str:
    """The number of nodes that have each value, for people; the most frequent value first."""
    ranked = sorted(Counter(values).items(), key=lambda item: (-item[1], item[0]))
    listed = ", ".join(f"{_text(value)} on {count}" for value, count in ranked[:_MAX_NAMES])
    return listed + (f" and {len(ranked) - _MAX_NAMES} more values" if len(ranked) > _MAX_NAMES else "")


def _names(nodes: Sequence[str]) -> str:
    listed = ", ".join(_short(node) for node in nodes[:_MAX_NAMES])
    return listed + (f" and {len(nodes) - _MAX_NAMES} more" if len(nodes) > _MAX_NAMES else "")


def _text(value: Values) -> str:
    return _short(", ".join(value))


def _short(text: str) -> str:
    return printable_line(text, _MAX_TEXT)
