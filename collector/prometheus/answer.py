"""Prometheus' JSON as arrays, read as a stream: the answers about large jobs are some hundred megabytes.

An answer is cut where a series begins, `{"metric":`. Inside of a JSON string its quotes would be escaped, so that no
label can hold it. The numbers of all series in a part are then read at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

MAX_SERIES = 1 << 21
MAX_BYTES = 4 << 30
MAX_SERIES_BYTES = 1 << 20
"""The most bytes of one series. An answer in which no series begins for so long is none of Prometheus'."""

_PARTIAL = "isPartial: a storage node of VictoriaMetrics did not answer"

_BEGIN = b'{"metric":'
_VALUES = b',"values":['
_VALUE = b',"value":['
_NO_NUMBER = b'[]{}"'


class Labels(msgspec.Struct, frozen=True):
    """The labels that laggard reads; others are passed over."""

    job_id: str = ""
    user: str = ""
    rank: str = ""
    hostname: str = ""
    gpu: str = ""
    world_size: str = ""
    attempt: str = ""
    instance: str = ""
    phase: str = ""
    group: str = ""
    cluster: str = ""
    code: str = ""
    severity: str = ""
    device: str = ""


class Series(NamedTuple):
    """N series: their labels; how many samples each has; all times (Unix seconds) and values, one series after the
    other."""

    labels: list[Labels]
    counts: NDArray[np.int64]
    times: NDArray[np.float64]
    values: NDArray[np.float64]


class AnswerError(Exception):
    """An answer that is not Prometheus', or an error that Prometheus reports, in one line."""


class Answer:
    """Reads one answer. After the last part of series() `warnings` says what Prometheus, or a Thanos or a cluster of
    VictoriaMetrics in front of several, left out."""

    def __init__(self) -> None:
        self.warnings: tuple[str, ...] = ()

    def series(self, chunks: Iterable[bytes]) -> Iterator[Series]:
        """Yields the series as they come. Raises AnswerError."""
        held, head, total, count = b"", b"", 0, 0
        for chunk in chunks:
            total += len(chunk)
            held += chunk
            last = held.rfind(_BEGIN)
            if last <= 0 and len(held) > MAX_SERIES_BYTES or total > MAX_BYTES:
                raise AnswerError("the answer is not one of Prometheus', or larger than any that was asked for")
            if last > 0:
                first, *parts = held[:last].split(_BEGIN)
                head, held = head or first, held[last:]
                if parts:
                    count += len(parts)
                    yield _parsed(parts)
            if count > MAX_SERIES:
                raise AnswerError(f"there are more than {MAX_SERIES} series: choose one job with --job")
        begin, *rest = held.split(_BEGIN)
        tail = begin
        if rest:
            end, tail = _end_of(rest[-1])
            rest[-1] = rest[-1][:end]
            yield _parsed(rest)
        self._read_frame((head or begin) + b"]}" + tail if rest else held)

    def _read_frame(self, text: bytes) -> None:
        """Reads what is around the series: the status and the warnings."""
        try:
            frame = msgspec.json.decode(_framed(text), type=_Frame)
        except (msgspec.DecodeError, UnicodeDecodeError):
            raise AnswerError("the answer is cut off, or not the JSON of Prometheus (a login page?)") from None
        if frame.status != "success":
            raise AnswerError(f"Prometheus reports {frame.errorType or 'an error'}: {frame.error}")
        self.warnings = (*frame.warnings, *([_PARTIAL] if frame.isPartial else []))


class _Frame(msgspec.Struct, frozen=True):
    status: str
    errorType: str = ""
    error: str = ""
    warnings: tuple[str, ...] = ()
    isPartial: bool = False
    """VictoriaMetrics' cluster says so where a vmstorage did not answer (its documentation, "Cluster availability")."""


def _framed(text: bytes) -> bytes:
    """`text` without the place where the series were: the head up to `"result":[` and what follows the last series."""
    head, separator, tail = text.partition(b"]}")
    return head + b"]}" + tail.lstrip() if separator and head.endswith(b'"result":[') else text


def _end_of(part: bytes) -> tuple[int, bytes]:
    """The place where the last series ends in `part`, and the text that follows the list of series."""
    for begin, end in ((_VALUES, b"]]}"), (_VALUE, b"]}")):
        at = part.find(begin)
        if at >= 0:
            close = part.find(end, at)
            if close < 0:
                break
            after = part[close + len(end) :].lstrip()
            return close + len(end), after.removeprefix(b"]").lstrip().removeprefix(b"}")
    raise AnswerError("the answer is cut off")


_decode_labels = msgspec.json.Decoder(Labels).decode


def _parsed(parts: list[bytes]) -> Series:
    cut = [part.partition(_VALUES) for part in parts]
    end = b"]]},"
    if not cut[0][1]:
        cut, end = [part.partition(_VALUE) for part in parts], b"]},"
    # A series ends so where another one follows; the last, and those with histograms, are looked at more closely.
    texts = [after[: -len(end)] if after.endswith(end) else _cut_off(after, end[:-2]) for _, _, after in cut]
    try:
        labels = [_decode_labels(before) for before, _, _ in cut]
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise AnswerError(f"a series has labels that cannot be read: {error}") from None
    counts = np.array([text.count(b'"') for text in texts], np.int64) // 2
    found = _numbers(b",".join(texts).translate(None, _NO_NUMBER), 2 * int(counts.sum()))
    return Series(labels, counts, found[0::2], found[1::2])


def _cut_off(after: bytes, end: bytes) -> bytes:
    """The samples without what follows them."""
    numbers, closed, _ = after.partition(end)
    if not closed:
        raise AnswerError("the answer is cut off, or has a series without samples")
    return numbers


def _numbers(text: bytes, count: int) -> NDArray[np.float64]:
    """The numbers between the commas, which have to be `count`. numpy stops at what is none, and only warns of it: one
    more number behind the text shows whether it came to the end. (Filters of warnings are the whole process'.)"""
    try:
        found = np.fromstring(text.decode("ascii") + (",0" if count else "0"), dtype=np.float64, sep=",")
    except (DeprecationWarning, ValueError, UnicodeDecodeError):
        found = np.empty(0)
    if len(found) != count + 1:
        raise AnswerError("the answer has samples that are no numbers")
    return found[:-1]
