"""`laggard report campaign|portability|scaling|table FILE.csv`: what a table of measured runs says."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from laggard import wire
from laggard.errors import UsageError
from laggard.recommend.runs import TIE_RATIO
from laggard.reports.campaign_report import campaign_document
from laggard.reports.documents import ModelDocument
from laggard.reports.model_report import ModelSettings, model_document
from laggard.reports.nccl_report import nccl_document
from laggard.reports.other_reports import portability_document, scaling_document, table_document
from laggard.reports.plots import campaign_charts, portability_charts, scaling_charts
from laggard.reports.svg import Chart, render_charts
from laggard.reports.table import Table, read_table
from laggard.reports.text import (
    campaign_parts,
    model_parts,
    nccl_parts,
    portability_parts,
    scaling_parts,
    table_parts,
)
from laggard.terminal.output import show
from laggard.terminal.parts import Part
from laggard.text.ascii_parts import ascii_parts


class Report(NamedTuple):
    make: Callable[[Table, argparse.Namespace], Any]
    parts: Callable[[Any], Iterable[Part]]
    charts: Callable[[Table, Any], list[Chart]] | None = None


def _model(table: Table, arguments: argparse.Namespace) -> ModelDocument:
    if arguments.gpu_memory and not (arguments.parameters and arguments.gpus):
        raise UsageError("--gpu-memory needs --parameters and --gpus: what a GPU holds follows from them")
    return model_document(
        table,
        ModelSettings(
            arguments.parameters,
            arguments.gpus,
            arguments.nodes,
            arguments.bus_bandwidth,
            arguments.gpu_memory,
            arguments.resident,
            arguments.gradient_bytes,
        ),
    )


REPORTS = {
    "campaign": Report(lambda table, flags: campaign_document(table, flags.tie), campaign_parts, campaign_charts),
    "portability": Report(
        lambda table, flags: portability_document(table, flags.tie), portability_parts, portability_charts
    ),
    "scaling": Report(lambda table, flags: scaling_document(table), scaling_parts, scaling_charts),
    "table": Report(lambda table, flags: table_document(table), table_parts),
    "model": Report(_model, model_parts),
}


def configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = (
        "campaign: columns platform,stage,micro_batch,grad_accum,samples_per_second (OOM: out of memory); the best of "
        "each platform, ties, outliers, where one ZeRO stage overtakes another. portability: the same columns; "
        "configurations by their column config, else by stage and accumulation. scaling: nodes,gpus,samples_per_second "
        "and micro_batch. table: any numbers; rows that break what holds for the others. model: the time of a step by "
        "its parts, and the memory, fitted to the columns of campaign. nccl: what changed between two logs of "
        "NCCL. Exit status: 0 done, 64 a table that cannot be read."
    )
    parser.add_argument("kind", choices=(*REPORTS, "nccl"), help="what the table is asked")
    parser.add_argument(
        "files",
        metavar="FILE",
        nargs="+",
        help="a CSV table with a row for each run; - is standard input; nccl: two logs",
    )
    parser.add_argument("--plot", metavar="FILE", help="also draw it there, as SVG")
    parser.add_argument(
        "--tie",
        metavar="SHARE",
        type=_share,
        default=TIE_RATIO,
        help="speeds that differ by less are as fast as each other (default: %(default)s)",
    )
    model = parser.add_argument_group("of `report model`, in bytes and bytes per second")
    model.add_argument("--parameters", type=_positive, metavar="N", help="of the model, such as 8e9")
    model.add_argument("--gpus", type=_count, metavar="N", help="that share the states: the data-parallel ranks")
    model.add_argument("--nodes", type=_count, metavar="N", default=1, help="on which they are (default: 1)")
    model.add_argument("--bus-bandwidth", type=_positive, metavar="B", help="busbw of nccl-tests, such as 184e9")
    model.add_argument("--gpu-memory", type=_positive, metavar="B", help="of one GPU, such as 80e9")
    model.add_argument("--resident", type=float, metavar="B", default=0.0, help="held besides, as a teacher's weights")
    model.add_argument("--gradient-bytes", type=_positive, metavar="B", default=2.0, help="of one gradient: 2, or 4")
    parser.add_argument("--format", choices=("text", "json"), default="text")


def main(arguments: argparse.Namespace) -> int:
    if arguments.kind == "nccl":
        return _compare_logs(arguments)
    report = REPORTS[arguments.kind]
    if arguments.plot and report.charts is None:
        raise UsageError(f"`report {arguments.kind}` draws nothing: leave out --plot")
    if len(arguments.files) > 1:
        raise UsageError(f"`report {arguments.kind}` reads one table: {arguments.files[1]} is one too many")
    path = arguments.files[0]
    table = read_table(path)
    document = report.make(table, arguments)
    if arguments.plot and report.charts:
        _write_plot(arguments.plot, path, render_charts(report.charts(table, document)))
    return _show(arguments, document, report.parts)


def _compare_logs(arguments: argparse.Namespace) -> int:
    if len(arguments.files) != 2 or arguments.plot:
        raise UsageError("`report nccl` compares two logs and draws nothing: give OLD.log NEW.log")
    return _show(arguments, nccl_document(*arguments.files), nccl_parts)


def _show(arguments: argparse.Namespace, document: Any, parts: Callable[[Any], Iterable[Part]]) -> int:
    if arguments.format == "json":
        sys.stdout.buffer.write(wire.encode(document) + b"\n")
    else:
        show(ascii_parts(parts(document)))
    sys.stdout.flush()
    return 0


def _positive(text: str) -> float:
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError("give a number above 0")
    return value


def _count(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("give a number from 1")
    return value


def _share(text: str) -> float:
    value = float(text)
    if not 0 <= value < 1:
        raise argparse.ArgumentTypeError("give a share from 0 to 1, such as 0.01")
    return value


def _write_plot(path: str, table_path: str, text: str) -> None:
    """Raises UsageError where the file cannot be written, or is the table itself."""
    try:
        if os.path.exists(path) and os.path.exists(table_path) and os.path.samefile(path, table_path):
            raise UsageError(f"--plot {path} is the table itself: name another file")
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from None
