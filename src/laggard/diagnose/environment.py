"""The format `environment`: `env`, `export -p`, /proc/PID/environ, nccl.conf, or a JSON object of variables."""

from __future__ import annotations

from laggard.diagnose.file_content import FileContent
from laggard.diagnose.file_format import FileFormat, FileJudgement, KnownHardware
from laggard.nccl.environment_text import is_environment, parse_environment
from laggard.probes.nccl.rules.variable_findings import judge_environment
from laggard.probes.nccl.rules.variable_rules import VariableContext


def recognise(content: FileContent) -> bool:
    return is_environment(content.text)


def judge(content: FileContent, hardware: KnownHardware) -> FileJudgement:
    variables = {name: value for name, value in parse_environment(content.text).items() if name.startswith("NCCL_")}
    facts = VariableContext(rdma=hardware.rdma, several_gpus=None if hardware.gpus is None else hardware.gpus > 1)
    return FileJudgement(judge_environment(variables, facts), {"nccl_variables": sorted(variables)})


ENVIRONMENT = FileFormat("environment", recognise, judge, holds_others=True, fallback=True)
