"""The rules of grafana/dashboard-linter (docs/index.md and docs/rules of that repository, June 2026), written anew:
the linter is a Go program. What it does not look at, and why, is in deploy/grafana/lint.yml. Its rules about
valid PromQL are test_dashboards.py's, which asks a real Prometheus; those about Loki have nothing to look at."""

import re
from collections.abc import Callable, Iterator

import pytest
import yaml
from support.boards import BOARDS, Board
from support.paths import REPOSITORY

EXCLUDED = yaml.safe_load((REPOSITORY / "deploy" / "grafana" / "lint.yml").read_text())["exclusions"]
ELSEWHERE = {"target-promql-rule", "target-logql-rule", "target-logql-auto-rule"}
UNITS = {"short", "percentunit", "s", "bytes", "binBps"}
"""Those that the boards use, of the many that Grafana knows (packages/grafana-data/src/valueFormats/categories.ts)."""


def panels_of(board: Board) -> list[Board]:
    return [panel for panel in board["panels"] if panel["type"] != "row"]


def queries_of(board: Board) -> Iterator[str]:
    return (target["expr"] for panel in panels_of(board) for target in panel.get("targets", ()))


def template_datasource(board: Board) -> Iterator[str]:
    found = [each for each in board["templating"]["list"] if each["type"] == "datasource"]
    if [(each["name"], each["label"], each["query"]) for each in found] != [
        ("datasource", "Data source", "prometheus")
    ]:
        yield "it has not the one variable for the data source"


def template_label_promql(board: Board) -> Iterator[str]:
    for each in board["templating"]["list"]:
        if each["type"] == "query" and not re.fullmatch(r"label_values\(.+, \w+\)", each["query"]):
            yield f"{each['name']} asks for no label's values"


def template_on_time_change_reload(board: Board) -> Iterator[str]:
    for each in board["templating"]["list"]:
        if each["type"] == "query" and each["refresh"] != 2:
            yield f"{each['name']} is not asked for anew when the time changes"


def panel_datasource(board: Board) -> Iterator[str]:
    for panel in panels_of(board):
        for source in (panel["datasource"], *(target["datasource"] for target in panel.get("targets", ()))):
            if source != {"type": "prometheus", "uid": "${datasource}"}:
                yield f"{panel['title']} takes another data source"


def panel_title_description(board: Board) -> Iterator[str]:
    return (f"{panel['id']} says not what it is" for panel in panels_of(board) if not told(panel))


def told(panel: Board) -> bool:
    return bool(panel["title"] and panel["description"])


def panel_units(board: Board) -> Iterator[str]:
    for panel in panels_of(board):
        unit = panel["fieldConfig"]["defaults"].get("unit")
        if unit not in UNITS:
            yield f"{panel['title']} has the unit {unit}"


def panel_no_targets(board: Board) -> Iterator[str]:
    return (f"{panel['title']} asks for nothing" for panel in panels_of(board) if not panel.get("targets"))


def target_rate_interval(board: Board) -> Iterator[str]:
    for expr in queries_of(board):
        for function, span in re.findall(r"\b(i?rate)\([^\[\]]*\[([^\]]*)\]", expr):
            if span != "$__rate_interval":
                yield f"{function} over {span}: {expr}"


def target_counter_agg(board: Board) -> Iterator[str]:
    for expr in queries_of(board):
        for counter in re.findall(r"\w+_total\b", expr):
            if not re.search(rf"\b(i?rate|increase)\({counter}({{[^}}]*}})?\[", expr):
                yield f"{counter} is a counter: {expr}"


def uneditable(board: Board) -> Iterator[str]:
    if board["editable"]:
        yield "it is editable"


RULES: dict[str, Callable[[Board], Iterator[str]]] = {
    "template-datasource-rule": template_datasource,
    "template-label-promql-rule": template_label_promql,
    "template-on-time-change-reload-rule": template_on_time_change_reload,
    "panel-datasource-rule": panel_datasource,
    "panel-title-description-rule": panel_title_description,
    "panel-units-rule": panel_units,
    "panel-no-targets-rule": panel_no_targets,
    "target-rate-interval-rule": target_rate_interval,
    "target-counter-agg-rule": target_counter_agg,
    "uneditable-dashboard": uneditable,
}


@pytest.mark.parametrize("rule", RULES)
def test_the_boards_keep_the_rule(rule: str) -> None:
    for board in BOARDS:
        assert not list(RULES[rule](board)), board["uid"]


def test_each_rule_is_kept_or_excluded_for_a_reason() -> None:
    of_the_linter = """
        template-datasource-rule template-job-rule template-instance-rule template-label-promql-rule
        template-on-time-change-reload-rule panel-datasource-rule panel-title-description-rule panel-units-rule
        panel-no-targets-rule target-logql-rule target-logql-auto-rule target-promql-rule target-rate-interval-rule
        target-job-rule target-instance-rule target-counter-agg-rule uneditable-dashboard
    """
    assert set(of_the_linter.split()) == {*RULES, *ELSEWHERE, *EXCLUDED}
    assert all(each["reason"] for each in EXCLUDED.values())


@pytest.mark.parametrize("board", BOARDS, ids=[board["uid"] for board in BOARDS])
def test_the_grid_and_the_variables(board: Board) -> None:
    """No two panels overlap, each has an id of its own, and no query asks for a variable that there is not."""
    variables = {variable["name"] for variable in board["templating"]["list"]}
    taken: set[tuple[int, int]] = set()
    for panel in board["panels"]:
        place = panel["gridPos"]
        cells = {
            (column, row)
            for column in range(place["x"], place["x"] + place["w"])
            for row in range(place["y"], place["y"] + place["h"])
        }
        assert place["x"] + place["w"] <= 24 and not taken & cells, panel["title"]
        taken |= cells
    for expr in queries_of(board):
        assert set(re.findall(r"\$(\w+)", expr)) <= variables | {"__rate_interval", "__range"}, expr
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
    assert board["uid"] and board["tags"]
