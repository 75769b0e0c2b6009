"""What a rank says of the Python threads beside its training."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from support.waiting import wait_for

from laggard.locate.job_timings import own_threads
from laggard.rankfile.fact_names import OWN_THREADS
from laggard.trainer_hooks.output.threads import FIRST_LOOK_SECONDS, MAX_NAMED, OwnThreads
from laggard.trainer_hooks.record.ending import Facts


@pytest.fixture
def spinning() -> Iterator[Any]:
    """Starts threads that compute in Python until the test ends."""
    over = threading.Event()
    started: list[threading.Thread] = []

    def start(name: str) -> threading.Thread:
        def spin() -> None:
            while not over.is_set():
                sum(range(1000))

        started.append(threading.Thread(target=spin, name=name, daemon=True))
        started[-1].start()
        return started[-1]

    yield start
    over.set()
    for thread in started:
        thread.join(300)


def told_by(watch: OwnThreads, facts: Facts) -> dict[str, Any]:
    """The first thing that it says of more than nothing."""

    def looked() -> Any:
        watch.woke(3_000_000)
        watch.look()
        return facts.get(OWN_THREADS)

    told: dict[str, Any] = wait_for(looked)
    return told


def test_busy_threads_are_named_and_the_one_that_trains_is_not(spinning: Any) -> None:
    trains = spinning("trains")
    names = [spinning(f"tokenizer-{number}").name for number in range(2)]
    spinning("laggard")
    facts = Facts()
    watch = OwnThreads(facts, lambda: trains.ident or 0)
    told = told_by(watch, facts)
    assert set(names) <= set(told["names"]) and not {"trains", "laggard"} & set(told["names"])
    assert told["seconds"] >= FIRST_LOOK_SECONDS and told["busy_seconds"] > 0
    found = own_threads({OWN_THREADS: told})
    assert found is not None and found.busy > 0 and set(names) <= set(found.names)


def test_names_and_their_number_are_bounded(spinning: Any) -> None:
    for number in range(MAX_NAMED + 3):
        spinning("x" * 500 + str(number))
    facts = Facts()
    told = told_by(OwnThreads(facts, threading.get_ident), facts)
    assert len(told["names"]) <= MAX_NAMED and all(len(name) <= 48 for name in told["names"])


def test_garbage_collections_are_timed_over_the_whole_run() -> None:
    facts = Facts()
    watch = OwnThreads(facts, threading.get_ident)
    watch.collecting("stop", {})  # one that began before the hooks did
    watch.collecting("start", {})
    time.sleep(0.2)
    watch.collecting("stop", {})
    assert 0 < told_by(watch, facts)["collecting_ratio"] < 1


def test_a_calm_process_names_nobody() -> None:
    facts = Facts()
    told = told_by(OwnThreads(facts, threading.get_ident), facts)
    assert told["names"] == [] and told["busy_seconds"] < told["seconds"]
