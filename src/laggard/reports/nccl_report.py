"""`laggard report nccl OLD NEW`: what changed between two runs, by NCCL's logs."""

from __future__ import annotations

import codecs
import os
import stat
from collections.abc import Iterator
from typing import Final

from laggard.errors import UsageError
from laggard.nccl.comparison import LogSummary, compare, moved_defaults, summarise
from laggard.nccl.log.reader import NcclLogReader
from laggard.reports.documents import DefaultChange, LogChange, NcclComparison

MAX_BYTES: Final = 1 << 30
_PIECE: Final = 1 << 20


def nccl_document(old_path: str, new_path: str) -> NcclComparison:
    old, new = _read(old_path), _read(new_path)
    return NcclComparison(
        tuple(LogChange(*change) for change in compare(old, new)),
        tuple(
            DefaultChange(each.variable, ".".join(map(str, each.since)), each.before, each.after)
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
    if not summary.connections:
        yield f"{path} has no channels: log with NCCL_DEBUG=INFO from the start"
    if not summary.choices:
        yield f"{path} has no choices of algorithms: log with NCCL_DEBUG_SUBSYS=INIT,ENV,NET,TUNING"
