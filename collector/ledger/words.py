"""The ledger in words and in HTML: amounts, a table, and a report for who pays. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime, timezone
from html import escape
from typing import Final

from laggard.collector.ledger.goodput import JobGoodput
from laggard.collector.ledger.interval import Amount
from laggard.collector.ledger.ledger import CostDocument, CostRow
from laggard.text.words import counted, printable_line

HEADS: Final = {"node": "Node", "cause": "Cause", "user": "User", "week": "Week"}
INTERVAL_TEXT: Final = (
    "In 19 of 20 cases the true figure is in the interval: it covers the error of the verdict's share of the step "
    "time, as measured on simulated jobs, the time before a verdict, and the times in which none named the culprit."
)
_MAX_TEXT: Final = 120


def amount_text(it: Amount, unit: str = "GPU-hours") -> str:
    """`12.3 GPU-hours (9.1 to 16)`."""
    return f"{' '.join(filter(None, (_number(it.likely), unit)))} ({_number(it.least)} to {_number(it.most)})"


def _money_text(it: CostDocument) -> str:
    if it.money is None:
        return ""
    return f", {amount_text(it.money, it.currency)}" if it.currency else f", in money {amount_text(it.money, '')}"


def _number(value: float) -> str:
    """Three significant digits, and whole numbers from 100 on."""
    return f"{value:,.0f}" if value >= 99.95 else f"{value:.3g}"


def day_text(seconds: float) -> str:
    return f"{datetime.fromtimestamp(seconds, timezone.utc):%Y-%m-%d %H:%M} UTC"


def sentence(it: CostDocument) -> str:
    times = f"from {day_text(it.since)} to {day_text(it.until)}"
    return f"{counted(it.incidents, 'incident')} cost {amount_text(it.total)}{_money_text(it)}, {times}."


def notes(it: CostDocument) -> Iterator[str]:
    """The losses that the figure does not have."""
    if it.history:
        yield f"No history is kept: {it.history}"
    if it.uncounted:
        yield (
            f"{counted(it.uncounted, 'incident')} not counted: the size of the job is not known, or a release that did "
            "not count saw them"
        )
    if it.unseen_work:
        yield (
            f"Work that {counted(it.unseen_work, 'stop')} had done again is not in it: no checkpoint was seen (phase "
            "`checkpoint` of the hooks)"
        )


def lines(it: CostDocument) -> Iterator[str]:
    """The answer, what it leaves out, the rows, then the jobs."""
    yield sentence(it)
    yield from (f"  {note}" for note in notes(it))
    for row in it.rows:
        name, incidents = printable_line(row.name, _MAX_TEXT), counted(row.incidents, "incident")
        yield f"  {name}: {amount_text(row.gpu_hours)}, {incidents}"
    for job in it.jobs:
        yield job_line(job)


def job_line(it: JobGoodput) -> str:
    name = printable_line(f"{it.owner}:{it.job_id}" + (f" ({it.script})" if it.script else ""), _MAX_TEXT)
    had = f"{_number(it.gpu_hours)} GPU-hours in {counted(it.runs, 'run')}"
    if it.ettr_ratio is None or it.goodput_ratio is None:
        return f"job {name}: {had}; no step was timed"
    ratios = f"ETTR {_percent(it.ettr_ratio)}, goodput {_percent(it.goodput_ratio)}"
    return f"job {name}: {had}, {ratios}; not seen: {'; '.join(it.not_seen)}"


def _percent(ratio: float) -> str:
    return f"{100 * ratio:.1f} %"


_PAGE: Final = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>{title}</title>
<style>
:root {{ color-scheme: light dark; --ink: #1d2733; --soft: #566273; --line: #d5dbe3; --bar: #2f6fb3; --paper: #fff; }}
@media (prefers-color-scheme: dark) {{
  :root {{ --ink: #e6ebf2; --soft: #a9b4c2; --line: #3a4553; --bar: #6aa5e3; --paper: #151b23; }}
}}
body {{ font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); max-width: 60rem;
  margin: 2rem auto; padding: 0 1rem; }}
h1 {{ font-size: 1.6rem; line-height: 1.25; margin: 0 0 .25rem; }}
h2 {{ font-size: 1.15rem; margin: 2rem 0 .5rem; }}
p, li {{ max-width: 46rem; }}
.soft {{ color: var(--soft); }}
.wide {{ overflow-x: auto; }}
table {{ border-collapse: collapse; width: 100%; }}
th, td {{ text-align: left; padding: .35rem .6rem; border-bottom: 1px solid var(--line); vertical-align: top; }}
td.n, th.n {{ text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }}
td.bar {{ width: 30%; }}
td.name {{ overflow-wrap: anywhere; }}
svg {{ display: block; width: 100%; height: 1rem; }}
rect {{ fill: var(--bar); }}
line {{ stroke: var(--ink); stroke-width: 1; vector-effect: non-scaling-stroke; }}
@media print {{ body {{ margin: 0; }} }}
</style>
</head>
<body>
<main>
<h1>{headline}</h1>
<p class="soft">{times}</p>
{notes}
{tables}
{jobs}
<h2>How to read it</h2>
<p>A GPU-hour is one rank's hour. A slow rank, host or link costs every rank of its job the share of the step time that
fixing it would save; a hang or a death costs all ranks until the job goes on, ends or is started again, and the work
since the last checkpoint where one was seen. Where several overlap, no hour is counted twice.</p>
<p>{interval}</p>
</main>
<footer><p class="soft">laggard {version}</p></footer>
</body>
</html>
"""


