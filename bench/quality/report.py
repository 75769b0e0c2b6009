"""The benchmark's tables, and the list of what was missed."""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from quality.run import Result
from quality.score import FALSE, RIGHT

STRONG = 0.1  # the size from which on nothing should be missed


class Tally(NamedTuple):
    """What a tool did in some cases: culprits that the truth requires, those found, and what it named."""

    cases: int
    required: int
    found: int
    right: int
    false: int
    accused: int  # cases in which it named somebody falsely
    failed: int  # cases in which it ended with an error
    kinds: int
    phases: int
    errors: tuple[float, ...]  # of the recoverable ratio, in shares of the step time

    @property
    def recall(self) -> str:
        return f"{self.found / self.required:.3f}" if self.required else "-"

    @property
    def precision(self) -> str:
        return f"{self.right / (self.right + self.false):.3f}" if self.right + self.false else "-"


def tally(results: Iterable[Result]) -> Tally:
    answers = [result.answer for result in results]
    found = [one for answer in answers for one in answer["found"] if one["found"]]
    return Tally(
        len(answers),
        sum(len(answer["found"]) for answer in answers),
        len(found),
        sum(answer["marks"].count(RIGHT) for answer in answers),
        sum(answer["marks"].count(FALSE) for answer in answers),
        sum(FALSE in answer["marks"] for answer in answers),
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


HEAD = (
    "tool", "recall, 10 % and more", "precision", "recall, 5 %", "hangs and deaths", "innocent jobs accused",
    "false culprits per 10,000 rank-hours", "ended with an error",
)  # fmt: skip
WHOSE = (
    "**The simulator, the cases and the judge are laggard's own**, and its rules were written with such cases: these "
    "are no figures of running clusters. A tool that ended with an error has found nobody in that case. The row "
    "`hang_network` requires nobody, so it counts in no recall."
)


def overall(results: Sequence[Result], tool: str) -> list[str]:
    """The tool's figures over all cases."""
    hours = sum(one.rank_seconds for one in results) / 3600
    strong, weak = tally(slow(results, STRONG)), tally([one for one in results if one.size == 0.05])
    stops, calm, everything = tally(stopped(results)), innocent(results), tally(results)
    row = (
        tool,
        strong.recall,
        strong.precision,
        weak.recall,
        f"{stops.found} of {stops.required}",
        accused(calm) or "-",
        f"{everything.false / hours * 1e4:.0f}" if hours else "-",
        f"{everything.failed} of {everything.cases}",
    )
    note = f"{len(results)} cases, {hours:.0f} rank-hours in all"
    note += f": one false culprit is {1e4 / hours:.0f} per 10,000." if hours else "."
    return [*table(HEAD, [row]), "", WHOSE, "", note] if results else []


def cell(results: Sequence[Result]) -> str:
    """Found of required, and in brackets how many were named falsely."""
    if not results:
        return ""
    one = tally(results)
    return f"{one.found}/{one.required}" + (f" (false: {one.false})" if one.false else "")


def accused(results: Sequence[Result]) -> str:
    """In how many of the cases somebody is named falsely."""
    return f"{tally(results).accused} of {len(results)}" if results else ""


def grid(
    results: Sequence[Result],
    row: Callable[[Result], Any],
    column: Callable[[Result], Any],
    shown: Callable[[Any], str] = str,
    content: Callable[[Sequence[Result]], str] = cell,
) -> list[str]:
    places: dict[tuple[Any, Any], list[Result]] = {}
    for one in results:
        places.setdefault((row(one), column(one)), []).append(one)
    columns = sorted({place[1] for place in places})
    rows = [
        (name, *(content(places.get((name, other), ())) for other in columns))
        for name in sorted({place[0] for place in places})
    ]
    return table(("", *(shown(one) for one in columns)), rows)


def percent(size: float) -> str:
    return f"{size:.0%}".replace("%", " %")


def quantile(values: Sequence[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, math.ceil(share * len(values)) - 1)]


def details(results: Sequence[Result], tool: str) -> list[str]:
    """What the tool got right of the culprits that it found, and after how many steps."""
    one = tally(slow(results))
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


def document(results: Sequence[Result], tool: str, made: str) -> str:
    """Returns the whole report in Markdown."""
    uneven = [one for one in slow(results, STRONG) if one.case["innocents"]]
    parts = [[made], overall(results, tool), details(results, tool)]
    for title, cases, row, column, shown, content in (
        (f"Culprits that {tool} found, of those there are", slow(results), row_name, size, percent, cell),
        ("By form", slow(results), form, size, percent, cell),
        ("By layout", slow(results), layout, size, percent, cell),
        ("In jobs that are uneven besides, 10 % and more", uneven, background, form, str, cell),
        ("Hangs and deaths", stopped(results), row_name, form, str, cell),
        ("Innocent jobs in which somebody is accused", innocent(results), row_name, form, str, accused),
    ):
        if cases:
            parts += [[f"**{title}**"], grid(cases, row, column, shown, content)]
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
        answer = one.answer
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
