"""The page's documents, the heatmap among them: bounded, whatever the cluster's size."""

import dataclasses
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import httpx
import numpy as np
import pytest
from msgspec import structs
from support.collectors import ingest
from support.large_cluster import OUTSIDE, made_snapshot, served, with_findings, with_jobs

from laggard.collector.jobs.snapshot import ClusterSnapshot
from laggard.collector.jobs.window import JobWindows
from laggard.collector.web.documents import HeatDocument
from laggard.collector.web.heatmap import MEASURES, ORDERS, MapView, heatmap_document, map_medians
from laggard.collector.web.nodes import MAX_SKIPPED_LINES, NodesAsked, nodes_document, tiles_document
from laggard.kit.constants import PHASES
from laggard.locate.job_timings import JobTimings
from laggard.model import JobKey
from laggard.wire import decode, encode
from laggard.wire.nodes import NodeRow, RingPairs

NODES = JOBS = 4096

VIEWS = {
    "job": ["summary?job=", "nodes?limit=100&job=", "findings?limit=100&job=", "incidents?limit=20&job="],
    "fleet": ["summary?job=", "tiles", "nodes?limit=100", "rings/newest", "incidents?limit=50", "findings?limit=100"],
    "node": ["summary?job=", "nodes?limit=100&node=gpu-0050", "findings?limit=100&node=gpu-0050", "incidents?limit=50"],
}

MAX_BYTES = 160_000
"""Of all answers of a view together, but for the heat map and the timeline, whose size does not depend on nodes or
jobs."""


@pytest.fixture(scope="module")
def collector() -> Iterator[httpx.Client]:
    """4,096 nodes, of which 82 fail, each of them with a job of its own user among 4,096 jobs. The job of one rank a
    node keeps the making short."""
    snapshot = with_jobs(with_findings(made_snapshot(NODES, ranks_per_node=1, steps=60)), JOBS)
    with served(snapshot) as url, httpx.Client(base_url=f"{url}/api/v1/", timeout=300, trust_env=False) as client:
        yield client


@pytest.mark.parametrize("view", VIEWS)
def test_a_view_of_4096_nodes_and_jobs_is_small(collector: httpx.Client, view: str) -> None:
    sizes = {path: len(collector.get(path).raise_for_status().content) for path in VIEWS[view]}
    assert sum(sizes.values()) < MAX_BYTES, sizes


def test_why_checks_were_skipped_stands_once_for_all_nodes() -> None:
    """Not on each row of the document that a controller asks for whole, twice a minute."""
    plain = made_snapshot(NODES, ranks_per_node=1, steps=2)
    kinds = (
        "34 of 45 checks skipped: no NVIDIA GPU among 24 PCI devices (30), no swap (1)",
        "1 of 45 checks skipped",
        "",
    )
    lines = {row.url: kinds[place % 100 if place % 100 < 2 else 2] for place, row in enumerate(plain.nodes)}
    told = nodes_document(dataclasses.replace(plain, skipped=lines), NodesAsked())
    assert told.skipped == kinds[:2]
    for row in told.nodes:
        assert (told.skipped[row.skipped_as] if row.skipped_as is not None else "") == lines[row.url]
    same = dict.fromkeys(lines, kinds[0])
    whole, without = (
        len(encode(nodes_document(dataclasses.replace(plain, skipped=it), NodesAsked()))) for it in (same, {})
    )
    assert whole - without <= 100, "a null for each row stands there as well"
    assert nodes_document(dataclasses.replace(plain, skipped=same), NodesAsked(limit=5)).skipped == kinds[:1]
    many = {row.url: f"{place} of 45 checks skipped" for place, row in enumerate(plain.nodes)}
    assert len(nodes_document(dataclasses.replace(plain, skipped=many), NodesAsked()).skipped) == MAX_SKIPPED_LINES


