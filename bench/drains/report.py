"""The tables of docs/benchmark.md about drains, and the list of what was wrong."""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from drains.churn import CHURN
from drains.events import HOUR
from drains.faults import FAULTS, NOT_SIMULATED
from drains.fleet import KINDS
from drains.rules import TOOLS
from drains.score import STICKY_HOURS, Catch, Fleet, outside, poisson_interval, share_interval
from drains.states import NAMES, Answers, Judge, State

_SHORT: Final = {"NVSentinel, as installed": "NVSentinel", "NVSentinel, NIC monitors on": "NVSentinel + NIC",
                 "EKS node monitoring agent": "EKS agent"}  # fmt: skip


def document(fleet: Fleet, caught: Mapping[tuple[str, str], Catch], answers: Mapping[State, Answers], made: str) -> str:
    parts = [
        [made],
        _totals(fleet, caught, answers),
        ["**Healthy nodes taken out, by kind of event: drains of how many events**"],
        _by_event(fleet),
        ["**Healthy kinds of nodes that a tool takes out without any event**"],
        _kinds(fleet, answers),
        ["**Faults caught, of those there are** (-: no business of the tool, by its own documentation)"],
        _by_fault(caught),
        [_notes()],
    ]
    return "\n\n".join("\n".join(part) for part in parts) + "\n"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return lines + ["| " + " | ".join(row) + " |" for row in rows]


def _totals(fleet: Fleet, caught: Mapping[tuple[str, str], Catch], answers: Mapping[State, Answers]) -> list[str]:
    hours = sum(fleet.healthy_hours.values())
    rows = []
    for tool in NAMES:
        always = [kind for kind in KINDS if fleet.nodes[kind] and answers[kind, ()][tool]]
        judged = hours - sum(fleet.healthy_hours[kind] for kind in always)
        drains = [one for one in fleet.drains if one.tool == tool and one.state[0] not in always]
        years = judged / 8760
        low, high = poisson_interval(len(drains))
        within = [catch for (name, of), catch in caught.items() if of == tool and not outside(name, tool)]
        found, there = sum(one.caught for one in within), sum(one.all for one in within)
        everything = [catch for (_, of), catch in caught.items() if of == tool]
        seconds = sorted(value for one in within for value in one.seconds)
        rows.append(
            (
                tool,
                f"{100 * sum(one.hours for one in drains) / judged:.4f} %" if judged else "-",
                f"{len(drains) / years:.3f} ({low / years:.3f} to {high / years:.3f})" if judged else "-",
                f"{sum(fleet.nodes[kind] for kind in always)} of {sum(fleet.nodes.values())}",
                _share(found, there),
                f"{sum(one.caught for one in everything)} of {sum(one.all for one in everything)}",
                _time(statistics.median(seconds)) if seconds else "-",
                _time(seconds[min(len(seconds) - 1, int(0.9 * len(seconds)))]) if seconds else "-",
            )
        )
    head = (
        "tool", "healthy node-hours taken", "false drains a node and year (95 %)", "nodes taken as they are",
        "faults caught, in its scope (95 %)", "of all faults", "to the drain, median", "nine of ten within",
    )  # fmt: skip
    return _table(head, rows)


def _share(found: int, there: int) -> str:
    low, high = share_interval(found, there)
    return f"{found} of {there} ({100 * low:.1f} to {100 * high:.1f} %)" if there else "-"


def _by_event(fleet: Fleet) -> list[str]:
    counts = Counter((one.event, one.tool) for one in fleet.drains)
    names = [one.name for one in CHURN if fleet.events[one.name]]
    others = sorted({one.event for one in fleet.drains} - set(names))
    rows = [
        (f"{name} ({fleet.events[name]})", *(str(counts[name, tool] or "") for tool in NAMES))
        for name in names
        if any(counts[name, tool] for tool in NAMES)
    ]
    quiet = [name for name in names if not any(counts[name, tool] for tool in NAMES)]
    rows += [(name, *(str(counts[name, tool] or "") for tool in NAMES)) for name in others]
    return [*_table(("event", *map(_short, NAMES)), rows), "", f"Nobody drains for: {'; '.join(quiet)}."]


