"""`laggard tune`: measures configurations of NCCL and DeepSpeed, and recommends what is faster, and right."""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, Final

from laggard import wire
from laggard.deepspeed_config import find_problems, is_deepspeed_config
from laggard.kit.environment import ENV_REDUCE_SCATTER
from laggard.kit.errors import UsageError
from laggard.kit.flags import duration
from laggard.kit.parts import Line
from laggard.kit.terminal import show
from laggard.nccl.variable_table import TABLE_VERSION
from laggard.nccl.variables import may_be_shown
from laggard.recommend.advice.recommend import recommend
from laggard.recommend.advice.situation import Situation
from laggard.recommend.command import write_files
from laggard.recommend.inputs import GivenFiles, read_inputs
from laggard.tune.campaign import Budget, Campaign, Subject
from laggard.tune.nccl import HARDWARE, nccl_subject, of_recording, parse_messages, settings_of
from laggard.tune.nccl_variables import TRANSPORTS
from laggard.tune.plan import Plan, Value, changes
from laggard.tune.report import TuneDocument, changes_text, conclude, evidence, progress_line, render_page, tune_parts
from laggard.tune.statistics import Word, compare
from laggard.tune.study import Study, campaign_of
from laggard.tune.training import training_subject, tuned


def _show_documents(documents: Sequence[TuneDocument], arguments: argparse.Namespace) -> None:
    for place, document in enumerate(documents):
        own = f"-{document.kind}" if len(documents) > 1 else ""
        if arguments.html:
            path = Path(arguments.html)
            _write_page(path.with_name(f"{path.stem}{own}{path.suffix}"), document)
        if arguments.write and document.recommendation.files:
            write_files(document.recommendation.files, Path(arguments.write + own))
        if arguments.format == "json":
            sys.stdout.buffer.write(wire.encode(document) + b"\n")
        else:
            show([*([Line("")] if place else []), *tune_parts(document)])
    sys.stdout.flush()


