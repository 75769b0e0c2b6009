"""What is asked and answered: parameters, bodies, headers, and what a browser may do with an answer."""

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from starlette.requests import Request
from support.large_cluster import made_snapshot, served
from support.made_snapshot import Source
from support.rows import rows

from laggard.collector.jobs.snapshot import ClusterSnapshot
from laggard.collector.settings import CollectorSettings
from laggard.collector.web.api import MAX_ANSWERS, SnapshotAnswers
from laggard.collector.web.app import all_routes, make_app
from laggard.collector.web.signed_requests import MAX_BYTES, read_body
from laggard.wire import WireError

WHOLE = "a whole number from 0 to"
RANK = f"{WHOLE} 2147483648"
NUMBER = f"{WHOLE} 9007199254740992"
NAME = "a text of up to 300 characters"
MEASURES = "own, waited, input, forward, backward, optimizer, between_steps, evaluation, checkpoint, logging, other"
LATEST_JOB = "a job's key or id. Without it: the job that loses most"

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


@rows("collector/repeated_parameters")
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


def test_an_answer_is_made_once_a_snapshot() -> None:
    answers, first, second = SnapshotAnswers(), object(), object()
    made: list[object] = []

    def ask(snapshot: object, key: str) -> int:
        return answers.get(snapshot, key, lambda: made.append(snapshot) or len(made))

    assert [ask(first, "a"), ask(first, "a"), ask(first, "b"), ask(second, "a")] == [1, 1, 2, 3]
    assert made == [first, first, second]


def test_threads_that_ask_at_once_get_one_answer() -> None:
    answers, snapshot = SnapshotAnswers(), object()
    begun, go_on = threading.Event(), threading.Event()
    made: list[int] = []

    def make() -> int:
        begun.set()
        assert go_on.wait(300)
        made.append(1)
        return len(made)

    got: list[int] = []
    threads = [threading.Thread(target=lambda: got.append(answers.get(snapshot, "a", make))) for _ in range(4)]
    for thread in threads:
        thread.start()
    assert begun.wait(300)
    assert answers.get(snapshot, "b", lambda: 7) == 7, "another answer waited for the one that is being made"
    go_on.set()
    for thread in threads:
        thread.join(120)
    assert got == [1, 1, 1, 1] and made == [1]


def test_what_fails_is_tried_again_and_the_oldest_go() -> None:
    answers, snapshot = SnapshotAnswers(), object()
    with pytest.raises(ZeroDivisionError):
        answers.get(snapshot, "a", lambda: 1 / 0)
    assert answers.get(snapshot, "a", lambda: 5) == 5
    for number in range(MAX_ANSWERS):
        answers.get(snapshot, number, lambda: 0)
    assert answers.get(snapshot, "a", lambda: 6) == 6


async def test_a_body_is_read_up_to_its_bound() -> None:
    def request(*sizes: int) -> Request:
        parts = [{"type": "http.request", "body": b"x" * size, "more_body": True} for size in sizes]
        parts[-1]["more_body"] = False
        left = iter(parts)

        async def receive() -> dict[str, Any]:
            return next(left, {"type": "http.disconnect"})

        return Request({"type": "http"}, receive)

    assert len(await read_body(request(MAX_BYTES - 1, 1), MAX_BYTES)) == MAX_BYTES
    with pytest.raises(WireError, match="more than 65536 bytes"):
        await read_body(request(MAX_BYTES, 1), MAX_BYTES)


ROUTES = all_routes(None, CollectorSettings())  # type: ignore[arg-type]


def asked(app: Any, path: str, method: str = "GET", host: str = "localhost") -> httpx.Response:
    """Also where a handler has a defect."""

    async def run() -> httpx.Response:
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url=f"http://{host}") as client:
            return await client.request(method, path)

    return asyncio.run(run())


def expect_headers(headers: httpx.Headers, where: object) -> None:
    wanted = {
        "x-content-type-options": "nosniff",
        "referrer-policy": "no-referrer",
        "cross-origin-resource-policy": "same-origin",
    }
    assert {name: headers.get(name) for name in wanted} == wanted, where
    policy = headers.get("content-security-policy", "")
    for part in ("default-src 'none'", "frame-ancestors 'none'", "base-uri 'none'", "form-action 'none'"):
        assert part in policy, (where, policy)
    assert "unsafe" not in policy and "*" not in policy, (where, policy)


@pytest.mark.parametrize("settings", [CollectorSettings(), CollectorSettings(tenant_certificates=True)])
@pytest.mark.parametrize("route", [route.path for route in ROUTES])
def test_each_route(route: str, settings: CollectorSettings) -> None:
    path = route.replace("{name}", "page.js").replace("{code}", "DISK_FULL")
    for method in ("GET", "HEAD", "POST"):
        answer = asked(make_app(Source(ClusterSnapshot(nodes=())), settings), path, method)
        where = (method, path, answer.status_code)
        expect_headers(answer.headers, where)
        kept = "no-cache" if route == "/page/{name}" and answer.status_code == 200 else "no-store"
        assert answer.headers["cache-control"] == kept, where


class Broken(Source):
    def __init__(self) -> None: ...

    @property
    def snapshot(self) -> ClusterSnapshot:  # type: ignore[override]
        raise ZeroDivisionError


@pytest.mark.parametrize(
    ("path", "host", "status"),
    [("/nothing", "localhost", 404), ("/", "evil.example", 421), ("/api/v1/nodes", "localhost", 500)],
)
def test_each_error(path: str, host: str, status: int) -> None:
    answer = asked(make_app(Broken(), CollectorSettings()), path, "GET", host)
    assert answer.status_code == status
    expect_headers(answer.headers, path)
