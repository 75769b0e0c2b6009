"""A collector that is killed twenty times while it writes: what it was told is stored is there, once. In a file and in
PostgreSQL; a server that is killed is in test_postgres.py."""

import os
import subprocess
import sys

import pytest
from support.stores import stored

pytestmark = pytest.mark.slow

WRITING = """
import sys
from support.stores import WALL, incident
from laggard.collector.incidents.store import Batch, Store, StoreSettings

place, number = sys.argv[1], int(sys.argv[2])
store = Store(StoreSettings(place, 64 << 20, 1e9, 300.0, "one"))
while True:
    store.write(Batch([incident(number, job=f"job-{number}")]), WALL)
    print(number, flush=True)
    number += 1
"""


def written_until_killed(place: str, first: int, many: int) -> int:
    """The last incident of which the writer was told that it is stored."""
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    words = [sys.executable, "-P", "-c", WRITING, place, str(first)]
    with subprocess.Popen(words, env=environ, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(many)]
        process.kill()
        lines += process.stdout.readlines()
    return int([line for line in lines if line.endswith("\n")][-1])


def test_a_writer_that_is_killed_loses_and_doubles_nothing(place: str) -> None:
    last = -1
    for kill in range(20):
        last = written_until_killed(place, last + 1, 3 + kill % 5)
    names = [it.job_id for it in stored(place)]
    assert len(names) == len(set(names)), "the one that was being written is written anew, and is one"
    told = [f"job-{number}" for number in range(last + 1)]
    assert names[: len(told)] == told and names[len(told) :] in ([], [f"job-{last + 1}"])
