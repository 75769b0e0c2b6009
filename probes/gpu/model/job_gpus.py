"""The GPUs that a SLURM job was given."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from laggard.probes.errors import Unknown
from laggard.probes.nvml.model import Gpu, Nvml
from laggard.text.lazy_pattern import lazy_pattern

_PART = lazy_pattern(r"(\d{1,4})(?:-(\d{1,4}))?")


class JobGpus(NamedTuple):
    gpus: tuple[Gpu, ...]
    missing: tuple[int, ...]  # device numbers that the job was given and NVML does not list


def gpus_of_job(environ: Mapping[str, str], nvml: Nvml) -> JobGpus | None:
    """Returns the GPUs of the job in whose prolog, epilog or step this process runs; None where it runs in no job, or
    where SLURM names no GPUs.

    SLURM_JOB_GPUS holds device numbers, the N of /dev/nvidiaN (gres.conf: File=/dev/nvidia[0-7]), which is NVML's minor
    number and not its index. Raises Unknown where the variable is no list of numbers.
    """
    text = environ.get("SLURM_JOB_GPUS", "")
    if not text:
        return None
    by_minor = {gpu.index if gpu.minor is None else gpu.minor: gpu for gpu in nvml.gpus}
    numbers = _numbers(text)
    return JobGpus(
        gpus=tuple(by_minor[number] for number in numbers if number in by_minor),
        missing=tuple(number for number in numbers if number not in by_minor),
    )


def _numbers(text: str) -> tuple[int, ...]:
    numbers: set[int] = set()
    for part in text.split(","):
        found = _PART.fullmatch(part.strip())
        if not found:
            raise Unknown(f"SLURM_JOB_GPUS is {text[:60]!r}, no list of device numbers")
        first = int(found[1])
        numbers.update(range(first, int(found[2] or first) + 1))
    return tuple(sorted(numbers))
