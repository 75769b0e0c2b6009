"""Grafana's dashboards: every query has data in a real Prometheus, every label that a legend or column shows exists,
and the files reach a server that answers as Grafana does."""

import contextlib
import json
import re
import shutil
import ssl
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest
import trustme
from support.boards import BOARDS, FILES, PANELS, chosen
from support.rows import rows
from support.synthetic_fleet import FINDINGS, NODES, SLOW_RANK, SLOW_RATE, VERDICTS, Prometheus, fleet_in_prometheus
from support.waiting import wait_for

from laggard.cli import main


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
            assert shown - {"Value", "cluster"} <= set(series["metric"]), f"{target['expr']}: {series['metric']}"


@pytest.mark.slow
def test_variables_and_annotations_ask_for_what_there_is(prometheus: Prometheus) -> None:
    """The fleet is fifteen minutes old: a day ago no culprit was there, so that each is new."""
    for board in BOARDS:
        for annotation in board["annotations"]["list"]:
            assert not prometheus.query(chosen(annotation["expr"])), "has a value only where a culprit is new"
            (new,) = prometheus.query(chosen(annotation["expr"].replace("offset 1m", "offset 1d")))
            assert set(re.findall(r"{{(\w+)}}", annotation["titleFormat"])) <= set(new["metric"])
            assert new["metric"]["rank"] == SLOW_RANK
        for variable in board["templating"]["list"][1:]:
            matched = re.fullmatch(r"label_values\((.+), (\w+)\)", variable["query"])
            assert matched is not None
            found = prometheus.query(chosen(matched[1]))
            of_clusters = matched[2] == "cluster"  # of which this fleet has none
            assert found and all((matched[2] in series["metric"]) is not of_clusters for series in found)


def query_of(uid: str, title: str, node: str = NODES[0]) -> str:
    """The query of a panel, for `node` where it is about one."""
    (panel,) = (panel for board, panel in PANELS if (board, panel["title"]) == (uid, title))
    (target,) = panel["targets"]
    return chosen(target["expr"].replace("$instance", node))


@pytest.mark.slow
def test_the_heat_map_shows_the_slow_rank_at_every_moment(prometheus: Prometheus) -> None:
    """Of a step the slow rank computes for 0.8 s, the median rank for 0.5 s, and each gets its input in 0.5 s."""
    query = query_of("laggard-job", "Busy time by rank, against the median rank")
    wait_for(lambda: min((len(row["values"]) for row in prometheus.range(query, 60, 1)), default=0) > 3)
    shown = {
        row["metric"]["rank"]: {round(float(value), 6) for _, value in row["values"]}
        for row in prometheus.range(query, 60, 1)
    }
    assert shown == {rank: {SLOW_RATE + 0.5 if rank == SLOW_RANK else 1.0} for rank in ("0", "1", "2", "3")}


@pytest.mark.slow
def test_the_state_timeline_has_a_row_for_each_check_whose_value_is_its_verdict(prometheus: Prometheus) -> None:
    """On n1 the check of throttling passes in the first half of the time, and fails in the second."""
    (panel,) = (panel for _, panel in PANELS if panel["title"] == "Verdicts")
    words = {value: it["text"] for value, it in panel["fieldConfig"]["defaults"]["mappings"][0]["options"].items()}
    for node in NODES:
        rows = prometheus.range(query_of("laggard-node", "Verdicts", node), 2640, 30)
        seen = {row["metric"]["probe"]: [words[value] for _, value in row["values"]] for row in rows}
        assert len(rows) == len(seen) == 2, "one row a check"
        for probe, verdicts in seen.items():
            first, last = VERDICTS[node, probe]
            assert (verdicts[0], verdicts[-1]) == (first, last), (node, probe, verdicts)
            assert verdicts == sorted(verdicts, key=lambda it: it != first), "it changes once"


