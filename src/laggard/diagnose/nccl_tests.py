"""The format `nccl-tests`: the output of all_reduce_perf and the others. Only wrong results are judged: what bandwidth
is right depends on the machine, and a fleet's or a ring's comparison tells it."""

from __future__ import annotations

from laggard.diagnose.file_content import FileContent
from laggard.diagnose.file_format import FileFormat, FileJudgement, KnownHardware
from laggard.nccl.tests_output import TestsOutput, is_tests_output, parse_tests_output
from laggard.probes.probe import finding
from laggard.text.words import counted


def recognise(content: FileContent) -> bool:
    return is_tests_output(content.text[: 1 << 20])


def judge(content: FileContent, hardware: KnownHardware) -> FileJudgement:
    output = parse_tests_output(content.text)
    if not output.rows:
        return FileJudgement(unknown="has no row with a time: the test ended before it measured anything")
    wrong = [row for row in output.rows if row.wrong]
    unchecked = any(row.wrong is None for row in output.rows)
    unknown = "results were not checked: run nccl-tests with -c 1" if unchecked else ""
    if not wrong:
        return FileJudgement((), _facts(output), unknown)
    found = finding(
        "RING_FAILED",
        "nccl-tests",
        f"gave wrong results at {counted(len(wrong), 'size')}",
        evidence={"sizes_bytes": [row.size_bytes for row in wrong[:16]], "wrong": sum(row.wrong or 0 for row in wrong)},
        fix="Remove NCCL_PROTO, NCCL_CHUNK_SIZE and other untested settings, and run it again; where results stay "
        "wrong, take the nodes out one by one, and look at their Xids and ECC errors.",
    )
    return FileJudgement((found,), _facts(output), unknown)


def _facts(output: TestsOutput) -> dict[str, object]:
    best = max(output.rows, key=lambda row: row.busbw)
    return {
        "operation": output.operation,
        "ranks": output.ranks,
        "nodes": output.nodes,
        "sizes": len(output.rows),
        "best_busbw_bytes_per_second": best.busbw,
        "at_size_bytes": best.size_bytes,
    }


NCCL_TESTS = FileFormat("nccl-tests", recognise, judge, holds_others=True)
