"""Measured settings of NCCL from files: nccl-tests' output and rings, each labelled with its setting, or a CSV table
that has the setting in its columns."""

from __future__ import annotations

import csv
import os
import stat
from typing import Final, NamedTuple

from laggard import wire
from laggard.errors import UsageError
from laggard.nccl.tests_output import is_tests_output, parse_tests_output
from laggard.nccl.tuner.build import Measurement
from laggard.nccl.tuner.table import ALGORITHMS, COLLECTIVES, PROTOCOLS
from laggard.rings.document import Ring
from laggard.text.words import printable_line

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
