"""The simulator of jobs: its recordings are what such a job could have written, and its truth is true."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from simulator.case import Case, Simulated, simulate
from simulator.faults import SLOW, STOPS, Fault, Unlocatable, When
from simulator.flight_recorder import write_dumps
from simulator.innocents import INNOCENTS
from simulator.layout import LAYOUTS, parse_layout
from simulator.recording import write

SMALL = (
    "dp=4,gpus_per_node=4",
    "dp=4,gradients=buckets,gpus_per_node=2",
    "dp=4,zero=1,gpus_per_node=2",
    "dp=4,zero=2,gpus_per_node=2",
    "dp=8,zero=3,shard=2,gpus_per_node=2",
    "dp=8,ep=4,gpus_per_node=2",
    "dp=2,tp=2,pp=2,schedule=1f1b,micro=4,gpus_per_node=2",
    "dp=4,pp=4,schedule=gpipe,micro=3,order=tp-pp-dp,gpus_per_node=2",
    "dp=4,pp=4,schedule=interleaved,micro=4,chunks=2,blocks=2,gpus_per_node=2",
)
HYBRID = "dp=4,tp=2,pp=2,schedule=1f1b,micro=4,gpus_per_node=2"
SKEW = 1e-4  # seconds by which the members of a collective end apart, at most


def records(case: Case, folder: Path) -> list[dict[str, Any]]:
    """Every line of the case's recordings."""
    write(simulate(case), folder)
    return [json.loads(line) for file in sorted((folder / "trace").iterdir()) for line in file.read_text().splitlines()]


