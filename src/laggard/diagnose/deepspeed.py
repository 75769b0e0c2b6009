"""The format `DeepSpeed config`: the JSON that deepspeed.initialize() is given."""

from __future__ import annotations

from laggard.deepspeed_config import find_problems, is_deepspeed_config, parse_config, read_json
from laggard.diagnose.file_content import FileContent
from laggard.diagnose.file_format import FileFormat, FileJudgement, KnownHardware
from laggard.probes.probe import finding


def recognise(content: FileContent) -> bool:
    return is_deepspeed_config(read_json(content.text))


def judge(content: FileContent, hardware: KnownHardware) -> FileJudgement:
    tree = read_json(content.text)
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


DEEPSPEED_CONFIG = FileFormat("DeepSpeed config", recognise, judge)
