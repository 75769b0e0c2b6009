"""Stand-ins for torchrun and deepspeed in the commands of a page: what they start is forked from a process that has
imported torch, as the ranks of other tests are (support/warm.py), so that a page's job starts in a second.

A program of that name, first in PATH, hands its words to the test and waits for the end of the job. How the real
launchers start laggard is tested in trainer_hooks/test_ways_to_start.py and end_to_end/test_first_answer.py.
"""

import contextlib
import os
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

JOB = re.compile(
    r"(?:torchrun(?P<hooked> --no-python)? --nproc-per-node|deepspeed --no_python --num_gpus) (?P<ranks>\d+)"
    r" (?:laggard run --record (?P<record>\S+) )?(?P<script>\S+\.py)(?P<words>.*)"
)
PROGRAM = """#!/bin/bash
echo "${0##*/} $*" >{folder}/asked
exit "$(<{folder}/answer)"
"""


@contextlib.contextmanager
def launchers(
    folder: Path, launch_in: Callable[..., Any], extra: Mapping[str, str] | None = None
) -> Iterator[dict[str, str]]:
    """`folder` gets a job's files, and its commands are run there. Yields the environment for them. `extra`: what the
    ranks have in theirs besides."""
    programs = folder / "launchers"
    programs.mkdir()
    for name in ("asked", "answer"):
        os.mkfifo(programs / name)
    for name in ("torchrun", "deepspeed"):
        (programs / name).write_text(PROGRAM.replace("{folder}", str(programs)))
        (programs / name).chmod(0o755)
    serving = threading.Thread(target=_serve, args=(folder, programs, launch_in, extra), daemon=True)
    serving.start()
    try:
        yield {"PATH": f"{programs}:{os.environ['PATH']}"}
    finally:
        (programs / "asked").write_text("")
        serving.join(300)


def _serve(folder: Path, programs: Path, launch_in: Callable[..., Any], extra: Mapping[str, str] | None) -> None:
    """Runs the jobs that are asked for, one after the other, until nothing is asked for."""
    while asked := (programs / "asked").read_text().strip():
        status = 1
        try:
            _run(folder, asked, launch_in, extra)
            status = 0
        finally:
            (programs / "answer").write_text(f"{status}\n")


def _run(folder: Path, asked: str, launch_in: Callable[..., Any], extra: Mapping[str, str] | None) -> None:
    job = JOB.fullmatch(asked)
    assert job, f"no stand-in for {asked!r}; see {Path(__file__).name}"
    environment = dict(extra or {})
    if job["record"]:
        environment["LAGGARD_RECORD_DIR"] = str(folder / job["record"])
    words = [str(folder / word) if (folder / word).exists() else word for word in job["words"].split()]
    launch_in(
        folder,
        folder / job["script"],
        words,
        ranks=int(job["ranks"]),
        hooks=bool(job["record"]),
        extra=environment,
    )
