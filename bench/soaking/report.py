"""What a soak found, as Markdown and as a graph."""

from collections.abc import Sequence
from statistics import median
from typing import Any

from laggard.reports.svg import Chart, Series, render_charts
from soaking.daemons import Daemon
from soaking.leaks import longest_life


def markdown(soak: Any, graph: str) -> str:
    """`soak` is a Soak that has ended."""
    minutes = soak.seconds / 60
    faults = ", ".join(f"{name} {count}" for name, count in sorted(soak.done.items()))
    rows = [_row(daemon) for daemon in soak.site.daemons]
    wrong = "\n".join(f"- {line}" for line in soak.wrong) or "Nothing was wrong."
    return f"""{sum(soak.done.values())} faults in {minutes:g} minutes: {faults}.

{soak.verdicts} times the verdict had to name the slow rank; the longest wait for it was {soak.longest_verdict:.0f} s.
{len(soak.ids)} incidents of {soak.site.jobs} jobs were told.

| daemon | starts | memory, middle of its longest life | memory, last third | descriptors | threads |
|---|---|---|---|---|---|
{chr(10).join(rows)}

![memory and descriptors]({graph})

{wrong}
"""


def _row(daemon: Daemon) -> str:
    life = longest_life(daemon.samples)
    third = len(life) // 3
    parts = (life[third : 2 * third], life[2 * third :])
    if not parts[0]:
        return f"| {daemon.name} | {daemon.life} | unknown | unknown | unknown | unknown |"
    memory = [f"{median(it.memory for it in part) / 1e6:.1f} MB" for part in parts]
    counts = [
        f"{median(getattr(it, name) for it in parts[0]):.0f}, then {median(getattr(it, name) for it in parts[1]):.0f}"
        for name in ("descriptors", "threads")
    ]
    return f"| {daemon.name} | {daemon.life} | {' | '.join((*memory, *counts))} |"


def picture(daemons: Sequence[Daemon]) -> str:
    memory = tuple(_series(it, "memory", 1e-6) for it in daemons)
    descriptors = tuple(_series(it, "descriptors", 1) for it in daemons)
    return render_charts(
        [
            Chart("Memory of its own", "minutes", "MB", memory, over_time=True),
            Chart("Open descriptors", "minutes", "descriptors", descriptors, over_time=True),
        ]
    )


def _series(daemon: Daemon, name: str, factor: float) -> Series:
    return Series(daemon.name, tuple((it.seconds / 60, getattr(it, name) * factor) for it in daemon.samples))