def report_html(by_group: Iterable[CostDocument], version: str) -> str:
    """A page that needs no script and nothing from elsewhere: the same ledger by several groups. Everything that came
    from a job or a node is escaped."""
    documents = tuple(by_group)
    first = documents[0]
    told = "".join(f"<li>{escape(note)}.</li>" for note in notes(first))
    return _PAGE.format(
        title=escape(f"What slow and dead ranks cost, {day_text(first.since)} to {day_text(first.until)}"),
        headline=escape(f"{counted(first.incidents, 'incident')} cost {amount_text(first.total)}{_money_text(first)}"),
        times=escape(f"From {day_text(first.since)} to {day_text(first.until)}"),
        notes=f"<ul>{told}</ul>" if told else "",
        tables="\n".join(_table(it) for it in documents),
        jobs=_jobs_table(first.jobs),
        interval=escape(INTERVAL_TEXT),
        version=escape(version),
    )


def _table(it: CostDocument) -> str:
    if not it.rows:
        return ""
    most = max(row.gpu_hours.most for row in it.rows) or 1.0
    head = HEADS[it.by]
    price = "" if it.gpu_hour_price is None else f'<th class="n" scope="col">{escape(it.currency or "Money")}</th>'
    rows = "".join(_row(row, most, it.gpu_hour_price) for row in it.rows[:_MAX_REPORT_ROWS])
    more = len(it.rows) - _MAX_REPORT_ROWS
    rest = f'<p class="soft">{more} more have less.</p>' if more > 0 else ""
    heads = (
        f'<th scope="col">{head}</th><th class="n" scope="col">GPU-hours</th>'
        f'<th class="n" scope="col">between</th>{price}'
        '<th class="n" scope="col">Incidents</th><th scope="col">Share of the largest</th>'
    )
    body = f"<table><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table>"
    return f'<h2>By {it.by}</h2><div class="wide" tabindex="0" role="region" aria-label="By {it.by}">{body}</div>{rest}'


_MAX_REPORT_ROWS: Final = 25
"""The most rows of a table of the report."""


def _row(row: CostRow, most: float, price: float | None) -> str:
    it = row.gpu_hours
    money = "" if price is None else f'<td class="n">{_number(it.likely * price)}</td>'
    between = f"{_number(it.least)} to {_number(it.most)}"
    low, likely, high = (100 * value / most for value in (it.least, it.likely, it.most))
    bar = (
        '<svg viewBox="0 0 100 10" preserveAspectRatio="none" aria-hidden="true">'
        f'<rect x="0" y="2" width="{likely:.2f}" height="6"/>'
        f'<line x1="{low:.2f}" x2="{high:.2f}" y1="5" y2="5"/></svg>'
    )
    return (
        f'<tr><td class="name">{escape(printable_line(row.name, _MAX_TEXT))}</td>'
        f'<td class="n">{_number(it.likely)}</td>'
        f'<td class="n">{between}</td>{money}<td class="n">{row.incidents}</td><td class="bar">{bar}</td></tr>'
    )


def _jobs_table(jobs: Iterable[JobGoodput]) -> str:
    rows = "".join(_job_row(job) for job in list(jobs)[:_MAX_REPORT_ROWS])
    if not rows:
        return ""
    heads = (
        '<th scope="col">Job</th><th class="n" scope="col">GPU-hours</th><th class="n" scope="col">Runs</th>'
        '<th class="n" scope="col">ETTR</th><th class="n" scope="col">Goodput</th><th scope="col">Not seen</th>'
    )
    body = f"<table><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table>"
    what = (
        "<p>ETTR: the share of a job's time in which it did work that lasted. Goodput: the same without what slow "
        "ranks, hosts and links took.</p>"
    )
    return f'<h2>Jobs</h2>{what}<div class="wide" tabindex="0" role="region" aria-label="Jobs">{body}</div>'


def _job_row(it: JobGoodput) -> str:
    name = printable_line(f"{it.owner}:{it.job_id}" + (f" ({it.script})" if it.script else ""), _MAX_TEXT)
    ratios = [("–" if ratio is None else _percent(ratio)) for ratio in (it.ettr_ratio, it.goodput_ratio)]
    cells = "".join(f'<td class="n">{text}</td>' for text in (_number(it.gpu_hours), str(it.runs), *ratios))
    return f'<tr><td class="name">{escape(name)}</td>{cells}<td>{escape("; ".join(it.not_seen))}</td></tr>'
