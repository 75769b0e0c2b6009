"""A panel as a value, and its JSON as Grafana 10 to 13 reads it. Pure.

Fields as in Grafana's dashboard schema (grafana-foundation-sdk, jsonschema/dashboard.jsonschema.json), and the options
of each kind of panel.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

Json = dict[str, Any]

DATASOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}
RATE_INTERVAL: Final = "$__rate_interval"
_SCRAPE_INTERVAL: Final = "1m"
"""The longest scrape interval that the boards are made for. Grafana makes $__rate_interval four of the query's least
steps; by its data source's 15 s alone a rate over one minute would have no data where agents are scraped once a
minute."""

_GREEN, _YELLOW, _RED, _GREY = "green", "yellow", "red", "#808080"


class Query(NamedTuple):
    expr: str
    legend: str = ""
    """`{{rank}}` stands for a label of the series."""
    instant: bool = False
    """Only the present value, as a row of a table or a single number."""


class Panel(NamedTuple):
    title: str
    kind: str
    """`stat`, `timeseries`, `table`, `heatmap` or `state-timeline`."""
    queries: tuple[Query, ...]
    description: str
    unit: str = "short"
    """Grafana's name of the unit: s, percentunit, binBps, short."""
    width: int = 12
    height: int = 8
    thresholds: tuple[tuple[float | None, str], ...] = ((None, _GREEN),)
    """The value from which each colour holds, and the colour; the first value is None."""
    columns: tuple[tuple[str, str], ...] = ()
    """The labels that a table shows, and the title of each column. `Value` is the number."""
    links: tuple[tuple[str, str, str], ...] = ()
    """The links of a table: column, title and URL."""
    states: tuple[tuple[str, str, str], ...] = ()
    """The states of a state timeline: value, text and colour."""
    stacked: bool = False


def bad_above(warning: float, critical: float | None = None) -> tuple[tuple[float | None, str], ...]:
    last = () if critical is None else ((critical, _RED),)
    return ((None, _GREEN), (warning, _RED if critical is None else _YELLOW), *last)


def stat(
    title: str,
    expr: str,
    legend: str,
    description: str,
    *,
    unit: str = "short",
    width: int = 4,
    height: int = 4,
    thresholds: tuple[tuple[float | None, str], ...] = ((None, _GREEN),),
) -> Panel:
    """One number, as it is now. `legend`: what is counted."""
    return Panel(
        title,
        "stat",
        (Query(expr, legend, instant=True),),
        description,
        unit=unit,
        width=width,
        height=height,
        thresholds=thresholds,
    )


def panel_json(panel: Panel, number: int, at: tuple[int, int]) -> Json:
    """Returns the panel; `number` is its id within the dashboard, `at` its column of 24 and its row."""
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.description,
        "datasource": DATASOURCE,
        "gridPos": {"h": panel.height, "w": panel.width, "x": at[0], "y": at[1]},
        "targets": [_target(query, panel, place) for place, query in enumerate(panel.queries)],
        "fieldConfig": {"defaults": _defaults(panel), "overrides": _overrides(panel)},
        "options": _OPTIONS[panel.kind],
        **({"transformations": _transformations(panel)} if panel.kind == "table" else {}),
    }


def _target(query: Query, panel: Panel, place: int) -> Json:
    return {
        "refId": chr(ord("A") + place),
        "datasource": DATASOURCE,
        "editorMode": "code",
        "expr": query.expr,
        "legendFormat": query.legend or "__auto",
        "instant": query.instant,
        "range": not query.instant,
        "format": "table" if panel.kind == "table" else "time_series",
        **({"interval": _SCRAPE_INTERVAL} if RATE_INTERVAL in query.expr else {}),
    }


def _defaults(panel: Panel) -> Json:
    steps = [{"value": value, "color": colour} for value, colour in panel.thresholds]
    defaults: Json = {
        "unit": panel.unit,
        "thresholds": {"mode": "absolute", "steps": steps},
        "color": {"mode": "thresholds" if panel.kind in ("stat", "table") else "palette-classic"},
    }
    if panel.kind == "timeseries":
        stacking = {"mode": "normal" if panel.stacked else "none", "group": "A"}
        fill = 25 if panel.stacked else 0
        defaults |= {
            "min": 0,
            "custom": {"lineWidth": 1, "fillOpacity": fill, "showPoints": "never", "stacking": stacking},
        }
    if panel.states:
        options = {
            value: {"text": text, "color": colour, "index": place}
            for place, (value, text, colour) in enumerate(panel.states)
        }
        defaults |= {"mappings": [{"type": "value", "options": options}], "custom": {"fillOpacity": 80, "lineWidth": 0}}
    return defaults


def _overrides(panel: Panel) -> list[Json]:
    return [
        {
            "matcher": {"id": "byName", "options": column},
            "properties": [{"id": "links", "value": [{"title": title, "url": url}]}],
        }
        for column, title, url in panel.links
    ]


def _transformations(panel: Panel) -> list[Json]:
    """Keeps the columns that are named, in their order, under their names."""
    order = {label: place for place, (label, _) in enumerate(panel.columns)}
    return [
        {"id": "filterFieldsByName", "options": {"include": {"names": list(order)}}},
        {
            "id": "organize",
            "options": {"excludeByName": {}, "indexByName": order, "renameByName": dict(panel.columns)},
        },
    ]


_LEGEND: Final = {"displayMode": "table", "placement": "right", "showLegend": True, "calcs": ["lastNotNull", "max"]}
_ALL: Final = {"mode": "multi", "sort": "desc"}
_LAST: Final = {"calcs": ["lastNotNull"], "fields": "", "values": False}
_OPTIONS: Final[Mapping[str, Json]] = {
    "stat": {
        "reduceOptions": _LAST,
        "colorMode": "background",
        "graphMode": "area",
        "textMode": "auto",
        "justifyMode": "auto",
    },
    "timeseries": {"legend": _LEGEND, "tooltip": _ALL},
    "table": {
        "showHeader": True,
        "cellHeight": "sm",
        "footer": {"show": False, "reducer": ["sum"], "countRows": False},
    },
    "heatmap": {
        "calculate": False,
        "cellGap": 0,
        "color": {
            "mode": "scheme",
            "scheme": "RdYlGn",
            "reverse": False,
            "steps": 64,
            "exponent": 0.5,
            "fill": "dark-orange",
            "scale": "exponential",
        },
        "yAxis": {"axisPlacement": "left", "reverse": True},
        "rowsFrame": {"layout": "auto", "value": "ratio"},
        "legend": {"show": True},
        "tooltip": {"mode": "single", "yHistogram": False, "showColorScale": True},
        "exemplars": {"color": "rgba(255,0,255,0.7)"},
        "filterValues": {"le": 1e-9},
    },
    "state-timeline": {
        "showValue": "never",
        "mergeValues": True,
        "rowHeight": 0.9,
        "alignValue": "left",
        "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
        "tooltip": {"mode": "single", "sort": "none"},
    },
}
