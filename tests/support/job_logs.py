"""Outputs of jobs in tests/data/job_logs, in the forms of torch, NCCL, Slurm, Open MPI, DeepSpeed, Ray and Kubernetes:
for each kind of failure one that has it, and those that come close. expect.json: by name, the findings (code,
severity, device), whether the cause stays unknown, and the codes that it comes near to."""

import json
from functools import cache
from typing import Any, Final

from support.paths import DATA

JOB_LOGS: Final = DATA / "job_logs"


@cache
def job_expectations() -> dict[str, dict[str, Any]]:
    return dict(json.loads((JOB_LOGS / "expect.json").read_text()))


def job_text(name: str) -> str:
    return (JOB_LOGS / f"{name}.log").read_text()


def jobs_firing(code: str) -> list[str]:
    return [name for name, expected in job_expectations().items() if code in {row[0] for row in expected["findings"]}]


def jobs_near(code: str) -> list[str]:
    return [name for name, expected in job_expectations().items() if code in expected.get("near", ())]
