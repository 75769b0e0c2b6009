"""The format `tuner table`: CSV files of NCCL's example tuner plugin."""

from __future__ import annotations

from laggard.diagnose.file_content import FileContent
from laggard.diagnose.file_format import FileFormat, FileJudgement, KnownHardware
from laggard.model import Finding
from laggard.nccl.tuner.lint import OneChannel, find_line_problems, find_one_channel
from laggard.nccl.tuner.table import ALGORITHMS, COLLECTIVES, PROTOCOLS, read_lines, rows_of
from laggard.probes.probe import finding
from laggard.text.words import counted

_SAMPLE = 1 << 16
_MIN_FIELDS = 6
_MIN_SHARE = 0.6
_MAX_SHOWN = 8


def recognise(content: FileContent) -> bool:
    lines = [line for line in read_lines(content.text[:_SAMPLE]) if line.fields[0].lower() != "collective_type"]
    known = sum(
        len(line.fields) >= _MIN_FIELDS
        and line.fields[0].lower() in COLLECTIVES
        and (line.fields[3].lower() in ALGORITHMS or line.fields[4].lower() in PROTOCOLS)
        for line in lines
    )
    return known > 0 and known >= _MIN_SHARE * len(lines)


def judge(content: FileContent, hardware: KnownHardware) -> FileJudgement:
    lines = read_lines(content.text)
    ranges, problems = find_one_channel(lines), find_line_problems(lines)
    found: list[Finding] = []
    if ranges:
        found.append(_one_channel(ranges))
    if problems:
        first = problems[0]
        found.append(
            finding(
                "NCCL_TUNER_TABLE",
                "a tuner table",
                f"has {counted(len(problems), 'line')} that mean something else: line {first.line}: {first.text}",
                evidence={"lines": [f"line {each.line}: {each.text}" for each in problems[:_MAX_SHOWN]]},
                fix="Correct these lines; `laggard tuner simulate` shows which row each message gets.",
            )
        )
    return FileJudgement(tuple(found), {"rows": len(rows_of(lines))})


def _one_channel(ranges: tuple[OneChannel, ...]) -> Finding:
    first = ranges[0]
    collectives = list(dict.fromkeys(each.collective for each in ranges))
    return finding(
        "NCCL_TUNER_ONE_CHANNEL",
        "a tuner table",
        f"leaves one channel for sizes of {', '.join(collectives)}",
        evidence={
            "ranges": [
                f"{each.collective} of {each.min_bytes} to {each.max_bytes} B, {each.nodes} nodes, {each.ranks} ranks"
                for each in ranges[:_MAX_SHOWN]
            ],
            "cause": "no row matches" if first.line is None else f"line {first.line} has channels -1",
            "count": len(ranges),
        },
        fix="Give each row its channels (0: NCCL's own) and each collective rows for all sizes and communicators; "
        "`laggard tuner compile` makes such a table. Or build the plugin with *nChannels = 0.",
    )


TUNER_TABLE = FileFormat("tuner table", recognise, judge)
