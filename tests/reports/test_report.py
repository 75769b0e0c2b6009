"""`laggard tune report`: published tables give the published answers, and a changed number changes them."""

import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest
from support.paths import DATA
from support.rows import rows

from laggard.cli import main

TABLES = DATA / "tables"
HEADER = "platform,stage,micro_batch,grad_accum,samples_per_second\n"


def report(kind: str, path: Path, capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    assert main(["tune", "report", kind, str(path), "--format", "json", *words]) == 0
    return json.loads(capsys.readouterr().out)


def written(tmp_path: Path, text: str | bytes) -> Path:
    path = tmp_path / "table.csv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def changed(tmp_path: Path, name: str, old: str, new: str) -> Path:
    text = (TABLES / name).read_text()
    assert text.count(old) == 1, old
    return written(tmp_path, text.replace(old, new))


def refusal(kind: str, path: Path | str, capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["tune", "report", kind, str(path)]) == 64
    captured = capsys.readouterr()
    assert not captured.out and captured.err.count("\n") == 1
    return captured.err


def test_stage_2_with_accumulation_2_is_best_on_all_platforms(capsys: pytest.CaptureFixture[str]) -> None:
    found = report("campaign", TABLES / "pmbs25_model2_step2.csv", capsys)
    assert found["schema"] == "laggard.campaign/1"
    assert [(best["platform"], best["samples_per_second"]) for best in found["best"]] == [
        ("IB-A100", 76.489),
        ("RoCE-A100", 72.891),
        ("RoCE-H100", 134.0),
    ]
    assert {(best["stage"], best["micro_batch"], best["grad_accum"]) for best in found["best"]} == {(2, 128, 2)}
    assert all(best["ties"] == [] for best in found["best"])


def test_another_best_of_the_table_is_another_answer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = changed(tmp_path, "pmbs25_model2_step2.csv", "IB-A100,1,64,4,66.78", "IB-A100,1,64,4,76.6")
    best = report("campaign", path, capsys)["best"][0]
    assert (best["stage"], best["samples_per_second"]) == (1, 76.6)
    assert [(tie["stage"], tie["samples_per_second"]) for tie in best["ties"]] == [(2, 76.489)]
    assert report("campaign", path, capsys, "--tie", "0")["best"][0]["ties"] == []


def test_the_row_that_is_off_is_flagged_and_still_ranked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = report("campaign", TABLES / "pmbs25_model2_step2.csv", capsys)
    (outlier,) = found["outliers"]
    assert outlier["row"] == {
        "platform": "RoCE-A100",
        "stage": 2,
        "micro_batch": 64,
        "grad_accum": 4,
        "samples_per_second": 25.741,
    }
    assert outlier["ratio"] == pytest.approx(25.741 / outlier["expected"]) and 0.4 < outlier["ratio"] < 0.6
    corrected = changed(tmp_path, "pmbs25_model2_step2.csv", "25.741", "53.741")
    assert report("campaign", corrected, capsys)["outliers"] == []
    too_fast = changed(tmp_path, "pmbs25_model2_step2.csv", "RoCE-H100,3,256,1,68.53", "RoCE-H100,3,256,1,685.3")
    found = report("campaign", too_fast, capsys)
    assert {outlier["row"]["samples_per_second"] for outlier in found["outliers"]} == {25.741, 685.3}
    assert found["best"][2]["samples_per_second"] == 685.3
    assert "best_is_outlier" in {note["kind"] for note in found["notes"]}


def test_what_ran_out_of_memory_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    rows = report("campaign", TABLES / "pmbs25_model2_step2.csv", capsys)["out_of_memory"]
    assert [(row["platform"], row["stage"], row["micro_batch"]) for row in rows] == [
        (platform, stage, micro_batch)
        for platform in ("IB-A100", "RoCE-A100", "RoCE-H100")
        for stage, micro_batch in ((1, 128), (2, 256))
    ]


def test_winners_by_accumulation_and_their_crossover(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = report("campaign", TABLES / "pmbs25_model1.csv", capsys)
    winners = {winner["grad_accum"]: winner["stage"] for winner in found["winners"]}
    assert winners == {32: 1, 16: 1, 8: 2, 4: 2}
    (crossover,) = found["crossovers"]
    assert crossover["stages"] == [1, 2] and 9.0 < crossover["grad_accum"] < 9.8
    assert crossover["low"] < crossover["grad_accum"] < crossover["high"]
    path = changed(tmp_path, "pmbs25_model1.csv", "0.393,150.08,325.7", "0.413,150.08,309.93")
    found = report("campaign", path, capsys)
    assert {winner["grad_accum"]: winner["stage"] for winner in found["winners"]}[8] == 1
    assert found["crossovers"][0]["grad_accum"] < crossover["grad_accum"]


def test_the_hours_that_fit_no_other_row(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (error,) = report("campaign", TABLES / "pmbs25_model1.csv", capsys)["errors"]
    assert (error["row"]["stage"], error["row"]["micro_batch"], error["column"]) == (2, 128, "estimated_hours")
    assert error["expected"] == pytest.approx(147.08, abs=0.1)
    path = changed(tmp_path, "pmbs25_model1.csv", "150.08", "147.08")
    assert report("campaign", path, capsys)["errors"] == []


def test_portability_of_the_published_configurations(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = report("portability", TABLES / "pmbs25_model2_gains.csv", capsys)
    values = {row["config"]: row["value"] for row in found["portability"]}
    assert {name: round(value, 3) for name, value in values.items()} == {
        "tuned": 1.0,
        "stage 2": 0.889,
        "baseline": 0.693,
        "stage 3": 0.531,
    }
    assert [round(gain["gain"], 3) for gain in found["gains"]] == [1.379, 1.366, 1.585]
    path = changed(tmp_path, "pmbs25_model2_gains.csv", "stage 3,3,256,1,-,68.53", "stage 3,3,256,1,-,OOM")
    values = {row["config"]: row["value"] for row in report("portability", path, capsys)["portability"]}
    assert values["stage 3"] == 0.0


def test_portability_without_names_goes_by_stage_and_accumulation(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(tmp_path, f"{HEADER}A,1,8,4,10\nA,2,16,2,20\nB,1,4,4,30\nB,2,8,2,30\nB,3,16,1,15\n")
    rows = {(row["stage"], row["grad_accum"]): row for row in report("portability", path, capsys)["portability"]}
    assert rows[2, 2]["value"] == 1.0 and rows[2, 2]["micro_batch"] is None
    assert rows[1, 4]["value"] == pytest.approx(2 / 3)
    assert rows[3, 1]["value"] is None  # nobody tried it on A


def test_columns_that_may_be_left_out_of_named_configurations(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(tmp_path, "platform,config,samples_per_second\nA,x,10\nA,y,20\nB,x,10\nB,y,2.5\n")
    rows = report("portability", path, capsys)["portability"]
    assert [(row["config"], row["stage"], row["value"]) for row in rows] == [
        ("x", None, pytest.approx(2 / 3)),
        ("y", None, pytest.approx(0.4)),
    ]


def test_z_gain_of_the_published_batches(capsys: pytest.CaptureFixture[str]) -> None:
    found = report("scaling", TABLES / "indis25_batches.csv", capsys)
    gains = [round(100 * row["z_gain"], 1) for row in found["scaling"]]
    assert gains == [0.0, 3.8, 3.8, 0.0, 3.8, 3.8, 7.7]


def test_a_job_that_does_not_scale_is_an_alarm(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(tmp_path, "nodes,gpus,samples_per_second\n1,8,100\n2,16,190\n4,32,300\n")
    found = report("scaling", path, capsys)
    assert [row["scaling_factor"] for row in found["scaling"]] == pytest.approx([1, 0.95, 0.75])
    assert [row["nodes"] for row in found["alarms"]] == [4]
    main(["tune", "report", "scaling", str(path)])
    assert capsys.readouterr().out.startswith("At 4 nodes a GPU does 0.75 of what it does on the fewest")


@rows("reports/table_errors")
def test_errors_of_the_published_tables(
    name: str, column: str, wrong: float, capsys: pytest.CaptureFixture[str]
) -> None:
    (error,) = report("table", TABLES / name, capsys)["errors"]
    assert (error["column"], error["measured"]) == (column, wrong)


def test_a_table_without_errors_has_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert report("table", TABLES / "pmbs25_micro_steps_stage1.csv", capsys)["errors"] == []
    assert report("table", TABLES / "indis25_batches.csv", capsys)["errors"] == []
    path = changed(tmp_path, "pmbs25_averages.csv", "16.78", "6.78")
    assert report("table", path, capsys)["errors"] == []


def test_two_rows_of_one_configuration_that_differ_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = (TABLES / "pmbs25_model2_step2.csv").read_text() + "IB-A100,1,64,4,65.78\nRoCE-A100,1,64,4,58.51\n"
    notes = report("campaign", written(tmp_path, text), capsys)["notes"]
    told = {note["kind"]: note["lines"] for note in notes}
    assert told == {"contradiction": [3, 27], "doubled_row": [11, 28]}


def test_extra_columns_are_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = (TABLES / "pmbs25_model2_step2.csv").read_text().splitlines()[2:]
    text = HEADER.replace("\n", ",comment\n") + "".join(f"{row},seen on n{place}\n" for place, row in enumerate(rows))
    (outlier,) = report("campaign", written(tmp_path, text), capsys)["outliers"]
    assert outlier["row"]["comment"] == "seen on n10"


def test_a_row_that_is_wrong_by_many_powers_of_ten_is_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = changed(tmp_path, "pmbs25_model2_step2.csv", "IB-A100,3,128,2,39.862", "IB-A100,3,128,2,39.862e-11")
    found = report("campaign", path, capsys)
    assert [outlier["row"]["samples_per_second"] for outlier in found["outliers"]] == [39.862e-11, 25.741]


def test_one_row_is_the_best_of_itself_and_that_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = report("campaign", written(tmp_path, f"{HEADER}A,1,8,4,10.5\n"), capsys)
    assert found["best"][0]["samples_per_second"] == 10.5 and found["outliers"] == []
    assert "only one configuration ran" in found["notes"][0]["text"]


def test_nothing_but_out_of_memory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = report("campaign", written(tmp_path, f"{HEADER}A,1,8,4,oom\nA,2,8,4,Out of memory\n"), capsys)
    assert found["best"] == [] and "nothing ran on A" in found["notes"][0]["text"]


def test_a_smaller_micro_batch_that_ran_out_of_memory_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = report("campaign", written(tmp_path, f"{HEADER}A,1,8,4,OOM\nA,1,16,2,10\nA,2,16,2,OOM\n"), capsys)
    (note,) = [note for note in found["notes"] if note["kind"] == "contradiction"]
    assert note["lines"] == [2, 3]
    assert [row["stage"] for row in found["out_of_memory"]] == [1, 2]


def test_another_unit_in_one_row_is_guessed_at(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = changed(tmp_path, "pmbs25_model2_step2.csv", "IB-A100,3,128,2,39.862", "IB-A100,3,128,2,2391.72")
    found = report("campaign", path, capsys)
    assert any(note["kind"] == "unit" and "samples a minute" in note["text"] for note in found["notes"])


def test_a_huge_file_is_refused_without_reading_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "huge.csv"
    with open(path, "wb") as file:
        file.write(HEADER.encode())
        file.truncate(1 << 30)
    assert "larger than 16 MiB" in refusal("campaign", path, capsys)


@rows("reports/plots")
def test_a_plot_is_one_svg(
    kind: str, name: str, drawn: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plot = tmp_path / "plot.svg"
    report(kind, TABLES / name, capsys, "--plot", str(plot))
    root = ElementTree.fromstring(plot.read_text())
    assert root.tag == "{http://www.w3.org/2000/svg}svg" and len(root.findall("{*}g")) == drawn


def test_names_in_a_plot_are_text_and_the_table_is_not_overwritten(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(tmp_path, f"{HEADER}<script>&,1,8,4,10\n<script>&,1,16,2,12\n")
    plot = tmp_path / "plot.svg"
    report("campaign", path, capsys, "--plot", str(plot))
    assert "<script>" not in plot.read_text()
    assert "<script>&" in [words.text for words in ElementTree.fromstring(plot.read_text()).findall("{*}g/{*}text")]
    before = path.read_bytes()
    assert main(["tune", "report", "campaign", str(path), "--plot", str(path)]) == 64
    assert path.read_bytes() == before


def test_the_model_of_a_published_table(capsys: pytest.CaptureFixture[str]) -> None:
    found = report("model", TABLES / "pmbs25_model1.csv", capsys, "--parameters", "0.44e9", "--gpus", "16")
    (model,) = found["models"]
    parts = {each["name"]: each for each in model["parameters"]}
    micro_step = parts["stage 2 a micro-step"]
    assert micro_step["seconds"] == pytest.approx(19e-3, rel=0.05)  # the talk's mean of eight: 19.5 ms
    assert micro_step["identifiable"] and micro_step["low"] < micro_step["seconds"] < micro_step["high"]
    assert not parts["a sample"]["identifiable"]
    best = max(model["predictions"], key=lambda each: each["samples_per_second"])
    assert (best["stage"], best["micro_batch"]) == (2, 256)
    assert "not_identifiable" in {note["kind"] for note in found["notes"]}


def test_the_memory_that_a_published_table_shows(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--parameters", "8e9", "--gpus", "64", "--gpu-memory", "80e9", "--resident", "16e9"]
    found = report("model", TABLES / "pmbs25_model2_step2.csv", capsys, *words)
    assert all(each["consistent"] for each in found["memory"]) and len(found["memory"]) == 3
    assert 12.5e9 < 64 * found["memory"][0]["low"] < 64 * found["memory"][0]["high"] < 18.7e9
    assert found["outliers"][0]["row"]["samples_per_second"] == 25.741
    words[-1] = "60e9"
    assert not report("model", TABLES / "pmbs25_model2_step2.csv", capsys, *words)["memory"][0]["consistent"]
