"""The benchmark's tables, and the list of what was missed."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from quality.run import Result
from quality.scope import SCOPES, read_by, within
from quality.score import FALSE, RIGHT
from quality.tools.peers import PEERS
from quality.tools.shipped.adapters import SHIPPED
from quality.tools.shipped.process import ANSWER_SECONDS

STRONG = 0.1  # the size from which on nothing should be missed


class Tally(NamedTuple):
    """What a tool did in some cases: culprits that the truth requires, those found, and what it named."""

    cases: int
    required: int
    found: int
    right: int
    false: int
    accused: int  # cases in which it named somebody falsely
    answered: int  # cases of which it said anything, if only that it is nobody
    failed: int  # cases in which it ended with an error, or took too long
    kinds: int
    phases: int
    errors: tuple[float, ...]  # of the recoverable ratio, in shares of the step time

    @property
    def recall(self) -> str:
        return f"{self.found / self.required:.3f}" if self.required else "-"

    @property
    def precision(self) -> str:
        return f"{self.right / (self.right + self.false):.3f}" if self.right + self.false else "-"


def tally(results: Iterable[Result], tool: str) -> Tally:
    results = list(results)
    answers = [result.tools[tool] for result in results]
    found = [one for answer in answers for one in answer["found"] if one["found"]]
    return Tally(
        len(answers),
        sum(len(answer["found"]) for answer in answers),
        len(found),
        sum(answer["marks"].count(RIGHT) for answer in answers),
        sum(answer["marks"].count(FALSE) for answer in answers),
        sum(FALSE in answer["marks"] for answer in answers),
        sum(answer.get("asked", True) and not answer["error"] for answer in answers),
        sum(bool(answer["error"]) for answer in answers),
        sum(bool(one["kind"]) for one in found),
        sum(bool(one["phase"]) for one in found),
        tuple(one["recoverable_error"] for one in found if one["recoverable_error"] is not None),
    )


def slow(results: Sequence[Result], smallest: float = 0.0) -> list[Result]:
    return [one for one in results if one.size >= max(smallest, 1e-9)]


def stopped(results: Sequence[Result]) -> list[Result]:
    return [one for one in results if not one.size and one.expects_culprit]


def innocent(results: Sequence[Result]) -> list[Result]:
    return [one for one in results if not one.size and not one.expects_culprit]


def table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> list[str]:
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return lines + ["| " + " | ".join(str(cell) for cell in row) + " |" for row in rows]


OUT_OF_SCOPE = "out of scope"
HEAD = (
    "tool",
    "as",
    "recall in its scope, 10 % and more",
    "recall over all, 10 % and more",
    "precision in its scope",
    "recall in its scope, 5 %",
    "hangs and deaths, in its scope",
    "hangs and deaths, of all",
    "innocent jobs accused, in its scope",
    "innocent jobs accused, of all",
    "false culprits per 10,000 rank-hours",
    "ended with an error",
)
OWN = "its own rules"
REWRITTEN = "written anew"
SIMPLE = "a simple rule"
SHIPS = "as it ships"


def run_as(tool: str) -> str:
    """How a tool takes part: it runs as it ships, its rules were written anew, or it is a simple rule."""
    if tool in SHIPPED:
        return f"{SHIPS}, {SHIPPED[tool].environment.version}"
    return REWRITTEN if tool in SCOPES else SIMPLE if tool in PEERS else OWN


def by_tool(results: Sequence[Result], tools: Sequence[str]) -> list[str]:
    hours = sum(one.rank_seconds for one in results) / 3600
    rows = [of_tool(results, tool, hours) for tool in tools]
    note = f"{len(results)} cases, {hours:.0f} rank-hours in all: one false culprit is {1e4 / hours:.0f} per 10,000."
    return [*table(HEAD, rows), "", WHOSE, "", note] if results else []


WHOSE = (
    "**The simulator, the cases and the judge are laggard's own**, and its rules were written with such cases: these "
    "are no figures of running clusters. Who is out of scope at something does not claim it: bench/quality/scope.py "
    "has each claim with its source. A tool that ended with an error, or took longer than "
    f"{ANSWER_SECONDS:.0f} s, has found nobody in that case, and acquitted nobody: innocent jobs are those of which it "
    "said something. The row `hang_network` requires nobody, so it counts in no recall."
)


def of_tool(results: Sequence[Result], tool: str, hours: float) -> tuple[str, ...]:
    """A tool's row. Tools that read dumps were asked about jobs that stopped: no other leaves any."""
    claimed = within(results, tool)
    strong, weak = tally(slow(claimed, STRONG), tool), tally([one for one in claimed if one.size == 0.05], tool)
    stops, all_stops, everything = (tally(some, tool) for some in (stopped(claimed), stopped(results), results))
    calm, all_calm = (tally(innocent(some), tool) for some in (read_by(results, tool), results))
    asked_while_it_runs = not (tool in SHIPPED and SHIPPED[tool].dumps)
    return (
        tool,
        run_as(tool),
        strong.recall if strong.required else OUT_OF_SCOPE,
        tally(slow(results, STRONG), tool).recall if strong.required else OUT_OF_SCOPE,
        strong.precision if strong.required else OUT_OF_SCOPE,
        weak.recall if weak.required else OUT_OF_SCOPE,
        f"{stops.found} of {stops.required}" if stops.required else OUT_OF_SCOPE,
        f"{all_stops.found} of {all_stops.required}" if stops.required else OUT_OF_SCOPE,
        f"{calm.accused} of {calm.answered}" if asked_while_it_runs else OUT_OF_SCOPE,
        f"{all_calm.accused} of {all_calm.answered}" if asked_while_it_runs else OUT_OF_SCOPE,
        f"{everything.false / hours * 1e4:.0f}" if hours and asked_while_it_runs else OUT_OF_SCOPE,
        f"{everything.failed} of {everything.answered + everything.failed}",
    )


