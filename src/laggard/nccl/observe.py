"""Finds out which transports this rank's NCCL uses, from inside the process. Standard library only; never raises.

    log = prepare_log(os.environ, directory)    # before the script runs: NCCL reads its settings once
    ...
    transport = observe(log, os.environ)        # now and then, never on the training thread: takes milliseconds
    text = transport.to_json()                  # at most 4 KiB, for the rank file; Transport.from_json() reads it
    ...
    log.remove()                                # at exit

The agent turns it into findings in laggard.probes.nccl.rank_findings.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

from laggard.nccl.library import loaded_version
from laggard.nccl.log.model import NcclProcess
from laggard.nccl.private_log import LOG_SETTINGS, PrivateLog, prepare_log
from laggard.nccl.transport import LOG_EMPTY, LOG_NONE, LOG_OF_THE_USER, LOG_READ, Transport
from laggard.nccl.variables import may_be_shown

__all__ = ["PrivateLog", "Transport", "observe", "prepare_log"]

_PROC = "/proc/self"
_UVERBS = "/dev/infiniband/uverbs"
_MAX_VARIABLES = 64
_MAX_CHARACTERS = 256
_MAX_DESCRIPTORS = 65536


def observe(log: PrivateLog | None, environ: Mapping[str, str], rank: int | None = None) -> Transport:
    """The transport as far as it is known now. `log`: what prepare_log() returned. `rank`: the rank in the job, where
    the caller knows it."""
    process = log.read() if log else None
    version = loaded_version(_PROC)
    source = "library" if version else ""
    if not version:
        version = _torch_version()
        source = "torch" if version else ""
    return Transport(
        nccl_version=version,
        version_source=source,
        variables=nccl_variables(environ, () if log is None else LOG_SETTINGS),
        uverbs=count_open_uverbs(_PROC),
        log=_log_state(log, process, environ),
        process=process or NcclProcess("", 0),
        rank=rank,
    )


def nccl_variables(environ: Mapping[str, str], without: tuple[str, ...] = ()) -> tuple[tuple[str, str], ...]:
    """The NCCL_* variables that NCCL or a known plugin reads, less those in `without`: (name, value), in order of the
    names, bounded in number and length. Returns nothing else of the environment, and no value that only the ranks may
    know."""
    own = [name for name in environ if name.startswith("NCCL_") and may_be_shown(name)]
    reported = [name for name in sorted(own) if name not in without][:_MAX_VARIABLES]
    return tuple((name, environ[name][:_MAX_CHARACTERS]) for name in reported)


def count_open_uverbs(proc: str) -> int | None:
    """The number of descriptors of RDMA devices that a process has open; None: they cannot be counted. `proc`:
    /proc/self."""
    try:
        numbers = os.listdir(f"{proc}/fd")[:_MAX_DESCRIPTORS]
    except OSError:
        return None
    return sum(_read_link(f"{proc}/fd/{number}").startswith(_UVERBS) for number in numbers)


def _read_link(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:  # closed meanwhile
        return ""


def _torch_version() -> str:
    """The NCCL version that torch was built with, if the script has imported torch; empty if not. Unless someone has
    replaced the library, it is the loaded one."""
    try:
        nccl = sys.modules["torch"].cuda.nccl
        return ".".join(str(part) for part in nccl.version()[:3])
    except Exception:  # torch is not imported, was built without CUDA, or has the function elsewhere
        return ""


def _log_state(log: PrivateLog | None, process: NcclProcess | None, environ: Mapping[str, str]) -> str:
    if log is None:
        return LOG_OF_THE_USER if "NCCL_DEBUG" in environ or "NCCL_DEBUG_FILE" in environ else LOG_NONE
    return LOG_READ if process else LOG_EMPTY
