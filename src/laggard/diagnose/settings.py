"""The formats of files that set something: `DeepSpeed config`, `environment` and NCCL's `tuner table`.

`DeepSpeed config` is the JSON that deepspeed.initialize() is given; `environment` is `env`, `export -p`,
/proc/PID/environ, nccl.conf, or a JSON object of variables; `tuner table` is a CSV file of NCCL's example tuner plugin.
"""

from __future__ import annotations

from laggard.deepspeed_config import find_problems, is_deepspeed_config, parse_config, read_json
from laggard.diagnose.file_format import FileContent, FileFormat, FileJudgement, KnownHardware
from laggard.kit.words import counted
from laggard.model import Finding
from laggard.nccl import tuner
from laggard.nccl.environment_text import is_environment, parse_environment
from laggard.probes.nccl.rules.variable_rules import VariableContext, judge_environment
from laggard.probes.probe import finding


def recognise_deepspeed(content: FileContent) -> bool:
    return is_deepspeed_config(read_json(content.document))


def judge_deepspeed(content: FileContent, hardware: KnownHardware) -> FileJudgement:
    tree = read_json(content.document)
    found = tuple(
        finding(
            "DEEPSPEED_CONFIG",
            "the DeepSpeed configuration",
            f"is wrong: {problem}",
            evidence={},
            fix="Correct the file before the job starts; `laggard recommend FILE` says what else to set.",
        )
        for problem in find_problems(tree)
    )
    return FileJudgement(found, {"deepspeed": parse_config(tree)._asdict()})


DEEPSPEED_CONFIG = FileFormat("DeepSpeed config", recognise_deepspeed, judge_deepspeed)


def recognise_environment(content: FileContent) -> bool:
    return is_environment(content.document)


def judge_variables(content: FileContent, hardware: KnownHardware) -> FileJudgement:
    variables = {name: value for name, value in parse_environment(content.document).items() if name.startswith("NCCL_")}
    facts = VariableContext(rdma=hardware.rdma, several_gpus=None if hardware.gpus is None else hardware.gpus > 1)
    return FileJudgement(judge_environment(variables, facts), {"nccl_variables": sorted(variables)})


ENVIRONMENT = FileFormat("environment", recognise_environment, judge_variables, holds_others=True, fallback=True)


_SAMPLE = 1 << 16
_MIN_FIELDS = 6
_MIN_SHARE = 0.6
_MAX_SHOWN = 8


def recognise_tuner_table(content: FileContent) -> bool:
    lines = [line for line in tuner.read_lines(content.text[:_SAMPLE]) if line.fields[0].lower() != "collective_type"]
    known = sum(
        len(line.fields) >= _MIN_FIELDS
        and line.fields[0].lower() in tuner.COLLECTIVES
        and (line.fields[3].lower() in tuner.ALGORITHMS or line.fields[4].lower() in tuner.PROTOCOLS)
        for line in lines
    )
    return known > 0 and known >= _MIN_SHARE * len(lines)


def judge_tuner_table(content: FileContent, hardware: KnownHardware) -> FileJudgement:
    lines = tuner.read_lines(content.text)
    ranges, problems = tuner.find_one_channel(lines), tuner.find_line_problems(lines)
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
                fix="Correct these lines; `laggard tune table simulate` shows which row each message gets.",
            )
        )
    return FileJudgement(tuple(found), {"rows": len(tuner.rows_of(lines))})


def _one_channel(ranges: tuple[tuner.OneChannel, ...]) -> Finding:
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
        "`laggard tune table compile` makes such a table. Or build the plugin with *nChannels = 0.",
    )


TUNER_TABLE = FileFormat("tuner table", recognise_tuner_table, judge_tuner_table)
