"""The verdict from real engines that keep Prometheus' series for long. In one store are two clusters, whose Prometheus
write into it as they scrape, with an external label `cluster`; their jobs, users and nodes have the same names."""

from __future__ import annotations

import contextlib
import re
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.alerting import PATIENCE_SECONDS, wait_for
from support.engines import ENGINES, Engine, answers, count, need, running, scraper
from support.live_ranks import LiveNodes, Training

from laggard.cli import main
from laggard.collector.prometheus import client

pytestmark = pytest.mark.slow  # real servers, and some 20 s of samples

A = Training(slow=5, findings={"n1": (("GPU_THROTTLED", "critical", "GPU 1"),), "n0": (("CLOCK_SKEW", "warning", ""),)})
B = Training(slow=2, phase="input", findings={"n0": (("DISK_FULL", "warning", "/data"),)}, clock_ahead=3600.0)
"""Its nodes' clocks are an hour ahead."""
SAMPLES = 18
"""The scrapes, a second apart, after which there are enough: ten moments, and four times two for all ranks."""

MS = re.compile(r"([0-9.]+) ms")

Locate = Callable[..., tuple[int, dict[str, Any]]]


class Store:
    """An engine with the clusters a, which has two equal Prometheus, and b; c has one whose job is healthy."""

    def __init__(self, engine: Engine, scrapers: dict[str, Any], folder: Path) -> None:
        self.engine, self.scrapers = engine, scrapers
        self.words = ["--prometheus", engine.query]
        if engine.headers:
            headers = folder / "headers"
            headers.write_text("".join(f"{name}: {value}\n" for name, value in engine.headers.items()))
            self.words += ["--headers-file", str(headers)]


@contextlib.contextmanager
def filled(name: str, folder: Path, **options: int) -> Iterator[Store]:
    need(name)
    need("Prometheus")
    trainings = {"a": A, "b": B, "c": Training(job_id="healthy")}
    with contextlib.ExitStack() as stack:
        engine = stack.enter_context(ENGINES[name](folder, **options))
        commands = {}
        for cluster, training in trainings.items():
            nodes = stack.enter_context(LiveNodes(training))
            for replica in ("r0", "r1") if cluster == "a" else ("r0",):
                labels = {"cluster": cluster, "replica": replica}
                name = f"{cluster}-{replica}"
                commands[name] = scraper(name, nodes.addresses, labels, engine, folder)
        scrapers = stack.enter_context(running(folder, commands))
        query = 'min(count_over_time(laggard_rank_steps_total{rank="0"}[10m]))'
        wait_for(lambda: count(engine, query) >= SAMPLES, lambda: f"{count(engine, query)} samples")
        yield Store(engine, scrapers, folder)


@pytest.fixture(scope="module", params=ENGINES)
def store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with filled(request.param, tmp_path_factory.mktemp("engine")) as found:
        yield found


def kinds(document: dict[str, Any]) -> list[str]:
    return [note["kind"] for note in document["notes"]]


