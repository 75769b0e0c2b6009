"""The verdict from real engines that keep Prometheus' series for long. In one store are two clusters, whose Prometheus
write into it as they scrape, with an external label `cluster`; their jobs, users and nodes have the same names."""

import contextlib
import math
import re
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import pytest
from prometheus_client import Metric
from support.engines import ENGINES, count, need, running, scraper
from support.fronts import served_by
from support.waiting import PATIENCE_SECONDS, wait_for

from laggard.catalogue.exposition import exposition, metric_family
from laggard.catalogue.rank_metrics import CollectiveSum, RankStats, families
from laggard.cli import main
from laggard.kit.constants import PHASES

STEP = 0.1
MEANS = {"input": 0.004, "forward": 0.03, "backward": 0.04, "optimizer": 0.004}
RANKS_OF_NODE = 4
UNEVEN = 0.003
"""The share by which the ranks' times differ, as those of equal machines do."""


class Training(NamedTuple):
    """`slow`: the rank that takes `excess` more seconds a step in `phase`; -1: none. `findings`: by node, each a code
    with its severity and device. `clock_ahead`: by how many seconds the nodes' clocks are ahead."""

    job_id: str = "train"
    user: int = 1000
    nodes: int = 2
    slow: int = -1
    phase: str = "forward"
    excess: float = 0.012
    findings: Mapping[str, Sequence[tuple[str, str, str]]] = {}
    clock_ahead: float = 0.0


def _rank(training: Training, number: int, seconds: float) -> RankStats:
    steps = int(seconds / STEP)
    means = {
        name: mean * (1 + UNEVEN * math.sin(7 * number + place)) for place, (name, mean) in enumerate(MEANS.items())
    }
    if number == training.slow:
        means[training.phase] += training.excess
    busy, now = sum(means.values()), time.time() + training.clock_ahead
    waited = CollectiveSum("all_reduce", "dp", steps, steps * max(0.0, STEP - busy), steps << 20)
    return RankStats(
        job_id=training.job_id,
        owner=training.user,
        rank=number,
        node=f"n{number // RANKS_OF_NODE}",
        local_rank=number % RANKS_OF_NODE,
        gpu=None,
        world_size=training.nodes * RANKS_OF_NODE,
        attempt=0,
        up=True,
        steps=steps,
        step_seconds=steps * STEP,
        own_seconds=steps * (busy - means["input"]),
        phase_seconds=tuple(steps * means.get(name, 0.0) for name in PHASES),
        last_progress=now,
        last_beat=now,
        in_flight_seconds=0.0,
        collectives=(waited,),
        lost=0,
    )


def _metrics(training: Training, node: int, seconds: float) -> Iterator[Metric]:
    ranks = [_rank(training, node * RANKS_OF_NODE + local, seconds) for local in range(RANKS_OF_NODE)]
    for described, samples in families(ranks):
        yield metric_family(described.name, samples)
    found = training.findings.get(f"n{node}", ())
    yield metric_family("laggard_finding", [((code, severity, device), 1.0) for code, severity, device in found])
    yield metric_family("laggard_agent_probe_round_seconds", [((), 1.0)])


@contextlib.contextmanager
def live_nodes(training: Training) -> Iterator[dict[str, str]]:
    """The agents of a training that goes on, as HTTP servers whose counters grow by the clock: HOST:PORT by node."""
    began = time.monotonic() - 600.0  # it has trained for ten minutes

    def told(node: int, headers: Mapping[str, str]) -> tuple[Any, ...]:
        body, kind = exposition(_metrics(training, node, time.monotonic() - began), headers.get("Accept", ""))
        return 200, body, ("Content-Type", kind)

    with contextlib.ExitStack() as stack:
        agents = [served_by(lambda _, __, headers, node=node: told(node, headers)) for node in range(training.nodes)]
        urls = map(stack.enter_context, agents)
        yield {f"n{node}": url.removeprefix("http://") for node, url in enumerate(urls)}


pytestmark = pytest.mark.slow  # real servers, and some 20 s of samples

A = Training(slow=5, findings={"n1": (("GPU_THROTTLED", "critical", "GPU 1"),), "n0": (("CLOCK_SKEW", "warning", ""),)})
B = Training(slow=2, phase="input", findings={"n0": (("DISK_FULL", "warning", "/data"),)}, clock_ahead=3600.0)
"""Its nodes' clocks are an hour ahead."""
SAMPLES = 18
"""The scrapes, a second apart, after which there are enough: ten moments, and four times two for all ranks."""

MS = re.compile(r"([0-9.]+) ms")

Locate = Callable[..., tuple[int, dict[str, Any]]]


class Store(NamedTuple):
    """`words`: the flags with which it is asked; `scrapers`: the Prometheus that write into it."""

    words: list[str]
    scrapers: Mapping[str, subprocess.Popen[bytes]]


@pytest.fixture(scope="module", params=ENGINES)
def store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """An engine with the clusters a, which has two equal Prometheus, and b; c has one whose job is healthy."""
    need(request.param)
    need("Prometheus")
    folder = tmp_path_factory.mktemp("engine")
    trainings = {"a": A, "b": B, "c": Training(job_id="healthy")}
    with contextlib.ExitStack() as stack:
        engine = stack.enter_context(ENGINES[request.param](folder))
        commands = {}
        for cluster, training in trainings.items():
            nodes = stack.enter_context(live_nodes(training))
            for replica in ("r0", "r1") if cluster == "a" else ("r0",):
                labels = {"cluster": cluster, "replica": replica}
                name = f"{cluster}-{replica}"
                commands[name] = scraper(name, nodes, labels, engine, folder)
        scrapers = stack.enter_context(running(folder, commands))
        query = 'min(count_over_time(laggard_rank_steps_total{rank="0"}[10m]))'
        wait_for(lambda: count(engine, query) >= SAMPLES, lambda: f"{count(engine, query)} samples")
        yield Store(["--prometheus", engine.query], scrapers)


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


def test_a_collector_watches_the_jobs_of_its_cluster(store: Store, start_collector: Any) -> None:
    of_store = {"prometheus": store.words[-1], "prometheus_interval_seconds": 1, "prometheus_cluster": "b"}
    collector = start_collector("--interval", "0.5", targets=[], incidents_database="", **of_store)

    def culprits() -> Any:
        return collector.get("/api/v1/location", job="1000:train").json()["culprits"]

    collector.wait_until(culprits)
    assert [(it["ranks"], it["findings"]) for it in culprits()] == [([2], ["DISK_FULL"])]


def test_the_other_replica_goes_on_where_one_has_died(store: Store, locate: Locate) -> None:
    """For five minutes the store repeats what the dead one said last."""
    store.scrapers["a-r0"].kill()
    time.sleep(SAMPLES)
    status, document = accusing(locate, [[5]], *store.words, "--job", "train", "--cluster", "a")
    assert status == 1, document
