"""A campaign as one HTML page that needs nothing else: no script, no network."""

from __future__ import annotations

from html import escape

from laggard.reports.svg import Chart, Series, render_charts
from laggard.tune.report.documents import TuneDocument
from laggard.tune.report.text import changes_text, render

_STYLE = (
    "body{font:14px/1.5 sans-serif;max-width:60em;margin:2em auto;padding:0 1em}pre{white-space:pre-wrap}"
    "table{border-collapse:collapse}td,th{padding:.2em .6em;text-align:left;border-bottom:1px solid #ddd}"
)


def render_page(own: TuneDocument) -> str:
    title = f"laggard tune {escape(own.kind)}"
    rows = "".join(
        f"<tr><td>{each.number}</td><td>{escape(each.phase)}</td><td>{escape(changes_text(each.changes) or 'default')}"
        f"</td><td>{'' if each.seconds is None else f'{each.seconds:.6g}'}</td><td>{escape(each.status)} "
        f"{escape(each.detail)}</td></tr>\n"
        for each in own.trials
    )
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title><style>{_STYLE}</style>'
        f"</head><body>\n<h1>{title}</h1>\n<pre>{escape(render(own))}</pre>\n{_chart(own)}\n"
        f"<h2>Trials</h2>\n<table><tr><th>trial</th><th>phase</th><th>changed</th><th>{escape(own.objective)}</th>"
        f"<th>what came of it</th></tr>\n{rows}</table>\n</body></html>\n"
    )


def _chart(own: TuneDocument) -> str:
    times = [(float(each.number + 1), each.seconds, not each.changes) for each in own.trials if each.seconds]
    series = (
        Series("tried", tuple((place, seconds) for place, seconds, default in times if not default)),
        Series("default", tuple((place, seconds) for place, seconds, default in times if default)),
    )
    if not times:
        return ""
    return render_charts([Chart("Each trial", "trial", own.objective, tuple(each for each in series if each.points))])
