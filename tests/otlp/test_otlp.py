"""Metrics sent as OTLP: what /metrics shows reaches a receiver, and a receiver that is away costs nothing else.

The receiver stands in for OpenTelemetry's Collector: it decodes with OpenTelemetry's own messages. A real
VictoriaMetrics takes its place where one is installed."""

from __future__ import annotations

import gzip
import re
import shutil
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from prometheus_client.parser import text_string_to_metric_families
from support.agents import AgentProcess
from support.ports import free_port
from support.scraping import api_of, value_of

from laggard.catalogue.exposition import metric_family
from laggard.cli import main
from laggard.otlp import message
from laggard.otlp.exporter import FAILED, SENT, OtlpExporter
from laggard.otlp.message import message_of
from laggard.otlp.settings import Destination

SECONDS = 120.0
TOKEN = "Authorization: Bearer planted-0123456789"
Series = dict[tuple[str, frozenset[tuple[str, str]]], float]


class Receiver:
    """Answers `status`; keeps what was accepted, decoded, and the login of all."""

    def __init__(self) -> None:
        self.status = 200
        self.messages: list[ExportMetricsServiceRequest] = []
        self.logins: set[str | None] = set()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                receiver.logins.add(self.headers["Authorization"])
                body = self.rfile.read(int(self.headers["Content-Length"]))
                assert self.path == "/v1/metrics" and self.headers["Content-Type"] == "application/x-protobuf"
                if receiver.status == 200:
                    assert self.headers["Content-Encoding"] == "gzip"
                    receiver.messages.append(ExportMetricsServiceRequest.FromString(gzip.decompress(body)))
                self.send_response(receiver.status)
                self.end_headers()
                self.wfile.write(str(self.headers["Authorization"]).encode())  # a receiver that tells what it was told

            def log_message(self, format: str, *args: Any) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/v1/metrics"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    made = Receiver()
    yield made
    made.close()


def wait_until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def series_of(request: ExportMetricsServiceRequest) -> Series:
    """The points as Prometheus' series; a counter has to be a cumulative, monotonic sum."""
    found: Series = {}
    for metric in request.resource_metrics[0].scope_metrics[0].metrics:
        counter = metric.name.endswith("_total")
        assert metric.WhichOneof("data") == ("sum" if counter else "gauge"), metric.name
        assert not counter or (metric.sum.is_monotonic and metric.sum.aggregation_temporality == 2)
        for point in metric.sum.data_points if counter else metric.gauge.data_points:
            labels = frozenset((each.key, each.value.string_value) for each in point.attributes)
            found[metric.name, labels] = point.as_double
    return found


