"""`laggard tune`: measures configurations of NCCL and DeepSpeed, and recommends what is faster, and right."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from laggard import wire
from laggard.collector.recommend.advice.decide import recommend
from laggard.collector.recommend.advice.situation import Situation
from laggard.errors import UsageError
from laggard.nccl.variable_table import TABLE_VERSION
from laggard.recommend.command import write_files
from laggard.recommend.inputs import read_inputs
from laggard.tune.campaign import Budget, Campaign
from laggard.tune.nccl.messages import of_recording, parse_messages
from laggard.tune.nccl.subject import nccl_subject, settings_of
from laggard.tune.nccl.variables import TRANSPORTS
from laggard.tune.report.conclude import conclude
from laggard.tune.report.documents import TuneDocument
from laggard.tune.report.page import render_page
from laggard.tune.report.text import progress_line, render
from laggard.tune.search.plan import Plan
from laggard.tune.study.store import Study
from laggard.tune.subject import Subject

_WHAT: Final = ("nccl",)
_DEADLINE_SECONDS: Final = 300.0


def configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = (
        "Critical findings of the fabric, in what --from names, stop the tuner. The same command with the same --study "
        "goes on where it stopped. Exit status: 0 done, 1 blocked by critical findings of the fabric, 2 the default "
        "itself does not run, 64 wrong usage."
    )
    parser.add_argument("what", choices=_WHAT, help="nccl: NCCL's variables, by nccl-tests or `laggard ring`")
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


def main(arguments: argparse.Namespace) -> int:
    _check(arguments)
    situation = read_inputs(arguments.files).situation if arguments.files else Situation()
    blocked = recommend(situation).blocked_by
    if blocked:
        print(f"laggard: repair the fabric before anything is tuned: {', '.join(blocked)}", file=sys.stderr)
        return 1
    subject = nccl_subject(_nccl_settings(arguments, situation), situation)
    document, status = _run(subject, arguments)
    _show(document, arguments)
    return status


def _check(arguments: argparse.Namespace) -> None:
    try:
        import optuna  # noqa: F401
    except ImportError:
        raise UsageError("`laggard tune` needs optuna: pip install 'laggard[tune]'") from None
    least = {"trials": 20, "rounds": 2, "gpus": 1, "deadline": 1, "nodes": 1}
    for name, number in least.items():
        if getattr(arguments, name) < number:
            raise UsageError(f"--{name} {getattr(arguments, name):g}: give {number} or more")
    for name in ("minutes", "gpu_hours", "nics", "local_ranks"):
        value = getattr(arguments, name)
        if value is not None and value <= 0:
            raise UsageError(f"--{name.replace('_', '-')} {value:g}: give more than 0")


def _nccl_settings(arguments: argparse.Namespace, situation: Situation) -> dict[str, Any]:
    if arguments.recording and arguments.messages:
        raise UsageError("--recording and --messages both say what to measure: give one")
    profile = (
        of_recording([arguments.recording])
        if arguments.recording
        else parse_messages(arguments.messages or "all_reduce:64M")
    )
    environ = situation.environment if situation.environment_known else os.environ
    version = ".".join(map(str, situation.nccl_version or TABLE_VERSION))
    return {
        **settings_of(profile),
        "command": arguments.template or "",
        "deadline": arguments.deadline,
        "current": {name: value for name, value in environ.items() if name.startswith("NCCL_")},
        "nccl_version": arguments.nccl_version or version,
        "transport": arguments.transport,
        "nodes": arguments.nodes,
        "local_ranks": arguments.local_ranks,
        "nics": arguments.nics,
        "compute_capability": arguments.compute_capability,
        "nvlink_switch": arguments.nvlink_switch,
        "added": _added(arguments.add),
        "left_out": list(arguments.leave_out),
    }


def _added(words: list[str]) -> dict[str, list[str]]:
    found = {}
    for word in words:
        name, separator, values = word.partition("=")
        if not separator or not values:
            raise UsageError(f"--add {word!r}: give NAME=VALUE,VALUE")
        found[name] = values.split(",")
    return found


def _run(subject: Subject, arguments: argparse.Namespace) -> tuple[TuneDocument, int]:
    path = Path(arguments.study or f"laggard-tune-{subject.kind}.db")
    budget = Budget(arguments.trials, arguments.minutes, arguments.gpu_hours, arguments.gpus)
    plan = Plan(rounds=arguments.rounds, seed=arguments.seed, starts=subject.starts)
    with Study(path, f"laggard tune {subject.kind}", subject.space) as study:
        _check_same(study.campaign, subject.settings, path)
        study.note_campaign({"kind": subject.kind, "settings": subject.settings})
        campaign = Campaign(subject.space, plan, budget, study, path.with_suffix(".trials"))
        ended = campaign.run(subject.measure, lambda each: print(progress_line(each), file=sys.stderr, flush=True))
        document = conclude(subject, ended, study.trials(), str(path))
    return document, 0 if ended.found.finalists or ended.search.board.ranking() else 2


def _check_same(there: Mapping[str, Any], settings: Mapping[str, Any], path: Path) -> None:
    """Raises UsageError where the study's trials measured something else."""
    for name, value in there.get("settings", settings).items():
        if name in ("command", "messages") and settings.get(name) != value:
            raise UsageError(f"{path} has trials of another --{name}: give --study another file")


def _show(document: TuneDocument, arguments: argparse.Namespace) -> None:
    if arguments.html:
        try:
            Path(arguments.html).write_text(render_page(document), encoding="utf-8")
        except OSError as error:
            raise UsageError(f"cannot write {arguments.html}: {error.strerror}") from None
    if arguments.write and document.recommendation.files:
        write_files(document.recommendation.files, Path(arguments.write))
    if arguments.format == "json":
        sys.stdout.buffer.write(wire.encode(document) + b"\n")
    else:
        sys.stdout.write(render(document))
    sys.stdout.flush()