@pytest.mark.slow
def test_tables_show_which_node_has_which_finding(prometheus: Prometheus) -> None:
    def rows(query: str) -> list[dict[str, str]]:
        keys = ("instance", "code", "severity", "device")
        return sorted(({key: it["metric"][key] for key in keys} for it in prometheus.query(query)), key=str)

    expected = sorted(({"instance": node, **found} for node, found in FINDINGS.items()), key=str)
    assert rows(query_of("laggard-fleet", "Findings")) == expected
    for each in expected:
        assert rows(query_of("laggard-node", "Findings", each["instance"])) == [each]


@pytest.mark.slow
@rows("dashboards/numbers")
def test_numbers_are_those_of_the_fleet(title: str, value: float, prometheus: Prometheus) -> None:
    (found,) = prometheus.query(query_of("laggard-fleet", title))
    assert float(found["value"][1]) == value


@pytest.mark.slow
def test_culprits_are_shown_on_their_node_alone(prometheus: Prometheus) -> None:
    (found,) = prometheus.query(query_of("laggard-node", "Culprits here", NODES[0]))
    assert found["metric"]["rank"] == SLOW_RANK and found["metric"]["hostname"] == "n0"
    assert not prometheus.query(query_of("laggard-node", "Culprits here", NODES[1]))


@pytest.mark.slow
def test_a_recommendation_shows_its_gain_and_one_when_it_is_not_known(prometheus: Prometheus) -> None:
    query = query_of("laggard-job", "What to change")
    (found,) = prometheus.query(query)
    assert float(found["value"][1]) == 1.25
    (found,) = prometheus.query(query.replace("_gain_ratio{", '_gain_ratio{basis="rule", '))
    assert float(found["value"][1]) == 1


ROLE = "; the token has to be of a service account with the role Editor"


class Grafana(BaseHTTPRequestHandler):
    """Answers as Grafana 10 does to what `push` asks under /grafana/: folders, and dashboards by uid; under other paths
    as what stands in front of one, or something else, does."""

    folders: ClassVar[dict[str, str]] = {}
    dashboards: ClassVar[dict[str, dict[str, Any]]] = {}
    silent: ClassVar[threading.Event]
    elsewhere: ClassVar[dict[str, tuple[int, bytes]]] = {
        "forbidden": (403, b'{"message": "Permissions needed: dashboards:create"}'),
        "page": (200, b"<html>Welcome</html>"),
        "list": (200, b'[{"title": "no uid"}]'),
        "proxy": (502, b"<html>Bad Gateway</html>"),
        "text": (503, b"no message"),
        "loud": (500, b'{"message": "database\\u001b[31m is\\nlocked"}'),
    }

    def do_GET(self) -> None:
        place = self.path.split("/")[1]
        if self.path == "/grafana/api/folders":
            self.answer(json.dumps([{"uid": uid, "title": title} for uid, title in self.folders.items()]).encode())
        elif place == "moved":
            self.answer(b"", 302, ("Location", "https://user:secret@login.example/?next=token"))
        elif place == "silent":
            self.silent.wait(120)
        else:
            status, body = self.elsewhere.get(place, (404, b'{"message": "no such path"}'))
            self.answer(body, status)

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == "/grafana/api/folders":
            self.folders[body["uid"]] = body["title"]
            self.answer(json.dumps({"uid": body["uid"], "title": body["title"]}).encode())
        elif self.path == "/grafana/api/dashboards/db" and body["folderUid"] in self.folders and body["overwrite"]:
            uid = body["dashboard"]["uid"]
            self.dashboards[uid] = body
            self.answer(json.dumps({"status": "success", "uid": uid, "url": f"/d/{uid}"}).encode())
        else:
            self.answer(b'{"message": "no such path"}', 404)

    def answer(self, body: bytes, status: int = 200, *headers: tuple[str, str]) -> None:
        self.send_response(status if self.headers["Authorization"] == "Bearer right" else 401)
        for name, value in (*headers, ("Content-Length", str(len(body)))):
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: object) -> None:
        pass


@contextlib.contextmanager
def running_grafana(tls: ssl.SSLContext | None = None) -> Iterator[str]:
    """The address of a Grafana without folders."""
    Grafana.folders.clear()
    Grafana.dashboards.clear()
    Grafana.silent = threading.Event()
    with ThreadingHTTPServer(("127.0.0.1", 0), Grafana) as server:
        if tls:
            server.socket = tls.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"{'https' if tls else 'http'}://127.0.0.1:{server.server_port}/grafana"
        Grafana.silent.set()
        server.shutdown()