def scraped(text: str) -> Series:
    return {
        (sample.name, frozenset((key, value) for key, value in sample.labels.items() if value)): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def steady(found: Series) -> Series:
    """Without what changes from one moment to the next."""
    moving = ("process_", "laggard_probe", "laggard_otlp", "laggard_agent", "laggard_finding")
    return {key: value for key, value in found.items() if not key[0].startswith(moving) and "seconds" not in key[0]}


def settings_of(folder: Path, endpoint: str, *more: str) -> str:
    (folder / "token").write_text(TOKEN + "\n")
    lines = (f"otlp_endpoint: {endpoint}", "otlp_interval_seconds: 0.2", f"otlp_headers_file: {folder}/token", *more)
    (folder / "settings.yaml").write_text("\n".join(lines))
    return str(folder / "settings.yaml")


@pytest.mark.slow
def test_the_agent_sends_what_it_shows_and_outlives_a_receiver_that_refuses(
    receiver: Receiver, start_agent: Callable[..., AgentProcess], start_rank: Any, tmp_path: Path
) -> None:
    rank = start_rank(rank=0, gpu="GPU-1")
    rank.do("step", "step", "step")
    agent = start_agent("--config", settings_of(tmp_path, receiver.url))
    wait_until(lambda: receiver.messages)
    shown = steady(scraped(agent.request("/metrics").text))
    wait_until(lambda: steady(series_of(receiver.messages[-1])) == shown)
    assert any(name == "laggard_rank_steps_total" and value == 3 for (name, _), value in shown.items())
    sender = {
        each.key: each.value.string_value for each in receiver.messages[-1].resource_metrics[0].resource.attributes
    }
    assert sender["service.name"] == "laggard-agent"
    assert sender["service.instance.id"] == f"n0:{agent.address[1]}"
    receiver.status = 503
    wait_until(lambda: exports(agent)["failed"] >= 2)
    assert agent.request("/-/healthy").status == 200
    receiver.status, before = 200, len(receiver.messages)
    wait_until(lambda: len(receiver.messages) > before)
    assert receiver.logins == {TOKEN.partition(": ")[2]}
    said = agent.log.read_text()
    assert "HTTP 503" in said and "planted" not in said + agent.request("/metrics").text


def exports(agent: AgentProcess) -> dict[str, float]:
    found = re.findall(r'^laggard_otlp_exports_total{outcome="(\w+)"} (\S+)', agent.request("/metrics").text, re.M)
    return {outcome: float(value) for outcome, value in found}


@pytest.mark.slow
def test_the_collector_sends_what_it_shows(
    receiver: Receiver, fake_agent: Any, make: Any, start_collector: Any, tmp_path: Path
) -> None:
    agent = fake_agent(make.node("n0", [0, 1, 2, 3], slow=2), make.report("n0"))
    collector = start_collector(
        "--target", agent.address, "--config", settings_of(tmp_path, receiver.url, "incidents_database: ''")
    )
    collector.wait_until(lambda: "laggard_culprit{" in collector.get("/metrics").text)
    shown = {
        key: value for key, value in scraped(collector.get("/metrics").text).items() if key[0] == "laggard_culprit"
    }
    wait_until(lambda: receiver.messages and shown.items() <= series_of(receiver.messages[-1]).items())


def takes_otlp() -> bool:
    """Whether there is a VictoriaMetrics that takes OTLP under Prometheus' names: Debian 12's, 1.79, does not."""
    program = shutil.which("victoria-metrics")
    told = subprocess.run([program, "-help"], capture_output=True, text=True, timeout=60) if program else None
    return told is not None and "-opentelemetry.usePrometheusNaming" in told.stdout + told.stderr


@pytest.mark.slow
def test_a_real_victoriametrics_has_every_series_under_its_own_name(
    start_agent: Callable[..., AgentProcess], start_rank: Any, tmp_path: Path
) -> None:
    if not takes_otlp():
        pytest.skip("needs victoria-metrics: one that takes OTLP under Prometheus' names, as Debian has since 1.145")
    rank = start_rank(rank=0)
    rank.do("step", "step")
    address = f"127.0.0.1:{free_port()}"
    naming = ("-opentelemetry.usePrometheusNaming", "-search.latencyOffset=0s")
    command = ["victoria-metrics", *naming, f"-storageDataPath={tmp_path}/series", f"-httpListenAddr={address}"]
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        agent = start_agent("--config", settings_of(tmp_path, f"http://{address}/opentelemetry/v1/metrics"))
        asked = api_of(address, process, tmp_path / "log")
        of_agent = f'service_name="laggard-agent", service_instance_id="n0:{agent.address[1]}"'
        wait_until(lambda: exports(agent)["sent"] >= 2)
        assert value_of(asked, f"laggard_rank_steps_total{{{of_agent}}}") == 2
        assert value_of(asked, f"process_resident_memory_bytes{{{of_agent}}}") > 1e6
        assert set(asked("label/__name__/values")) == {name for name, _ in scraped(agent.request("/metrics").text)}
        rank.kill()
        rank.path.unlink()
        gone = f"absent(laggard_rank_up{{{of_agent}}})"
        assert value_of(asked, gone) == 1, "the series ends with its rank"
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        ("otlp_endpoint: collector:4318", "give the whole URL"),
        ("otlp_endpoint: http://ada:secret@collector:4318/v1/metrics", "has a password in it"),
        ("otlp_endpoint: http://collector/\notlp_interval_seconds: 0", "give a number above 0"),
        ("otlp_endpoint: http://collector/\notlp_headers_file: FOLDER/no", "cannot be read"),
        ("otlp_endpoint: http://collector/\notlp_headers_file: FOLDER/bad", "lines of the form NAME: VALUE"),
        ("otlp_endpoint: http://collector/\notlp_headers_file: FOLDER/own", "headers that laggard sets"),
    ],
)
@pytest.mark.parametrize("daemon", ["agent", "collector"])
def test_wrong_settings_are_one_line_without_a_secret(
    daemon: str, lines: str, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bad").write_text("secret\n")
    (tmp_path / "own").write_text("Host: secret\n")
    (tmp_path / "x.yaml").write_text(lines.replace("FOLDER", str(tmp_path)))
    assert main([daemon, "--config", str(tmp_path / "x.yaml"), "--check-config"]) == 64
    said = capsys.readouterr().err
    assert told in said and said.count("\n") == 1 and "secret" not in said


def test_without_the_extra_it_says_what_to_install(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "opentelemetry.proto.collector.metrics.v1", None)
    (tmp_path / "x.yaml").write_text("otlp_endpoint: http://collector/")
    assert main(["agent", "--config", str(tmp_path / "x.yaml"), "--check-config"]) == 64
    assert "pip install 'laggard[otlp]'" in capsys.readouterr().err


def test_labels_of_any_characters_and_more_points_than_a_message_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(message, "MAX_POINTS", 3)
    jobs = [(("a\ud800\x00", "0"), 1.0), (("", "0"), 2.0)]
    families = [metric_family("laggard_job_running", jobs), metric_family("laggard_job_ranks", jobs)]
    made = message_of(families, frozenset(), {"service.name": "x"}, "1", 7)
    assert made.left_out == 1
    found = series_of(ExportMetricsServiceRequest.FromString(made.body))
    assert found["laggard_job_running", frozenset({("job_id", "a?\x00"), ("user", "0")})] == 1
    assert found["laggard_job_running", frozenset({("user", "0")})] == 2 and len(found) == 3


def test_a_series_that_is_gone_ends_with_a_point_without_a_value(receiver: Receiver) -> None:
    """Also where the first message after it was gone did not arrive; and once only."""
    verdict = "fail"
    sender = OtlpExporter(
        Destination(receiver.url, 1.0, ""),
        "x",
        "y:1",
        lambda: [metric_family("laggard_probe_verdict", [(("gpu", verdict), 1.0)])],
        Counter(),
    )
    sender.export()
    verdict, receiver.status = "ok", 500
    sender.export()
    receiver.status = 200
    sender.export()
    sender.export()
    last = [
        [(point.attributes[1].value.string_value, point.flags) for point in metric.gauge.data_points]
        for request in receiver.messages
        for metric in request.resource_metrics[0].scope_metrics[0].metrics
    ]
    assert last == [[("fail", 0)], [("ok", 0), ("fail", 1)], [("ok", 0)]]


def test_a_receiver_that_is_not_there_and_a_defect_are_counted(caplog: pytest.LogCaptureFixture) -> None:
    def broken() -> list[Any]:
        raise RuntimeError("a defect")

    nowhere = Destination(f"http://127.0.0.1:{free_port()}/v1/metrics?key=planted", 1.0, "")
    for families in (list[Any], broken):
        counts = Counter[str]()
        OtlpExporter(nowhere, "x", "y:1", families, counts).export()
        assert counts == {SENT: 0, FAILED: 1}
    assert "Connection refused" in caplog.text and "a defect in laggard" in caplog.text
    assert "planted" not in caplog.text
