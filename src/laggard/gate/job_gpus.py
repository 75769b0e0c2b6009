"""The GPUs of the job that the gate judges."""

from __future__ import annotations

from typing import Final

from laggard.probes.errors import Unknown
from laggard.probes.host.host import Host
from laggard.probes.runner.job_gpus import for_job, parse_gpus

__all__ = ["for_job", "job_gpus", "parse_gpus"]

_VARIABLE: Final = "SLURM_JOB_GPUS"


def job_gpus(asked: frozenset[int] | None, host: Host) -> frozenset[int] | None:
    """The device minors of the job's GPUs: those that were asked for, else those that SLURM gave the job; None where
    all GPUs are to be judged."""
    if asked is not None:
        return asked
    try:
        return parse_gpus(host.environ().get(_VARIABLE, ""))
    except Unknown:
        return None
