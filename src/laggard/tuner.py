"""`laggard tune table compile|lint|simulate`: NCCL's tuner tables from measurements, checked, and as the plugin applies
them.

Measured are nccl-tests' output and rings, each labelled with its setting, or a CSV table that has the setting in its
columns.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import stat
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from laggard import wire
from laggard.kit.errors import UsageError
from laggard.kit.parts import Line, Part, Table, ascii_parts
from laggard.kit.terminal import show
from laggard.kit.words import counted, printable_line
from laggard.nccl.tests_output import is_tests_output, parse_tests_output
from laggard.nccl.tuner import (
    ALGORITHMS,
    COLLECTIVES,
    PROTOCOLS,
    Measurement,
    Message,
    TunerLine,
    TunerRow,
    build_rows,
    choose,
    choose_bands,
    find_line_problems,
    find_one_channel,
    possible_cells,
    read_lines,
    render_row,
    rows_of,
)
from laggard.rings.document import Ring

MAX_BYTES: Final = 64 << 20
_SETTING: Final = "ALGORITHM/PROTOCOL/CHANNELS=FILE, such as tree/ll128/8=out.log"


class Measured(NamedTuple):
    """The measurements of one file, and the communicator that it names; 0: it does not."""

    measurements: tuple[Measurement, ...]
    nodes: int
    ranks: int


def read_measurements(word: str) -> Measured:
    """Reads one argument: `FILE.csv`, or ALGORITHM/PROTOCOL/CHANNELS=FILE. Raises UsageError for what is neither."""
    label, separator, path = word.partition("=")
    if not separator or "/" not in label:
        return _from_csv(word, read_file(word))
    algorithm, protocol, channels = _setting(label, word)
    text = read_file(path)
    if text.lstrip().startswith("{"):
        return _from_ring(path, text, algorithm, protocol, channels)
    if not is_tests_output(text):
        raise UsageError(f"{path} is neither nccl-tests' output nor a laggard.ring/1 document")
    output = parse_tests_output(text)
    if output.operation not in COLLECTIVES:
        raise UsageError(f"{path} does not say which collective was tested: keep the test's first lines")
    if any(row.wrong is None for row in output.rows):
        raise UsageError(f"{path} was measured without checking results: run nccl-tests with -c 1")
    found = tuple(
        Measurement(output.operation, row.size_bytes, algorithm, protocol, channels, row.seconds, row.wrong or 0)
        for row in output.rows
        if row.size_bytes
    )
    return Measured(found, output.nodes, output.ranks)


def read_file(path: str) -> str:
    """Returns a text file. Raises UsageError for what is none, or is too large."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise UsageError(f"{path} is no regular file")
            data = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from None
    if len(data) > MAX_BYTES:
        raise UsageError(f"{path} is larger than {MAX_BYTES >> 20} MiB")
    return data.decode("utf-8-sig", "replace")


def _setting(label: str, word: str) -> tuple[str, str, int]:
    parts = label.lower().split("/")
    if len(parts) != 3 or parts[0] not in ALGORITHMS or parts[1] not in PROTOCOLS or not parts[2].isdecimal():
        raise UsageError(f"{word!r}: give {_SETTING}; algorithms: {', '.join(ALGORITHMS)}")
    channels = int(parts[2][:9])
    if not 0 <= channels <= 64:
        raise UsageError(f"{word!r}: NCCL has 1 to 64 channels, and 0 for its own choice")
    return parts[0], parts[1], channels


def _from_ring(path: str, text: str, algorithm: str, protocol: str, channels: int) -> Measured:
    try:
        ring = wire.decode(text.encode(), Ring)
    except wire.WireError as error:
        raise UsageError(f"{path} is no laggard.ring/1: {error}") from None
    found = tuple(
        Measurement(op, each.size_bytes, algorithm, protocol, channels, each.time_seconds, each.wrong)
        for each in ring.results
        if (op := each.op.replace("_", "")) in COLLECTIVES
    )
    return Measured(found, len(ring.nodes), ring.world_size)


def _from_csv(path: str, text: str) -> Measured:
    """Reads the columns of NCCL's own optimize_config.py: collective, size_bytes, algorithm, protocol, channels, nodes,
    ranks, latency_us, and `wrong`, which that lacks."""
    reader = csv.DictReader(line for line in text.splitlines() if line.strip() and not line.startswith("#"))
    needed = {"collective", "size_bytes", "algorithm", "protocol", "channels", "latency_us"}
    if not needed <= set(reader.fieldnames or ()):
        missing = ", ".join(sorted(needed - set(reader.fieldnames or ())))
        raise UsageError(f"{path} lacks the columns {missing}: give a CSV table of settings, or {_SETTING}")
    found, nodes, ranks = [], 0, 0
    for row in reader:
        found.append(_csv_row(path, row))
        nodes, ranks = max(nodes, _whole(row.get("nodes"))), max(ranks, _whole(row.get("ranks")))
    return Measured(tuple(found), nodes, ranks)