def _kinds(fleet: Fleet, answers: Mapping[State, Answers]) -> list[str]:
    rows = []
    for kind, one in KINDS.items():
        if fleet.nodes[kind]:
            said = [("taken" if answers[kind, ()][tool] else "") for tool in NAMES]
            rows.append((f"{one.says} ({fleet.nodes[kind]})", *said))
    return _table(("kind", *map(_short, NAMES)), rows)


def _by_fault(caught: Mapping[tuple[str, str], Catch]) -> list[str]:
    rows = []
    for one in FAULTS:
        cells = []
        for tool in NAMES:
            catch = caught.get((one.name, tool))
            if catch is None:
                break
            text = f"{catch.caught} of {catch.all}" + (
                f", {_time(statistics.median(catch.seconds))}" if catch.seconds else ""
            )
            cells.append("-" if outside(one.name, tool) and not catch.caught else text)
        if cells:
            rows.append((one.name, *cells))
    return _table(("fault", *map(_short, NAMES)), rows)


def _notes() -> str:
    missing = "; ".join(f"{what} ({count})" for what, count in NOT_SIMULATED.items())
    return (
        "The intervals are those of 95 %, of the draw alone: rates that are assumed have none. That of the share of "
        "node-hours is as wide, relative to it, as that of the drains, which are those of nodes that the tool does not "
        f"take as they are. Tools that keep a node out until somebody acts are taken to keep it for {STICKY_HOURS:.0f} "
        "hours. Faults of the trace that are not here, since a passive check of the node does not see them: "
        f"{missing}."
    )


def _short(tool: str) -> str:
    return _SHORT.get(tool, tool)


def _time(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 2 * HOUR else f"{seconds / HOUR:.0f} h"


def wrongs(judge: Judge, answers: Mapping[State, Answers], tool: str) -> list[str]:
    """Each state of which the tool is wrong, once for each kind of node, event and reason: healthy ones that it takes
    out, then faults that it never sees. States of several events are listed where their events apart say nothing."""
    false: defaultdict[tuple[str, str, str], list[State]] = defaultdict(list)
    missed: defaultdict[tuple[str, int, int], list[bool]] = defaultdict(list)
    for state, said in sorted(answers.items()):
        kind, events = state
        reasons = said[tool] - answers[kind, ()][tool] if events else said[tool]
        classes = [judge.event(shown) for shown in events]
        if any(one.fault for one in classes):
            if len(events) == 1:
                missed[kind, events[0].event, events[0].variant].append(bool(reasons))
            continue
        if any(judge.is_free(kind, shown) for shown in events):
            continue
        for shown in events if len(events) > 1 else ():
            reasons -= answers[kind, (shown,)][tool]
        if reasons:
            first = min(reasons)
            false[kind, " + ".join(one.name for one in classes) or "no event at all", first.split(" ")[0]].append(state)
    lines = [
        f"FALSE   {kind}: {event}: {judge.says(states[0]) or KINDS[kind].says}: {min(_of(answers, states[0], tool))}"
        + (f" (and {len(states) - 1} states more)" if len(states) > 1 else "")
        for (kind, event, _), states in sorted(false.items())
    ]
    for (kind, event, variant), seen in sorted(missed.items()):
        name = judge.event_name(event)
        if not any(seen):
            scope = "no business of it" if outside(name, tool) else "missed"
            lines.append(f"MISSED  {kind}: {name}: {judge.variant(kind, event, variant).says} ({scope})")
    return list(dict.fromkeys(lines))


def _of(answers: Mapping[State, Answers], state: State, tool: str) -> frozenset[str]:
    kind, events = state
    own = answers[state][tool]
    apart = [answers[kind, (shown,)][tool] for shown in events] if len(events) > 1 else []
    return (own - (answers[kind, ()][tool] if events else frozenset())) - frozenset().union(*apart)


def sources() -> list[str]:
    """Where each event's look and rate, and each tool's rules, come from: one line each."""
    lines = [
        f"- {one.name}: {one.source}; rate {one.rate:.2f} a node and year, {one.prior}" for one in (*CHURN, *FAULTS)
    ]
    return [*lines, "", *(f"- {tool.name}: {tool.source}" for tool in TOOLS)]
