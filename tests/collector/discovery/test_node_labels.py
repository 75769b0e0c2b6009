"""Where nodes stand in their site: what files and SLURM say, and which is first."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from support.agents import put

from laggard.catalogue.exposition import exposition
from laggard.collector.discovery import Discovery, TargetFiles
from laggard.collector.incidents.history import HistorySettings, IncidentHistory
from laggard.collector.jobs.snapshot import ClusterSnapshot
from laggard.collector.targets import MAX_LABEL_CHARACTERS, NodeLabels, parse_targets, partitions_label
from laggard.collector.web.metrics import CollectorMetrics
from laggard.wire.nodes import NodeRow


def write(path: Path, value: object) -> Path:
    return put(path, value if isinstance(value, str) else json.dumps(value))


def test_of_several_entries_for_an_address_the_first_that_gives_a_label_holds(tmp_path: Path) -> None:
    first = [{"targets": ["n1", "n2"], "labels": {"rack": "r1", "other": "x"}}, {"targets": ["n3"]}]
    second = [{"targets": ["n1"], "labels": {"rack": "x", "team": "a"}}]
    places = [TargetFiles(str(write(tmp_path / f"{name}.json", it))) for name, it in (("a", first), ("b", second))]
    discovery = Discovery((), places)
    discovery.look(0.0)
    n1, n2, _ = parse_targets(["n1", "n2", "n3"])
    assert discovery.found.labels == {n1: NodeLabels(rack="r1", team="a"), n2: NodeLabels(rack="r1")}


def test_many_partitions_are_cut_at_a_whole_name() -> None:
    assert partitions_label(["b", "a", "b"]) == "a,b"
    text = partitions_label(f"partition-{n:03}" for n in range(40))
    assert len(text) <= MAX_LABEL_CHARACTERS and text.endswith(",partition-008")


def test_the_metrics_have_a_series_of_each_nodes_labels() -> None:
    rows = tuple(NodeRow(f"http://n{it}:1", f"n{it}", "up", "", 0.0, "ok", (), ()) for it in (1, 2))
    snapshot = ClusterSnapshot(rows, labels={"http://n1:1": NodeLabels(partition="batch", rack="r1", team="vision")})
    source: Any = SimpleNamespace(snapshot=snapshot, incidents=IncidentHistory(HistorySettings("", 1, 1.0, 1.0)))
    text = exposition(CollectorMetrics(source, 0.05).families(), "")[0].decode()
    told = [line for line in text.splitlines() if line.startswith("laggard_node_labels{")]
    assert told == [
        'laggard_node_labels{agent="n1:1",hostname="n1",partition="batch",rack="r1",team="vision"} 1.0',
        'laggard_node_labels{agent="n2:1",hostname="n2",partition="",rack="",team=""} 0.0',
    ]
