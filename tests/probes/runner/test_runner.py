"""Whatever a probe does, the runner answers in time and says what became of it."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from laggard.model import Finding, Report, Severity, Verdict
from laggard.probes.errors import NotApplicable, Unknown
from laggard.probes.host.host import Host
from laggard.probes.probe import Fact, Probe, Thresholds, finding
from laggard.probes.runner.runner import Runner, run

GENEROUS_SECONDS = 2.0  # over the deadline, on a machine that is busy with other tests

Items = Iterator[Finding | Fact]


def look_well(host: Host, thresholds: Thresholds) -> Items:
    yield Fact("seen", 1)


def look_forever(host: Host, thresholds: Thresholds) -> Items:
    yield Fact("seen", 1)
    time.sleep(600)


def look_forever_and_ignore_signals(host: Host, thresholds: Thresholds) -> Items:
    for number in set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(number, signal.SIG_IGN)
    yield from look_forever(host, thresholds)


def look_stopped(host: Host, thresholds: Thresholds) -> Items:
    os.kill(os.getpid(), signal.SIGSTOP)
    yield Fact("seen", 1)


def look_and_leave(host: Host, thresholds: Thresholds) -> Items:
    yield Fact("seen", 1)
    os._exit(7)


def look_and_exit(host: Host, thresholds: Thresholds) -> Items:
    yield Fact("seen", 1)
    sys.exit(0)


def look_and_crash(host: Host, thresholds: Thresholds) -> Items:
    yield Fact("seen", 1)
    ctypes.string_at(0)


def look_and_raise(host: Host, thresholds: Thresholds) -> Items:
    yield Fact("seen", 1)
    raise ValueError("two\nlines\x1b[31m")


def look_loudly(host: Host, thresholds: Thresholds) -> Items:
    for descriptor in (1, 2):
        os.write(descriptor, b"x" * (8 << 20))
    print("y" * (1 << 20), flush=True)
    yield Fact("seen", 1)


def look_hugely(host: Host, thresholds: Thresholds) -> Items:
    yield Fact("seen", "z" * (64 << 20))


def look_endlessly(host: Host, thresholds: Thresholds) -> Items:
    while True:
        yield Fact("seen", 1)


def look_and_talk_nonsense(host: Host, thresholds: Thresholds) -> Items:
    yield "ok"  # type: ignore[misc]


def look_unspeakably(host: Host, thresholds: Thresholds) -> Items:
    yield Fact("seen", object())


def look_and_write_to_the_pipe(host: Host, thresholds: Thresholds) -> Items:
    os.write(3, b'{"verdict": "ok", "reason": 5}\n')
    yield Fact("seen", 1)


def look_and_cut_the_pipe(host: Host, thresholds: Thresholds) -> Items:
    os.close(3)
    time.sleep(600)
    yield Fact("seen", 1)


def look_in_vain(host: Host, thresholds: Thresholds) -> Items:
    yield Fact("seen", 1)
    raise NotApplicable("no such device on the bus")


def look_and_shrug(host: Host, thresholds: Thresholds) -> Items:
    yield finding("CLOCK_SKEW", "clock", "is off", evidence={}, fix="set it")
    raise Unknown("the rest is unreadable")


def look_and_find(host: Host, thresholds: Thresholds) -> Items:
    yield finding("DISK_FULL", "/", "is full", evidence={}, fix="empty it")
    raise Unknown("the rest is unreadable")


def probe(look: Callable[[Host, Any], Items], seconds: float = 60.0) -> Probe:
    return Probe(look.__name__, look, Thresholds(), seconds)


def look_with(*probes: Probe, deadline: float = 60.0, warnings_fail: bool = False) -> Report:
    return run(Host(), probes, deadline_seconds=deadline, warnings_fail=warnings_fail)


HANGING = [look_forever, look_forever_and_ignore_signals, look_stopped]


@pytest.mark.parametrize("look", HANGING)
def test_a_hung_probe_costs_its_own_deadline(look: Callable[[Host, Any], Items]) -> None:
    report = look_with(probe(look_well), probe(look, 0.3), probe(look_and_find))
    well, hung, found = report.probes
    assert (well.verdict, hung.verdict, found.verdict) == (Verdict.OK, Verdict.UNKNOWN, Verdict.FAIL)
    assert look.__name__ in hung.reason and "no answer in 0.3 s" in hung.reason
    assert hung.elapsed_seconds >= 0.3 and report.elapsed_seconds < 0.3 + GENEROUS_SECONDS


def test_the_deadline_bounds_everything() -> None:
    started = time.monotonic()
    report = look_with(*(probe(look) for look in HANGING), deadline=0.5)
    assert time.monotonic() - started < 0.5 + GENEROUS_SECONDS
    assert {result.verdict for result in report.probes} == {Verdict.UNKNOWN} and report.verdict is Verdict.UNKNOWN


def test_hung_probes_leave_no_process_behind(tmp_path: Path) -> None:
    """Nor does what they started."""
    note = tmp_path / "pids"

    def look_with_help(host: Host, thresholds: Thresholds) -> Items:
        helper = subprocess.Popen(["sleep", "600"])
        note.write_text(f"{os.getpid()} {helper.pid}")
        yield from look_forever(host, thresholds)

    look_with(probe(look_with_help, 1.0))
    pids = [int(word) for word in note.read_text().split()]
    until = time.monotonic() + 10
    while any(_runs(pid) for pid in pids) and time.monotonic() < until:
        time.sleep(0.01)
    assert [pid for pid in pids if _runs(pid)] == []


def _runs(pid: int) -> bool:
    """Not as a zombie that init has yet to reap."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.parametrize(
    ("look", "reason"),
    [
        (look_and_leave, "exit status 7"),
        (look_and_exit, "SystemExit"),
        (look_and_crash, "SIGSEGV"),
        (look_and_raise, "ValueError: two lines"),
        (look_hugely, "bytes"),
        (look_endlessly, "more than 1000"),
        (look_and_talk_nonsense, "yielded a str"),
        (look_unspeakably, "no JSON"),
        (look_and_write_to_the_pipe, "garbage"),
        (look_and_cut_the_pipe, "closed its pipe"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_what_is_no_answer_is_unknown(look: Callable[[Host, Any], Items], reason: str) -> None:
    report = look_with(probe(look), probe(look_well))
    broken, well = report.probes
    assert broken.verdict is Verdict.UNKNOWN and reason in broken.reason
    assert report.node == os.uname().nodename
    assert broken.reason.isprintable() and len(broken.reason) <= 300
    assert well.verdict is Verdict.OK and report.verdict is Verdict.UNKNOWN


def test_probes_cannot_be_heard(capfd: pytest.CaptureFixture[str]) -> None:
    assert look_with(probe(look_loudly)).verdict is Verdict.OK
    assert capfd.readouterr() == ("", "")


def test_a_probe_holds_nothing_that_the_caller_had_open() -> None:
    """A stuck probe must not keep a prolog's output or a daemon's port."""
    read_end, write_end = os.pipe()

    def look_at_descriptors(host: Host, thresholds: Thresholds) -> Items:
        yield Fact("open", [os.readlink(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd")[:-1]])

    report = look_with(probe(look_at_descriptors))
    mine = os.readlink(f"/proc/self/fd/{write_end}")
    os.close(read_end), os.close(write_end)
    seen = report.facts["look_at_descriptors"]["open"]
    assert seen.count("/dev/null") == 3 and len(seen) == 4 and mine not in seen


def test_skipped_says_why() -> None:
    (result,) = look_with(probe(look_in_vain)).probes
    assert (result.verdict, result.reason) == (Verdict.SKIPPED, "no such device on the bus")


def test_findings_before_an_unknown_count() -> None:
    report = look_with(probe(look_and_shrug), probe(look_and_find))
    assert [result.verdict for result in report.probes] == [Verdict.UNKNOWN, Verdict.FAIL]
    assert [found.code for found in report.findings] == ["CLOCK_SKEW", "DISK_FULL"]
    assert report.probes[1].reason == "DISK_FULL /; the rest is unreadable"


def test_warnings_fail_where_asked() -> None:
    (result,) = look_with(probe(look_and_shrug), warnings_fail=True).probes
    assert result.verdict is Verdict.FAIL


def test_the_severity_is_the_catalogues_unless_said() -> None:
    (found,) = look_with(probe(look_and_shrug)).findings
    assert found.severity is Severity.WARNING and found.doc == "docs/findings/CLOCK_SKEW.md"


FREEZER = Path("/sys/fs/cgroup/freezer")


@pytest.fixture
def freezer() -> Iterator[Path]:
    """A place where a process does not die of SIGKILL, as in a driver that never returns."""
    group = FREEZER / f"laggard-test-{os.getpid()}"
    try:
        group.mkdir()
        (group / "freezer.state").read_text()
    except OSError:
        pytest.skip("needs root and the freezer of cgroup v1")
    yield group
    (group / "freezer.state").write_text("THAWED")
    until = time.monotonic() + 10
    while (group / "cgroup.procs").read_text().strip() and time.monotonic() < until:
        time.sleep(0.01)
    group.rmdir()


def test_a_probe_that_cannot_be_killed_is_not_started_twice(freezer: Path, tmp_path: Path) -> None:
    starts = tmp_path / "starts"

    def look_frozen(host: Host, thresholds: Thresholds) -> Items:
        with starts.open("a") as file:
            file.write("started\n")
        (freezer / "cgroup.procs").write_text(str(os.getpid()))
        (freezer / "freezer.state").write_text("FROZEN")
        yield from look_forever(host, thresholds)

    runner = Runner()
    stuck = probe(look_frozen, 1.0)
    first = runner.run(Host(), [stuck], deadline_seconds=60)
    assert "no answer" in first.probes[0].reason and first.elapsed_seconds < 1.0 + GENEROUS_SECONDS
    second = runner.run(Host(), [stuck], deadline_seconds=60)
    assert second.probes[0].verdict is Verdict.UNKNOWN and "still stuck" in second.probes[0].reason
    assert starts.read_text() == "started\n"