def hang_tools(results: Sequence[Result], tools: Sequence[str]) -> list[str]:
    """How the tools that claim hangs and deaths did, by what stopped, with whom they named falsely."""
    claiming = [tool for tool in tools if within(stopped(results), tool)]
    if not claiming:
        return []
    rows = sorted({one.row for one in stopped(results)})
    lines = []
    for row in rows:
        cases = [one for one in stopped(results) if one.row == row]
        lines.append((row, *(claimed_cell(cases, tool) for tool in claiming)))
    return table(("", *claiming), lines)


def claimed_cell(results: Sequence[Result], tool: str) -> str:
    """As `cell`, with those cases apart that the tool does not claim."""
    claimed = within(results, tool)
    others = [one for one in results if one not in claimed]
    parts = [cell(claimed, tool), f"{OUT_OF_SCOPE}: {cell(others, tool)}" if others else ""]
    return "; ".join(part for part in parts if part)


def cell(results: Sequence[Result], tool: str) -> str:
    """Found of required, and in brackets how many were named falsely."""
    if not results:
        return ""
    one = tally(results, tool)
    return f"{one.found}/{one.required}" + (f" (false: {one.false})" if one.false else "")


def accused(results: Sequence[Result], tool: str) -> str:
    """In how many of the cases somebody is named falsely."""
    return f"{tally(results, tool).accused} of {len(results)}" if results else ""


def grid(
    results: Sequence[Result],
    tool: str,
    row: Callable[[Result], Any],
    column: Callable[[Result], Any],
    corner: str,
    shown: Callable[[Any], str] = str,
    content: Callable[[Sequence[Result], str], str] = cell,
) -> list[str]:
    places: dict[tuple[Any, Any], list[Result]] = {}
    for one in results:
        places.setdefault((row(one), column(one)), []).append(one)
    columns = sorted({place[1] for place in places})
    rows = [
        (name, *(content(places.get((name, other), ()), tool) for other in columns))
        for name in sorted({place[0] for place in places})
    ]
    return table((corner, *(shown(one) for one in columns)), rows)


