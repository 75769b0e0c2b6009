"""The words of `laggard tune`, and whether their numbers make sense."""

from __future__ import annotations

import argparse
from typing import Final

from laggard.errors import UsageError
from laggard.nccl.variable_table import TABLE_VERSION
from laggard.tune.nccl.variables import TRANSPORTS

_WHAT: Final = ("nccl", "zero", "deepspeed", "all", "ab")
_DEADLINE_SECONDS: Final = 300.0


def configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = (
        "Critical findings of the fabric, in what --from names, stop the tuner. The same command with the same --study "
        "goes on where it stopped. Exit status: 0 done, 1 blocked by critical findings of the fabric, 2 the default "
        "itself does not run, 64 wrong usage."
    )
    parser.add_argument(
        "what",
        choices=_WHAT,
        help="nccl: NCCL's variables; zero: stage and micro-batch; "
        "deepspeed: switches; all: the three, each from the last one's best; ab: a study's best against its default",
    )
    parser.add_argument(
        "--from",
        dest="files",
        action="append",
        default=[],
        metavar="FILE",
        help="what is known of the job and its nodes, as `laggard recommend` reads it",
    )
    _add_campaign(parser)
    _add_nccl(parser.add_argument_group("nccl"))
    _add_training(parser.add_argument_group("zero, deepspeed and all"))
    parser.add_argument("--write", metavar="DIR", help="write what to apply there, as files; nothing is overwritten")
    parser.add_argument("--html", metavar="FILE", help="write the report as a page that needs nothing else")
    parser.add_argument("--format", choices=("text", "json"), default="text", help="json: one laggard.tune/1")


def _add_campaign(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--command",
        dest="template",
        metavar="TEMPLATE",
        help="what a trial runs, with names in braces (docs/tune.md)",
    )
    parser.add_argument("--study", metavar="FILE", help="the SQLite file of all trials (default: laggard-tune-WHAT.db)")
    parser.add_argument("--trials", type=int, default=120, metavar="N", help="most runs (default: 120)")
    parser.add_argument("--minutes", type=float, metavar="M", help="most time for all trials")
    parser.add_argument("--gpu-hours", type=float, metavar="H", help="most time of all trials times --gpus")
    parser.add_argument("--gpus", type=int, default=1, metavar="N", help="that a trial holds (default: 1)")
    parser.add_argument(
        "--deadline",
        type=float,
        default=_DEADLINE_SECONDS,
        metavar="S",
        help="of a trial (default: 300)",
    )
    parser.add_argument("--rounds", type=int, default=8, metavar="N", help="of the confirmation (default: 8)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the guesses (default: 0)")


def _add_nccl(parser: argparse._ArgumentGroup) -> None:
    version = ".".join(map(str, TABLE_VERSION))
    parser.add_argument("--messages", metavar="OP:SIZE,...", help="what to measure (default: all_reduce:64M)")
    parser.add_argument("--recording", metavar="DIR", help="measure what this recording spends its time in")
    parser.add_argument("--nccl-version", metavar="V", help=f"default: by the files, else {version}")
    parser.add_argument("--transport", choices=TRANSPORTS, default="other", help="between the nodes (default: other)")
    parser.add_argument("--nodes", type=int, default=1, metavar="N", help="of a trial (default: 1)")
    parser.add_argument("--local-ranks", type=int, metavar="K", help="GPUs of a node")
    parser.add_argument("--nics", type=int, metavar="N", help="of a node")
    parser.add_argument("--compute-capability", type=int, metavar="CC", help="of the GPUs: 90 is Hopper")
    parser.add_argument("--nvlink-switch", action="store_true", help="NVLink goes through a switch")
    parser.add_argument("--add", action="append", default=[], metavar="NAME=V1,V2", help="search this variable as well")
    parser.add_argument("--leave-out", action="append", default=[], metavar="NAME", help="do not search this variable")


def _add_training(parser: argparse._ArgumentGroup) -> None:
    parser.add_argument("--config", metavar="FILE", help="the DeepSpeed configuration: the default to beat")
    parser.add_argument("--ranks", type=int, metavar="N", help="that share a batch (default: --gpus)")
    parser.add_argument("--parameters", type=float, metavar="N", help="of the model: for memory and communication")
    parser.add_argument(
        "--gpu-memory", type=float, metavar="BYTES", help="of one GPU: stages that cannot fit are left out"
    )
    parser.add_argument("--bus-bandwidth", type=float, metavar="BYTES", help="per second, as nccl-tests has busbw")
    parser.add_argument(
        "--nccl-command", metavar="TEMPLATE", help="of `all`: what measures NCCL (default: laggard ring)"
    )


def check(arguments: argparse.Namespace) -> None:
    try:
        import optuna  # noqa: F401
    except ImportError:
        raise UsageError("`laggard tune` needs optuna: pip install 'laggard[tune]'") from None
    least = {"trials": 24, "rounds": 4, "gpus": 1, "deadline": 1, "nodes": 1}
    for name, number in least.items():
        if getattr(arguments, name) < number:
            raise UsageError(f"--{name} {getattr(arguments, name):g}: give {number} or more")
    for name in ("minutes", "gpu_hours", "nics", "local_ranks"):
        value = getattr(arguments, name)
        if value is not None and value <= 0:
            raise UsageError(f"--{name.replace('_', '-')} {value:g}: give more than 0")
