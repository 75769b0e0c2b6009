"""The nodes that stand in the list, of all that the collector would leave out: those that the scheduler still knows,
the worst ones first, and no more than the cap. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from laggard.suspects.names import KnownNames, is_host_name
from laggard.text.words import counted, printable_line, utc_text
from laggard.wire.exclusion import Exclusion, ExclusionsDocument


class Chosen(NamedTuple):
    """`names`: of `listed`, as the scheduler has them. `over_cap`: those that the cap keeps out of the list.
    `not_known`: those that the scheduler has no more."""

    names: tuple[str, ...]
    listed: tuple[Exclusion, ...]
    over_cap: tuple[Exclusion, ...]
    not_known: tuple[str, ...]


def choose(document: ExclusionsDocument, known: KnownNames | None) -> Chosen:
    """`known`: the scheduler's nodes; None: it was not asked."""
    names: dict[str, Exclusion] = {}
    not_known = []
    for it in document.exclusions:
        name = it.node if known is None else known.find(it.node)
        if name is None or not is_host_name(name):
            not_known.append(it.node)
        else:
            names.setdefault(name, it)
    listed, over = list(names.items())[: document.cap], list(names.items())[document.cap :]
    return Chosen(
        tuple(name for name, _ in listed),
        tuple(it for _, it in listed),
        tuple(it for _, it in over),
        tuple(not_known),
    )


def cap_text(chosen: Chosen, document: ExclusionsDocument) -> str:
    """One line that says which nodes the cap keeps out of the list; empty: none."""
    if not chosen.over_cap:
        return ""
    suspect = len(chosen.listed) + len(chosen.over_cap)
    return printable_line(
        f"{suspect} of {counted(document.answering, 'node')} are suspect, and at most {document.cap} may be left out "
        f"at once (max_drain_ratio): {', '.join(it.node for it in chosen.over_cap[:8])} stay in"
    )


def explained(chosen: Chosen, document: ExclusionsDocument) -> Iterator[str]:
    """The list in words: a line for each node that is in it, and for each that could be and is not."""
    yield f"{counted(len(chosen.names), 'node')} to leave out." if chosen.names else "No node is to be left out."
    for name, it in zip(chosen.names, chosen.listed, strict=True):
        yield printable_line(f"{name}: {it.reason}; {_when(it)}")
    if text := cap_text(chosen, document):
        yield f"The cap: {text}."
        for it in chosen.over_cap:
            yield printable_line(f"{it.node} stays in: {it.reason}; {_when(it)}")
    for node in chosen.not_known:
        yield printable_line(f"{node} is left away: the scheduler has no such node")
    for each in document.left_in:
        yield printable_line(f"{each.node} stays in: {each.why}")


def _when(it: Exclusion) -> str:
    since = "since before the collector started" if it.since is None else f"since {utc_text(it.since)}"
    return f"{since}, " + ("as long as its checks fail" if it.until is None else f"until {utc_text(it.until)}")