@pytest.fixture
def grafana() -> Iterator[str]:
    with running_grafana() as url:
        yield url


def refusal(url: str, token: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    """The one line with which `push` ends; the token is not in it."""
    monkeypatch.setenv("GRAFANA_TOKEN", token)
    assert main(["collector", "dashboards", "push", url]) == 64
    text = capsys.readouterr().err
    assert text.count("\n") == 1 and text[:-1].isprintable() and (not token or token not in text), text
    return text


@pytest.mark.slow
def test_push_puts_all_dashboards_into_their_folder(
    grafana: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "token").write_text("right\n")
    for _ in range(2):  # the second time the folder is there
        assert (
            main(
                ["collector", "dashboards", "push", grafana, "--folder", "GPU", "--token-file", str(tmp_path / "token")]
            )
            == 0
        )
    assert capsys.readouterr().out.startswith("3 dashboards are in Grafana's folder GPU:\n")
    assert list(Grafana.folders.values()) == ["GPU"]
    assert [body["dashboard"] for body in Grafana.dashboards.values()] == BOARDS


@pytest.mark.slow
@pytest.mark.parametrize(
    ("place", "told"),
    {
        "elsewhere": "Grafana refuses: Client Error 404: no such path",
        "forbidden": f"Grafana refuses: Client Error 403: Permissions needed: dashboards:create{ROLE}",
        "page": "the answer is not one of Grafana's; give the address at which people see it",
        "list": "the answer is not one of Grafana's; give the address at which people see it",
        "proxy": "Grafana refuses: Server Error 502: <html>Bad Gateway</html>",
        "text": "the answer is not one of Grafana's; give the address at which people see it",
        "loud": "Grafana refuses: Server Error 500: database [31m is locked",
        "moved": "it sends elsewhere; give Grafana's own address",
        "silent": "Grafana cannot be reached: timed out",
    }.items(),
)
def test_what_does_not_answer_as_grafana_is_told(
    grafana: str, place: str, told: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if place == "silent":
        monkeypatch.setattr("laggard.dashboards._TIMEOUT_SECONDS", 0.5)
    url = grafana.replace("/grafana", f"/{place}")
    assert refusal(url, "right", monkeypatch, capsys).endswith(f"{url}: {told}\n")


@pytest.mark.slow
def test_what_keeps_push_from_its_work_is_one_line(
    grafana: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def error(url: str, token: str) -> str:
        return refusal(url, token, monkeypatch, capsys)

    assert "give the token of a service account" in error(grafana, "")
    assert "give the token of a service account, one line" in error(grafana, "wr\u00f6ng")
    assert "give the token of a service account, one line" in error(grafana, "wrong\ntoken")
    assert f"Unauthorized{ROLE}" in error(grafana, "wrong-token")
    assert "cannot be reached: [Errno 111] Connection refused" in error("http://127.0.0.1:9", "wrong-token")
    assert "does not speak TLS: write http://" in error(grafana.replace("http:", "https:"), "wrong-token")
    for url in ("grafana.example", "ftp://g.example", "http://", "http://g:99999", "http://u:wrong-token@g.example"):
        assert "is no URL of a Grafana" in error(url, "wrong-token")


@pytest.mark.slow
def test_push_over_tls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    with running_grafana(context) as url:
        assert "cannot be reached: its certificate is not accepted" in refusal(url, "right", monkeypatch, capsys)
        assert not Grafana.folders
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
        assert main(["collector", "dashboards", "push", url]) == 0
        assert len(Grafana.dashboards) == len(BOARDS)


def test_export_writes_the_files(tmp_path: Path) -> None:
    assert main(["collector", "dashboards", "export", str(tmp_path / "new")]) == 0
    written = sorted((tmp_path / "new").iterdir())
    assert [(file.name, file.read_bytes()) for file in written] == [(file.name, file.read_bytes()) for file in FILES]
