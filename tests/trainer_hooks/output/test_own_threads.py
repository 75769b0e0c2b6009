"""What a rank tells of its process beside its steps: its threads, its wait for the CPU, NCCL's transport."""

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from support.nccl_logs import log_text
from support.waiting import wait_for

from laggard.kit.environment import ENV_NCCL_LOG
from laggard.kit.processes import MAX_THREADS, read_thread_times
from laggard.locate.job_timings import own_threads
from laggard.nccl.private_log import loaded_version
from laggard.nccl.transport import Transport
from laggard.rankfile.fact_names import OWN_THREADS
from laggard.recording.reader import read_recording
from laggard.trainer_hooks.output.run_environment import TransportWatch
from laggard.trainer_hooks.output.threads import (
    CPU_WAIT_FIRST_LOOK_SECONDS,
    FIRST_LOOK_SECONDS,
    LOOK_SECONDS,
    MAX_NAMED,
    CpuWaitLines,
    OwnThreads,
)
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


SPIN = "import os; os.sched_setaffinity(0, {%d})\nwhile os.getppid() == %d: sum(range(9999))"


@pytest.fixture
def crowded() -> Iterator[None]:
    """This process has one CPU alone, which three others want as well."""
    before = os.sched_getaffinity(0)
    cpu = max(before)
    others = [subprocess.Popen([sys.executable, "-c", SPIN % (cpu, os.getpid())]) for _ in range(3)]
    os.sched_setaffinity(0, {cpu})
    yield
    os.sched_setaffinity(0, before)
    for other in others:
        other.kill()
        other.wait()


def test_the_time_in_the_run_queue_is_written(crowded: None) -> None:
    lines: list[Mapping[str, Any]] = []
    watch = CpuWaitLines(lines.append)
    until = time.monotonic() + 120
    while not lines and time.monotonic() < until:
        watch.look()
        sum(range(99_999))
    (line,) = lines
    told = line["cpu_wait"]
    assert line["kind"] == "cpu_wait" and told["seconds"] >= CPU_WAIT_FIRST_LOOK_SECONDS
    assert told["running_seconds"] > 0 and told["queued_seconds"] > 0.2 * told["running_seconds"]
    assert told["throttled_seconds"] >= 0


def test_the_oldest_threads_are_looked_at_whatever_their_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel lists them in the order in which they began; numbers are used again once pid_max is reached."""
    tasks = tmp_path / "900" / "task"
    names = ["900", *map(str, range(1, 80))]
    for name in names:
        (tasks / name).mkdir(parents=True)
        (tasks / name / "schedstat").write_text("1000000000 0 1\n")
    (tmp_path / "900" / "cgroup").write_text("")
    monkeypatch.setattr(os, "listdir", lambda _: names)
    assert list(read_thread_times(900, str(tmp_path)).threads) == names[:MAX_THREADS]


def test_it_is_written_every_few_seconds_and_not_more_often(monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[Mapping[str, Any]] = []
    now = 0.0
    monkeypatch.setattr(time, "perf_counter", lambda: now)
    watch = CpuWaitLines(lines.append)
    for second in range(1, 33):
        now = float(second)
        watch.look()
    assert [line["cpu_wait"]["seconds"] for line in lines] == [CPU_WAIT_FIRST_LOOK_SECONDS, *[LOOK_SECONDS] * 5]


def test_the_reader_has_the_newest_and_refuses_what_is_no_time(tmp_path: Path) -> None:
    head = {"laggard_recording": 1, "job_id": "j", "ends": True, "beats": True}
    rank = {"kind": "rank", "rank": 0, "node": "n0", "world_size": 1}
    waits = [{"seconds": 5.0, "running_seconds": 1.0, "queued_seconds": queued} for queued in (0.5, 4.0)]
    lines = [head, rank, *({"kind": "cpu_wait", "rank": 0, "cpu_wait": wait} for wait in waits)]
    path = tmp_path / "rank-0.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    (state,) = read_recording([path]).timings.states
    assert state.cpu_wait is not None and state.cpu_wait.queued_seconds == 4.0
    bad = {"kind": "cpu_wait", "rank": 0, "cpu_wait": {**waits[0], "queued_seconds": -1.0}}
    path.write_text(path.read_text() + json.dumps(bad) + "\n" + json.dumps(rank) + "\n")
    assert read_recording([path]).timings.states[0].cpu_wait == state.cpu_wait


@pytest.fixture
def prepared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[TransportWatch, Facts]:
    for name in ("NCCL_DEBUG", "NCCL_DEBUG_FILE", "NCCL_DEBUG_SUBSYS", ENV_NCCL_LOG):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv(name, "")  # so that monkeypatch removes what prepare() sets
        monkeypatch.delenv(name)
    monkeypatch.setenv("LAGGARD_RANK_DIR", str(tmp_path / "ranks"))
    facts = Facts()
    watch = TransportWatch(facts)
    watch.prepare()
    return watch, facts


def beats(watch: TransportWatch, count: int) -> None:
    for _ in range(count):
        watch.beat()


def test_what_nccl_logs_is_reported(prepared: tuple[TransportWatch, Facts]) -> None:
    watch, facts = prepared
    path = Path(os.environ["NCCL_DEBUG_FILE"].replace("%p", str(os.getpid())))
    beats(watch, 1)
    before = json.loads(facts.changed_json() or b"{}").get("transport", {})
    assert before.get("log") != "read", "NCCL has logged nothing yet"
    path.write_text(log_text("tcp_no_libibverbs"))
    beats(watch, 15)
    reported = json.loads(facts.changed_json() or b"{}")["transport"]
    assert Transport.from_json(json.dumps(reported)).process.connections
    watch.close()
    assert not path.parent.exists()


def test_a_process_without_nccl_is_soon_no_longer_checked(prepared: tuple[TransportWatch, Facts]) -> None:
    if loaded_version("/proc/self"):
        pytest.skip("a test before this one has imported a torch that loads NCCL")
    watch, facts = prepared
    beats(watch, 500)
    path = Path(os.environ["NCCL_DEBUG_FILE"].replace("%p", str(os.getpid())))
    path.write_text(log_text("tcp_no_libibverbs"))
    beats(watch, 100)
    assert facts.changed_json() in (None, b"{}")
    watch.close()


def test_the_users_log_settings_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ENV_NCCL_LOG, raising=False)
    monkeypatch.setenv("NCCL_DEBUG", "WARN")
    monkeypatch.delenv("NCCL_DEBUG_FILE", raising=False)
    watch = TransportWatch(Facts())
    watch.prepare()
    assert os.environ["NCCL_DEBUG"] == "WARN" and "NCCL_DEBUG_FILE" not in os.environ
    beats(watch, 20)
    watch.close()
