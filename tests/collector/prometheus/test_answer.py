"""Prometheus' JSON in parts cut anywhere, with hostile labels, and answers that are none."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from laggard.collector.prometheus.client import MAX_SERIES_BYTES, Answer, AnswerError


def body(series: list[dict[str, Any]], kind: str = "matrix", **more: Any) -> bytes:
    document = {"status": "success", "data": {"resultType": kind, "result": series}, **more}
    return json.dumps(document, separators=(",", ":")).encode()


def read(data: bytes, size: int = 1 << 20) -> tuple[list[tuple[str, list[float], list[float]]], tuple[str, ...]]:
    answer, found = Answer(), []

    def chunks() -> Iterator[bytes]:
        for at in range(0, len(data), size):
            yield data[at : at + size]

    for part in answer.series(chunks()):
        at = 0
        for labels, count in zip(part.labels, part.counts, strict=True):
            found.append((labels.rank, part.times[at : at + count].tolist(), part.values[at : at + count].tolist()))
            at += count
    return found, answer.warnings


HOSTILE = '{"metric":{"rank":"9"},"values":[[1,"2"]]},"value":[1,"2"]]}\\\u2028'
SERIES: list[dict[str, Any]] = [
    {"metric": {"rank": "0", "job_id": HOSTILE}, "values": [[1.5, "1"], [2.5, "1e3"]]},
    {"metric": {}, "values": [[1.5, "NaN"]]},
    {"metric": {"rank": "7", "values": "x", "value": "y"}, "values": [[1.5, "-0.5"], [2.5, "+Inf"], [3, "1"]]},
]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 50, 1 << 20])
def test_series_are_read_wherever_the_answer_is_cut(size: int) -> None:
    found, told = read(body(SERIES, warnings=["a store is away"]), size)
    assert [rank for rank, _, _ in found] == ["0", "", "7"] and told == ("a store is away",)
    assert found[0][1:] == ([1.5, 2.5], [1.0, 1000.0])
    assert found[2][1:] == ([1.5, 2.5, 3.0], [-0.5, float("inf"), 1.0])
    instant = [{"metric": {"rank": str(n), "job_id": HOSTILE}, "value": [1.25, "3"]} for n in range(5)]
    assert [rank for rank, _, _ in read(body(instant, "vector"), size)[0]] == list("01234")
    assert read(body([]), size)[0] == []


def test_an_answer_that_ends_early_is_no_answer() -> None:
    whole = body(SERIES)
    for end in range(len(whole) - 1):
        with pytest.raises(AnswerError):
            read(whole[:end], 64)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b'{"status":"error","errorType":"execution","error":"too many samples"}', "execution: too many samples"),
        (b"<html>Please log in</html>", "not the JSON of Prometheus"),
        (b"", "not the JSON of Prometheus"),
        (b"x" * (MAX_SERIES_BYTES + 2), "not one of Prometheus'"),
        (body([{"metric": {"rank": "0"}, "values": [[1, "one"]]}]), "no numbers"),
        (body([{"metric": {"rank": 0}, "values": [[1, "1"]]}]), "labels that cannot be read"),
        (body([{"metric": {"rank": "0"}, "values": []}]), "cut off"),
        (body([{"metric": {"rank": "0"}}]), "cut off"),
    ],
)
def test_what_is_no_answer_is_told(data: bytes, words: str) -> None:
    with pytest.raises(AnswerError, match=words):
        read(data, 1000)