def _csv_row(path: str, row: dict[str, str]) -> Measurement:
    words = {name: (row.get(name) or "").strip().lower() for name in ("collective", "algorithm", "protocol")}
    known = {"collective": COLLECTIVES, "algorithm": ALGORITHMS, "protocol": PROTOCOLS}
    shown = printable_line(",".join(str(value) for value in row.values()), 100)
    for name, word in words.items():
        if word not in known[name]:
            raise UsageError(f"{path} ({shown}): {name} is {word[:40]!r}: give one of {', '.join(known[name])}")
    try:
        size, channels, micros = int(row["size_bytes"]), int(row["channels"]), float(row["latency_us"])
        wrong = int(row.get("wrong") or 0)
    except (ValueError, TypeError):
        raise UsageError(f"{path} ({shown}): size_bytes, channels, latency_us and wrong must be numbers") from None
    if size <= 0 or not 0 <= channels <= 64 or not 0 < micros < float("inf"):
        raise UsageError(f"{path} ({shown}): size and time must be above 0, channels 0 to 64")
    return Measurement(words["collective"], size, words["algorithm"], words["protocol"], channels, micros * 1e-6, wrong)


def _whole(text: str | None) -> int:
    return int(text) if text and text.strip().isdecimal() else 0


TUNER_SCHEMA: Final = "laggard.tuner/1"
_MAX_MESSAGE_BYTES: Final = 8 << 30


def configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = (
        "compile: FILES are ALGORITHM/PROTOCOL/CHANNELS=OUTPUT with nccl-tests' output or a laggard.ring/1, or CSV "
        "tables with the setting in columns; the table goes to standard output. lint: what is wrong with tables. "
        "simulate: which row each collective and size gets. Exit status: 0 nothing wrong, 1 something is, 64 wrong "
        "usage."
    )
    parser.add_argument("action", choices=("compile", "lint", "simulate"))
    parser.add_argument("files", nargs="+", metavar="FILE")
    parser.add_argument("--nodes", type=int, metavar="N", help="of the communicator; default: what the files say")
    parser.add_argument("--ranks", type=int, metavar="N", help="of the communicator; default: what the files say")
    parser.add_argument("--format", choices=("text", "json"), default="text", help="json: one laggard.tuner/1")


def main(arguments: argparse.Namespace) -> int:
    if arguments.action == "compile":
        return _compile(arguments)
    tables = [(path, _read_table(path)) for path in arguments.files]
    if arguments.action == "simulate":
        rows = [_simulated(path, rows_of(lines), arguments.nodes or 1, arguments.ranks or 8) for path, lines in tables]
        return _finish(arguments, {"tables": rows}, [part for table in rows for part in _simulated_parts(table)], False)
    found = [
        {
            "path": path,
            "one_channel": [each._asdict() for each in find_one_channel(lines)],
            "problems": [each._asdict() for each in find_line_problems(lines)],
        }
        for path, lines in tables
    ]
    wrong = any(table["one_channel"] for table in found)
    return _finish(arguments, {"tables": found}, [part for table in found for part in _lint_parts(table)], wrong)


def _read_table(path: str) -> tuple[TunerLine, ...]:
    """Raises UsageError for a file in which the plugin would find no row."""
    lines = read_lines(read_file(path))
    if not rows_of(lines):
        raise UsageError(
            f"{path} has no row of a tuner table: "
            "collective_type,min_bytes,max_bytes,algorithm,protocol,channels,nNodes,nRanks"
        )
    return lines


def _finish(arguments: argparse.Namespace, document: dict[str, Any], parts: Sequence[Part], wrong: bool) -> int:
    if arguments.format == "json":
        print(json.dumps({"schema": TUNER_SCHEMA, **document}))
    else:
        show(ascii_parts(parts))
    return int(wrong)


