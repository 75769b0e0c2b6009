"""Where nodes stand in their site: what files, SLURM and the file of labels say, which is first, what is wrong."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.agents import put

from laggard.catalogue.exposition import exposition
from laggard.collector.discovery import Discovery, TargetFiles
from laggard.collector.incidents.history import HistorySettings, IncidentHistory
from laggard.collector.jobs.snapshot import ClusterSnapshot
from laggard.collector.label_file import MAX_PATTERNS, LabelFile, Unusable
from laggard.collector.targets import MAX_LABEL_CHARACTERS, NodeLabels, parse_targets, partitions_label
from laggard.collector.web.metrics import CollectorMetrics
from laggard.wire.nodes import NodeRow


def write(path: Path, value: object) -> Path:
    return put(path, value if isinstance(value, str) else json.dumps(value))


def entry(*nodes: str, **labels: str) -> dict[str, object]:
    return {"nodes": nodes, "labels": labels}


def test_of_several_entries_the_first_that_gives_a_label_holds(tmp_path: Path) -> None:
    entries = [entry("r1-*", rack="r1"), entry("r1-7", "login", rack="x", team="a"), entry("*", team="b")]
    path = write(tmp_path / "labels.yml", entries)
    rules = LabelFile(str(path)).rules
    assert rules.of(["r1-7"]) == NodeLabels(rack="r1", team="a")
    assert rules.of(["login"]) == NodeLabels(rack="x", team="a")
    assert rules.of(["10.0.0.1", "r1-8"]) == NodeLabels(rack="r1", team="b")


def test_the_file_comes_before_the_labels_of_targets(tmp_path: Path) -> None:
    targets = [{"targets": ["n1", "n2"], "labels": {"rack": "r1", "team": "a", "other": "x"}}, {"targets": ["n3"]}]
    places = [TargetFiles(str(write(tmp_path / "agents.json", targets)))]
    labels = LabelFile(str(write(tmp_path / "labels.json", [entry("host-2", team="b")])))
    discovery = Discovery((), places, label_file=labels)
    discovery.look(0.0)
    nodes = list(zip(parse_targets(["n1", "n2", "n3"]), ["host-1", "host-2", ""], strict=True))
    assert discovery.labels(nodes) == {
        "http://n1:19400": NodeLabels(rack="r1", team="a"),
        "http://n2:19400": NodeLabels(rack="r1", team="b"),
        "http://n3:19400": NodeLabels(),
    }
    write(tmp_path / "labels.json", [entry("host-2", "n3", team="c")])
    discovery.look(1.0)
    assert discovery.labels(nodes)["http://n3:19400"] == NodeLabels(team="c")
    write(tmp_path / "labels.json", "{")
    discovery.look(2.0)
    assert discovery.labels(nodes)["http://n2:19400"] == NodeLabels(rack="r1", team="c"), "what it said last holds"
    (note,) = discovery.found.notes
    assert note.text.startswith("node_labels_file: ") and "what it said last holds" in note.text
    write(tmp_path / "labels.json", [])
    discovery.look(3.0)
    assert not discovery.found.notes and discovery.labels(nodes)["http://n2:19400"].team == "a"


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("{", "write \\[\\{nodes"),
        ("", "it is empty: write \\[\\]"),
        ([entry("n1")], "entry 1 gives no label"),
        ([entry("n1", rock="r1")], "unknown field `rock`"),
        ([entry("n1", rack="r" * (MAX_LABEL_CHARACTERS + 1))], "entry 1: 'rrr.* is longer than 128"),
        ([entry("n\n1", rack="r1")], "entry 1: .* cannot be shown"),
        ([entry(*(f"n{n}*" for n in range(MAX_PATTERNS + 1)), rack="r1")], "more than 256 names with"),
        ([entry(*map(str, range(65_537)), rack="r1")], "more than 65536 names"),
        ("x" * ((4 << 20) + 1), "longer than"),
    ],
)
def test_a_file_that_is_wrong_is_one_line(value: object, why: str, tmp_path: Path) -> None:
    with pytest.raises(Unusable, match=why) as raised:
        LabelFile(str(write(tmp_path / "labels.json", value)))
    assert "\n" not in str(raised.value) and len(str(raised.value)) < 300


def test_a_file_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(Unusable, match="no such file"):
        LabelFile(str(tmp_path / "none"))


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
