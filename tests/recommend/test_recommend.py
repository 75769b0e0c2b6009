"""`laggard recommend`: what is wrong with a job's set-up is named, with what it should gain, and nothing is changed."""

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs
from support.nccl_logs import NCCL_LOGS
from support.rows import rows

from laggard.catalogue.findings import all_types
from laggard.cli import main
from laggard.deepspeed_config import find_problems, parse_config
from laggard.kit.parts import plain_text
from laggard.model import Culprit, CulpritStack, Finding, Fix, Report, Severity, Verdict
from laggard.probes.probe import finding
from laggard.recommend.advice.decide import decide
from laggard.recommend.advice.recommend import RULES, recommend
from laggard.recommend.advice.situation import JobProfile, ModelSize, Situation
from laggard.recommend.advice.values import Gain, Item, gain_text
from laggard.recommend.advice.watched import WATCHED_RULES
from laggard.recommend.command import recommendation_lines
from laggard.wire import encode

CONFIG: dict[str, Any] = {
    "train_micro_batch_size_per_gpu": 4,
    "gradient_accumulation_steps": 16,
    "zero_optimization": {"stage": 2, "reduce_bucket_size": 1000000, "overlap_comm": False},
}


def written(tmp_path: Path, name: str, content: Any) -> str:
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    return str(path)


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, Any]:
    status = main(["recommend", *words, "--format", "json"])
    return status, json.loads(capsys.readouterr().out)


def keys(found: Any) -> dict[str, Any]:
    return {item["key"]: item for item in found["items"]}


def keys_of(known: Situation) -> dict[str, Item]:
    return {item.key: item for item in recommend(known).items}


def situation(exposed: float | None = None, config: dict[str, Any] = CONFIG, **more: Any) -> Situation:
    profile = JobProfile(1.0, exposed_share=exposed) if exposed is not None else None
    return Situation(deepspeed=parse_config(config), deepspeed_document=config, profile=profile, **more)


def test_a_badly_set_deepspeed_is_named_from_its_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, found = run(capsys, written(tmp_path, "ds.json", CONFIG))
    assert status == 0 and found["schema"] == "laggard.recommendation/1" and found["blocked_by"] == []
    items = keys(found)
    assert items["zero_optimization.overlap_comm"]["recommended"] is True
    assert items["zero_optimization.reduce_bucket_size"]["current"] == 1000000
    assert items["zero_optimization.stage"]["recommended"] == 1
    assert "zero_optimization.allgather_bucket_size" not in items
    assert all(item["gain"]["basis"] == "rule" and item["gain"]["ratio"] is None for item in found["items"])
    after = json.loads(found["files"]["ds_config.json"])
    assert after["zero_optimization"] == {"stage": 2, "reduce_bucket_size": 500000000, "overlap_comm": True}
    assert '-    "reduce_bucket_size": 1000000,' in found["files"]["ds_config.diff"]


