"""A dashboard as a value, and its JSON: rows of panels, variables, links between the dashboards. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from laggard.catalogue.metrics import metric
from laggard.dashboards.panel import DATASOURCE, Json, Panel, panel_json

SCHEMA_VERSION: Final = 42
COLUMNS: Final = 24
_TAG: Final = "laggard"
_NOTHING_CHOSEN: Final = {"text": "", "value": ""}
_ALL_CHOSEN: Final = {"text": ["All"], "value": ["$__all"]}
_ANYTHING: Final = ".*"
"""The pattern for all values of a variable: also for none, where no series has the label."""


class Variable(NamedTuple):
    name: str
    label: str
    query: str
    """PromQL of Grafana's own: `label_values(METRIC, LABEL)`."""
    several: bool = False


CLUSTER: Final = Variable("cluster", "Cluster", "label_values(laggard_build_info, cluster)", several=True)
"""The first variable of each board. Where one Prometheus knows several clusters, their targets have this label; else it
has no value, and all is shown."""

IN_CLUSTER: Final = 'cluster=~"$cluster"'

ELSEWHERE: Final = "${datasource:queryparam}&${cluster:queryparam}&${__url_time_range}"
"""The variables that each link to another board takes with it."""


class Row(NamedTuple):
    """Panels beside each other under a title; their widths add up to 24 at most."""

    title: str
    panels: tuple[Panel, ...]


class Annotation(NamedTuple):
    """Moments that are drawn into every graph: where the expression begins to have a value."""

    name: str
    expr: str
    title: str
    colour: str


class Dashboard(NamedTuple):
    uid: str
    title: str
    description: str
    rows: tuple[Row, ...]
    variables: tuple[Variable, ...] = ()
    annotations: tuple[Annotation, ...] = ()


def said(name: str, selector: str = IN_CLUSTER, offset: str = "") -> str:
    """PromQL: what collectors say of jobs or nodes, by the metric's own labels and the cluster: two collectors of a
    cluster, or one before and after its pod was replaced, say it once."""
    labels = ", ".join(("cluster", *metric(name).labels))
    return f"max by ({labels}) ({name}{{{selector}}}{offset})"


def highest(count: int, series: str, condition: str = "") -> str:
    """PromQL: the series that were highest at some time in the range that is shown. topk alone takes other ones at each
    point: of 4,096 calm ranks a graph of the ten busiest had nearly four hundred."""
    return f"{series}{condition} and topk({count}, max_over_time({series}[$__range] @ end()))"


def new_culprits(selector: str = IN_CLUSTER, where: str = "") -> str:
    """PromQL: culprits that were none a minute ago, for an annotation. `where`: what else must hold of them."""
    now = said("laggard_culprit", selector)
    return f"{f'({now} {where})' if where else now} unless {said('laggard_culprit', selector, ' offset 1m')}"


def dashboard_json(dashboard: Dashboard) -> Json:
    return {
        "uid": dashboard.uid,
        "title": dashboard.title,
        "description": dashboard.description,
        "tags": [_TAG],
        "schemaVersion": SCHEMA_VERSION,
        "version": 1,
        "editable": False,
        "graphTooltip": 1,
        "refresh": "30s",
        "timezone": "browser",
        "time": {"from": "now-1h", "to": "now"},
        "timepicker": {},
        "fiscalYearStartMonth": 0,
        "links": [_links()],
        "templating": {"list": [_datasource(), *map(_variable, (CLUSTER, *dashboard.variables))]},
        "annotations": {"list": [_annotation(each) for each in dashboard.annotations]},
        "panels": list(_panels(dashboard.rows)),
    }


def _panels(rows: Sequence[Row]) -> Iterator[Json]:
    number, top = 1, 0
    for row in rows:
        yield {
            "id": number,
            "type": "row",
            "title": row.title,
            "collapsed": False,
            "gridPos": {"h": 1, "w": COLUMNS, "x": 0, "y": top},
            "panels": [],
        }
        number, top, left = number + 1, top + 1, 0
        height = max(panel.height for panel in row.panels)
        for panel in row.panels:
            if left + panel.width > COLUMNS:
                left, top = 0, top + height
            yield panel_json(panel, number, (left, top))
            number, left = number + 1, left + panel.width
        top += height


def _datasource() -> Json:
    return {
        "name": "datasource",
        "label": "Data source",
        "type": "datasource",
        "query": "prometheus",
        "current": _NOTHING_CHOSEN,
        "hide": 0,
        "includeAll": False,
        "multi": False,
        "options": [],
        "refresh": 1,
        "regex": "",
        "skipUrlSync": False,
    }


def _variable(variable: Variable) -> Json:
    return {
        "name": variable.name,
        "label": variable.label,
        "type": "query",
        "datasource": DATASOURCE,
        "definition": variable.query,
        "query": variable.query,
        "current": _ALL_CHOSEN if variable.several else _NOTHING_CHOSEN,
        "hide": 0,
        "includeAll": variable.several,
        **({"allValue": _ANYTHING} if variable.several else {}),
        "multi": variable.several,
        "allowCustomValue": True,
        "options": [],
        "refresh": 2,
        "regex": "",
        "sort": 3,
        "skipUrlSync": False,
    }


def _annotation(annotation: Annotation) -> Json:
    return {
        "name": annotation.name,
        "enable": True,
        "hide": False,
        "iconColor": annotation.colour,
        "datasource": DATASOURCE,
        "expr": annotation.expr,
        "titleFormat": annotation.title,
        "step": "30s",
    }


def _links() -> Json:
    return {
        "type": "dashboards",
        "title": "laggard",
        "tags": [_TAG],
        "asDropdown": True,
        "includeVars": True,
        "keepTime": True,
        "targetBlank": False,
        "icon": "external link",
        "tooltip": "",
        "url": "",
    }
