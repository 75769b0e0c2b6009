"""Chooses the folder that a run records into: the one that was asked for, or one in it where that holds another run.

Nobody tells the ranks of a run its name: each looks by itself, and all come to the same folder. A file there is another
run's where it names another job, or where it was written for the last time before this process began and its writer
does not run. A job that its launcher restarts goes on in its folder, with a file for each attempt.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import shlex
import sys
import time
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from laggard import __version__
from laggard.kit.environment import ENV_OFF, job_id, node_name
from laggard.kit.processes import GONE, own_process, own_start, state_of


class Identity(NamedTuple):
    """A rank's identity; docs/development/contracts.md has the meaning of the fields. `gpu`: the GPU's UUID, where it
    has one."""

    job_id: str
    rank: int
    local_rank: int
    world_size: int
    node: str
    gpu: str | None
    attempt: int


# Those of Open MPI and of MPICH, and so Intel's. Within a SLURM job, mpirun's processes share one SLURM_PROCID.
_MPI_RANK: Final = ("OMPI_COMM_WORLD_RANK", "PMI_RANK")
_MPI_SIZE: Final = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
_MPI_LOCAL_RANK: Final = ("OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID")


def identify(environ: Mapping[str, str], gpu: str | None = None) -> Identity:
    """This process's identity: from torch.distributed where it is initialized, else from the variables of the launcher
    (torchrun, deepspeed, mpirun, srun). `gpu`: the UUID of the GPU that it computes on, where that is known."""
    rank, world_size = _rank_and_world_size(environ)
    return Identity(
        job_id=job_id(environ),
        rank=rank,
        local_rank=_number(environ, "LOCAL_RANK", *_MPI_LOCAL_RANK, "SLURM_LOCALID", default=0),
        world_size=world_size,
        node=node_name(environ),
        gpu=gpu,
        attempt=_number(environ, "TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT", default=0),
    )


def header(identity: Identity) -> dict[str, object]:
    """The identity for the rank file's header, with the pair of clocks that converts its times to Unix time."""
    return {
        **identity._asdict(),
        "pid": os.getpid(),
        "wall_ns": time.time_ns(),
        "monotonic_ns": time.perf_counter_ns(),
        "laggard": __version__,
    }


def _rank_and_world_size(environ: Mapping[str, str]) -> tuple[int, int]:
    torch = sys.modules.get("torch")
    if torch is not None and torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    jax = sys.modules.get("jax._src.distributed")
    with contextlib.suppress(Exception):  # another version of it
        state = jax.global_state if jax is not None else None
        if state is not None and state.client is not None:
            return int(state.process_id), int(state.num_processes)
    rank = _number(environ, "RANK", *_MPI_RANK, "SLURM_PROCID", default=0)
    return rank, max(_number(environ, "WORLD_SIZE", *_MPI_SIZE, "SLURM_NTASKS", default=1), rank + 1)


def _number(environ: Mapping[str, str], *names: str, default: int) -> int:
    for name in names:
        if environ.get(name, "").isdecimal():
            return int(environ[name])
    return default


MAX_RUNS: Final = 1000
"""The most runs in one folder; a run beyond is not recorded."""

_RANK_FILE = re.compile(r"rank-(\d{1,7})(?:\.(\d{1,7}))?\.jsonl")
_CLOCKS_SECONDS: Final = 5.0  # by which the clock of a file server may be behind
_MAX_FILES: Final = 8  # of other ranks that are looked into: in a folder of another run all are of that
_MAX_ENTRIES: Final = 10_000
_HEAD_BYTES: Final = 4096


def rank_file_name(rank: int, attempt: int) -> str:
    return f"rank-{rank}.{attempt}.jsonl" if attempt else f"rank-{rank}.jsonl"


def folder_of_run(directory: str, identity: Identity) -> str:
    """`directory`, or `directory`/run-2 and so on: the first without another run's recording. Raises OSError;
    FileExistsError where another process of this run records under this rank's number."""
    began = own_start()
    names = (directory, *(os.path.join(directory, f"run-{number}") for number in range(2, MAX_RUNS + 1)))
    for folder in names:
        if not _holds_another_run(folder, identity, began):
            return folder
    raise FileExistsError(0, f"it holds {MAX_RUNS} runs: name another folder")


def _holds_another_run(folder: str, identity: Identity, began: float | None) -> bool:
    own = os.path.join(folder, rank_file_name(identity.rank, identity.attempt))
    if os.path.exists(own):
        if not _is_of_another_run(own, identity, began):
            raise FileExistsError(0, f"another process of this job records there as rank {identity.rank}")
        return True
    others = itertools.islice(_rank_files(folder), _MAX_FILES)
    earliest = None if began is None else began - _CLOCKS_SECONDS
    return any(
        attempt > identity.attempt
        or _is_of_another_run(path, identity, earliest if attempt == identity.attempt else None)
        for path, attempt in others
        if not _is_just_made(path, earliest)
    )


def _is_just_made(path: str, began: float | None) -> bool:
    """Whether a rank that starts at the same time has made the file, and writes its first line next."""
    about = os.stat(path)
    return not about.st_size and began is not None and about.st_mtime >= began


def _rank_files(folder: str) -> Iterator[tuple[str, int]]:
    """The ranks' files, each with its attempt."""
    try:
        with os.scandir(folder) as entries:
            for entry in itertools.islice(entries, _MAX_ENTRIES):
                found = _RANK_FILE.fullmatch(entry.name)
                if found:
                    yield entry.path, int(found[2] or 0)
    except FileNotFoundError:
        return


def _is_of_another_run(path: str, identity: Identity, began: float | None) -> bool:
    """`began`: what was written for the last time before that is another run's, unless its writer still runs; None
    where the job's name alone decides."""
    head = _head(path)
    if head.get("job_id") != identity.job_id:
        return True
    if began is None or os.stat(path).st_mtime >= began:
        return False
    process = head.get("process")
    return (state_of(process) if isinstance(process, dict) else GONE) in (GONE, None)


def _head(path: str) -> dict[str, Any]:
    """The file's first line; empty where it is none of a recording."""
    with open(path, "rb") as file:
        line = file.read(_HEAD_BYTES).partition(b"\n")[0]
    try:
        head = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return head if isinstance(head, dict) else {}


ANSWER_SECONDS: Final = 20.0
"""The longest that the end of a run waits for the answer: a second for most recordings."""


def tell_answer(folder: str) -> None:
    """Prints on standard error what the recording in `folder` says first, what to do about its first culprit, and the
    command that says all of it."""
    import subprocess  # torch has it

    command = own_process("laggard", "locate", "--trace", folder)
    environ = {**os.environ, ENV_OFF: "1"}
    try:
        done = subprocess.run(
            command, env=environ, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=ANSWER_SECONDS
        )
    except (OSError, subprocess.SubprocessError):
        return
    if answer := done.stdout.splitlines():
        advice = [line.strip() for line in answer[1:] if "what to do: " in line.lower()]
        told = (answer[0], *advice[:1], f"all of it: laggard locate --trace {shlex.quote(folder)}")
        print("".join(f"laggard: {line}\n" for line in told), end="", file=sys.stderr)
