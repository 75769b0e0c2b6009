"""Prometheus asked: the login and other headers while their files rotate, its answers, and what is none."""

import base64
import json
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import numpy as np
import pytest
from support.agents import put
from support.fronts import served_by

from laggard.collector.prometheus.choice import failing_nodes
from laggard.collector.prometheus.client import AnswerError, Login, Prometheus, read_answer


def test_the_nodes_that_fail_are_asked_for_once_a_moment() -> None:
    """Each job of a look asks for them, at the look's moment."""
    asked: list[str] = []

    def answer(path: str, form: bytes, headers: Any) -> tuple[int, bytes]:
        asked.append(parse_qs(form.decode()).get("time", ["now"])[0])
        finding = {"code": "GPU_LOST", "severity": "critical", "instance": "n0:19400", "device": "gpu0"}
        result = [{"metric": finding, "value": [1.0, "1"]}]
        document = {"status": "success", "data": {"resultType": "vector", "result": result}}
        return 200, json.dumps(document, separators=(",", ":")).encode()  # as Prometheus writes it

    with served_by(answer) as url:
        prometheus = Prometheus(url)
        notes = [failing_nodes(prometheus, "", 5.0, frozenset({name})) for name in ("n0", "n1", "n0")]
        assert [note is not None for note in notes] == [True, False, True] and notes[0] == notes[2]
        assert asked == ["5.000"]
        assert failing_nodes(prometheus, "", 6.0, frozenset({"n0"})) and asked == ["5.000", "6.000"]
        assert failing_nodes(prometheus, "b", 6.0, frozenset({"n0"})) and len(asked) == 3, "of another cluster"
        prometheus.close()


def basic(pair: str) -> dict[str, str]:
    return {"Authorization": f"Basic {base64.b64encode(pair.encode()).decode()}"}


def test_each_file_is_read_anew_when_it_changes(tmp_path: Path) -> None:
    token, headers = put(tmp_path / "token", "old\n"), put(tmp_path / "headers", "X-Scope-OrgID: a\n")
    login = Login(str(token), None, str(headers))
    assert login.headers() == {"Authorization": "Bearer old", "X-Scope-OrgID": "a"}
    put(token, "new\n")
    assert login.headers() == {"Authorization": "Bearer new", "X-Scope-OrgID": "a"}
    put(headers, "X-Scope-OrgID: b\nX-More: c\n")
    assert login.headers() == {"Authorization": "Bearer new", "X-Scope-OrgID": "b", "X-More": "c"}
    assert Login(None, str(put(token, "ada:lovelace"))).headers() == basic("ada:lovelace")
    assert Login().headers() == Login("", "", "").headers() == {}


@pytest.mark.parametrize("half", ["", "\n", "ada", "ada:\0", "ada:x\nbob:y\n"])
def test_half_a_file_leaves_the_former_login(tmp_path: Path, half: str, caplog: pytest.LogCaptureFixture) -> None:
    path = put(tmp_path / "login", "ada:lovelace")
    login = Login(None, str(path))
    path.write_text(half)
    assert [login.headers() for _ in range(3)] == [basic("ada:lovelace")] * 3
    (said,) = caplog.messages
    assert said.startswith("the former login for Prometheus stays in use: ") and "lovelace" not in said
    path.write_text("ada:new")
    assert login.headers() == basic("ada:new")


def test_half_a_file_of_headers_leaves_the_former_ones(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = put(tmp_path / "headers", "X-Scope-OrgID: a\n")
    login = Login(headers_file=str(path), headers_setting="--headers-file")
    for half in ("X-Scope-O", "Authorization: Bearer lovelace"):
        path.write_text(half)
        assert [login.headers() for _ in range(3)] == [{"X-Scope-OrgID": "a"}] * 3
    path.unlink()
    assert login.headers() == {"X-Scope-OrgID": "a"}
    assert len(caplog.messages) == 3 and "lovelace" not in caplog.text
    assert all("the former --headers-file stays in use: " in it for it in caplog.messages)


def body(series: list[dict[str, Any]], kind: str = "matrix", **more: Any) -> bytes:
    document = {"status": "success", "data": {"resultType": kind, "result": series}, **more}
    return json.dumps(document, separators=(",", ":")).encode()


def read(data: bytes) -> tuple[list[tuple[str, list[float], list[float]]], tuple[str, ...]]:
    part, warnings = read_answer(data)
    ends = np.cumsum(part.counts)[:-1]
    times, values = (np.split(each, ends) for each in (part.times, part.values))
    told = zip(part.labels, times, values, strict=True) if part.labels else ()
    return [(labels.rank, when.tolist(), what.tolist()) for labels, when, what in told], warnings


HOSTILE = '{"metric":{"rank":"9"},"values":[[1,"2"]]},"value":[1,"2"]]}\\\u2028'

SERIES: list[dict[str, Any]] = [
    {"metric": {"rank": "0", "job_id": HOSTILE}, "values": [[1.5, "1"], [2.5, "1e3"]]},
    {"metric": {}, "values": [[1.5, "NaN"]]},
    {"metric": {"rank": "7", "values": "x", "value": "y"}, "values": [[1.5, "-0.5"], [2.5, "+Inf"], [3, "1"]]},
]


def test_series_are_read() -> None:
    found, told = read(body(SERIES, warnings=["a store is away"]))
    assert [rank for rank, _, _ in found] == ["0", "", "7"] and told == ("a store is away",)
    assert found[0][1:] == ([1.5, 2.5], [1.0, 1000.0])
    assert found[2][1:] == ([1.5, 2.5, 3.0], [-0.5, float("inf"), 1.0])
    instant = [{"metric": {"rank": str(n), "job_id": HOSTILE}, "value": [1.25, "3"]} for n in range(5)]
    assert [rank for rank, _, _ in read(body(instant, "vector"))[0]] == list("01234")
    histogram = {"metric": {"rank": "0"}, "histograms": [[1, {"count": "1"}]]}
    assert read(body([histogram]))[0] == [("0", [], [])] and read(body([]))[0] == []


def test_an_answer_that_ends_early_is_no_answer() -> None:
    whole = body(SERIES)
    for end in range(len(whole)):
        with pytest.raises(AnswerError):
            read(whole[:end])


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b'{"status":"error","errorType":"execution","error":"too many samples"}', "execution: too many samples"),
        (b"<html>Please log in</html>", "not the JSON of Prometheus"),
        (b"", "not the JSON of Prometheus"),
        (body([{"metric": {"rank": "0"}, "values": [[1, "one"]]}]), "no numbers"),
        (body([{"metric": {"rank": 0}, "values": [[1, "1"]]}]), "none of Prometheus': Expected `str`, got `int`"),
    ],
)
def test_what_is_no_answer_is_told(data: bytes, words: str) -> None:
    with pytest.raises(AnswerError, match=words):
        read(data)