def test_what_is_left_out_is_counted_and_found(collector: httpx.Client) -> None:
    nodes = collector.get("nodes?limit=100").json()
    assert (len(nodes["nodes"]), nodes["total"], nodes["failing"], nodes["answering"]) == (100, 4097, 83, 4097)
    culprit = "gpu-0421"
    assert nodes["nodes"][0]["node"] == culprit and culprit in nodes["culprits"], "who holds up a job comes first"
    assert [row["verdict"] for row in nodes["nodes"][1:]] == ["fail"] * 83 + ["ok"] * 16
    assert [row["node"] for row in collector.get("nodes?limit=9&find=GPU-4095").json()["nodes"]] == ["gpu-4095"]
    summary = collector.get("summary").json()
    assert summary["counts"] == {"total": 4096, "running": 4096, "failing": 2, "found": 4096}
    shown = [line["key"] for line in summary["jobs"]]
    assert len(shown) == 100 and shown[:2] == ["1000:pretrain", "2001:finetune-llama-0001"]
    assert shown[-1] == "2095:finetune-llama-4095", "of all jobs this one and the first have a culprit"
    asked = collector.get("summary?job=2000:finetune-llama-2000").json()
    assert asked["job"] in [line["key"] for line in asked["jobs"]], "the job that was asked for is listed"
    found = collector.get("summary?find=LLAMA-2000").json()
    assert found["counts"]["found"] == 1 and "2000:finetune-llama-2000" in [line["key"] for line in found["jobs"]]
    by_user = collector.get("summary?find=2042:&limit=4096").json()
    assert by_user["counts"]["found"] == 41 and len(by_user["jobs"]) == 42, "those of a user, and the one that is shown"


def test_the_nodes_of_a_job_and_what_was_found_on_them(collector: httpx.Client) -> None:
    everything, of_job = collector.get("findings").json(), collector.get("findings?job=1000:pretrain").json()
    assert (everything["total"], of_job["total"]) == (83, 82)
    assert OUTSIDE in {it["node"] for it in everything["findings"]}
    assert OUTSIDE not in {it["node"] for it in of_job["findings"]}
    nodes = collector.get("nodes?job=1000:pretrain").json()
    assert nodes["job"] == "1000:pretrain" and nodes["total"] == 4096
    assert OUTSIDE not in {row["node"] for row in nodes["nodes"]}
    assert collector.get("nodes?job=").json()["job"] == "1000:pretrain", "the job that loses most"
    assert collector.get("nodes?job=nobody").json()["job"] is None


def test_without_parameters_the_documents_are_whole(collector: httpx.Client) -> None:
    """As gates and controllers ask."""
    nodes = collector.get("nodes").json()
    assert nodes["schema"] == "laggard.nodes/1" and len(nodes["nodes"]) == nodes["total"] == 4097
    assert [row["node"] for row in nodes["nodes"][:2]] == ["gpu-0000", "gpu-0001"], "in the order of the targets"


def test_tiles_are_spans_of_names() -> None:
    def row(name: str, verdict: str = "ok", *codes: str, state: str = "up") -> NodeRow:
        return NodeRow(f"http://{name}:19400", name, state, "", 1.0, verdict, codes, ())

    def spans(*rows: NodeRow) -> list[tuple[Any, ...]]:
        return [structs.astuple(span) for span in tiles_document(ClusterSnapshot(rows)).spans]

    dotted = [row(f"gpu-{number}.dc2.example.com") for number in (11, 9, 10)]
    assert spans(*dotted) == [("gpu-", 9, 11, 0, ".dc2.example.com", "ok", ())]
    padded = [row(f"n{number:03d}") for number in (98, 99, 100)]
    assert spans(*padded) == [("n", 98, 100, 3, "", "ok", ())]
    assert spans(row("n998"), row("n1000"), row("n999")) == [("n", 998, 1000, 0, "", "ok", ())]
    mixed = spans(row("a1"), row("a2", "fail", "GPU_XID"), row("a3"), row("head"), row("a4", state="down"))
    assert mixed == [
        ("a", 1, 1, 0, "", "ok", ()),
        ("a", 2, 2, 0, "", "fail", ("GPU_XID",)),
        ("a", 3, 3, 0, "", "ok", ()),
        ("a", 4, 4, 0, "", "silent", ()),
        ("head", -1, -1, 0, "", "ok", ()),
    ]
    twins = spans(row("a1"), row("a1"))
    assert len(twins) == 2, "two agents of one name are two tiles"


