"""Validation of what agents send."""

import json
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import pytest
from support.collectors import packed
from support.paths import DATA
from support.rows import rows

from laggard.collector.scrape.validation import validate_ranks, validate_report
from laggard.wire import WireError, encode
from laggard.wire.ranks import MAX_RANKS


def test_an_agents_documents_are_accepted(make: Any) -> None:
    document, report = packed(make.node("n0", [0, 1])), make.report("n0", ["GPU_LOST"])
    assert validate_ranks(encode(document)) == document
    assert validate_report(encode(report)) == report


def refused(tree: Any, path: Sequence[Any], value: Any, complaint: str) -> None:
    """The document with a value at this place."""
    place = tree
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    with pytest.raises(WireError, match=complaint):
        validate_ranks(json.dumps(tree).encode())


LANE = {"op": "all_reduce", "group": "dp", "entered": 2, "done": 1}
FLIGHT = {"op": "recv", "group": "pp:0-1", "seq": 3, "seconds": 1.0}
GROUP = {"name": "#0", "enqueued": 2, "started": -1, "completed": 1, "seconds": 1.0}
BEAT = {"age_seconds": 0.5, "interval_seconds": 1.0, "flight_recorder": "on", "lanes": [LANE], "groups": [GROUP]}


@rows("collector/absurd_documents")
def test_absurd_documents_are_refused_with_a_reason(make: Any, path: Sequence[Any], value: Any, complaint: str) -> None:
    tree = json.loads(encode(make.packed_node("n0", [0, 1])))
    tree["ranks"][0] |= {"beat": BEAT, "in_flight": FLIGHT}
    tree = json.loads(json.dumps(tree))
    assert validate_ranks(json.dumps(tree).encode()).ranks[0].beat is not None
    refused(tree, path, value, complaint)


def test_facts_are_bounded(make: Any) -> None:
    tree = json.loads(encode(make.packed_node("n0", [0, 1])))
    refused(tree, ("ranks", 0, "facts"), {"x": "y" * 70_000}, "the facts are more than")


def test_where_there_is_no_peer_none_is_sent(make: Any) -> None:
    tree = json.loads(encode(make.packed_node("n0", [0, 1])))
    tree["ranks"][0] |= {"in_flight": FLIGHT, "beat": BEAT | {"lanes": [LANE, LANE | {"op": "recv", "peer": 1}]}}
    rank = validate_ranks(json.dumps(tree).encode()).ranks[0]
    assert rank.in_flight is not None and rank.in_flight.peer == -1
    assert rank.beat is not None and [lane.peer for lane in rank.beat.lanes] == [-1, 1]
    assert json.loads(encode(rank))["in_flight"] == FLIGHT


@pytest.mark.parametrize(
    "body",
    [b"", b"<html>", b"\xff\xfe", b"[" * 100_000, b"null", b'{"node": NaN}', b'{"facts":' + b"[" * 100_000],
)
def test_bodies_that_are_no_document_are_refused(body: bytes) -> None:
    for validate in (validate_ranks, validate_report):
        with pytest.raises(WireError):
            validate(body)


def test_nan_and_deep_nesting_are_refused(make: Any) -> None:
    text = encode(make.packed_node("n0", [0])).replace(b'"next":0.0', b'"next":NaN')
    with pytest.raises(WireError, match="malformed"):
        validate_ranks(text)
    deep = encode(make.report("n0")).replace(b'"facts":{}', b'"facts":{"a":' + b"[" * 9999 + b"]" * 9999 + b"}")
    with pytest.raises(WireError, match="nested"):
        validate_report(deep)


def test_too_many_ranks_are_refused(make: Any) -> None:
    many = make.ranks_document("n0", [make.rank_row(rank, 5000) for rank in range(MAX_RANKS + 1)])
    with pytest.raises(WireError, match="length <= 1024"):
        validate_ranks(encode(many))


FIRST_USE = """
import os, sys, threading
from laggard.collector.scrape.validation import validate_ranks
body, threads = sys.stdin.buffer.read(), 16

def use():
    start.wait()
    validate_ranks(body)

sys.setswitchinterval(1e-6)
died = 0
for _ in range(60):
    child = os.fork()
    if not child:
        start = threading.Barrier(threads)
        users = [threading.Thread(target=use) for _ in range(threads)]
        for user in users: user.start()
        for user in users: user.join()
        os._exit(0)
    died += os.waitpid(child, 0)[1] != 0
print(died)
"""


@pytest.mark.slow
def test_many_agents_may_answer_first_at_once(make: Any) -> None:
    """msgspec learns a type at its first use, and another thread that uses it meanwhile ends the process."""
    command, body = [sys.executable, "-c", FIRST_USE], encode(make.packed_node("n0", [0, 1]))
    done = subprocess.run(command, input=body, capture_output=True, timeout=300)
    assert (done.returncode, done.stdout) == (0, b"0\n"), f"{done.stdout!r} of 60 died: {done.stderr[-2000:]!r}"


RAS_JOB = json.loads((DATA / "ras" / "job.json").read_text())


@rows("collector/absurd_ras")
def test_an_absurd_word_of_nccl_ras_is_refused_with_a_reason(
    make: Any, path: Sequence[Any], value: Any, complaint: str
) -> None:
    tree = json.loads(encode(make.packed_node("n0", [0, 1])))
    tree["ras"] = json.loads(json.dumps({"state": "asked", "jobs": [RAS_JOB]}))
    assert validate_ranks(json.dumps(tree).encode()).ras is not None
    refused(tree, ("ras", *path), value, complaint)


def test_the_jobs_of_nccl_ras_are_bounded(make: Any) -> None:
    tree = json.loads(encode(make.packed_node("n0", [0, 1])))
    refused(tree, ("ras",), {"state": "asked", "jobs": [RAS_JOB] * 65}, "length <= 64")
