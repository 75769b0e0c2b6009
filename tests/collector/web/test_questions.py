"""What the collector's routes may be asked: each wrong question is refused with one line that says what is wrong, and
has nothing of the question in it; what is not wrong is taken as it is written."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from support.large_cluster import made_snapshot, served

WHOLE = "a whole number from 0 to"
RANK = f"{WHOLE} 2147483648"
NUMBER = f"{WHOLE} 9007199254740992"
NAME = "a text of up to 300 characters"
MEASURES = "own, waited, input, forward, backward, optimizer, between_steps, evaluation, checkpoint, logging, other"
LATEST_JOB = "a job's key or id. Without it: the job that progressed last"
WRONG = {
    "nodes?limit": (("-1", "1.5", "+1", " 1", "1_0", "٣", "", "null", "1e3", "2147483649", "9" * 5000), RANK),
    "nodes?find": (("x" * 201,), "a text of up to 200 characters"),
    "nodes?node": (("x" * 301,), NAME),
    "findings?limit": (("many",), RANK),
    "links?rank": (("-1", "0x1"), RANK),
    "drains?node": (("x" * 301,), NAME),
    "rings?hours": (("0", "-1", "0.0", "1e-999", "8761", "nan", "inf", "1e999", "x", "", "null"),
                    "a number above 0, up to 8760"),
    "rings?nodes": (("2", "33", "3.5"), "a whole number from 3 to 32"),
    "location?job": (("x" * 301,), NAME),
    "location?fresh": (("x" * 301,), NAME),
    "summary?limit": (("4097", "true"), f"{WHOLE} 4096"),
    "ranks?measure": (("speed", "", "Own", "own\n", "null"), f"one of {MEASURES}"),
    "ranks?order": (("size",), "one of rank, host, position"),
    "ranks?rows": (("0", "4097"), "a whole number from 1 to 4096"),
    "ranks?start": (("-0",), RANK),
    "ranks?stop": (("null",), RANK),
    "timeline?ranks": ((",".join(["1"] * 17), "1,x", "1;2", "1, 2", "-1"), f"a list of up to 16, each {RANK}"),
    "timeline?before": (("9007199254740993", "x"), NUMBER),
    "incidents?since": (("-1", "1e12", "now", "null"), "a number from 0 to 100000000000"),
    "incidents?before": (("1.0",), NUMBER),
    "incidents?limit": (("0", "501"), "a whole number from 1 to 500"),
    "recommendation?job": (("x" * 301,), NAME),
}  # fmt: skip
CASES = [(question, value) for question, (values, _) in WRONG.items() for value in values]


@pytest.fixture(scope="module")
def collector() -> Iterator[httpx.Client]:
    with (
        served(made_snapshot(4, ranks_per_node=8, steps=20)) as url,
        httpx.Client(base_url=f"{url}/api/v1/", timeout=120, trust_env=False) as client,
    ):
        yield client


@pytest.mark.parametrize(("question", "value"), CASES, ids=[f"{each}={value[:12]!r}" for each, value in CASES])
def test_a_wrong_question_gets_one_line(collector: httpx.Client, question: str, value: str) -> None:
    route, _, name = question.partition("?")
    answer = collector.get(route, params={name: value})
    assert answer.status_code == 400 and answer.headers["content-type"] == "text/plain; charset=utf-8"
    words, _, about = answer.text.partition(": ")
    assert words == f"{name} has to be {WRONG[question][1]}"
    assert about.strip() and answer.text.endswith("\n") and answer.text.count("\n") == 1
    assert collector.head(route, params={name: value}).status_code == 400


def test_a_refusal_says_what_the_parameter_is_for(collector: httpx.Client) -> None:
    limit = "limit has to be a whole number from 0 to 2147483648: so many: those that need attention most\n"
    assert collector.get("nodes?limit=<script>&find=<b>").text == limit
    assert collector.get("recommendation", params={"job": "<" * 301}).text == f"job has to be {NAME}: {LATEST_JOB}\n"


@pytest.mark.parametrize(
    ("query", "asked"),
    [
        ("ranks?rows=0016&start=00", {"start": 0}),
        ("ranks?order=host&order=rank&rows=x&rows=8", {"order": "rank"}),
        ("ranks?speed=9&speed=8&__proto__=1&job=", {"measure": "own", "start": 0}),
        ("timeline?ranks=1&ranks=2,,3,", {"ranks": [2, 3]}),
        ("rings?hours=1.5e1", {"period_seconds": 54000.0}),
        ("rings?hours=24.&nodes=3", {"period_seconds": 86400.0}),
    ],
)
def test_of_a_repeated_parameter_the_last_counts_and_an_unknown_one_for_nothing(
    collector: httpx.Client, query: str, asked: dict[str, Any]
) -> None:
    document = collector.get(query).raise_for_status().json()
    if "ranks" in asked:
        document["ranks"] = [row["rank"] for row in document["rows"] if row["role"] == "asked"]
    assert {name: document[name] for name in asked} == asked


def test_a_question_of_too_many_parameters_is_refused(collector: httpx.Client) -> None:
    assert collector.get("summary?" + "&".join(["x=1"] * 18)).status_code == 200
    refused = collector.get("summary?" + "&".join(["x=1"] * 19))
    assert (refused.status_code, refused.text) == (400, "a question has up to 18 parameters\n")
