"""`laggard tune table`: tables as NCCL's example plugin applies them, compiled so that none falls to one channel."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.diagnosed import answer
from support.paths import DATA
from support.rows import rows

from laggard.cli import main
from laggard.nccl.tuner import (
    COLLECTIVES,
    MAX_BYTES,
    Measurement,
    Message,
    build_rows,
    choose,
    choose_bands,
    find_line_problems,
    find_one_channel,
    possible_cells,
    read_lines,
    render_row,
    rows_of,
    turning_sizes,
)

LARGEST = 8 << 30
ALL_REDUCE_ONLY = (
    "allreduce,65537,1048576,ring,simple,4,4,32,1,0\nallreduce,1048577,4294967295,tree,ll128,8,4,32,-1,-1\n"
)
TESTS = (DATA / "nccl_tests_head.txt").read_text()


def nccl_tests_output(times: dict[int, float], wrong: int | str = 0) -> str:
    half = "  {:7.2f}  {:6.2f}  {:6.2f}  {:>6}"
    rows = "".join(
        f"{size:12d}  {size // 4:12d}  {'float':>8}  {'sum':>6}  {-1:6d}"
        + half.format(micros, size / micros / 1e3, size / micros / 1e3, wrong)
        + half.format(micros * 1.1, size / micros / 1e3, size / micros / 1e3, wrong)
        + "\n"
        for size, micros in times.items()
    )
    return f"{TESTS}{rows}# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 1.0\n"


def chosen(
    text: str, collective: str, size: int, nodes: int = 4, ranks: int = 32, **more: int
) -> tuple[int | None, int]:
    rows = rows_of(read_lines(text))
    found = choose(rows, Message(collective, size, nodes, ranks, **more), possible_cells(collective, nodes, ranks))
    return found.row.line if found.row else None, found.channels


def test_a_row_applies_to_its_sizes_communicator_and_operations_alone() -> None:
    assert chosen(ALL_REDUCE_ONLY, "allreduce", 65537) == (1, 4)
    assert chosen(ALL_REDUCE_ONLY, "allreduce", 1048577) == (2, 8)
    for other in (
        chosen(ALL_REDUCE_ONLY, "allreduce", 65536),
        chosen(ALL_REDUCE_ONLY, "allreduce", 65537, nodes=2),
        chosen(ALL_REDUCE_ONLY, "allreduce", 65537, ranks=16),
        chosen(ALL_REDUCE_ONLY, "allreduce", 65537, pipe_ops=2),
        chosen(ALL_REDUCE_ONLY, "allreduce", 65537, reg_buff=1),
        chosen(ALL_REDUCE_ONLY, "allreduce", 5 << 30),
        chosen(ALL_REDUCE_ONLY, "allgather", 65537),
    ):
        assert other == (None, 1)


def test_what_the_plugin_makes_of_odd_fields() -> None:
    text = (
        "AllGather,0,10,Ring,SIMPLE,2,-1,-1\n"
        " allgather , 1K , 99999999999999999999999 , ring , ll , 3x , -1 , -1 \n"
        "allgather,,0,50,ring,ll,5,-1,-1\n"
        "allreduce,0,1,ring\n"
        "#allreduce,0,1,ring,ll,7,-1,-1\n"
    )
    rows = rows_of(read_lines(text))
    assert [row.line for row in rows] == [1, 2, 3]
    assert rows[0][1:] == ("allreduce", 0, 10, "ring", "simple", 2, -1, -1, -1, -1)
    assert rows[1][1:7] == ("allgather", 1, MAX_BYTES, "ring", "ll", 3)
    assert rows[2][1:7] == ("allgather", 0, 50, "ring", "ll", 5)


def test_cells_that_nccl_does_not_offer_are_passed_over() -> None:
    text = "allgather,0,100,tree,simple,8,-1,-1\nallgather,0,100,ring,simple,4,-1,-1\n"
    assert chosen(text, "allgather", 50) == (2, 4)


def test_channels_of_minus_one_are_one_and_of_zero_are_nccls() -> None:
    text = "allreduce,0,100,ring,ll,-1,-1,-1\nallreduce,101,200,ring,ll,0,-1,-1\nallreduce,201,300,ring,ll,1,-1,-1\n"
    assert [chosen(text, "allreduce", size)[1] for size in (50, 150, 250)] == [1, 0, 1]
    ranges = [each for each in find_one_channel(read_lines(text)) if each.collective == "allreduce"]
    assert [(each.min_bytes, each.max_bytes, each.line) for each in ranges] == [(0, 100, 1), (301, MAX_BYTES, None)]


def test_lint_names_the_messages_without_a_row() -> None:
    ranges = find_one_channel(read_lines(ALL_REDUCE_ONLY))
    own = {(each.collective, each.min_bytes, each.max_bytes) for each in ranges if each.ranks == 32}
    assert ("allreduce", 0, 65536) in own and ("allreduce", 4294967296, MAX_BYTES) in own
    assert {("allgather", 0, MAX_BYTES), ("broadcast", 0, MAX_BYTES)} <= own
    assert any(each.nodes == 1 and each.ranks == 8 for each in ranges)  # the job's other communicators


@rows("tuner_lint")
def test_lint_of_one_line(line: str, words: str) -> None:
    (problem,) = find_line_problems(read_lines(line))
    assert problem.line == 1 and words in problem.text


def test_lint_names_rows_that_are_never_applied() -> None:
    text = "allreduce,0,100,ring,ll,2,-1,-1\nallreduce,10,20,tree,ll,4,4,32\n"
    assert [problem.text for problem in find_line_problems(read_lines(text))] == [
        "never applied: line 1 takes all its messages"
    ]


MEASUREMENTS = st.lists(
    st.builds(
        Measurement,
        st.sampled_from(COLLECTIVES),
        st.integers(1, LARGEST),
        st.sampled_from(("ring", "tree", "nvls", "pat", "collnet_direct")),
        st.sampled_from(("ll", "ll128", "simple")),
        st.integers(0, 64),
        st.floats(1e-6, 10),
        st.sampled_from((0, 0, 3)),
    ),
    max_size=30,
)


@settings(max_examples=60, deadline=None)
@given(MEASUREMENTS, st.integers(1, 64), st.sampled_from((1, 8)), st.data())
def test_no_message_of_a_compiled_table_has_one_channel_by_accident(
    measurements: list[Measurement], nodes: int, local: int, data: st.DataObject
) -> None:
    """For every collective and size up to 8 GiB, for the communicator that was measured and for others, whatever of its
    algorithms and protocols NCCL offers beside ring with ll or simple."""
    rows = build_rows(choose_bands(measurements), nodes, nodes * local)
    table = rows_of(read_lines("".join(f"{render_row(row)}\n" for row in rows)))
    assert [row[1:] for row in table] == [row[1:] for row in rows]
    for shape in ((nodes, nodes * local), (1, 8), (nodes + 1, 3 * nodes)):
        for collective in COLLECTIVES:
            possible = sorted(possible_cells(collective, *shape))
            offered = {cell for cell in possible if data.draw(st.booleans())} | {
                data.draw(st.sampled_from((("ring", "ll"), ("ring", "simple"))))
            }
            for size in turning_sizes(table, collective, LARGEST):
                found = choose(table, Message(collective, size, *shape), offered)
                assert found.row is not None and not found.one_channel_by_accident


def test_the_fastest_setting_with_right_results_wins_and_ties_change_nothing() -> None:
    measurements = [
        Measurement("allreduce", 1024, "tree", "ll", 4, 10e-6),
        Measurement("allreduce", 1024, "ring", "simple", 16, 20e-6),
        Measurement("allreduce", 4096, "tree", "ll", 4, 10.1e-6),
        Measurement("allreduce", 4096, "ring", "ll", 8, 10e-6),  # as fast: not worth a change
        Measurement("allreduce", 1 << 20, "tree", "ll", 4, 90e-6),
        Measurement("allreduce", 1 << 20, "ring", "simple", 16, 40e-6),
        Measurement("allreduce", 1 << 20, "nvls", "simple", 16, 20e-6, wrong=7),
    ]
    bands = choose_bands(measurements)["allreduce"]
    assert [(band.min_bytes, band.max_bytes, band.best.algorithm) for band in bands] == [
        (0, 65536, "tree"),
        (65537, MAX_BYTES, "ring"),
    ]


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, Any]:
    status = main(["tuner", *words, "--format", "json"])
    return status, json.loads(capsys.readouterr().out)


def test_compile_from_nccl_tests_output(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small, large = tmp_path / "tree.log", tmp_path / "ring.log"
    small.write_text(nccl_tests_output({1024: 10.0, 1 << 20: 200.0}))
    large.write_text(nccl_tests_output({1024: 30.0, 1 << 20: 50.0}))
    status, found = run(capsys, "compile", f"tree/ll/4={small}", f"ring/simple/16={large}")
    assert (status, found["nodes"], found["ranks"]) == (0, 2, 2)
    table = tmp_path / "table.csv"
    table.write_text(found["table"])
    assert chosen(found["table"], "allreduce", 1024, 2, 2)[1] == 4
    assert chosen(found["table"], "allreduce", 1 << 30, 2, 2)[1] == 16
    status, lint = run(capsys, "lint", str(table))
    assert status == 0 and lint["tables"][0]["one_channel"] == []
    _, simulated = run(capsys, "simulate", str(table), "--nodes", "3", "--ranks", "24")
    assert not any(each["one_channel_by_accident"] for each in simulated["tables"][0]["messages"])


def test_results_that_were_not_checked_are_not_compiled(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "out.log"
    path.write_text(nccl_tests_output({1024: 10.0}, "N/A"))
    assert main(["tuner", "compile", f"ring/ll/4={path}"]) == 64
    assert "-c 1" in capsys.readouterr().err
    path.write_text(nccl_tests_output({1024: 10.0}, 5))
    assert main(["tuner", "compile", f"ring/ll/4={path}"]) == 64
    assert "right results" in capsys.readouterr().err


def test_compile_from_a_table_of_settings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "settings.csv"
    header = "collective,size_bytes,algorithm,protocol,channels,nodes,ranks,latency_us\n"
    path.write_text(f"{header}allgather,1048576,ring,simple,8,2,16,100\nallgather,1048576,ring,ll,8,2,16,300\n")
    _, found = run(capsys, "compile", str(path))
    assert chosen(found["table"], "allgather", 1 << 20, 2, 16) == (5, 8)


def test_diagnose_reads_tuner_tables(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "nccl_tuner.conf"
    path.write_text(f"{ALL_REDUCE_ONLY}AllGather,0,100,ring,ll,4,-1,-1\n")
    _, found = answer(capsys, path)
    assert found["verdict"] == "fail" and found["files"][0]["kind"] == "tuner table"
    assert [each["code"] for each in found["findings"]] == ["NCCL_TUNER_ONE_CHANNEL", "NCCL_TUNER_TABLE"]


def test_diagnose_reads_nccl_tests(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "out.log"
    path.write_text(nccl_tests_output({1024: 10.0, 1 << 20: 50.0}))
    _, found = answer(capsys, path)
    assert (found["verdict"], found["files"][0]["kind"]) == ("ok", "nccl-tests")
    assert found["facts"][str(path)] == {
        "operation": "allreduce",
        "ranks": 2,
        "nodes": 2,
        "sizes": 2,
        "best_busbw_bytes_per_second": pytest.approx(20.97e9),
        "at_size_bytes": 1 << 20,
    }
    path.write_text(nccl_tests_output({1024: 10.0}, 3))
    assert [each["code"] for each in answer(capsys, path)[1]["findings"]] == ["RING_FAILED"]
    path.write_text(nccl_tests_output({1024: 10.0}, "N/A"))
    assert answer(capsys, path)[1]["verdict"] == "unknown"
