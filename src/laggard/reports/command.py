"""`laggard tune report campaign|portability|scaling|table FILE.csv`: what a table of measured runs says, with charts.
`laggard tune report nccl OLD NEW` says what changed between two runs, by NCCL's logs."""

from __future__ import annotations

import argparse
import codecs
import os
import stat
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, NamedTuple

from laggard import wire
from laggard.kit.errors import UsageError
from laggard.kit.parts import Part, ascii_parts
from laggard.kit.terminal import show
from laggard.nccl.comparison import TRANSPORTS, LogSummary, compare, moved_defaults, summarise
from laggard.nccl.log.reader import NcclLogReader
from laggard.reports import documents
from laggard.reports.campaign_report import campaign_document, portability_document, scaling_document, table_document
from laggard.reports.model_report import ModelSettings, model_document
from laggard.reports.runs import ALARM_RATIO, TIE_RATIO
from laggard.reports.svg import Chart, Series, render_charts
from laggard.reports.table import Table, read_table
from laggard.reports.text import campaign_parts, model_parts, nccl_parts, portability_parts, scaling_parts, table_parts

MAX_BYTES: Final = 1 << 30
_PIECE: Final = 1 << 20


def nccl_document(old_path: str, new_path: str) -> documents.NcclComparison:
    old, new = _read(old_path), _read(new_path)
    return documents.NcclComparison(
        tuple(documents.LogChange(*change) for change in compare(old, new)),
        tuple(
            documents.DefaultChange(each.variable, ".".join(map(str, each.since)), each.before, each.after)
            for each in moved_defaults(old, new)
        ),
        tuple(_gaps(old_path, old)) + tuple(_gaps(new_path, new)),
    )


def _read(path: str) -> LogSummary:
    """Raises UsageError for what is no log of NCCL."""
    reader = NcclLogReader()
    kept: list[str] = []
    for piece in _pieces(path):
        reader.feed(piece)
        kept += [line for line in piece.split("\n") if "channels" in line or "Bytes -> Algo" in line][:20_000]
        del kept[200_000:]
    log = reader.log()
    if not log.lines:
        raise UsageError(f"{path} has no line of NCCL: log with NCCL_DEBUG=INFO, of both runs alike")
    return summarise(log, kept)


def _pieces(path: str) -> Iterator[str]:
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(descriptor, "rb") as file:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise UsageError(f"{path} is no regular file")
            if status.st_size > MAX_BYTES:
                raise UsageError(f"{path} is larger than {MAX_BYTES >> 30} GiB: give the log of one run's start")
            while data := file.read(_PIECE):
                yield decoder.decode(data)
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror or error}") from None


def _gaps(path: str, summary: LogSummary) -> Iterator[str]:
    if not summary.versions:
        yield f"{path} does not have NCCL's version: which defaults moved is not known"
    if not summary.facts[TRANSPORTS]:
        yield f"{path} has no channels: log with NCCL_DEBUG=INFO from the start"
    if not summary.choices:
        yield f"{path} has no choices of algorithms: log with NCCL_DEBUG_SUBSYS=INIT,ENV,NET,TUNING"


Points = list[tuple[float, float]]


def campaign_charts(table: Table, document: documents.CampaignDocument) -> list[Chart]:
    """Returns a chart a platform: speed over accumulation, a line a stage, with a ring around each outlier."""
    platforms: dict[str, dict[str, Points]] = {}
    for row in (row.values() for row in table.rows):
        if isinstance(row["samples_per_second"], (int, float)):
            series = platforms.setdefault(str(row["platform"]), {}).setdefault(f"stage {row['stage']}", [])
            series.append(_point(row))
    outliers: dict[str, Points] = {}
    for outlier in document.outliers:
        outliers.setdefault(str(outlier.row["platform"]), []).append(_point(outlier.row))
    return [
        Chart(platform, "accumulated micro-steps", "samples/s", _series(own), tuple(outliers.get(platform, ())))
        for platform, own in platforms.items()
    ]


def portability_charts(table: Table, document: documents.PortabilityDocument) -> list[Chart]:
    """Returns one chart: the value of each configuration, the most portable first, and its efficiencies."""
    series: dict[str, Points] = {}
    for place, row in enumerate(document.portability, 1):
        if row.value is not None:
            series.setdefault("portability", []).append((place, row.value))
        for platform, efficiency in row.efficiencies.items():
            series.setdefault(platform, []).append((place, efficiency))
    return [Chart("Performance portability", "configuration, by rank", "efficiency", _series(series))]


def scaling_charts(table: Table, document: documents.ScalingDocument) -> list[Chart]:
    """Returns the scaling factors over the nodes, and Z-gain where micro-batches are given."""
    factors: dict[str, Points] = {}
    gains: dict[str, Points] = {}
    for row in document.scaling:
        if row.scaling_factor is not None:
            factors.setdefault(row.group or "scaling factor", []).append((row.nodes, row.scaling_factor))
        if row.z_gain is not None:
            gains.setdefault(row.group or "Z-gain", []).append((row.nodes, max(0.0, row.z_gain)))
    charts = [Chart("Throughput per GPU, to the fewest nodes", "nodes", "factor", _series(factors), (), ALARM_RATIO)]
    return charts + ([Chart("What ZeRO adds to the micro-batch", "nodes", "share", _series(gains))] if gains else [])


def _point(row: dict[str, Any]) -> tuple[float, float]:
    return float(row["grad_accum"]), float(row["samples_per_second"])


def _series(points: dict[str, Points]) -> tuple[Series, ...]:
    return tuple(Series(name, tuple(own)) for name, own in sorted(points.items()))


class Report(NamedTuple):
    make: Callable[[Table, argparse.Namespace], Any]
    parts: Callable[[Any], Iterable[Part]]
    charts: Callable[[Table, Any], list[Chart]] | None = None


def _model(table: Table, arguments: argparse.Namespace) -> documents.ModelDocument:
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
