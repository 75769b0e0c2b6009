"""Grafana's dashboards where Prometheus is set up otherwise: several clusters in one, two collectors of a cluster, a
job that went on elsewhere. Each board shows the same as in one plain fleet."""

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.boards import BOARDS, TARGETS, chosen
from support.synthetic_fleet import COLLECTOR, ONE_CLUSTER, Prometheus, Site, fleet_in_prometheus

CLUSTERS = ("a", "b")
OF_THE_SITE = {"cluster", "namespace", "pod", "hostname", "instance", "job"}
"""Labels that a plain fleet does not have, or has with other values."""

NOW = {"Last check"}
"""Panels whose number is the time since something: it differs from one fleet to the next."""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not (shutil.which("prometheus") and shutil.which("promtool")), reason="no prometheus here"),
]


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    with fleet_in_prometheus(tmp_path_factory.mktemp("plain"), ONE_CLUSTER) as running:
        yield running


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """Two clusters, each with two collectors."""
    site = Site(clusters=CLUSTERS, collectors=(COLLECTOR, "other:19401"))
    with fleet_in_prometheus(tmp_path_factory.mktemp("site"), site) as running:
        yield running


def asked(expr: str, cluster: str, interval: str) -> str:
    """The query as Grafana sends it, with the least step `interval` of its target: $__rate_interval is four of it."""
    return chosen(expr, cluster, f"{4 * {'1m': 60, '': 15}[interval]}s")


def answer(prometheus: Prometheus, target: dict[str, Any], cluster: str) -> list[dict[str, Any]]:
    """What the target has now."""
    return prometheus.query(asked(target["expr"], cluster, target.get("interval", "")))


def shown(found: list[dict[str, Any]]) -> list[tuple[tuple[tuple[str, str], ...], float]]:
    rows = (
        (
            tuple(sorted((k, v) for k, v in it["metric"].items() if k not in OF_THE_SITE)),
            round(float(it["value"][1]), 3),
        )
        for it in found
    )
    return sorted(rows)


@pytest.mark.wall_clock("2026-11-25, at load 8 to 18: a rate of 1.0 in place of 0.907")
def test_one_cluster_is_shown_as_if_it_were_alone(two: Prometheus, plain: Prometheus) -> None:
    for uid, panel, target in TARGETS:
        found = answer(two, target, CLUSTERS[0])
        expected = answer(plain, target, ".*")
        assert found, f"{uid}, {panel['title']}: no data"
        of_daemons = "{{instance}}" in target["legendFormat"]  # two collectors are two curves
        if not of_daemons and panel["title"] not in NOW:
            assert [row for row, _ in shown(found)] == [row for row, _ in shown(expected)], target["expr"]
            numbers = [number for _, number in shown(expected)]
            assert [number for _, number in shown(found)] == pytest.approx(numbers, rel=0.1), target["expr"]


def test_all_clusters_are_shown_together(two: Prometheus) -> None:
    for uid, panel, target in TARGETS:
        assert answer(two, target, ".*"), (uid, panel["title"])
    for title in ("Jobs that run", "Jobs with a culprit", "Agents that do not answer"):
        (expr,) = (target["expr"] for _, panel, target in TARGETS if panel["title"] == title)
        (found,) = two.query(asked(expr, ".*", ""))
        assert float(found["value"][1]) == len(CLUSTERS), title


def test_annotations_tell_of_a_culprit_once(two: Prometheus) -> None:
    for board in BOARDS:
        for annotation in board["annotations"]["list"]:
            expr = asked(annotation["expr"].replace("offset 1m", "offset 1d"), CLUSTERS[0], "")
            (new,) = two.query(expr)
            assert set(re.findall(r"{{(\w+)}}", annotation["titleFormat"])) <= set(new["metric"])


def test_a_job_that_went_on_on_other_nodes_has_one_row_a_rank(tmp_path: Path) -> None:
    """Each rank has a file on the node where it was killed and one where it runs: two series with one number."""
    with fleet_in_prometheus(tmp_path, Site(moved=True)) as prometheus:
        for uid, panel, target in TARGETS:
            if uid == "laggard-job":
                assert answer(prometheus, target, ".*"), panel["title"]
        (expr,) = (target["expr"] for _, panel, target in TARGETS if panel["title"].startswith("Busy time by rank"))
        assert [it["metric"] for it in prometheus.query(asked(expr, ".*", ""))] == [{"rank": str(n)} for n in range(4)]
        (expr,) = (target["expr"] for _, panel, target in TARGETS if panel["title"] == "Ranks that run")
        (found,) = prometheus.query(asked(expr, ".*", ""))
        assert float(found["value"][1]) == 4


def test_links_between_boards_keep_time_cluster_and_data_source() -> None:
    for board in BOARDS:
        (links,) = board["links"]
        assert links["includeVars"] and links["keepTime"]
        text = str(board["panels"])
        for url in re.findall(r"'url': '(/d/[^']+)'", text):
            for kept in ("${datasource:queryparam}", "${cluster:queryparam}", "${__url_time_range}"):
                assert kept in url, (board["uid"], url)


def test_every_query_is_of_the_clusters_that_were_chosen() -> None:
    for board in BOARDS:
        cluster = board["templating"]["list"][1]
        assert (cluster["name"], cluster["allValue"], cluster["current"]["value"]) == ("cluster", ".*", ["$__all"])
        queries = [target["expr"] for panel in board["panels"] for target in panel.get("targets", ())]
        queries += [annotation["expr"] for annotation in board["annotations"]["list"]]
        queries += [variable["query"] for variable in board["templating"]["list"][2:]]
        for query in queries:
            for selected in re.findall(r"laggard_\w+(?::\w+)?(\{[^}]*\}|)|process_\w+(\{[^}]*\})", query):
                assert 'cluster=~"$cluster"' in "".join(selected), query
            assert not re.search(r'"?[!=]~"\$(instance|job_id|user)"', query), "[::1]:19400 is no regular expression"


def test_a_graph_of_the_highest_has_no_more_curves_than_it_says() -> None:
    """topk alone takes other series at each of its points, so that a day of calm ranks shows them all."""
    for uid, panel, target in TARGETS:
        for found in re.findall(r"topk\((\d+), (\w+)", target["expr"]):
            bounded = found[1] == "max_over_time" and "[$__range] @ end()" in target["expr"]
            few = "laggard_probe_duration_seconds" in target["expr"] or ") > 0)" in target["expr"]
            assert target["instant"] or bounded or few, (uid, panel["title"])
