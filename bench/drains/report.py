"""The tables of docs/benchmark.md about drains, and the list of what was wrong."""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

from drains.churn import CHURN
from drains.events import HOUR
from drains.faults import FAULTS, NOT_SIMULATED
from drains.fleet import KINDS
from drains.laggard import OUTSIDE
from drains.score import Catch, Fleet, poisson_interval, reasons, share_interval
from drains.states import Answers, Judge, State


def document(fleet: Fleet, caught: Mapping[str, Catch], answers: Answers, made: str) -> str:
    parts = [[made], _totals(fleet, caught, answers), _by_event(fleet)]
    parts += [["**Faults caught, of those there are**"], _by_fault(caught), [_notes()]]
    return "\n\n".join("\n".join(part) for part in parts if part) + "\n"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return lines + ["| " + " | ".join(row) + " |" for row in rows]


def _totals(fleet: Fleet, caught: Mapping[str, Catch], answers: Answers) -> list[str]:
    always = [kind for kind in KINDS if fleet.nodes[kind] and answers[kind, ()]]
    judged = sum(hours for kind, hours in fleet.healthy_hours.items() if kind not in always)
    drains = [one for one in fleet.drains if one.state[0] not in always]
    years = judged / 8760
    low, high = poisson_interval(len(drains))
    within = [catch for name, catch in caught.items() if name not in OUTSIDE]
    found, there = sum(one.caught for one in within), sum(one.all for one in within)
    seconds = sorted(value for one in within for value in one.seconds)
    head = (
        "healthy node-hours taken", "false drains a node and year (95 %)", "nodes taken as they are",
        "faults caught, in its scope (95 %)", "of all faults", "to the drain, median", "nine of ten within",
    )  # fmt: skip
    row = (
        f"{100 * sum(one.hours for one in drains) / judged:.4f} %" if judged else "-",
        f"{len(drains) / years:.3f} ({low / years:.3f} to {high / years:.3f})" if judged else "-",
        f"{sum(fleet.nodes[kind] for kind in always)} of {sum(fleet.nodes.values())}",
        _share(found, there),
        f"{sum(one.caught for one in caught.values())} of {sum(one.all for one in caught.values())}",
        _time(statistics.median(seconds)) if seconds else "-",
        _time(seconds[min(len(seconds) - 1, int(0.9 * len(seconds)))]) if seconds else "-",
    )
    return _table(head, [row])


def _share(found: int, there: int) -> str:
    low, high = share_interval(found, there)
    return f"{found} of {there} ({100 * low:.1f} to {100 * high:.1f} %)" if there else "-"


def _by_event(fleet: Fleet) -> list[str]:
    counts = Counter(one.event for one in fleet.drains)
    rows = [(f"{name} ({fleet.events[name]})", str(count)) for name, count in counts.items()]
    table = [*_table(("healthy nodes taken out by", "drains"), rows), ""] if rows else []
    quiet = [one.name for one in CHURN if fleet.events[one.name] and not counts[one.name]]
    return [*table, f"It drains for none of: {'; '.join(quiet)}."]


def _by_fault(caught: Mapping[str, Catch]) -> list[str]:
    rows = []
    for one in FAULTS:
        if catch := caught.get(one.name):
            text = f"{catch.caught} of {catch.all}"
            text += f", {_time(statistics.median(catch.seconds))}" if catch.seconds else ""
            rows.append((one.name, text if one.name not in OUTSIDE else "no business of a probe"))
    return _table(("fault", "caught, after"), rows)


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
        classes = [judge.event(shown) for shown in events]
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
        name = judge.event_name(event)
        if not any(seen):
            scope = "no business of it" if name in OUTSIDE else "missed"
            lines.append(f"MISSED  {kind}: {name}: {judge.variant(kind, event, variant).says} ({scope})")
    return list(dict.fromkeys(lines))


def sources() -> list[str]:
    """Where each event's look and rate come from: one line each."""
    return [
        f"- {one.name}: {one.source}; rate {one.rate:.2f} a node and year, {one.prior}" for one in (*CHURN, *FAULTS)
    ]