def test_changes_are_told_as_the_configuration_has_them_and_what_can_lose_comes_last(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sections = {"stage": 2, "reduce_bucket_size": 1000000, "offload_optimizer": {"device": "cpu"}}
    path = written(tmp_path, "ds.json", {"train_batch_size": 64, "zero_optimization": sections})
    assert main(["recommend", path]) == 0
    text = capsys.readouterr().out
    assert text.startswith("Set zero_optimization.reduce_bucket_size to 500000000, now 1000000 (deepspeed), and ")
    assert 'Apply: "overlap_comm": true in zero_optimization\n' in text
    assert 'Apply: "device": "none" in zero_optimization.offload_optimizer\n' in text
    changes = [line for line in text.splitlines() if line[:1].isdigit()]
    assert "use_multi_rank_bucket_allreduce to false, now true" in changes[-1], "it may be slower"


def test_a_well_set_deepspeed_gets_options_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = {"train_batch_size": 64, "zero_optimization": {"stage": 1, "overlap_comm": True}}
    _, found = run(capsys, written(tmp_path, "ds.json", config))
    assert list(keys(found)) == ["LAGGARD_REDUCE_SCATTER", "zero_optimization.use_multi_rank_bucket_allreduce"]
    assert found["files"] == {}


@pytest.mark.parametrize("exposed", [0.1, 0.3, 0.6])
def test_gains_follow_from_the_exposed_communication(exposed: float) -> None:
    found = recommend(situation(exposed))
    gains = {item.key: item.gain for item in found.items if item.gain.basis == "modelled"}
    assert gains["zero_optimization.overlap_comm"].high == pytest.approx(1 / (1 - exposed))
    stage = gains["zero_optimization.stage"]
    assert stage.high == pytest.approx(1 / (1 - exposed * 15 / 16)) and stage.low == 1.0
    ratios = [item.gain.ratio or 1.0 for item in found.items]
    assert ratios == sorted(ratios, reverse=True)


@pytest.mark.parametrize(("megabytes", "recommended"), [(3.0, None), (8.0, 4_000_000), (20_000.0, 500_000_000)])
def test_a_bucket_is_as_large_as_the_recorded_gradients(megabytes: float, recommended: int | None) -> None:
    profile = JobProfile(1.0, exposed_share=0.3, collectives={"all_reduce": (16 * 4.0, megabytes * 1e6 / 4)})
    found = recommend(situation()._replace(profile=profile))
    items = {item.key: item.recommended for item in found.items}
    assert items.get("zero_optimization.reduce_bucket_size") == recommended, items


def test_a_job_that_does_not_wait_for_communication_is_not_told_to_change_it() -> None:
    assert {item.key for item in recommend(situation(0.01)).items} == {
        "zero_optimization.reduce_bucket_size",
        "zero_optimization.use_multi_rank_bucket_allreduce",
        "LAGGARD_REDUCE_SCATTER",
    }


@rows("recommend/reduce_scatter")
def test_the_hooks_reduce_scatter_is_an_option_where_it_works(
    stage: int, switches: dict[str, Any], named: bool
) -> None:
    found = recommend(situation(0.6, {"zero_optimization": {"stage": stage, **switches}}))
    items = [item for item in found.items if item.key == "LAGGARD_REDUCE_SCATTER"]
    assert bool(items) == named, f"{switches}: {items}"
    for item in items:
        assert item.target == "launcher" and item.gain.high == pytest.approx(1 / (1 - 0.3)) and item.gain.low == 1.0


def test_every_recommended_accumulation_keeps_the_global_batch() -> None:
    for accumulated in (2, 3, 8, 16):
        config = CONFIG | {"gradient_accumulation_steps": accumulated, "zero_optimization": {"stage": 3}}
        item = next(item for item in recommend(situation(0.3, config)).items if "accumulation_steps" in item.key)
        factor = accumulated / item.recommended
        assert factor == int(factor) > 1 and item.recommended >= 1


def test_a_sick_fabric_is_not_tuned(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tcp = finding("TCP_FALLBACK", "the job", "talks by TCP", evidence={"cause": "x"}, fix="Use RDMA.", commands=("a",))
    low = finding("CPU_GOVERNOR", "cpu0", "saves power", evidence={}, fix="performance", severity=Severity.WARNING)
    report = Report(Verdict.FAIL, "n1", 0.1, (), (low, tcp), {})
    paths = [written(tmp_path, "ds.json", CONFIG), written(tmp_path, "n1.json", encode(report))]
    paths.append(written(tmp_path, "env", b"NCCL_IB_DISABLE=1\nNCCL_DEBUG=INFO\n"))
    status, found = run(capsys, *paths)
    assert status == 1 and found["blocked_by"] == ["TCP_FALLBACK"]
    assert all(item["repairs"] for item in found["items"]) and "ds_config.json" not in found["files"]
    first = found["items"][0]
    assert (first["key"], first["current"], first["recommended"]) == ("NCCL_IB_DISABLE", "1", None)
    assert first["apply"] == "unset NCCL_IB_DISABLE" and first["revert"] == "export NCCL_IB_DISABLE=1"
    assert found["files"]["nccl.env"] == "unset NCCL_IB_DISABLE\nexport NCCL_DEBUG=INFO\n"
    assert "held back" in found["notes"][0]
    main(["recommend", *paths])
    assert capsys.readouterr().out.startswith("Repair the fabric before anything is tuned: TCP_FALLBACK.")


def test_a_variable_that_a_newer_nccl_may_read_is_left_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = (NCCL_LOGS / "roce_gpudirect.log").read_text().replace("2.27.5", "2.32.3")
    paths = [
        written(tmp_path, "job.log", log.encode()),
        written(tmp_path, "env", b"NCCL_FROBNICATE=1\nNCCL_RUN_DIAGNOSTICS=1\nNCCL_IB_GIDINDEX=3\n"),
    ]
    changed = keys(run(capsys, *paths)[1])
    assert "NCCL_IB_GIDINDEX" in changed, "a typo is advised on"
    assert not {"NCCL_FROBNICATE", "NCCL_RUN_DIAGNOSTICS"} & set(changed)


def test_scripts_for_machines_run_nothing_by_themselves() -> None:
    acs = finding(
        "ACS_ENABLED", "0000:01:00.0", "redirects\nrm -rf /", evidence={}, fix="Off.", commands=("setpci -s 01:00.0 x",)
    )
    script = recommend(Situation(findings=(acs,))).files["host.sh"]
    assert "setpci -s 01:00.0 x" in script
    assert all(not line or line.startswith("#") for line in script.splitlines())


def test_the_environment_is_quoted_for_a_shell() -> None:
    variables = {"NCCL_IB_HCA": "=mlx5_0:1; touch x", "NCCL_IB_GID_INDEX": "3"}
    found = recommend(Situation(environment=variables, environment_known=True, nccl_version=(2, 27, 5)))
    assert [item.key for item in found.items] == ["NCCL_IB_GID_INDEX"]
    assert found.files["nccl.env"] == "unset NCCL_IB_GID_INDEX\nexport NCCL_IB_HCA='=mlx5_0:1; touch x'\n"
    assert not recommend(Situation(environment=variables, environment_known=True, nccl_version=(2, 18, 1))).items
    assert not recommend(Situation(environment=variables, environment_known=True)).items


def test_roce_gets_more_queue_pairs_and_infiniband_does_not() -> None:
    roce = Situation(environment_known=True, networks=("IB",), link_layers=frozenset({"Ethernet"}), nodes=4)
    assert [item.key for item in recommend(roce).items] == ["NCCL_IB_QPS_PER_CONNECTION"]
    assert not recommend(roce._replace(link_layers=frozenset({"InfiniBand"}))).items
    assert not recommend(roce._replace(environment={"NCCL_IB_QPS_PER_CONNECTION": "2"})).items
    assert not recommend(roce._replace(nodes=1)).items


def test_what_locate_found_comes_first_with_what_it_costs() -> None:
    culprit = Culprit("slow_compute", (3,), node="n1", slowdown_ratio=1.5, recoverable_ratio=0.25, advice="look at it")
    found = recommend(situation(0.3, culprits=(culprit,)))
    assert found.items[0].gain.basis == "measured" and found.items[0].gain.ratio == pytest.approx(4 / 3)
    assert found.items[0].apply == "look at it" and not found.blocked_by
    text = plain_text(recommendation_lines(found))
    assert text.startswith("Repair rank 3 on n1: it is busy 1.50 times as long as its peers, and "), text
    assert "Gain: at most 1.33 times as fast (measured on this job)" in text, "the gain is its own bound"


@rows("recommend/culprits")
def test_a_culprit_is_told_in_the_words_of_its_kind(
    culprit: dict[str, Any], state: str, reason: str, replaced: bool
) -> None:
    """`replaced`: whether another node may take its place, where there is one."""
    named = Culprit(ranks=(2,), node="vm", advice="look", recoverable_ratio=0.5, **culprit)
    one, two = (recommend(Situation(culprits=(named,), nodes=nodes)).items[0] for nodes in (1, 2))
    assert (one.current, reason in one.reason) == (state, True), one
    assert ("node" in two.risk and "node" in two.revert) == replaced, two
    assert "node" not in one.risk + one.revert, "a job on one machine has no node to put in its place"


@pytest.mark.parametrize("kind", ["dead", "hung"])
def test_a_job_that_stands_still_gets_no_advice_about_its_speed(kind: str) -> None:
    """A faster input would not have kept the rank alive, and of the rank nothing is known to be in need of repair."""
    stands = Culprit(kind, (1,), node="n1", advice="read its log")
    slow = Culprit("slow_compute", (2,), node="n2", slowdown_ratio=1.5, recoverable_ratio=0.25, advice="look at it")
    waits = JobProfile(1.0, input_share=0.4, exposed_share=0.3)
    found = recommend(Situation(profile=waits, culprits=(stands, slow)))
    assert [item.key for item in found.items] == ["rank 2 on n2"] and found.items[0].gain.ratio is None
    assert any("Nothing is tuned in a job that stands still" in note for note in found.notes), found.notes
    assert recommend(Situation(profile=waits, culprits=(slow,))).items[0].gain.ratio


def test_one_cause_has_one_gain() -> None:
    culprit = Culprit("slow_input", (1,), node="n1", recoverable_ratio=2 / 3)
    found = keys_of(Situation(profile=JobProfile(1.0, input_share=0.79), culprits=(culprit,)))
    gains = {key: gain_text(item.gain) for key, item in found.items()}
    assert len(gains) == 2 and set(gains.values()) == {"at most 3.00 times as fast (measured on this job)"}, gains


@pytest.mark.parametrize(
    ("gain", "text"),
    [
        (Gain("modelled", 1.31, 1.0, 2.0), "1.31 times as fast (from no gain to 2.00, modelled)"),
        (Gain("measured", 2.37, 2.36, 2.38), "2.37 times as fast (2.36 to 2.38, measured on this job)"),
        (Gain("rule", 1.0, 1.0, 1.0), "1.00 times as fast (as published elsewhere)"),
        (Gain("rule", None, 1.0, 2.8), "not known, to be measured (1.00 to 2.80 elsewhere)"),
    ],
)
def test_a_gain_says_what_its_bounds_are(gain: Gain, text: str) -> None:
    assert gain_text(gain) == text


def test_waiting_for_input_is_measured() -> None:
    found = recommend(Situation(profile=JobProfile(1.0, input_share=0.2)))
    assert found.items[0].target == "launcher" and found.items[0].gain.ratio == pytest.approx(1.25)
    assert not recommend(Situation(profile=JobProfile(1.0, input_share=0.01))).items


def recording(path: Path, input_seconds: float, waited: float, slow: float = 0.0) -> None:
    """Two ranks, each step a second long, and `slow` seconds more since rank 1 computes longer."""
    lines: list[dict[str, Any]] = [{"laggard_recording": 1, "job_id": "j"}]
    for rank in range(2):
        lines.append({"kind": "rank", "rank": rank, "node": f"n{rank}", "world_size": 2})
        for step in range(12):
            names, start = {"rank": rank, "step": step}, step * (1 + slow)
            end, wait = start + 1 + slow, waited + (0.0 if rank else slow)
            lines.append({"kind": "step", **names, "start": start, "end": end})
            forward = start + input_seconds, end - 0.1 - wait
            for name, begun, ended in (("input", start, forward[0]), ("forward", *forward)):
                lines.append({"kind": "span", **names, "name": name, "start": begun, "end": ended})
            sent = {"group": "dp", "op": "all_reduce", "seq": step, "bytes": 1000000, "waited": wait}
            lines.append({"kind": "collective", **names, **sent, "start": forward[1], "end": end - 0.1})
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_a_recording_gives_the_gains_their_numbers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recording(tmp_path / "job.jsonl", 0.1, 0.4)
    _, found = run(capsys, written(tmp_path, "ds.json", CONFIG), str(tmp_path / "job.jsonl"))
    items = keys(found)
    assert items["zero_optimization.overlap_comm"]["gain"]["high"] == pytest.approx(1 / 0.6, rel=0.01)
    assert items["zero_optimization.use_multi_rank_bucket_allreduce"]["evidence"] == [
        "1 all-reduces a step, 1.0 MB on average"
    ]
    (loader,) = [item for item in found["items"] if item["key"].startswith("DataLoader")]
    assert loader["gain"]["ratio"] == pytest.approx(1 / 0.9, rel=0.01)


def test_nothing_known_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, found = run(capsys, written(tmp_path, "notes.txt", b"hello world\n"))
    assert status == 2 and found["items"] == [] and any("no known format" in note for note in found["notes"])


def test_written_files_overwrite_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(tmp_path, "ds.json", CONFIG)
    status, _ = run(capsys, path, "--write", str(tmp_path / "out"))
    assert status == 0 and sorted(each.name for each in (tmp_path / "out").iterdir()) == [
        "ds_config.diff",
        "ds_config.json",
    ]
    assert json.loads(Path(path).read_text()) == CONFIG
    assert main(["recommend", path, "--write", str(tmp_path / "out")]) == 64
    assert "there already" in capsys.readouterr().err


def test_apply_keeps_what_was_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = Path(written(tmp_path, "ds.json", CONFIG))
    run(capsys, str(path), "--apply")
    assert json.loads(path.read_text())["zero_optimization"]["overlap_comm"] is True
    assert json.loads((tmp_path / "ds.json.before").read_text()) == CONFIG


@rows("recommend/contradictions")
def test_contradictions_of_a_configuration(config: dict[str, Any], words: str) -> None:
    (problem,) = find_problems(config, 4)
    assert words in problem


def test_values_that_are_filled_in_later_are_no_mistake() -> None:
    filled = {"train_batch_size": "auto", "zero_optimization": {"stage": 3, "reduce_bucket_size": "auto"}}
    assert find_problems(filled) == () and parse_config(filled).overlap_comm is True


def test_diagnose_reads_a_deepspeed_configuration(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = CONFIG | {"zero_optimization": {"stage": 2, "overlap_com": True}}
    assert main(["diagnose", written(tmp_path, "ds.json", config), "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["files"][0]["kind"] == "DeepSpeed config"
    assert [each["code"] for each in found["findings"]] == ["DEEPSPEED_CONFIG"]


ROCE = Situation(environment_known=True, lossless_priorities=frozenset({3}))


@rows("recommend/traffic_classes")
def test_rdma_belongs_in_a_priority_with_flow_control(given: str | None, recommended: str | None) -> None:
    environment = {} if given is None else {"NCCL_IB_TC": given}
    items = recommend(ROCE._replace(environment=environment)).items
    assert [(item.key, item.recommended) for item in items] == ([("NCCL_IB_TC", recommended)] if recommended else [])


def test_without_the_environment_or_flow_control_no_traffic_class_is_wrong() -> None:
    assert not recommend(ROCE._replace(environment_known=False)).items
    assert not recommend(ROCE._replace(lossless_priorities=frozenset())).items
    assert not recommend(ROCE._replace(lossless_priorities=frozenset({0}))).items


def test_the_priorities_of_all_nodes_count(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    environment = tmp_path / "env"
    environment.write_text("NCCL_DEBUG=WARN\nPATH=/bin\nHOME=/root\n")
    for name, on in (("a", [3, 4]), ("b", [3])):
        facts = {"roce_pfc": {"priorities": {"eth0": on, "eth1": on}}, "identity": {"product": 7}}
        (tmp_path / name).write_bytes(encode(Report(Verdict.OK, name, 0.1, (), (), facts)))
    _, found = run(capsys, str(tmp_path / "a"), str(tmp_path / "b"), str(environment))
    assert keys(found)["NCCL_IB_TC"]["evidence"][0] == "priority flow control: 3"


@pytest.mark.parametrize("facts", [{"roce_pfc": 3}, {"roce_pfc": {"priorities": {"eth0": ["x"]}}}, {"identity": []}])
def test_facts_of_any_form_are_no_crash(
    facts: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(tmp_path, "report.json", encode(Report(Verdict.OK, "a", 0.1, (), (), facts)))
    assert run(capsys, path)[0] == 0


def test_a_providers_list_is_an_option_for_its_machines_alone() -> None:
    azure = Situation(environment_known=True, products=frozenset({"Microsoft Corporation Virtual Machine"}))
    found = {item.key: item for item in recommend(azure).items}
    assert found["NCCL_IB_PCI_RELAXED_ORDERING"].recommended == "1"
    assert "nccl.env" not in recommend(azure).files
    assert not recommend(azure._replace(products=frozenset({"Dell Inc. PowerEdge XE9680"}))).items
    google = Situation(environment_known=True, networks=("gIB",), environment={"NCCL_IB_TC": "52"})
    assert "NCCL_IB_TC" not in {item.key for item in recommend(google).items}


def test_quantised_gradients_come_where_stage_3_waits_for_the_network() -> None:
    stage_3 = {**CONFIG, "zero_optimization": {"stage": 3, "zero_quantized_weights": True}}
    assert "zero_optimization.zero_quantized_gradients" in {
        item.key for item in recommend(situation(0.4, stage_3)).items
    }
    assert not [item for item in recommend(situation(0.05, stage_3)).items if "quantized" in item.key]


def test_recomputation_is_an_option_where_it_is_on_and_a_repair_where_memory_ran_out() -> None:
    on = {**CONFIG, "activation_checkpointing": {"partition_activations": False}}
    option = keys_of(situation(0.2, on))["recomputation of activations"]
    assert option.gain.low < 1 < option.gain.high == pytest.approx(1.25), "a quarter of what is not communication"
    assert not option.repairs and "memory" in option.risk
    assert "recomputation of activations" not in keys_of(situation(0.2)), "nothing says that it is on"
    failed = finding("JOB_GPU_OUT_OF_MEMORY", "job", "ran out of memory", evidence={}, fix="make room")
    repair = keys_of(situation(findings=(failed,)))["recomputation of activations"]
    assert repair.repairs and repair.recommended == "on"
    assert "recomputation of activations" not in keys_of(situation(config=on, findings=(failed,)))


def size(parameters: float, **more: float) -> ModelSize:
    return ModelSize(parameters, 80e9, 8)._replace(**more)


HALF = {**CONFIG, "bf16": {"enabled": True}}


@rows("recommend/stages")
def test_a_model_that_does_not_fit_gets_the_stage_that_does(parameters: float, changes: dict[str, Any]) -> None:
    found = recommend(situation(0.3, HALF, model_size=size(parameters)))
    repairs = {item.key: item.recommended for item in found.items if item.repairs}
    assert repairs == changes
    sections = json.loads(found.files["ds_config.json"])["zero_optimization"]
    assert sections["stage"] == changes.get("zero_optimization.stage", 2)


def test_no_stage_is_recommended_that_does_not_fit() -> None:
    roomy, tight = (keys_of(situation(0.3, HALF, model_size=size(each))) for each in (4e9, 16e9))
    assert roomy["zero_optimization.stage"].recommended == 1, "8 + 8 + 6 GB"
    assert "zero_optimization.stage" not in tight, "32 + 32 + 24 GB are more than a GPU's 80"
    offloaded = {**HALF, "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}}
    key = "zero_optimization.offload_optimizer.device"
    assert key in keys_of(situation(0.3, offloaded, model_size=size(4e9)))
    assert key not in keys_of(situation(0.3, offloaded, model_size=size(24e9)))


def test_activations_that_do_not_fit_are_recomputed() -> None:
    key = "recomputation of activations"
    large = size(4e9, sample_bytes=18e9)  # 4 samples of 18 GB beside 15 GB of states
    item = keys_of(situation(0.3, HALF, model_size=large))[key]
    assert item.repairs and "activations 72.0 GB" in item.evidence[0]
    assert key not in keys_of(situation(0.3, HALF, model_size=size(4e9, sample_bytes=1e9)))
    configured = {**HALF, "activation_checkpointing": {"partition_activations": True}}
    assert key not in keys_of(situation(0.3, configured, model_size=large)), "it is on, and cannot be switched off"
    assert "gradient_accumulation_steps" not in keys_of(situation(0.3, HALF, model_size=size(4e9, sample_bytes=9e9)))


def test_the_size_of_the_model_comes_from_flags(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(tmp_path, "ds.json", HALF)
    _, found = run(capsys, path, "--parameters", "24e9", "--gpu-memory", "80e9", "--gpus", "8")
    assert found["items"][0]["key"] == "zero_optimization.stage" and found["items"][0]["recommended"] == 3


@pytest.mark.parametrize(("name", "value"), [("NCCL_IB_DISABLE", "1"), ("NCCL_NET", "Socket")])
def test_a_variable_that_means_tcp_says_what_tcp_cost_elsewhere(name: str, value: str) -> None:
    harmful = finding("NCCL_ENV_HARMFUL", name, "means TCP", evidence={}, fix="unset", severity=Severity.WARNING)
    known = Situation(findings=(harmful,), environment={name: value}, environment_known=True)
    (item,) = recommend(known).items
    assert item.repairs and item.gain.ratio is None and item.gain.high == 57.0
    fallback = finding("TCP_FALLBACK", "the job", "talks by TCP", evidence={"cause": "x"}, fix="Use RDMA.")
    (item,) = recommend(known._replace(findings=(harmful, fallback))).items
    assert item.gain.ratio == 12.0, "one change, by what was seen"


def test_locate_says_what_to_change_besides(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recording(tmp_path / "job.jsonl", 0.2, 0.1, slow=0.5)
    assert main(["locate", "--trace", str(tmp_path / "job.jsonl")]) == 1
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    assert lines[0].startswith("Rank 1 on n1 is slow in forward")
    first, *_ = [line for line in lines if line.startswith("What to change: ")]
    assert "DataLoader" in first and "Gain: at most 1.15 times as fast (" in first
    assert f"How, and why: laggard recommend {tmp_path / 'job.jsonl'}" in lines


def test_ranks_that_pause_to_collect_garbage_do_so_together() -> None:
    pauses = [Culprit("uneven_work", (rank,), recoverable_ratio=0.1, evidence=("e",)) for rank in (1, 5)]
    collecting = {1: 0.08, 5: 0.05, 6: 0.001}
    item = keys_of(Situation(culprits=tuple(pauses), collecting=collecting))["garbage collection"]
    assert item.gain.high == pytest.approx(1.25), "all of what the pauses of both cost"
    assert "rank 1" in item.reason and "rank 5" in item.reason and "gc.freeze" in item.apply
    for rank in (6, 7):
        other = Culprit("slow_compute", (rank,), node="n1", recoverable_ratio=0.1, persistence="intermittent")
        assert "garbage collection" not in keys_of(Situation(culprits=(other,), collecting=collecting)), rank


def test_a_line_that_one_rank_alone_is_at_is_looked_at_and_no_machine_repaired() -> None:
    line = CulpritStack("forward: 94 % of the samples", "Model.forward (slow_rank.py:19)", 2, (), only_here=True)
    slow = Culprit("slow_compute", (2,), node="n1", phase="forward", advice="look at Model.forward", stack=line)
    slow = structs.replace(slow, recoverable_ratio=1 / 3)
    (item,) = keys_of(Situation(culprits=(slow,))).values()
    assert item.key == "what rank 2 alone does in Model.forward (slow_rank.py:19)" and not item.repairs
    assert item.apply == slow.advice and "n1" not in str(item)
    assert item.gain.ratio == pytest.approx(1.5), "what it costs, at most"
    input_ = structs.replace(slow, kind="slow_input", phase="input")
    late = Situation(culprits=(input_,), profile=JobProfile(1.0, input_share=0.5, exposed_share=0.0, collectives={}))
    assert [item.key[:6] for item in recommend(late).items] == ["what r"], "no worker takes over its line"
    loaded = structs.replace(line, frames=("read (/u/data.py:9)", "fetch (/v/torch/utils/data/_utils/fetch.py:52)"))
    late = late._replace(culprits=(structs.replace(input_, stack=loaded),))
    assert sorted(item.key[:6] for item in recommend(late).items) == ["DataLo", "what r"]
    throttled = structs.replace(slow, findings=("GPU_THROTTLED",))
    (item,) = keys_of(Situation(culprits=(throttled,))).values()
    assert item.key == "rank 2 on n1" and item.repairs


def test_rules_that_are_not_loaded_without_a_configuration_have_nothing_to_say() -> None:
    """A collector and `laggard locate --trace` ask only the rules that need no more than timings, culprits and
    findings."""
    culprits = tuple(Culprit(kind=kind, ranks=(0,), phase="input") for kind in ("slow_rank", "slow_link", "dead"))
    profile = JobProfile(1.0, input_share=0.5, exposed_share=0.5, collectives={"all_reduce": (50.0, 1e3)})
    known = Situation(profile=profile, ranks=64, nodes=8, culprits=culprits, data_parallel_groups=((0, 1),))
    known = known._replace(node_of_rank={rank: f"n{rank // 8}" for rank in range(64)})
    of_nodes = [it for it in all_types() if not it.code.startswith("JOB_")]  # agents tell of these alone
    findings = tuple(Finding(it.code, it.severity, "x", "is so", {}, Fix("mend it"), it.doc) for it in of_nodes)
    others = [rule for rule in RULES if rule not in WATCHED_RULES]
    assert len(others) == len(RULES) - len(WATCHED_RULES)
    for each in (known, known._replace(findings=findings)):
        assert [(rule.__name__, list(rule(each))) for rule in others] == [(rule.__name__, []) for rule in others]
        assert decide(each, WATCHED_RULES) == recommend(each)