def _compile(arguments: argparse.Namespace) -> int:
    files = [read_measurements(word) for word in arguments.files]
    nodes = _one_number("nodes", arguments.nodes, [file.nodes for file in files])
    ranks = _one_number("ranks", arguments.ranks, [file.ranks for file in files])
    measurements = [each for file in files for each in file.measurements]
    bands = choose_bands(measurements)
    if not bands:
        raise UsageError("no setting has right results at any size: there is nothing to compile")
    wrong = sum(each.wrong > 0 for each in measurements)
    made_from = counted(len(measurements), "measurement")
    lines = [
        f"# NCCL tuner table by laggard from {made_from}, for {nodes} nodes and {ranks} ranks.",
        "# collective_type,min_bytes,max_bytes,algorithm,protocol,channels,nNodes,nRanks,numPipeOps,regBuff",
        "# 0 channels: NCCL's own number.",
        "# Use: NCCL_TUNER_PLUGIN=<the example plugin> NCCL_TUNER_CONFIG_FILE=<this file>",
        *([f"# {counted(wrong, 'measurement')} with wrong results left out."] if wrong else []),
        *(render_row(row) for row in build_rows({name: tuple(own) for name, own in bands.items()}, nodes, ranks)),
    ]
    document = {
        "nodes": nodes,
        "ranks": ranks,
        "left_out_wrong": wrong,
        "table": "".join(f"{line}\n" for line in lines),
    }
    parts = [Line(line, "aside" if line.startswith("#") else "plain", whole=True) for line in lines]
    return _finish(arguments, document, parts, False)


def _one_number(name: str, given: int | None, found: Sequence[int]) -> int:
    if given is not None:
        if given < 1:
            raise UsageError(f"--{name} {given}: give a number from 1")
        return given
    known = {number for number in found if number}
    if len(known) != 1:
        seen = f"the files say {', '.join(map(str, sorted(known)))}" if known else "the files do not say"
        raise UsageError(f"{seen} how many {name} were measured: give --{name}")
    return known.pop()


def _simulated(path: str, rows: Sequence[TunerRow], nodes: int, ranks: int) -> dict[str, Any]:
    found = []
    for collective in COLLECTIVES:
        size = 1024
        while size <= _MAX_MESSAGE_BYTES:
            choice = choose(rows, Message(collective, size, nodes, ranks), possible_cells(collective, nodes, ranks))
            found.append(
                {
                    "collective": collective,
                    "size_bytes": size,
                    "line": choice.row.line if choice.row else None,
                    "algorithm": choice.row.algorithm if choice.row else None,
                    "protocol": choice.row.protocol if choice.row else None,
                    "channels": choice.channels,
                    "one_channel_by_accident": choice.one_channel_by_accident,
                }
            )
            size *= 4
    return {"path": path, "nodes": nodes, "ranks": ranks, "messages": found}


def _simulated_parts(table: dict[str, Any]) -> list[Part]:
    rows = [_simulated_row(each) for each in table["messages"]]
    names = ("collective", "bytes", "setting", "channels", "row")
    return [
        Line(f"{table['path']}: {counted(table['nodes'], 'node')}, {counted(table['ranks'], 'rank')}", "name"),
        Table(names, tuple(rows), right=frozenset({"bytes"})),
    ]


def _simulated_row(each: Mapping[str, Any]) -> tuple[str, ...]:
    setting = f"{each['algorithm']}/{each['protocol']}" if each["line"] else "NCCL's choice"
    channels = "NCCL's channels" if each["channels"] == 0 else counted(each["channels"], "channel")
    by_accident = " (by accident)" if each["one_channel_by_accident"] else ""
    where = f"line {each['line']}" if each["line"] else "no row"
    return each["collective"], str(each["size_bytes"]), setting, channels + by_accident, where


def _lint_parts(table: dict[str, Any]) -> list[Part]:
    """The answer, and what it is about: red is what makes messages slow, which is also the exit status."""
    style = "fail" if table["one_channel"] else "unknown" if table["problems"] else "ok"
    first, *others = _lint_lines(table)
    return [Line(first, style), *map(Line, others)]


def _lint_lines(table: dict[str, Any]) -> list[str]:
    if not table["one_channel"] and not table["problems"]:
        return [f"{table['path']}: every message has a row, and every row means what it says."]
    count = len(table["one_channel"])
    first = f"{counted(count, 'range')} of sizes on one channel by accident" if count else "no message on one channel"
    lines = [f"{table['path']}: {first}, {counted(len(table['problems']), 'line')} to look at."]
    for each in table["one_channel"]:
        cause = "no row" if each["line"] is None else f"line {each['line']} has channels -1"
        shape = f"{counted(each['nodes'], 'node')} and {counted(each['ranks'], 'rank')}"
        lines.append(f"  {each['collective']} of {each['min_bytes']} to {each['max_bytes']} B on {shape}: {cause}")
    lines += [f"  line {each['line']}: {each['text']}" for each in table["problems"]]
    return lines + ["  `laggard tune table compile` makes a table that has a row for every message."]
