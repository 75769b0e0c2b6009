"""`laggard tune`: measures configurations of NCCL and DeepSpeed, and recommends what is faster, and right."""

from __future__ import annotations

import argparse
import contextlib
import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, Final

from laggard import wire
from laggard.kit.errors import UsageError
from laggard.kit.parts import Line
from laggard.kit.terminal import show as show_parts
from laggard.recommend.advice.recommend import recommend
from laggard.recommend.advice.situation import Situation
from laggard.recommend.command import write_files
from laggard.recommend.inputs import read_inputs
from laggard.tune.cli import check, configure, repeat_final, run, settings_for, study_path, subject_for
from laggard.tune.report import TuneDocument, render_page, tune_parts
from laggard.tune.training import tuned


def show(documents: Sequence[TuneDocument], arguments: argparse.Namespace) -> None:
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
            show_parts([*([Line("")] if place else []), *tune_parts(document)])
    sys.stdout.flush()


def _write_page(path: Path, document: TuneDocument) -> None:
    try:
        path.write_text(render_page(document), encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from None


__all__ = ["configure", "main"]

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
    show([document], arguments)
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
    show(documents, arguments)
    if arguments.format == "text":
        show_parts([Line(""), Line(f"The gain of each step: {', '.join(map(_gain_text, documents))}.", "name")])
    return status


def _gain_text(document: TuneDocument) -> str:
    items = document.recommendation.items
    ratio = items[0].gain.ratio if items else None
    return f"{document.kind}: {ratio:.3f} times" if ratio else f"{document.kind}: no gain"