def of_kind(lines: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [line for line in lines if line.get("kind") == kind]


def members_of_joints(simulated: Simulated) -> Iterator[tuple[int, list[int]]]:
    for number, joint in enumerate(simulated.programme.joints):
        if len(joint.members) > 1:
            yield number, joint.members


@pytest.mark.parametrize("layout", SMALL)
def test_nothing_ends_before_what_it_depends_on(layout: str) -> None:
    job = simulate(Case(layout, seed=1, steps=4))
    for index, item in enumerate(job.programme.items):
        for other in item.predecessors:
            assert (job.times.end[:, index] >= job.times.end[:, other]).all(), f"item {index} of rank {item.rank}"
        if not item.predecessors:
            assert (job.times.end[:, index] >= job.times.entered[:, item.rank]).all()


@pytest.mark.parametrize("layout", SMALL)
def test_a_collective_ends_for_all_members_at_once_after_the_last_came(layout: str) -> None:
    job = simulate(Case(layout, seed=1, steps=4))
    for number, members in members_of_joints(job):
        ends = job.times.end[:, members]
        last = job.times.ready[:, members].max(axis=1)
        assert (np.ptp(ends, axis=1) < SKEW).all(), f"joint {number} ends apart"
        assert (ends.min(axis=1) - last >= 0.5 * job.programme.latency[number]).all(), f"joint {number} takes no time"


@pytest.mark.parametrize("layout", SMALL)
@pytest.mark.parametrize("form", ("host", "device"))
def test_records_match_between_ranks(layout: str, form: str, tmp_path: Path) -> None:
    lines = of_kind(records(Case(layout, form, seed=1, steps=3), tmp_path), "collective")
    groups = {
        name: group["ranks"]
        for line in of_kind(records(Case(layout, form, seed=1, steps=3), tmp_path), "rank")
        for name, group in line["groups"].items()
    }
    calls, pairs = defaultdict(list), defaultdict(list)
    for line in lines:
        if line["op"] in ("send", "recv"):
            ends = (line["rank"], line["peer"]) if line["op"] == "send" else (line["peer"], line["rank"])
            pairs[ends, line["seq"]].append((line["op"], line["bytes"]))
        else:
            calls[line["group"], line["op"], line["seq"]].append((line["rank"], line["bytes"], line["step"]))
    for (name, op, seq), found in calls.items():
        assert sorted(rank for rank, _, _ in found) == groups[name], f"{op} {seq} of {name}"
        assert len({(size, step) for _, size, step in found}) == 1
    for key, found in pairs.items():
        assert sorted(op for op, _ in found) == ["recv", "send"], f"{key} has no other side"
        assert len({size for _, size in found}) == 1


@pytest.mark.parametrize("layout", SMALL)
def test_spans_lie_in_their_step_one_after_the_other(layout: str, tmp_path: Path) -> None:
    lines = records(Case(layout, seed=2, steps=3), tmp_path)
    steps = {(line["rank"], line["step"]): line for line in of_kind(lines, "step")}
    spans = defaultdict(list)
    for line in of_kind(lines, "span"):
        spans[line["rank"], line["step"]].append(line)
    for key, found in spans.items():
        edges = [edge for line in found for edge in (line["start"], line["end"])]
        assert edges == sorted(edges)
        assert steps[key]["start"] <= edges[0] and edges[-1] <= steps[key]["end"]
    for line in of_kind(lines, "collective"):
        assert (
            0 <= line["waited"] <= steps[line["rank"], line["step"]]["end"] - steps[line["rank"], line["step"]]["start"]
        )


@pytest.mark.parametrize(("kind", "size"), [(kind, (0.02, 0.3)[number % 2]) for number, kind in enumerate(SLOW)])
def test_a_fault_makes_the_steps_longer_by_its_size(kind: str, size: float) -> None:
    case = Case(HYBRID, seed=3, steps=16, faults=(Fault(kind, size, when=When(onset=5)),))
    slow, healthy = simulate(case), simulate(replace(case, faults=()))
    lengths = np.diff(healthy.times.left.max(axis=1), prepend=0.0)
    (culprit,) = slow.truth["culprits"]
    hit = culprit["steps_hit"]
    longer = slow.times.left[-1].max() - healthy.times.left[-1].max()
    assert longer / lengths[hit].sum() == pytest.approx(size, rel=0.02)
    assert culprit["recoverable_ratio_since"] == pytest.approx(size / (1 + size), rel=0.03)
    assert min(hit) >= 5


def test_a_fault_slows_its_own_machine_and_no_other() -> None:
    case = Case(HYBRID, seed=3, steps=12, faults=(Fault("slow_gpu", 0.2, rank=5),))
    slow, healthy = simulate(case), simulate(replace(case, faults=()))

    def own(job: Simulated) -> np.ndarray[Any, Any]:
        work = np.flatnonzero(job.programme.computes)
        spent = (job.times.end - job.times.ready)[3:, work].sum(axis=0)
        return np.bincount(job.programme.rank[work], weights=spent)

    assert np.flatnonzero(~np.isclose(own(slow), own(healthy), rtol=1e-6)).tolist() == [5]


def test_the_second_of_two_culprits_is_in_the_truth_with_its_own_size() -> None:
    faults = (Fault("slow_gpu", 0.3), Fault("slow_input", 0.1))
    culprits = simulate(Case("dp=8,gpus_per_node=2", seed=5, steps=12, faults=faults)).truth["culprits"]
    assert [culprit["kind"] for culprit in culprits] == ["slow_compute", "slow_input"]
    assert [culprit["size"] for culprit in culprits] == [pytest.approx(0.3, rel=0.02), pytest.approx(0.1, rel=0.02)]
    assert culprits[0]["nodes"] != culprits[1]["nodes"]


def test_clocks_change_no_duration(tmp_path: Path) -> None:
    case = Case(HYBRID, seed=4, steps=4, clock_offset=0.0, clock_drift=0.0)
    true = records(case, tmp_path / "true")
    skewed = records(replace(case, clock_offset=3.0, clock_drift=15e-6), tmp_path / "skewed")
    assert len(true) == len(skewed)
    apart = set()
    for one, other in zip(true, skewed, strict=True):
        if "start" in one:
            assert other["end"] - other["start"] == pytest.approx(one["end"] - one["start"], rel=2e-5, abs=3e-6)
            assert one.get("waited", 0) == pytest.approx(other.get("waited", 0), rel=2e-5, abs=3e-6)
            apart.add(round(other["start"] - one["start"], 1))
    assert len(apart) > 1, "no node's clock is off"


@pytest.mark.slow
def test_the_same_seed_gives_the_same_bytes_and_another_does_not(tmp_path: Path) -> None:
    def everything(name: str, seed: int) -> bytes:
        write(simulate(Case(HYBRID, "device", seed, 5, (Fault("slow_nic", 0.2),))), tmp_path / name)
        return b"".join(file.read_bytes() for file in sorted((tmp_path / name).rglob("*.json*")))

    assert everything("first", 7) == everything("again", 7)
    assert everything("other", 8) != everything("first", 7)


def test_a_fault_changes_nothing_of_the_noise() -> None:
    case = Case(HYBRID, seed=6, steps=6, faults=(Fault("slow_gpu", 0.2, when=When(onset=5)),))
    slow, healthy = simulate(case), simulate(replace(case, faults=()))
    assert np.array_equal(slow.times.end[:5], healthy.times.end[:5])


def test_sparse_recordings_have_collectives_alone(tmp_path: Path) -> None:
    lines = records(Case("dp=4,gpus_per_node=2", "sparse", seed=1, steps=3), tmp_path)
    assert {line.get("kind") for line in lines} == {None, "rank", "collective", "end"}


@pytest.mark.parametrize("kind", STOPS)
def test_who_stops_is_missing_where_the_others_wait(kind: str, tmp_path: Path) -> None:
    """Somebody waits without end; whoever never came has no record of what the others wait in."""
    for seed in range(3):
        folder = tmp_path / str(seed)
        lines = records(Case(HYBRID, seed=seed, steps=12, faults=(Fault(kind),)), folder)
        (culprit,) = json.loads((folder / "truth.json").read_text())["culprits"]
        calls = of_kind(lines, "collective")
        waiting = {line["rank"] for line in calls if line["end"] is None}
        ended = {line["rank"] for line in of_kind(lines, "end")}
        assert waiting, "nobody waits"
        if culprit["kind"] == "dead":
            assert not waiting & set(culprit["ranks"])
            assert kind == "death_exception" or not ended & set(culprit["ranks"])
        elif kind == "hang_collective":
            alone = [line for line in calls if line["end"] is None and line["rank"] in culprit["ranks"]]
            assert alone or not ended & set(culprit["ranks"])
        done = [line["step"] for line in of_kind(lines, "step") if line["rank"] in culprit["ranks"]]
        assert max(done) < culprit["since_step"] + 1


def test_a_truncated_case_is_the_beginning_of_the_whole(tmp_path: Path) -> None:
    job = simulate(Case("dp=4,gpus_per_node=2", seed=1, steps=8))
    write(job, tmp_path / "whole")
    write(job, tmp_path / "part", steps=3)
    for rank in range(4):
        whole = (tmp_path / "whole" / "trace" / f"rank-{rank}.jsonl").read_text()
        part = (tmp_path / "part" / "trace" / f"rank-{rank}.jsonl").read_text()
        assert whole.startswith(part) and '"step":2' in part and '"step":3' not in part


@pytest.mark.parametrize("innocent", INNOCENTS)
def test_an_innocent_job_differs_and_has_no_culprit(innocent: str) -> None:
    layout = "dp=4,ep=2,gpus_per_node=2" if innocent == "hot_experts" else HYBRID
    plain = simulate(Case(layout, seed=9, steps=24))
    job = simulate(Case(layout, seed=9, steps=24, innocents=(innocent,)))
    assert job.truth["culprits"] == [] and job.truth["verdict"] == "ok"
    assert not np.allclose(plain.times.end, job.times.end)


def test_what_cannot_be_located_is_refused_or_not_required() -> None:
    with pytest.raises(Unlocatable):
        simulate(Case("dp8", seed=1, steps=12, faults=(Fault("slow_nic", 0.1),)))  # all of it on one node
    (culprit,) = simulate(Case("dp64", seed=1, steps=12, faults=(Fault("slow_nic", 0.1),))).truth["culprits"]
    assert not culprit["required"] and len(culprit["within"]) == 64  # one group: nobody can tell which member
    (culprit,) = simulate(Case("moe32_across", seed=1, steps=12, faults=(Fault("slow_nic", 0.1),))).truth["culprits"]
    assert culprit["required"] and culprit["within"] == culprit["ranks"]  # where its two groups cross


def test_a_slow_link_is_one_over_which_data_passes() -> None:
    """Not one that only a collective of a few bytes uses, which would have to be slower than any link that works."""
    for seed in range(4):
        (culprit,) = simulate(
            Case(
                "dp=4,pp=4,schedule=1f1b,micro=4,blocks=1,gpus_per_node=2",
                seed=seed,
                steps=8,
                faults=(Fault("slow_link", 0.1),),
            )
        ).truth["culprits"]
        assert culprit["severity"] < 500 and len(culprit["within"]) <= 4


def test_every_way_of_an_all_to_all_looks_alike() -> None:
    fault = Fault("slow_link", 0.2, rank=17)
    for seed in range(5):
        (culprit,) = simulate(Case("moe32_across", seed=seed, steps=8, faults=(fault,))).truth["culprits"]
        if culprit["link"][0]["device"] != culprit["link"][1]["device"]:
            assert culprit["within"] == list(range(16, 32))  # both nodes of the expert group: no tool can tell more
            return
    pytest.fail("no link between two rails was drawn")


def test_a_buffered_send_is_done_at_once_for_the_host_and_on_arrival_for_the_device(tmp_path: Path) -> None:
    layout = "dp=4,pp=4,schedule=interleaved,micro=4,chunks=2,blocks=2,gpus_per_node=4"
    took = {}
    for form in ("host", "device"):
        lines = of_kind(records(Case(layout, form, seed=1, steps=3), tmp_path / form), "collective")
        took[form] = np.median([line["end"] - line["start"] for line in lines if line["op"] == "send"])
    assert took["device"] > 3 * took["host"]


def test_flight_recorder_dumps_hold_the_calls_of_the_recording(tmp_path: Path) -> None:
    job = simulate(Case(HYBRID, "device", seed=4, steps=12, faults=(Fault("death"),)))
    write_dumps(job, tmp_path / "dumps")
    write(job, tmp_path)
    (dead,) = job.dead_at
    for rank in range(8):
        file = tmp_path / "dumps" / f"rank_{rank}"
        assert file.exists() == (rank != dead)
        if rank == dead:
            continue
        entries = pickle.loads(file.read_bytes())["entries"]
        lines = [json.loads(line) for line in (tmp_path / "trace" / f"rank-{rank}.jsonl").read_text().splitlines()]
        calls = of_kind(lines, "collective")
        assert len(entries) == len(calls)
        unended = [call["op"] for call in calls if call["end"] is None]
        assert sum(entry["state"] != "completed" for entry in entries) == len(unended)


@pytest.mark.slow
def test_torchs_own_analyzer_reads_the_dumps_and_names_who_never_came(tmp_path: Path) -> None:
    job = simulate(Case("dp=4,gpus_per_node=2", seed=4, steps=12, faults=(Fault("hang_compute", rank=2),)))
    write_dumps(job, tmp_path)
    command = [sys.executable, "-m", "torch.distributed.flight_recorder.fr_trace", str(tmp_path), "-p", "rank_"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "missing ranks: {2}" in done.stdout + done.stderr


def test_ranks_that_wait_for_one_another_are_refused() -> None:
    from simulator.layout import Group, Layout
    from simulator.programme import FORWARD, Builder

    builder = Builder(Layout("two", dp=2))
    first, second = Group("dp", (0, 1)), Group("tp", (0, 1))
    for rank, groups in ((0, (first, second)), (1, (second, first))):
        for group in groups:
            builder.collective(rank, group, "all_reduce", 8, FORWARD)
    with pytest.raises(ValueError, match="wait for one another"):
        builder.finish()


@pytest.mark.parametrize("name", LAYOUTS)
def test_every_layout_has_its_position_and_groups(name: str) -> None:
    layout = parse_layout(name)
    ranks = range(layout.world_size)
    for role in ("dp", "tp", "pp", "ep", "expert_dp", "shard", "replica", "world"):
        groups = [layout.group(rank, role) for rank in ranks]
        for rank, group in zip(ranks, groups, strict=True):
            assert rank in group.ranks and all(groups[peer] == group for peer in group.ranks)
    for rank in ranks:
        position = layout.position(rank)
        assert layout.rank(position) == rank
        peers = layout.group(rank, "dp").ranks
        assert {(layout.position(peer)["tp"], layout.position(peer)["pp"]) for peer in peers} == {
            (position["tp"], position["pp"])
        }
