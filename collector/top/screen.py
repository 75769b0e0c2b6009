"""What `laggard top` shows: the answer, what to do, then the busiest ranks, and the nodes that are not well. Pure: from
the collector's documents to what rich draws."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from laggard.collector.ask import user_text
from laggard.collector.web.documents import HeatDocument, HeatRow, JobLine, SummaryDocument
from laggard.constants import PHASES
from laggard.model import Verdict
from laggard.text.words import counted, printable_line, ranks_text, seconds_text
from laggard.wire.nodes import NodeRow, NodesDocument

STEPS = 20
"""The means are over so many of the last columns of the heat map."""

_BAR = 40  # cells of a rank's bar; the longest step fills them
_MOST_LINES = 6  # of evidence and notes, of jobs, of nodes
_WIDTH = 200  # characters of a name at most
_VERDICT_STYLES = {Verdict.OK: "green", Verdict.FAIL: "bold red", Verdict.UNKNOWN: "yellow"}
_PHASE_STYLES = dict(zip(PHASES, ("magenta", "blue", "cyan", "bright_blue", "bright_black"), strict=True))
_WAITED_STYLE = "yellow"


class RankMeans(NamedTuple):
    """A row of the heat map, as the mean of its last steps, in seconds a step. `waited` lies within these phases."""

    row: HeatRow
    phases: tuple[float, ...]
    waited: float

    @property
    def own(self) -> float:
        return sum(self.phases)


def screen(summary: SummaryDocument, ranks: HeatDocument, nodes: NodesDocument, height: int) -> RenderableType:
    """At most about `height` lines."""
    parts: list[RenderableType] = [*_answer(summary), *_jobs(summary)]
    unwell = [node for node in nodes.nodes if node.state != "up" or node.verdict != "ok"]
    node_lines = _nodes(unwell, len(nodes.nodes))
    room = height - len(parts) - len(node_lines) - 4
    means = sorted(rank_means(ranks), key=lambda each: -each.own)
    if means and room > 0:
        parts += [Text(), _ranks(means[:room], ranks, len(means))]
    return Group(*parts, Text(), *node_lines)


def rank_means(ranks: HeatDocument) -> list[RankMeans]:
    """Each row that has known steps among the last, in the order of the heat map."""
    found = []
    for place, row in enumerate(ranks.rows):
        known = {name: _known(ranks.seconds[name][place][-STEPS:]) for name in (*PHASES, "waited")}
        if all(known.values()):
            means = {name: sum(values) / len(values) for name, values in known.items()}
            found.append(RankMeans(row, tuple(means[name] for name in PHASES), means["waited"]))
    return found


def _known(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def _answer(summary: SummaryDocument) -> list[Text]:
    age = "no agent has answered yet" if summary.age_seconds is None else f"{summary.age_seconds:.0f} s ago"
    style = _VERDICT_STYLES[summary.location.verdict]
    lines = [Text(printable_line(summary.sentence, 1000), style=style)]
    lines += [Text(f"What to do: {printable_line(text, 1000)}", style="bold") for text in summary.todo[:_MOST_LINES]]
    lines += [Text(f"  {printable_line(text, 1000)}") for text in (*summary.evidence, *summary.notes)[:_MOST_LINES]]
    return [*lines, Text(f"  As of {age}", style="dim")]


def _jobs(summary: SummaryDocument) -> list[Text]:
    """The jobs, where there are several; the one that is shown has a mark."""
    if len(summary.jobs) < 2:
        return []
    shown = sorted(summary.jobs, key=lambda job: (job.key != summary.job, not job.running))
    lines = [_job(job, job.key == summary.job) for job in shown[:_MOST_LINES]]
    count = max(len(shown), summary.counts.total)  # a summary has a part of many
    if count > len(lines):
        lines.append(Text(f"  and {count - len(lines)} more jobs: choose with --job", style="dim"))
    return [Text(), *lines]


def _job(job: JobLine, is_shown: bool) -> Text:
    mark = ">" if is_shown else " "
    state = "" if job.running else ", ended"
    name = f"{mark} {printable_line(job.job_id, _WIDTH)} of {user_text(job.owner)}: {counted(job.ranks, 'rank')}{state}"
    return Text(name).append(f", {job.verdict.value}", style=_VERDICT_STYLES[job.verdict])


def _ranks(means: Sequence[RankMeans], ranks: HeatDocument, count: int) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", expand=False)
    for name in ("rank", "node", "state"):
        table.add_column(name, no_wrap=True, overflow="ellipsis", max_width=24)
    for name in ("own", "waits"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column(_legend(), no_wrap=True)
    longest = max(each.own + each.waited for each in means) or 1.0
    for each in means:
        table.add_row(*_cells(each), _bar(each, longest))
    if count > len(means):
        table.add_row(Text(f"and {count - len(means)} less busy", style="dim"))
    return table


def _cells(each: RankMeans) -> Iterable[str | Text]:
    row = each.row
    numbers = [number for first, last in row.spans[:4] for number in range(first, min(last, first + 4096) + 1)]
    yield Text(ranks_text(numbers or [row.first]).removeprefix("ranks ").removeprefix("rank "))
    yield Text(printable_line(row.node or "", _WIDTH))
    yield Text(row.state, style="" if row.state == "running" else "yellow")
    yield seconds_text(each.own)
    yield seconds_text(each.waited)


def _legend() -> Text:
    legend = Text()
    for name, style in (*_PHASE_STYLES.items(), ("waits", _WAITED_STYLE)):
        legend.append("■ ", style=style).append(f"{name} ", style="")
    return legend


def _bar(each: RankMeans, longest: float) -> Text:
    """One rank's step: its own phases, then what it waits."""
    bar, spent, drawn = Text(), 0.0, 0
    for seconds, style in zip((*each.phases, each.waited), (*_PHASE_STYLES.values(), _WAITED_STYLE), strict=True):
        spent += seconds
        cells = round(_BAR * spent / longest) - drawn
        bar.append("■" * cells, style=style)
        drawn += cells
    return bar


def _nodes(unwell: Sequence[NodeRow], count: int) -> list[Text]:
    if not unwell:
        return [Text(f"{counted(count, 'node')}, all well", style="green" if count else "yellow")]
    lines = [Text(f"{counted(count, 'node')}, {len(unwell)} not well:", style="bold")]
    lines += [_node(node) for node in unwell[:_MOST_LINES]]
    if len(unwell) > _MOST_LINES:
        lines.append(Text(f"  and {len(unwell) - _MOST_LINES} more", style="dim"))
    return lines


def _node(node: NodeRow) -> Text:
    why = node.reason if node.state != "up" else ", ".join(node.findings)
    state = node.state if node.state != "up" else node.verdict or "unknown"
    text = f"{node.node or node.url} {state}" + (f": {why}" if why else "")
    return Text("  " + printable_line(text, 300), style="red" if state in ("fail", "down") else "yellow")