def _write_page(path: Path, document: TuneDocument) -> None:
    try:
        path.write_text(render_page(document), encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from None


_STEPS: Final = ("nccl", "zero", "deepspeed")


def main(arguments: argparse.Namespace) -> int:
    check(arguments)
    situation = read_inputs(arguments.files).situation if arguments.files else Situation()
    blocked = recommend(situation).blocked_by
    if blocked:
        print(f"laggard: repair the fabric before anything is tuned: {', '.join(blocked)}", file=sys.stderr)
        return 1
    with _ended_with_its_trial():
        return _measure(arguments, situation)


@contextlib.contextmanager
def _ended_with_its_trial() -> Iterator[None]:
    """A scheduler that ends the tuner, or a terminal that goes, ends the trial as Ctrl-C does: a trial has a session of
    its own. What ignores a signal, as nohup does SIGHUP, goes on ignoring it."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    taken = [number for number, handler in before.items() if handler is not signal.SIG_IGN]
    for number in taken:
        signal.signal(number, _interrupted)
    try:
        yield
    finally:
        for number in taken:
            signal.signal(number, before[number])


def _interrupted(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _measure(arguments: argparse.Namespace, situation: Situation) -> int:
    if arguments.what == "ab":
        return repeat_final(arguments, situation)
    if arguments.what == "all":
        return _all(arguments, situation)
    settings = settings_for(arguments.what, arguments, situation)
    document, status, _ = run(subject_for(arguments.what, settings, situation), arguments, study_path(arguments))
    _show_documents([document], arguments)
    return status


def _all(arguments: argparse.Namespace, situation: Situation) -> int:
    """Runs the three steps, each from the best of those before it, each with a study of its own. Where the default of
    one does not run, those before it are shown all the same."""
    path, documents = study_path(arguments), []
    environment: dict[str, str] = {}
    configuration: dict[str, Any] | None = None
    status = 0
    # All at once: what is missing is told before hours pass.
    given = {kind: settings_for(kind, arguments, situation) for kind in _STEPS}
    for kind in _STEPS:
        settings = given[kind]
        if kind != "nccl":
            settings |= {"environment": environment, "config": configuration or settings["config"]}
        subject = subject_for(kind, settings, situation)
        document, status, best = run(subject, arguments, path.with_name(f"{path.stem}-{kind}{path.suffix}"))
        documents.append(document)
        if status:
            break
        if kind == "nccl":
            environment = {name: str(value) for name, value in best.items() if value is not None}
        else:
            configuration = tuned(settings, best)
    _show_documents(documents, arguments)
    if arguments.format == "text":
        show([Line(""), Line(f"The gain of each step: {', '.join(map(_gain_text, documents))}.", "name")])
    return status


def _gain_text(document: TuneDocument) -> str:
    items = document.recommendation.items
    ratio = items[0].gain.ratio if items else None
    return f"{document.kind}: {ratio:.3f} times" if ratio else f"{document.kind}: no gain"


_WHAT: Final = ("nccl", "zero", "deepspeed", "all", "ab")
_DEADLINE_SECONDS: Final = 300.0
_YEAR: Final = 365 * 86400.0


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
    parser.add_argument(
        "--minutes",
        type=duration(0.001, _YEAR, "m"),
        metavar="TIME",
        help="most time for all trials: 90 (minutes), 12h",
    )
    parser.add_argument("--gpu-hours", type=float, metavar="H", help="most time of all trials times --gpus")
    parser.add_argument("--gpus", type=int, default=1, metavar="N", help="that a trial holds (default: 1)")
    parser.add_argument(
        "--deadline",
        type=duration(1, _YEAR),
        default=_DEADLINE_SECONDS,
        metavar="TIME",
        help="of a trial (default: 300s)",
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
    import optuna  # noqa: F401 - what lacks it is told before anything is measured

    least = {"trials": 24, "rounds": 4, "gpus": 1, "nodes": 1}
    for name, number in least.items():
        if getattr(arguments, name) < number:
            raise UsageError(f"--{name} {getattr(arguments, name):g}: give {number} or more")
    for name in ("gpu_hours", "nics", "local_ranks"):
        value = getattr(arguments, name)
        if value is not None and value <= 0:
            raise UsageError(f"--{name.replace('_', '-')} {value:g}: give more than 0")


def settings_for(kind: str, arguments: argparse.Namespace, situation: Situation) -> dict[str, Any]:
    return _nccl_settings(arguments, situation) if kind == "nccl" else _training_settings(arguments)


def subject_for(kind: str, settings: Mapping[str, Any], situation: Situation) -> Subject:
    return nccl_subject(settings, situation) if kind == "nccl" else training_subject(kind, settings, situation)


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
        "command": (arguments.nccl_command if arguments.what == "all" else arguments.template) or "",
        "deadline": arguments.deadline,
        "current": {name: value for name, value in environ.items() if name.startswith("NCCL_") and may_be_shown(name)},
        "nccl_version": arguments.nccl_version or version,
        **{name: getattr(arguments, name) for name in HARDWARE},
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


def _training_settings(arguments: argparse.Namespace) -> dict[str, Any]:
    if not arguments.config or not arguments.template:
        raise UsageError("give --config FILE, and --command 'LAUNCHER ... TRAINING ... {config}'")
    document = GivenFiles([arguments.config]).document(arguments.config)
    if not is_deepspeed_config(document):
        raise UsageError(f"{arguments.config} is no DeepSpeed configuration")
    problems = find_problems(document, arguments.ranks or arguments.gpus)
    if problems:
        raise UsageError(f"{arguments.config}: {problems[0]}")
    return {
        "command": arguments.template,
        "config": document,
        "ranks": arguments.ranks or arguments.gpus,
        "deadline": arguments.deadline,
        "parameters": arguments.parameters,
        "gpu_memory": arguments.gpu_memory,
        "bus_bandwidth": arguments.bus_bandwidth,
        "nodes": arguments.nodes,
        "environment": {},
        "reduce_scatter": os.environ.get(ENV_REDUCE_SCATTER, "") not in ("", "0"),
    }


def study_path(arguments: argparse.Namespace) -> Path:
    return Path(arguments.study or f"laggard-tune-{arguments.what}.db")


def run(subject: Subject, arguments: argparse.Namespace, path: Path) -> tuple[TuneDocument, int, dict[str, Value]]:
    """Returns the document, the exit status, and the best configuration: the default where nothing is faster."""
    budget = Budget(arguments.trials, arguments.minutes, arguments.gpu_hours, arguments.gpus)
    plan = Plan(rounds=arguments.rounds, seed=arguments.seed, starts=subject.starts)
    with Study(path, f"laggard tune {subject.kind}", subject.space) as study:
        _check_same(study.campaign, subject.settings, path)
        study.note_campaign({"kind": subject.kind, "settings": subject.settings})
        campaign = Campaign(subject.space, plan, budget, study, path.with_suffix(".trials"))
        ended = campaign.run(subject.measure, lambda each: print(progress_line(each), file=sys.stderr, flush=True))
        best = ended.found.best.configuration if ended.found.best else None
        study.note_campaign({"kind": subject.kind, "settings": subject.settings, "best": best})
        document = conclude(subject, ended, study.trials(), str(path))
    status = 0 if ended.found.finalists or ended.search.board.ranking() else 2
    return document, status, best or subject.space.default


def _check_same(there: Mapping[str, Any], settings: Mapping[str, Any], path: Path) -> None:
    """Raises UsageError where the study's trials measured something else."""
    for name, value in there.get("settings", settings).items():
        if name in ("command", "messages", "config", "environment") and settings.get(name) != value:
            raise UsageError(f"{path} has trials of another --{name}: give --study another file")


_STYLES: Final = {Word.FASTER: "ok", Word.SLOWER: "fail", Word.TIE: "name"}


def repeat_final(arguments: argparse.Namespace, situation: Situation) -> int:
    """Measures a study's best configuration against its default again, in pairs."""
    if not arguments.study:
        raise UsageError("--study names the file of the campaign whose end is to be repeated")
    path = Path(arguments.study)
    campaign = campaign_of(path)
    if not campaign.get("best"):
        raise UsageError(f"{path} has no configuration that is faster than the default: there is nothing to compare")
    subject = subject_for(campaign["kind"], campaign["settings"], situation)
    times: tuple[list[float], list[float]] = ([], [])
    for turn in range(arguments.rounds):
        pair = list(zip((subject.space.default, campaign["best"]), times, strict=True))
        for place, (configuration, own) in enumerate(pair if turn % 2 == 0 else pair[::-1]):
            folder = path.with_suffix(".trials") / f"ab-{os.getpid()}-{turn}-{place}"
            folder.mkdir(parents=True, exist_ok=True)
            outcome = subject.measure(configuration, folder)
            if outcome.seconds is None:
                raise UsageError(f"round {turn + 1} failed, {outcome.status.value}: {outcome.detail}")
            own.append(outcome.seconds)
    found = compare(*times)
    shown = changes_text(changes(subject.space, campaign["best"]))
    if arguments.format == "json":
        sys.stdout.buffer.write(wire.encode({"schema": "laggard.tune_ab/1", **found._asdict()}) + b"\n")
    else:
        show([Line(f"{shown}: {found.word.value}; {evidence(found)}", _STYLES.get(found.word, "unknown"))])
    return 0