def percent(size: float) -> str:
    return f"{size:.0%}".replace("%", " %")


def quantile(values: Sequence[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, math.ceil(share * len(values)) - 1)]


def details(results: Sequence[Result], tool: str) -> list[str]:
    """What the tool got right of the culprits that it found, and after how many steps."""
    one = tally(slow(results), tool)
    lines = []
    if one.found:
        lines.append(
            f"Of the {one.found} slow culprits that {tool} found, the kind is right for {one.kinds}, the phase for "
            f"{one.phases}."
        )
    if one.errors:
        lines.append(
            f"What fixing one would recover is off by {quantile(one.errors, 0.5) * 100:.1f} points of the step time in "
            f"the median, {quantile(one.errors, 0.9) * 100:.1f} at most in nine of ten."
        )
    steps = [result.steps for result in results if result.steps is not None]
    if steps:
        lines.append(
            f"Steps to the verdict, from the fault's first (cases of 10 % and more that were found whole): "
            f"{quantile(steps, 0.5):.0f} in the median, {quantile(steps, 0.9):.0f} at most in nine of ten; within 20 "
            f"in {sum(count <= 20 for count in steps)} of {len(steps)}."
        )
    return [" ".join(lines)] if lines else []


def document(results: Sequence[Result], tools: Sequence[str], made: str) -> str:
    """Returns the whole report in Markdown; `tools` begins with the one to which the detailed tables belong."""
    first = tools[0]
    uneven = [one for one in slow(results, STRONG) if one.case["innocents"]]
    parts = [[made], by_tool(results, tools), details(results, first)]
    for title, cases, row, column, shown, content in (
        (f"Culprits that {first} found, of those there are", slow(results), row_name, size, percent, cell),
        ("By form", slow(results), form, size, percent, cell),
        ("By layout", slow(results), layout, size, percent, cell),
        ("In jobs that are uneven besides, 10 % and more", uneven, background, form, str, cell),
        ("Hangs and deaths", stopped(results), row_name, form, str, cell),
        ("Innocent jobs in which somebody is accused", innocent(results), row_name, form, str, accused),
    ):
        if cases:
            parts += [[f"**{title}**"], grid(cases, first, row, column, "", shown, content)]
    if compared := hang_tools(results, tools):
        parts += [["**Hangs and deaths, beside the tools that claim them**"], compared]
    return "\n\n".join("\n".join(part) for part in parts if part) + "\n"


def row_name(one: Result) -> str:
    return one.row


def size(one: Result) -> float:
    return one.size


def form(one: Result) -> str:
    return str(one.case["form"])


def layout(one: Result) -> str:
    return str(one.case["layout"])


def background(one: Result) -> str:
    return ", ".join(one.case["innocents"])


def misses(results: Sequence[Result], tool: str) -> str:
    """Returns every miss and every false culprit of a tool, with the command that makes the case again."""
    lines = [f"# What {tool} missed", "", "OUT is a directory; the command writes the case there.", ""]
    for one in results:
        answer = one.tools[tool]
        lost = sum(not found["found"] for found in answer["found"])
        false = [named for named, mark in zip(answer["named"], answer["marks"], strict=True) if mark == FALSE]
        said = [f"{lost} missed"] if lost else []
        said += [f"{named['kind']} of {ranks_text(named)} named falsely" for named in false]
        said += [answer["error"]] if answer["error"] else []
        if said:
            lines.append(
                f"- {one.row}{' ' + percent(one.size) if one.size else ''}: {'; '.join(said)}: `{one.command}`"
            )
    return "\n".join(lines) + "\n"


def ranks_text(named: dict[str, Any]) -> str:
    ranks = named["ranks"]
    return (
        f"ranks {', '.join(map(str, ranks[:8]))}{' ...' if len(ranks) > 8 else ''}"
        if ranks
        else ", ".join(named["nodes"])
    )
