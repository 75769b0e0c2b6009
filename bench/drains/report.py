"""The tables of docs/development/benchmark-tables.md about drains, and the list of what was wrong."""

import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

from laggard_bench.figures import wilson

from drains.churn import CHURN
from drains.events import HOUR, EventClass
from drains.everyday_faults import EVERYDAY
from drains.faults import FAULTS, NOT_SIMULATED
from drains.fleet import KINDS
from drains.score import Catch, Fleet, poisson_interval, reasons
from drains.states import CLASSES, Answers, Judge, State


def document(fleets: Mapping[str, Fleet], caught: Mapping[str, Mapping[str, Catch]], made: str) -> str:
    """The tables; `fleets` and `caught` by tool."""
    parts = [[made], _totals(fleets, caught), _by_event(fleets)]
    parts += [["**Faults caught, of those there are**"], _by_fault(caught, (*FAULTS, *EVERYDAY)), [_notes()]]
    return "\n\n".join("\n".join(part) for part in parts if part) + "\n"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return lines + ["| " + " | ".join(row) + " |" for row in rows]


def _totals(fleets: Mapping[str, Fleet], caught: Mapping[str, Mapping[str, Catch]]) -> list[str]:
    rows = []
    for tool, fleet in fleets.items():
        always = [kind for kind in KINDS if fleet.nodes[kind] and fleet.answers[kind, ()]]
        judged = sum(hours for kind, hours in fleet.healthy_hours.items() if kind not in always)
        drains = [one for one in fleet.drains if one.state[0] not in always]
        years = judged / 8760
        low, high = poisson_interval(len(drains))
        seconds = sorted(value for one in caught[tool].values() for value in one.seconds)
        rows.append((
            tool,
            f"{100 * sum(one.hours for one in drains) / judged:.4f} %" if judged else "-",
            f"{len(drains) / years:.3f} ({low / years:.3f} to {high / years:.3f})" if judged else "-",
            f"{sum(fleet.nodes[kind] for kind in always)} of {sum(fleet.nodes.values())}",
            *(_share([caught[tool].get(one.name) for one in which if not one.warns]) for which in (FAULTS, EVERYDAY)),
            _time(statistics.median(seconds)) if seconds else "-",
        ))  # fmt: skip
    head = (
        "tool", "healthy node-hours taken", "false drains a node and year (95 %)", "nodes taken as they are",
        "faults of the trace caught (95 %)", "faults of every day caught (95 %)", "to the drain, median",
    )  # fmt: skip
    return _table(head, rows)


def _share(catches: Sequence[Catch | None]) -> str:
    found, there = sum(one.caught for one in catches if one), sum(one.all for one in catches if one)
    low, high = wilson(found, there)
    return f"{found} of {there} ({100 * low:.1f} to {100 * high:.1f} %)" if there else "-"


def _by_event(fleets: Mapping[str, Fleet]) -> list[str]:
    counts = {tool: Counter(one.event for one in fleet.drains) for tool, fleet in fleets.items()}
    events = next(iter(fleets.values())).events
    names = list(
        dict.fromkeys(
            [one.name for one in CHURN if events[one.name]] + [name for one in counts.values() for name in one]
        )
    )
    loud = [name for name in names if any(one[name] for one in counts.values())]
    rows = [(f"{name} ({events[name]})", *(str(one[name] or "") for one in counts.values())) for name in loud]
    table = [*_table(("healthy nodes taken out by", *fleets), rows), ""] if rows else []
    return [*table, f"None drains or warns for: {'; '.join(name for name in names if name not in loud)}."]


def _by_fault(caught: Mapping[str, Mapping[str, Catch]], classes: Sequence[EventClass]) -> list[str]:
    rows = []
    for one in classes:
        found = [catches[one.name] for catches in caught.values() if one.name in catches]
        cells = [
            f"{it.caught} of {it.all}" + (f", {_time(statistics.median(it.seconds))}" if it.seconds else "")
            for it in found
        ]
        if cells:
            rows.append((one.name + (" (a warning is enough)" if one.warns else ""), *cells))
    return _table(("fault", *caught), rows)


def _notes() -> str:
    missing = "; ".join(f"{what} ({count})" for what, count in NOT_SIMULATED.items())
    return (
        "The intervals are those of 95 %, of the draw alone: rates that are assumed have none. That of the share of "
        "node-hours is as wide, relative to it, as that of the drains, which are those of nodes that are not taken "
        "as they are. Faults of the trace that are not here, since a passive check of the node does not see them: "
        f"{missing}."
    )


def _time(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 2 * HOUR else f"{seconds / HOUR:.0f} h"


def wrongs(judge: Judge, answers: Answers) -> list[str]:
    """Each state of which laggard is wrong, once for each kind of node, event and reason: healthy ones that it takes
    out, then faults that it never sees. States of several events are listed where their events apart say nothing."""
    false: defaultdict[tuple[str, str, str], list[tuple[State, str]]] = defaultdict(list)
    missed: defaultdict[tuple[str, int, int], list[bool]] = defaultdict(list)
    for state, said in sorted(answers.items()):
        kind, events = state
        found = reasons(answers, state) if events else said
        classes = [CLASSES[shown.event] for shown in events]
        if any(one.fault for one in classes):
            if len(events) == 1:
                missed[kind, events[0].event, events[0].variant].append(bool(found))
            continue
        if any(judge.is_free(kind, shown) for shown in events):
            continue
        for shown in events if len(events) > 1 else ():
            found -= answers[kind, (shown,)]
        if found:
            first = min(found)
            names = " + ".join(one.name for one in classes) or "no event at all"
            false[kind, names, first.split(" ")[0]].append((state, first))
    lines = [
        f"FALSE   {kind}: {event}: {judge.says(states[0][0]) or KINDS[kind].says}: {states[0][1]}"
        + (f" (and {len(states) - 1} states more)" if len(states) > 1 else "")
        for (kind, event, _), states in sorted(false.items())
    ]
    for (kind, event, variant), seen in sorted(missed.items()):
        if not any(seen):
            lines.append(f"MISSED  {kind}: {CLASSES[event].name}: {judge.variant(kind, event, variant).says}")
    return list(dict.fromkeys(lines))


def sources() -> list[str]:
    """Where each event's look and rate come from: one line each."""
    return [
        f"- {one.name}: {one.source}; rate {one.rate:.2f} a node and year, {one.prior}"
        for one in (*CHURN, *FAULTS, *EVERYDAY)
    ]