def test_the_node_of_a_culprit_is_a_tile_of_its_own_with_what_it_fails() -> None:
    snapshot = made_snapshot(24, steps=40)
    nodes = [structs.replace(row, verdict="fail", findings=("GPU_XID",)) for row in snapshot.nodes[1:]]
    tiles = tiles_document(dataclasses.replace(snapshot, nodes=(snapshot.nodes[0], *nodes)))
    assert tiles.counts == {"ok": 1, "culprit": 1, "fail": 1}
    assert [(span.first, span.tone, span.codes) for span in tiles.spans] == [
        (0, "ok", ()),
        (1, "culprit", ("GPU_XID",)),
        (2, "fail", ("GPU_XID",)),
    ]
    ended = dataclasses.replace(snapshot, jobs=tuple(dataclasses.replace(job, running=False) for job in snapshot.jobs))
    assert tiles_document(ended).counts == {"ok": 3}, "a job that has ended is held up by nobody"


def test_more_tiles_than_a_screen_holds_keep_those_that_need_attention() -> None:
    rows = [NodeRow(f"http://n{it}:1", f"n{it}", "up", "", 1.0, "ok", (), ()) for it in range(9000)]
    rows[8999] = structs.replace(rows[8999], verdict="fail")
    tiles = tiles_document(ClusterSnapshot(tuple(rows)))
    assert (tiles.total, tiles.shown, tiles.counts) == (9000, 8192, {"fail": 1, "ok": 8999})
    assert tiles.spans[-1].first == 8999 and tiles.spans[-1].tone == "fail"


def test_a_large_ring_is_told_by_its_slowest_pairs() -> None:
    names = tuple(f"gpu-{it:03d}" for it in range(200))
    pairs = tuple((it, it + 1, 5e9 if it == 150 else 48e9 + it) for it in range(199))
    ring = RingPairs(names, 1 << 28, pairs, (), ((150, 151),))
    led = structs.replace(
        NodeRow("http://a:1", "a", "up", "", 1.0, "ok", (), ()), ring_age_seconds=60.0, ring_pairs=ring
    )
    with served(dataclasses.replace(made_snapshot(8, steps=2), nodes=(led,))) as url:
        told = httpx.get(f"{url}/api/v1/rings/newest", trust_env=False).json()
    assert (told["nodes"], told["measured"], len(told["pairs"]["nodes"])) == (200, 199, 48)
    ((a, b),) = told["pairs"]["slow_links"]
    assert [told["pairs"]["nodes"][it] for it in (a, b)] == ["gpu-150", "gpu-151"]
    assert [a, b, 5e9] in told["pairs"]["pairs"]


def _timings(make: Any, count: int, slow: int) -> JobTimings:
    windows = JobWindows()
    for first in range(0, count, 8):
        ranks = range(first, min(first + 8, count))
        ingest(windows, f"a{first}", make.node(f"n{first // 8}", ranks, slow, world_size=count), 1.0)
    return windows.jobs[JobKey(1000, "job-1")].timings("job-1", set(), {})


@pytest.mark.parametrize("measure", MEASURES)
def test_every_rank_has_a_row_where_they_fit(make: Any, measure: str) -> None:
    heat = heatmap_document("1000:job-1", _timings(make, 4, slow=2), measure, rows=230)
    assert [row.first for row in heat.rows] == [0, 1, 2, 3] and heat.shown is None
    assert heat.steps == list(range(60))
    assert heat.seconds["forward"][2][0] == pytest.approx(0.15)
    assert heat.median_seconds["own"][0] == pytest.approx(0.15)
    assert decode(encode(heat), HeatDocument) == heat


def test_of_two_ranks_the_fast_one_is_the_median(make: Any) -> None:
    heat = heatmap_document("j", _timings(make, 2, slow=1))
    assert heat.median_seconds["own"][0] == pytest.approx(0.15)


