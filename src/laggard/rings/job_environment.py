"""The environment in which a job runs, for a ring that is to use what the job uses: settings, libraries and GPUs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from laggard.kit.errors import UsageError

_MAX_BYTES: Final = 1 << 20
_OWN: Final = ("LAGGARD_", "PYTHON", "TORCHELASTIC_", "SLURM_", "PMI", "OMPI_", "VIRTUAL_ENV")
"""Prefixes of what says who this process is and which Python it runs, and nothing of how NCCL is to work."""
_OWN_NAMES: Final = frozenset(
    ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT")
)


def read_job_environment(source: str) -> dict[str, str]:
    """Returns the variables of the process whose id `source` is, or of the file (`env > FILE`, or a copy of
    /proc/PID/environ). Raises UsageError."""
    path = f"/proc/{source}/environ" if source.isdecimal() else source
    try:
        with open(path, "rb") as file:
            data = file.read(_MAX_BYTES + 1)
    except PermissionError:
        raise UsageError(f"--env-from {source}: only its user and root may read {path}") from None
    except OSError as error:
        raise UsageError(f"--env-from {source}: {path}: {error.strerror}") from None
    variables = parse_environment(data[:_MAX_BYTES])
    if len(data) > _MAX_BYTES or not variables:
        raise UsageError(f"--env-from {source}: {path} holds no environment")
    return variables


def parse_environment(data: bytes) -> dict[str, str]:
    """Reads NAME=VALUE, ended by NUL where there is one, else by line. Pure."""
    entries = data.decode(errors="surrogateescape").split("\0" if b"\0" in data else "\n")
    pairs = (entry.partition("=") for entry in entries)
    return {name: value for name, sign, value in pairs if sign and name.replace("_", "a").isalnum()}


def as_the_job(own: Mapping[str, str], job: Mapping[str, str]) -> dict[str, str]:
    """Returns the job's environment, with what says who this process is from its `own`. Pure."""
    kept = {name: value for name, value in own.items() if _is_own(name)}
    return {**{name: value for name, value in job.items() if not _is_own(name)}, **kept}


def _is_own(name: str) -> bool:
    return name in _OWN_NAMES or name.startswith(_OWN)
