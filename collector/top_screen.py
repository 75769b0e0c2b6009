"""The screen of `laggard top`: the answer, what to do, then the busiest ranks, and the nodes that are not well. Pure:
from the collector's documents to what rich draws."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from rich.cells import cell_len
from rich.console import Group, JustifyMethod, RenderableType
from rich.table import Table
from rich.text import Text

from laggard.collector.job_words import job_text
from laggard.collector.web.documents import HeatDocument, HeatRow, JobLine, SummaryDocument
from laggard.kit.constants import PHASES
from laggard.kit.dressed import STYLES, Wrapped, wrapped
from laggard.kit.parts import Line
from laggard.kit.words import counted, printable_line, ranks_text, seconds_text
from laggard.model import Culprit, Verdict
from laggard.wire.nodes import NodeRow, NodesDocument

STEPS = 20
"""The number of the last columns of the heat map that the means are over."""

_MIN_BAR_COLUMNS, _MAX_BAR_COLUMNS = 10, 60  # cells of a rank's bar; the longest step fills them
_NAMES = ("rank", "node", "state", "own", "waits")
_MAX_NAME_COLUMNS = 24
_MAX_LINES = 6  # of evidence and notes, of jobs, of nodes
_WIDTH = 200  # characters of a name at most
_VERDICT_WORDS = {Verdict.OK: "no culprit", Verdict.FAIL: "has a culprit", Verdict.UNKNOWN: "cannot tell"}
_VERDICT_STYLES = {verdict: STYLES[verdict.value] for verdict in (Verdict.OK, Verdict.FAIL, Verdict.UNKNOWN)}
_STYLES = ("magenta", "blue", "cyan", "bright_blue", "bright_magenta", "green", "red", "bright_green", "bright_black")
_PHASE_STYLES = dict(zip(PHASES, _STYLES, strict=True))
_WAITED_STYLE = "yellow"


class RankMeans(NamedTuple):
    """A row of the heat map, as the mean of its last steps, in seconds a step. `waited` lies within these phases."""

    row: HeatRow
    phases: tuple[float, ...]
    waited: float

    @property
    def own(self) -> float:
        return sum(self.phases)


def screen(
    summary: SummaryDocument, ranks: HeatDocument, nodes: NodesDocument, width: int, height: int
) -> RenderableType:
    """The screen in `width` columns, and at most about `height` lines."""
    above = [*_answer(summary), *_jobs(summary)]
    unwell = [node for node in nodes.nodes if node.state != "up" or node.verdict != "ok"]
    node_lines = _nodes(unwell, len(nodes.nodes))
    parts: list[RenderableType] = [*above]
    room = height - sum(len(part.rows(width)) for part in (*above, *node_lines)) - 5
    means = sorted(rank_means(ranks), key=lambda each: -each.own)
    if means and room > 0:
        parts += [Text(), _legend(), _ranks(means[:room], width, summary.location.culprits)]
        if len(means) > room:
            parts.append(Text(f"and {len(means) - room} less busy", style="dim"))
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


def _answer(summary: SummaryDocument) -> list[Wrapped]:
    age = "No agent has answered yet" if summary.age_seconds is None else f"As of {summary.age_seconds:.0f} s ago"
    lines = [Line(printable_line(summary.sentence, 1000), summary.location.verdict.value)]
    lines += [Line(f"What to do: {printable_line(text, 1000)}") for text in summary.todo[:_MAX_LINES]]
    lines += [Line(f"  {printable_line(text, 1000)}") for text in (*summary.evidence, *summary.notes)[:_MAX_LINES]]
    if len(summary.jobs) == 1 and summary.job:  # of several there is a list
        job = summary.jobs[0]
        lines.append(Line(f"  Job {job_text(job.job_id, job.owner, job)}", "aside"))
    return [wrapped(line) for line in (*lines, Line(f"  {age}", "aside"))]


def _jobs(summary: SummaryDocument) -> list[Wrapped]:
    """The jobs that run, where there are several jobs, and the one that is shown, which has a mark; of the others that
    ended, how many there are."""
    if len(summary.jobs) < 2:
        return []
    named = [job for job in summary.jobs if job.running or job.key == summary.job]
    shown = sorted(named, key=lambda job: job.key != summary.job)[:_MAX_LINES]
    lines = [_job(job, job.key == summary.job) for job in shown]
    total = max(len(summary.jobs), summary.counts.total)  # a summary has a part of many
    running = max(sum(job.running for job in summary.jobs), summary.counts.running) - sum(job.running for job in shown)
    ended = total - len(shown) - running
    more = [f"{running} more that run"] if running else []
    more += [f"{counted(ended, 'more job') if not running else ended} that ended"] if ended else []
    if more:
        lines.append(wrapped(Line(f"  and {' and '.join(more)}: choose with --job", "aside")))
    return [wrapped(Line("")), *lines]


def _job(job: JobLine, is_shown: bool) -> Wrapped:
    mark = ">" if is_shown else " "
    state = "" if job.running else ", ended"
    name = f"{mark} {job_text(job.job_id, job.owner, job)}: {counted(job.ranks, 'rank')}{state}, "
    return Wrapped(Text(name).append(_VERDICT_WORDS[job.verdict], style=_VERDICT_STYLES[job.verdict]), indent=4)


def _ranks(means: Sequence[RankMeans], width: int, culprits: Sequence[Culprit]) -> Table:
    """The bars take what the columns beside them leave. Where the terminal is narrow, long names of ranks and nodes are
    cut, and nothing else."""
    rows = [tuple(_cells(each, culprits)) for each in means]
    widths = [max(cell_len(str(cell)) for cell in cells) for cells in zip(_NAMES, *rows, strict=True)]
    left = width - _MIN_BAR_COLUMNS - sum(each + 2 for each in widths[2:]) - 2 * 2
    rank = min(widths[0], _MAX_NAME_COLUMNS, max(len(_NAMES[0]), left // 2))
    widths[:2] = rank, min(widths[1], _MAX_NAME_COLUMNS, max(len(_NAMES[1]), left - rank))
    table = Table(box=None, pad_edge=False, header_style="bold", expand=False)
    for place, name in enumerate(_NAMES):
        side: JustifyMethod = "left" if place < 3 else "right"
        table.add_column(name, justify=side, no_wrap=True, overflow="ellipsis", width=widths[place])
    table.add_column("a step", no_wrap=True)
    longest = max(each.own + each.waited for each in means) or 1.0
    bar = max(_MIN_BAR_COLUMNS, min(_MAX_BAR_COLUMNS, width - sum(each + 2 for each in widths)))
    for each, cells in zip(means, rows, strict=True):
        table.add_row(*cells, _bar(each, longest, bar))
    return table


def _state(row: HeatRow, culprits: Sequence[Culprit]) -> str:
    """`stopped` or `hung` of a rank that the answer names so: its process is there, and runs no step."""
    of_row = [it for it in culprits if any(first <= rank <= last for rank in it.ranks for first, last in _spans(row))]
    hung = [it for it in of_row if it.kind == "hung"]
    return row.state if not hung else "stopped" if any(it.stopped for it in hung) else "hung"


def _spans(row: HeatRow) -> Sequence[tuple[int, int]]:
    return row.spans or ((row.first, row.last),)


def _cells(each: RankMeans, culprits: Sequence[Culprit]) -> Iterable[str | Text]:
    row, state = each.row, _state(each.row, culprits)
    numbers = [number for first, last in row.spans[:4] for number in range(first, min(last, first + 4096) + 1)]
    yield Text(ranks_text(numbers or [row.first]).removeprefix("ranks ").removeprefix("rank "))
    yield Text(printable_line(row.node or "", _WIDTH))
    yield Text(state, style="" if state == "running" else "red" if state in ("hung", "stopped") else "yellow")
    yield seconds_text(each.own)
    yield seconds_text(each.waited)


def _legend() -> Text:
    legend = Text()
    for name, style in (*_PHASE_STYLES.items(), ("waits", _WAITED_STYLE)):
        legend.append("■ ", style=style).append(f"{name} ", style="")
    return legend


def _bar(each: RankMeans, longest: float, most: int) -> Text:
    """One rank's step: its own phases, then what it waits; the `longest` takes `most` cells."""
    bar, spent, drawn = Text(), 0.0, 0
    for seconds, style in zip((*each.phases, each.waited), (*_PHASE_STYLES.values(), _WAITED_STYLE), strict=True):
        spent += seconds
        cells = round(most * spent / longest) - drawn
        bar.append("■" * cells, style=style)
        drawn += cells
    return bar


def _nodes(unwell: Sequence[NodeRow], count: int) -> list[Wrapped]:
    if not unwell:
        return [wrapped(Line(f"{counted(count, 'node')}, all well", "ok" if count else "unknown"))]
    lines = [wrapped(Line(f"{counted(count, 'node')}, {len(unwell)} not well:", "name"))]
    lines += [_node(node) for node in unwell[:_MAX_LINES]]
    if len(unwell) > _MAX_LINES:
        lines.append(wrapped(Line(f"  and {len(unwell) - _MAX_LINES} more", "aside")))
    return lines


def _node(node: NodeRow) -> Wrapped:
    why = node.reason if node.state != "up" else ", ".join(node.findings)
    state = node.state if node.state != "up" else node.verdict or "unknown"
    text = f"{node.node or node.url} {state}" + (f": {why}" if why else "")
    return wrapped(Line("  " + printable_line(text, 300), "critical" if state in ("fail", "down") else "warning"))
