"""The output of `laggard tune` in the end, printed and written."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from laggard import wire
from laggard.errors import UsageError
from laggard.recommend.command import write_files
from laggard.terminal.output import show as show_parts
from laggard.terminal.parts import Line
from laggard.tune.report.documents import TuneDocument
from laggard.tune.report.page import render_page
from laggard.tune.report.text import tune_parts


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