def accusing(locate: Locate, ranks: list[list[int]], *words: str) -> tuple[int, dict[str, Any]]:
    """The answer once it accuses these, by culprit, and has a verdict: on a busy machine scrapes come late, and nothing
    can be told for a while. Nobody else is accused meanwhile."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        status, document = locate(*words)
        accused = [culprit["ranks"] for culprit in document["culprits"]]
        if accused == ranks and document["verdict"] != "unknown":
            return status, document
        assert accused in ([], ranks) and document["verdict"] != "ok", document
        assert time.monotonic() < deadline, document
        time.sleep(1)


def test_two_clusters_in_one_store_are_not_mixed_up(
    store: Store, locate: Locate, capsys: pytest.CaptureFixture[str]
) -> None:
    status, document = accusing(locate, [[5]], *store.words, "--job", "train", "--cluster", "a")
    (culprit,) = document["culprits"]
    assert (status, culprit["kind"], culprit["ranks"], culprit["node"]) == (1, "slow_compute", [5], "n1"), document
    assert culprit["phase"] == "forward" and culprit["findings"] == ["GPU_THROTTLED"], document
    forward, waits = (MS.findall(text) for text in culprit["evidence"][:2])
    assert [float(it) for it in forward] == pytest.approx([42.0, 30.0], abs=0.3), culprit["evidence"]
    assert [float(it) for it in waits] == pytest.approx([10.0, 22.0], abs=0.5), "of two replicas one counts"
    (failing,) = (note["text"] for note in document["notes"] if note["kind"] == "nodes_failing")
    assert failing.startswith("1 of 2 nodes fails the health checks: GPU_THROTTLED on n1. "), failing

    status, document = accusing(locate, [[2]], *store.words, "--job", "1000:train", "--cluster", "b")
    (culprit,) = document["culprits"]
    assert (status, culprit["kind"], culprit["ranks"], culprit["node"]) == (1, "slow_input", [2], "n0"), document
    assert culprit["findings"] == ["DISK_FULL"] and "nodes_failing" not in kinds(document), document
    status, document = accusing(locate, [], *store.words, "--cluster", "c")
    assert (status, document["verdict"], document["job_id"]) == (0, "ok", "healthy"), document
    status, document = locate(*store.words, "--cluster", "nowhere")
    assert (status, kinds(document)) == (2, ["no_series"]) and "in cluster nowhere" in document["notes"][0]["text"]

    for which, nodes in (((), 6), (("--cluster", "a"), 2)):
        status, document = locate(*store.words, *which, "--job", "none")
        assert (status, kinds(document)) == (2, ["no_series", "nodes_failing"]), document
        assert document["notes"][1]["text"].startswith(
            f"1 of {nodes} nodes fails the health checks: GPU_THROTTLED on n1."
        )

    for job in ("train", "1000:train"):
        assert main(["locate", *store.words, "--job", job]) == 64
        said = capsys.readouterr().err
        assert said == f"laggard: 2 clusters have a job {job}; choose with --cluster: a, b\n", said


def test_a_collector_watches_the_jobs_of_its_cluster(store: Store, start_collector: Any, tmp_path: Path) -> None:
    settings = f"targets: []\nprometheus: {store.engine.query}\nprometheus_interval_seconds: 1\n"
    settings += f"incidents_database: {tmp_path}/incidents.sqlite\n"
    if store.engine.headers:
        (tmp_path / "headers").write_text(Path(store.words[-1]).read_text())
        settings += f"prometheus_headers_file: {tmp_path}/headers\n"
    config = tmp_path / "collector.yaml"
    config.write_text(settings + "prometheus_cluster: b\n")
    collector = start_collector("--config", str(config), "--interval", "0.5")

    def location() -> Any:
        return collector.get("/api/v1/location", job="1000:train").json()

    collector.wait_until(lambda: bool(location()["culprits"]))
    assert [(it["ranks"], it["findings"]) for it in location()["culprits"]] == [([2], ["DISK_FULL"])]
    collector.stop()
    config.write_text(settings)
    collector = start_collector("--config", str(config), "--interval", "0.5")
    collector.wait_until(lambda: "several_clusters" in kinds(location()))
    assert "one of a, b" in location()["notes"][0]["text"] and not location()["culprits"]


def test_an_engine_that_is_late_is_one_line(
    store: Store, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(client, "QUERY_SECONDS", 1.0)
    process = list(store.engine.processes.values())[-1]
    process.send_signal(signal.SIGSTOP)
    try:
        asked = answers(f"{store.engine.query}/api/v1/query?query=1", store.engine.headers, seconds=1.0)
        wait_for(lambda: not asked())
        assert main(["locate", *store.words, "--cluster", "a"]) == 64
    finally:
        process.send_signal(signal.SIGCONT)
    said = capsys.readouterr().err
    assert "did not answer within 1 s: it is overloaded, or far away" in said and said.count("\n") == 1


def test_the_other_replica_goes_on_where_one_has_died(store: Store, locate: Locate) -> None:
    """For five minutes the store repeats what the dead one said last."""
    store.scrapers["a-r0"].kill()
    time.sleep(SAMPLES)
    status, document = accusing(locate, [[5]], *store.words, "--job", "train", "--cluster", "a")
    assert status == 1, document


def test_half_of_a_store_is_never_ok(tmp_path: Path, locate: Locate, capsys: pytest.CaptureFixture[str]) -> None:
    """One of two vmstorage is away. VictoriaMetrics gives no samples as they came then, but for partial answers."""
    with filled("VictoriaMetrics' cluster", tmp_path) as store:
        words = (*store.words, "--job", "healthy", "--cluster", "c")
        accusing(locate, [], *words)
        store.engine.processes["vmstorage1"].kill()
        status, document = locate(*store.words, "--job", "none such")
        assert kinds(document)[0] == "partial_answer" and "isPartial" in document["notes"][0]["text"], document
        assert main(["locate", *words]) == 64
        assert "is overloaded or away (503)" in capsys.readouterr().err


def test_a_store_with_two_copies_of_all_answers_from_one(tmp_path: Path, locate: Locate) -> None:
    with filled("VictoriaMetrics' cluster", tmp_path, copies=2) as store:
        store.engine.processes["vmstorage1"].kill()
        for cluster, job, ranks in (("a", "train", [[5]]), ("c", "healthy", [])):
            status, document = accusing(locate, ranks, *store.words, "--job", job, "--cluster", cluster)
            assert "partial_answer" not in kinds(document), document
