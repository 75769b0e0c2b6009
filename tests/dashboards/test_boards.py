"""Grafana's boards, as files: their queries name what laggard has, and their data source is found however they get into
a Grafana."""

import json
import re
from collections.abc import Iterator

import pytest
import yaml
from support.boards import BOARDS, FILES, Board
from support.paths import REPOSITORY

from laggard.catalogue.metrics import METRICS

RULES = yaml.safe_load((REPOSITORY / "deploy" / "prometheus" / "rules.yml").read_text())
RECORDED = {rule["record"] for group in RULES["groups"] for rule in group["rules"]}
KNOWN = {metric.name for metric in METRICS} | RECORDED
WORDS = {"and", "or", "unless", "offset", "group_left", "group_right", "bool"}
"""The words of PromQL that are no function and no metric."""


def metrics_of(query: str) -> set[str]:
    """What a query, or a variable's, selects: the names that are left without labels, ranges and functions."""
    query = re.sub(r'"[^"]*"', "", re.sub(r"^label_values\((.*), \w+\)$", r"\1", query))
    query = re.sub(r"\{[^}]*\}|\[[^\]]*\]|\b(by|on|without|ignoring|group_left|group_right)\s*\([^)]*\)", " ", query)
    return set(re.findall(r"\b[A-Za-z_:][\w:]*\b(?!\s*\()", query)) - WORDS


def queries_of(board: Board) -> Iterator[str]:
    yield from (target["expr"] for panel in board["panels"] for target in panel.get("targets", ()))
    yield from (annotation["expr"] for annotation in board["annotations"]["list"])
    yield from (variable["query"] for variable in board["templating"]["list"] if variable["type"] == "query")


@pytest.mark.parametrize("board", BOARDS, ids=[board["uid"] for board in BOARDS])
def test_each_query_names_only_metrics_of_the_catalogue_and_of_the_rules(board: Board) -> None:
    for query in queries_of(board):
        names = metrics_of(query)
        assert names and names <= KNOWN, f"{board['title']}: {sorted(names - KNOWN)} in {query}"


def test_no_two_boards_have_one_uid_and_no_two_panels_one_id() -> None:
    assert [file.name for file in FILES] == [f"{board['uid']}.json" for board in BOARDS]
    assert len({board["title"] for board in BOARDS}) == len(BOARDS)
    for board in BOARDS:
        assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
        assert all(panel["title"] for panel in board["panels"])


def test_an_import_asks_for_the_data_source_and_without_one_the_first_prometheus_serves() -> None:
    """An import by hand fills the inputs. Provisioning and the HTTP API do not: what stands in a panel then stays as it
    is, while a variable of data sources takes the first one if it does not know its value."""
    for board in BOARDS:
        assert [(each["name"], each["type"], each["pluginId"]) for each in board["__inputs"]] == [
            ("DS_PROMETHEUS", "datasource", "prometheus")
        ]
        variable = board["templating"]["list"][0]
        assert (variable["name"], variable["type"], variable["query"]) == ("datasource", "datasource", "prometheus")
        assert variable["current"] == {"text": "${DS_PROMETHEUS}", "value": "${DS_PROMETHEUS}"}
        assert json.dumps(board).count("DS_PROMETHEUS") == 3, "only the variable takes the input"


def test_an_import_names_the_panels_that_it_needs() -> None:
    for board in BOARDS:
        kinds = {panel["type"] for panel in board["panels"]} - {"row"}
        assert {each["id"] for each in board["__requires"]} == {"grafana", "prometheus", *kinds}
