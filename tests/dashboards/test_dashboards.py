"""Grafana's dashboards: every query has data in a real Prometheus, every label that a legend or column shows exists,
the files are what the code makes, and they reach a server that answers as Grafana does."""

from __future__ import annotations

import json
import re
import shutil
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest
from support.paths import REPOSITORY
from support.synthetic_fleet import NODES, Prometheus, fleet_in_prometheus

from laggard.cli import main
from laggard.dashboards.command import dashboard_text
from laggard.dashboards.dashboard import dashboard_json
from laggard.dashboards.registry import DASHBOARDS

FILES = REPOSITORY / "deploy" / "grafana" / "dashboards"
MADE = [dashboard_json(dashboard) for dashboard in DASHBOARDS]
PANELS = [(made["uid"], panel) for made in MADE for panel in made["panels"] if panel["type"] != "row"]
CHOSEN = {
    "$job_id": "a",
    "$user": "1000",
    "$instance": "|".join(NODES),
    "$__rate_interval": "1h",
}


def chosen(expr: str) -> str:
    for name, value in CHOSEN.items():
        expr = expr.replace(name, value)
    assert "$" not in expr, f"{expr}: a variable that no dashboard has"
    return expr


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    if not (shutil.which("prometheus") and shutil.which("promtool")):
        pytest.skip("no prometheus here: no query was tried")
    with fleet_in_prometheus(tmp_path_factory.mktemp("prometheus")) as running:
        yield running


@pytest.mark.slow
@pytest.mark.parametrize(("uid", "panel"), PANELS, ids=[f"{uid}: {panel['title']}" for uid, panel in PANELS])
def test_each_query_has_data_and_each_label_exists(uid: str, panel: dict[str, Any], prometheus: Prometheus) -> None:
    for target in panel["targets"]:
        found = prometheus.query(chosen(target["expr"]))
        assert found, f"no data: {target['expr']}"
        shown = set(re.findall(r"{{(\w+)}}", target["legendFormat"]))
        shown |= {name for step in panel.get("transformations", ()) for name in step["options"].get("renameByName", ())}
        for series in found:
            assert shown - {"Value"} <= set(series["metric"]), f"{target['expr']}: {series['metric']}"


@pytest.mark.slow
def test_variables_and_annotations_ask_for_what_there_is(prometheus: Prometheus) -> None:
    for made in MADE:
        for annotation in made["annotations"]["list"]:
            prometheus.query(chosen(annotation["expr"]))  # has a value only where a culprit is new
            assert prometheus.query(chosen(annotation["expr"].partition(" unless ")[0]))
        for variable in made["templating"]["list"][1:]:
            matched = re.fullmatch(r"label_values\((.+), (\w+)\)", variable["query"])
            assert matched is not None
            found = prometheus.query(chosen(matched[1]))
            assert found and all(matched[2] in series["metric"] for series in found)


def test_the_files_are_what_the_code_makes() -> None:
    assert sorted(path.name for path in FILES.iterdir()) == [f"{made['uid']}.json" for made in MADE]
    for made in MADE:
        path = FILES / f"{made['uid']}.json"
        assert path.read_text() == dashboard_text(made), f"run: laggard dashboards export {path.parent}"


@pytest.mark.parametrize("made", MADE, ids=[made["uid"] for made in MADE])
def test_the_rules_of_the_community(made: dict[str, Any]) -> None:
    """Those of grafana/dashboard-linter that hold for any dashboard, and a grid without overlap."""
    assert made["uid"] and made["tags"] and not made["editable"]
    variables = {variable["name"] for variable in made["templating"]["list"]}
    assert made["templating"]["list"][0]["type"] == "datasource"
    taken: set[tuple[int, int]] = set()
    for panel in made["panels"]:
        place = panel["gridPos"]
        cells = {
            (column, row)
            for column in range(place["x"], place["x"] + place["w"])
            for row in range(place["y"], place["y"] + place["h"])
        }
        assert place["x"] + place["w"] <= 24 and not taken & cells, panel["title"]
        taken |= cells
        if panel["type"] == "row":
            continue
        assert panel["title"] and panel["description"] and panel["fieldConfig"]["defaults"]["unit"]
        assert panel["datasource"]["uid"] == "${datasource}"
        for target in panel["targets"]:
            assert target["datasource"] == panel["datasource"] and target["expr"]
            assert set(re.findall(r"\$(\w+)", target["expr"])) <= variables | {"__rate_interval"}
            for counter in re.findall(r"\w+_total", target["expr"]):
                asked = rf"(rate|increase)\({counter}{{[^}}]*}}\[\$__rate_interval\]\)"
                assert re.search(asked, target["expr"]), f"{counter} is a counter: {target['expr']}"
    assert len({panel["id"] for panel in made["panels"]}) == len(made["panels"])


class Grafana(BaseHTTPRequestHandler):
    """Answers as Grafana 10 does to what `push` asks: folders, and dashboards by uid."""

    folders: ClassVar[dict[str, str]] = {}
    dashboards: ClassVar[dict[str, dict[str, Any]]] = {}

    def do_GET(self) -> None:
        self.answer([{"uid": uid, "title": title} for uid, title in self.folders.items()])

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == "/grafana/api/folders":
            self.folders[body["uid"]] = body["title"]
            self.answer({"uid": body["uid"], "title": body["title"]})
        elif self.path == "/grafana/api/dashboards/db" and body["folderUid"] in self.folders and body["overwrite"]:
            uid = body["dashboard"]["uid"]
            self.dashboards[uid] = body
            self.answer({"status": "success", "uid": uid, "url": f"/d/{uid}"})
        else:
            self.answer({"message": "no such path"}, 404)

    def answer(self, document: Any, status: int = 200) -> None:
        status = status if self.headers["Authorization"] == "Bearer right" else 401
        body = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: object) -> None:
        pass


@pytest.fixture
def grafana() -> Iterator[str]:
    Grafana.folders.clear()
    Grafana.dashboards.clear()
    with HTTPServer(("127.0.0.1", 0), Grafana) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/grafana"
        server.shutdown()


@pytest.mark.slow
def test_push_puts_all_dashboards_into_their_folder(
    grafana: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "token").write_text("right\n")
    for _ in range(2):  # the second time the folder is there
        assert main(["dashboards", "push", grafana, "--folder", "GPU", "--token-file", str(tmp_path / "token")]) == 0
    assert capsys.readouterr().out.startswith("3 dashboards are in Grafana's folder GPU:\n")
    assert list(Grafana.folders.values()) == ["GPU"]
    assert [body["dashboard"] for body in Grafana.dashboards.values()] == MADE


@pytest.mark.slow
def test_what_keeps_push_from_its_work_is_one_line(
    grafana: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def error(url: str, token: str) -> str:
        monkeypatch.setenv("GRAFANA_TOKEN", token)
        assert main(["dashboards", "push", url]) == 64
        text = capsys.readouterr().err
        assert text.count("\n") == 1 and (not token or token not in text)
        return text

    assert "token" in error(grafana, "")
    assert "does not accept the token" in error(grafana, "wrong-token")
    assert "cannot be reached" in error("http://127.0.0.1:9", "wrong-token")
    assert "is no URL of a Grafana" in error("grafana.example", "wrong-token")
    assert "answered 404" in error(grafana.replace("/grafana", "/elsewhere"), "right")


def test_export_writes_the_files(tmp_path: Path) -> None:
    assert main(["dashboards", "export", str(tmp_path / "new")]) == 0
    for made in MADE:
        assert (tmp_path / "new" / f"{made['uid']}.json").read_text() == dashboard_text(made)
