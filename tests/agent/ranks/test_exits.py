"""How ranks end: what the kernel reports of a process that is not ours, and how that is joined with its log."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.paths import DATA
from support.rows import rows
from support.waiting import wait_for

from laggard.agent.ranks.end import ExitWatch, LastMoment, WatchedExit, rank_end
from laggard.agent.ranks.kernel_word import (
    OomCounts,
    OomKills,
    confirmed_word,
    count_machines_oom_kills,
    count_oom_kills,
    kernel_word,
    names_another,
    read_oom_kills,
)
from laggard.probes.host.kernel_log import parse_messages

LAUNCHER = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.readline(); " + sys.argv[1]], stdin=sys.stdin)
print(child.pid, flush=True)
child.wait()
sys.stdin.readline()
"""


@pytest.fixture
def watch() -> Iterator[ExitWatch]:
    yield (made := ExitWatch())
    made.keep(())


def ended(watch: ExitWatch, name: str) -> WatchedExit:
    def has_ended() -> WatchedExit | None:
        found = watch.exit_of(name)
        return found if found and found.status else None

    found: WatchedExit = wait_for(has_ended, lambda: watch.exit_of(name))
    return found


@rows("agent/ends")
def test_the_end_of_anothers_child_is_known(watch: ExitWatch, last_act: str, code: int | None, name: str) -> None:
    """Its parent has waited for it at once, as launchers do."""
    launcher = subprocess.Popen([sys.executable, "-c", LAUNCHER, last_act], stdin=-1, stdout=-1, text=True)
    assert launcher.stdin and launcher.stdout
    try:
        pid = int(launcher.stdout.readline())
        watch.watch("rank", pid, lambda: True)
        assert watch.exit_of("rank") is None
        before = time.monotonic()
        launcher.stdin.write("go\n")
        launcher.stdin.flush()
        found = ended(watch, "rank")
        assert found.status is not None and (found.status.code, found.status.signal) == (code, name)
        assert before <= found.monotonic_seconds <= time.monotonic()
    finally:
        launcher.communicate("end\n", timeout=300)


def test_a_pid_that_is_another_process_by_now_is_not_watched(watch: ExitWatch) -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=-1)
    before = len(os.listdir("/proc/self/fd"))
    watch.watch("rank", child.pid, lambda: False)
    assert len(os.listdir("/proc/self/fd")) == before
    child.send_signal(signal.SIGKILL)
    child.communicate()
    assert watch.exit_of("rank") is None


LOG = (DATA / "host" / "kills_kmsg").read_text()


@rows("agent/kernel_words")
def test_the_kernels_word_is_joined_by_pid_and_time(pid: int, ended_at: float, cause: str | None) -> None:
    found = kernel_word(parse_messages(LOG), pid, ended_at)
    assert (found.cause if found else None) == cause


def test_the_memory_cgroup_of_a_process_counts_its_oom_kills(tmp_path: Path) -> None:
    root = f"{tmp_path}/"
    for path, text in {
        "proc/5/cgroup": "9:name=systemd:/x\n4:memory:/job\n0::/slice/job\n",
        "proc/6/cgroup": "0::/../outside\n",
        "sys/fs/cgroup/memory/job/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n",
        "sys/fs/cgroup/slice/job/memory.events": "low 0\noom 1\noom_kill 1\noom_group_kill 0\n",
    }.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    counts = read_oom_kills(5, root)
    assert sorted(counts.values()) == [1, 2] and count_oom_kills(counts) == counts
    assert read_oom_kills(6, root) == read_oom_kills(7, root) == {}


@pytest.mark.parametrize(
    ("pid", "ended_at", "another"),
    [(41, 100.1, False), (40, 100.1, True), (40, 140.0, False), (42, 201.0, False), (40, 300.5, True)],
)
def test_the_log_tells_whether_the_kernel_killed_another(pid: int, ended_at: float, another: bool) -> None:
    assert names_another(parse_messages(LOG), pid, ended_at) is another


