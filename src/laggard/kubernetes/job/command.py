"""`laggard agent --kubernetes-job`: runs one command as a Job of Kubernetes, as `srun` runs one as a job of SLURM."""

from __future__ import annotations

import argparse
import secrets
import signal
import sys
from types import FrameType
from typing import Final

from laggard.errors import UsageError
from laggard.kubernetes.job.kubectl import Kubectl
from laggard.kubernetes.job.run import run_job
from laggard.kubernetes.job.template import asked, job_of, read_template

_SECONDS: Final = 3600
_START_SECONDS: Final = 300.0


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--template", required=True, metavar="FILE", help="a Job, whose first container is to run the command"
    )
    parser.add_argument("--namespace", default="", help="default: that of kubectl's configuration")
    parser.add_argument("--context", default="", help="kubectl's context; default: the current one")
    parser.add_argument(
        "--seconds", type=int, default=_SECONDS, help=f"end it after so many seconds (default: {_SECONDS})"
    )
    parser.add_argument(
        "--start-seconds",
        type=float,
        default=_START_SECONDS,
        metavar="SECONDS",
        help=f"the longest time until all of its pods run (default: {_START_SECONDS:.0f})",
    )
    parser.add_argument(
        "words",
        nargs=argparse.REMAINDER,
        metavar="-- [NAME=VALUE...] COMMAND",
        help="the command, behind variables for its environment; without one that of the template",
    )


def main(arguments: argparse.Namespace) -> int:
    """Returns the command's exit status; 1 where it could not be run. Raises UsageError."""
    words = arguments.words[1:] if arguments.words[:1] == ["--"] else arguments.words
    if arguments.seconds < 1 or not arguments.start_seconds > 0:
        raise UsageError("--seconds and --start-seconds: give a number above 0")
    job = job_of(read_template(arguments.template), asked(words), arguments.seconds, secrets.token_hex(4))
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, _end)
    return run_job(
        Kubectl(arguments.namespace, arguments.context), job, arguments.start_seconds, sys.stdout, sys.stderr
    )


def _end(number: int, frame: FrameType | None) -> None:
    """Ends this process after the Job was removed. Whatever signal follows is left out: it would keep the Job."""
    signal.signal(number, signal.SIG_IGN)
    raise SystemExit(128 + number)