def test_a_folded_row_shows_the_rank_that_stands_out(make: Any) -> None:
    timings = _timings(make, 1000, slow=421)
    heat = heatmap_document("j", timings, "own", rows=100)
    assert len(heat.rows) == 100 and heat.rows[42].count == 10 and heat.shown
    assert set(heat.shown[42]) == {421}
    assert heat.seconds["forward"][42][0] == pytest.approx(0.15)
    waiting = heatmap_document("j", timings, "waited", rows=100)
    assert waiting.shown and set(waiting.shown[42]) == {421}  # it waits least
    assert waiting.seconds["waited"][42][0] == 0


def test_a_large_job_has_fewer_rows_where_none_is_a_machine(make: Any) -> None:
    timings = _timings(make, 2000, slow=421)
    for asked, given in ((230, 154), (100, 100), (260, 250)):
        rows = heatmap_document("j", timings, "own", rows=asked).rows
        assert len(rows) == given, f"{asked} rows asked, of {rows[0].count} ranks each"


def test_cells_are_written_with_four_digits_and_no_noise(make: Any) -> None:
    timings = _timings(make, 40, slow=3)
    real = np.exp(np.random.default_rng(1).uniform(np.log(1e-4), np.log(20), timings.phase_seconds.shape))
    heat = heatmap_document("j", replace(timings, phase_seconds=real), rows=40)
    cells = np.array(heat.seconds["forward"])
    own = real[:, :, PHASES.index("forward")].T
    assert (np.abs(cells - own) <= np.maximum(5e-7, 5.1e-4 * own)).all(), "a cell lost what the page shows of it"
    text = encode(heat.seconds["forward"]).decode()
    assert max(map(len, re.findall(r"[\d.]+", text))) <= len("0.001234"), "digits that nobody sees"


def test_uneven_numbers_of_ranks_fold_too(make: Any) -> None:
    heat = heatmap_document("j", _timings(make, 31, slow=30), "own", rows=7)
    assert sum(row.count for row in heat.rows) == 31 and heat.rows[-1].last == 30


def test_a_missing_step_is_null_in_json(make: Any) -> None:
    windows = JobWindows()
    for rank, steps in ((0, (0, 1)), (1, (1, 2))):
        row = make.rank_row(rank, rows=[make.step_row(step) for step in steps])
        ingest(windows, "a", make.ranks_document("n0", [row]), 1.0)
    heat = heatmap_document("j", windows.jobs[JobKey(1000, "job-1")].timings("job-1", set(), {}))
    assert b"NaN" not in encode(heat) and np.isnan(np.array(heat.seconds["waited"])[0, 2])
    assert decode(encode(heat), HeatDocument).seconds["waited"][0][2] is None


def test_a_job_without_steps_is_an_empty_map(make: Any) -> None:
    windows = JobWindows()
    ingest(windows, "a", make.ranks_document("n0", [make.rank_row(0)]), 1.0)
    heat = heatmap_document("j", windows.jobs[JobKey(1000, "job-1")].timings("job-1", set(), {}))
    assert heat.steps == [] and len(heat.rows) == 1


@pytest.mark.parametrize("measure", MEASURES)
@pytest.mark.parametrize("order", ORDERS)
def test_a_part_of_the_map_shows_what_the_whole_shows_there(make: Any, measure: str, order: str) -> None:
    timings = _timings(make, 64, slow=21)
    whole = heatmap_document("j", timings, measure, 64, MapView(order))
    part = heatmap_document("j", timings, measure, 64, MapView(order, 16, 24), map_medians(timings))
    assert part.rows == whole.rows[16:24] and part.median_seconds == whole.median_seconds
    assert part.seconds == {name: rows[16:24] for name, rows in whole.seconds.items()}
    folded = heatmap_document("j", timings, measure, 2, MapView(order, 16, 24))
    assert folded.shown and {rank for row in folded.shown for rank in row} <= {row.first for row in part.rows}