@pytest.mark.parametrize(
    ("counts", "cause", "alone"),
    [
        (OomCounts("", 3, 3), None, False),  # the machine counts no kill: the log is not believed
        (OomCounts("", 3, 4), "out_of_memory", False),
        (OomCounts("memory.events: oom_kill 1", 3, 3), "out_of_memory", False),
        (OomCounts("memory.events: oom_kill 1", None, None), "out_of_memory", False),
        (OomCounts("", None, None), "out_of_memory", True),
    ],
)
def test_a_kill_for_want_of_memory_has_a_second_witness(counts: OomCounts, cause: str | None, alone: bool) -> None:
    found = confirmed_word(tuple(parse_messages(LOG)), 41, 100.1, counts, killed=True)
    assert (found.cause if found else None) == cause
    assert (found is not None and found.text.startswith("only the log says so: ")) == alone


def test_a_count_speaks_for_who_was_killed_unless_the_log_names_another() -> None:
    messages, one = tuple(parse_messages(LOG)), OomCounts("memory.events: oom_kill 1", 0, 1)
    assert confirmed_word((), 40, 100.1, one, killed=True) is not None
    assert confirmed_word((), 40, 100.1, one, killed=False) is None
    assert confirmed_word(messages, 40, 100.1, one, killed=True) is None


def test_this_machine_counts_its_kills(tmp_path: Path) -> None:
    assert (count_machines_oom_kills() or 0) >= 0
    (tmp_path / "proc").mkdir()
    assert count_machines_oom_kills(f"{tmp_path}/") is None
    (tmp_path / "proc/vmstat").write_text(f"{'x' * 100} 1\n" * 100 + "oom_kill 7\n")
    assert count_machines_oom_kills(f"{tmp_path}/") == 7


class Cgroup:
    """A memory cgroup's count of kills, and who ended in it."""

    def __init__(self, folder: Path) -> None:
        self.path = str(folder / "memory.events")
        self.kills = OomKills()
        self.count(0)

    def count(self, kills: int) -> None:
        Path(self.path).write_text(f"oom {kills}\noom_kill {kills}\n")

    def ends(self, at: float, before: int = 0) -> bool:
        said = self.kills.ended({self.path: before}, at)
        assert said in ("", f"{self.path}: oom_kill {count_oom_kills([self.path])[self.path]}")
        return bool(said)


@pytest.fixture
def cgroup(tmp_path: Path) -> Cgroup:
    return Cgroup(tmp_path)


def test_who_ends_first_after_a_kill_was_killed_and_its_siblings_were_not(cgroup: Cgroup) -> None:
    assert not cgroup.ends(10.0), "before the kill"
    cgroup.count(1)
    assert [cgroup.ends(at) for at in (20.0, 20.01, 25.0)] == [True, False, False]
    cgroup.count(2)
    assert [cgroup.ends(at, before=1) for at in (90.0, 90.1)] == [True, False], "of the next attempt in that cgroup"


def test_of_two_kills_at_once_each_has_its_process(cgroup: Cgroup) -> None:
    cgroup.count(2)
    assert [cgroup.ends(at) for at in (20.0, 20.4, 20.5)] == [True, True, False]


def test_a_kill_of_a_process_that_nobody_watches_is_not_given_to_who_is_killed_later(cgroup: Cgroup) -> None:
    cgroup.count(2)
    assert [cgroup.ends(at) for at in (20.0, 25.0)] == [True, False]
    cgroup.count(3)
    assert not cgroup.ends(90.0, before=3), "killed before this process was there"


def test_a_cgroup_that_nobody_watches_any_more_is_forgotten(cgroup: Cgroup) -> None:
    cgroup.count(1)
    assert cgroup.ends(20.0)
    cgroup.kills.keep(())
    cgroup.count(1)
    assert cgroup.ends(90.0), "another cgroup of that name counts from the beginning"


@pytest.mark.parametrize("noted", [None, [], "x", {"exit_code": 999, "at_seconds": 1e300, "exception": 5}])
def test_what_a_process_notes_of_itself_is_not_trusted(noted: object) -> None:
    last = LastMoment(at_seconds=100.0, uncertain_seconds=1.0, unix_minus_clock=50.0, now_seconds=200.0)
    end = rank_end(noted, None, last)
    assert (end.at_seconds, end.uncertain_seconds, end.exit_code, end.exception) == (100.0, 1.0, None, "")
    assert rank_end({"exit_code": 1, "at_seconds": 60.5, "exception": "E"}, None, last).at_seconds == 110.5
