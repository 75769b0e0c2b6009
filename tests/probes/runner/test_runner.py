"""Whatever a probe does, the runner answers in time and reports what became of it."""

import ctypes
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from laggard.kit.processes import read_stat
from laggard.model import Finding, Report, Severity, Verdict
from laggard.probes.errors import NotApplicable, Unknown, Unreadable
from laggard.probes.host.host import Host
from laggard.probes.probe import Fact, Probe, Thresholds, finding
from laggard.probes.runner.runner import Runner, run
from laggard.probes.runner.state_file import STUCK_FILE, StuckProcesses

GENEROUS_SECONDS = 50.0  # beyond the deadline, on a machine that is busy; the probes that hang do so for 600 s

Items = Iterator[Finding | Fact | Unreadable]


def check_well(host: Host, thresholds: Thresholds) -> Items:
    yield Fact("checked", 1)


def hang(host: Host, thresholds: Thresholds) -> Items:
    yield Fact("checked", 1)
    time.sleep(600)


def hang_and_ignore_signals(host: Host, thresholds: Thresholds) -> Items:
    for number in set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(number, signal.SIG_IGN)
    yield from hang(host, thresholds)


def stop_itself(host: Host, thresholds: Thresholds) -> Items:
    os.kill(os.getpid(), signal.SIGSTOP)
    yield Fact("checked", 1)


def leave_by_os_exit(host: Host, thresholds: Thresholds) -> Items:
    yield Fact("checked", 1)
    os._exit(7)


def leave_by_sys_exit(host: Host, thresholds: Thresholds) -> Items:
    yield Fact("checked", 1)
    sys.exit(0)


def crash(host: Host, thresholds: Thresholds) -> Items:
    yield Fact("checked", 1)
    ctypes.string_at(0)


def raise_value_error(host: Host, thresholds: Thresholds) -> Items:
    yield Fact("checked", 1)
    raise ValueError("two\nlines\x1b[31m")


def print_much(host: Host, thresholds: Thresholds) -> Items:
    for descriptor in (1, 2):
        os.write(descriptor, b"x" * (8 << 20))
    print("y" * (1 << 20), flush=True)
    yield Fact("checked", 1)


def yield_huge_fact(host: Host, thresholds: Thresholds) -> Items:
    yield Fact("checked", "z" * (64 << 20))


def yield_endlessly(host: Host, thresholds: Thresholds) -> Items:
    while True:
        yield Fact("checked", 1)


def yield_text(host: Host, thresholds: Thresholds) -> Items:
    yield "ok"  # type: ignore[misc]


def yield_no_json(host: Host, thresholds: Thresholds) -> Items:
    yield Fact("checked", object())


def write_to_the_pipe(host: Host, thresholds: Thresholds) -> Items:
    os.write(3, b'{"verdict": "ok", "reason": 5}\n')
    yield Fact("checked", 1)


def close_the_pipe(host: Host, thresholds: Thresholds) -> Items:
    os.close(3)
    time.sleep(600)
    yield Fact("checked", 1)


def raise_not_applicable(host: Host, thresholds: Thresholds) -> Items:
    yield Fact("checked", 1)
    raise NotApplicable("no such device on the bus")


def warn_then_unknown(host: Host, thresholds: Thresholds) -> Items:
    yield finding("CLOCK_SKEW", "clock", "is off", evidence={}, fix="set it")
    raise Unknown("the rest is unreadable")


def fail_then_unknown(host: Host, thresholds: Thresholds) -> Items:
    yield finding("DISK_FULL", "/", "is full", evidence={}, fix="empty it")
    raise Unknown("the rest is unreadable")


def leave_parts_out(host: Host, thresholds: Thresholds) -> Items:
    yield from (Unreadable(f"part {number}") for number in (1, 1, 2, 3, 4))
    raise NotApplicable("the rest is not there")


def probe(check: Callable[[Host, Any], Items], seconds: float = 60.0) -> Probe:
    return Probe(check.__name__, check, Thresholds(), seconds)


def run_probes(*probes: Probe, deadline: float = 60.0, warnings_fail: bool = False) -> Report:
    return run(Host(), probes, deadline_seconds=deadline, warnings_fail=warnings_fail)


HANGING = [hang, hang_and_ignore_signals, stop_itself]


@pytest.mark.parametrize("check", HANGING)
def test_a_hung_probe_costs_its_own_deadline(check: Callable[[Host, Any], Items]) -> None:
    report = run_probes(probe(check_well), probe(check, 0.3), probe(fail_then_unknown))
    well, hung, found = report.probes
    assert (well.verdict, hung.verdict, found.verdict) == (Verdict.OK, Verdict.UNKNOWN, Verdict.FAIL)
    assert re.search(rf"{check.__name__} gave no answer in \d+\.\d s", hung.reason), hung.reason
    assert hung.elapsed_seconds > 0.2 and report.elapsed_seconds < 0.3 + GENEROUS_SECONDS


@pytest.mark.slow
def test_the_deadline_bounds_everything() -> None:
    started = time.monotonic()
    report = run_probes(*(probe(check) for check in HANGING), deadline=0.5)
    assert time.monotonic() - started < 0.5 + GENEROUS_SECONDS
    assert {result.verdict for result in report.probes} == {Verdict.UNKNOWN} and report.verdict is Verdict.UNKNOWN


@pytest.mark.slow
def test_hung_probes_and_their_children_leave_no_process_behind(tmp_path: Path) -> None:
    note = tmp_path / "pids"

    def hang_with_helper(host: Host, thresholds: Thresholds) -> Items:
        helper = subprocess.Popen(["sleep", "600"])
        note.write_text(f"{os.getpid()} {helper.pid}")
        yield from hang(host, thresholds)

    for seconds in (1.0, 10.0, 100.0):  # until the machine is quick enough for a probe to start a process in time
        run_probes(probe(hang_with_helper, seconds))
        if note.exists() and len(note.read_text().split()) == 2:
            break
    pids = [int(word) for word in note.read_text().split()]
    until = time.monotonic() + 120
    while any(_runs(pid) for pid in pids) and time.monotonic() < until:
        time.sleep(0.01)
    assert [pid for pid in pids if _runs(pid)] == []


def _runs(pid: int) -> bool:
    """A zombie that init has yet to reap does not run."""
    stat = read_stat(pid)
    return stat is not None and not stat.has_ended


@pytest.mark.parametrize(
    ("check", "reason"),
    [
        (leave_by_os_exit, "exit status 7"),
        (leave_by_sys_exit, "SystemExit"),
        (crash, "SIGSEGV"),
        (raise_value_error, "ValueError: two lines"),
        (yield_huge_fact, "bytes"),
        (yield_endlessly, "more than 1000"),
        (yield_text, "yielded a str"),
        (yield_no_json, "no JSON"),
        (write_to_the_pipe, "garbage"),
        (close_the_pipe, "closed its pipe"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_anything_but_an_answer_is_unknown(check: Callable[[Host, Any], Items], reason: str) -> None:
    report = run_probes(probe(check), probe(check_well))
    broken, well = report.probes
    assert broken.verdict is Verdict.UNKNOWN and reason in broken.reason
    assert report.node == os.uname().nodename
    assert broken.reason.isprintable() and len(broken.reason) <= 300
    assert well.verdict is Verdict.OK and report.verdict is Verdict.UNKNOWN


def test_what_probes_print_goes_nowhere(capfd: pytest.CaptureFixture[str]) -> None:
    assert run_probes(probe(print_much)).verdict is Verdict.OK
    assert capfd.readouterr() == ("", "")


def test_a_probe_holds_no_file_that_the_caller_has_open() -> None:
    """A stuck probe must not keep a prolog's output or a daemon's port."""
    read_end, write_end = os.pipe()

    def list_descriptors(host: Host, thresholds: Thresholds) -> Items:
        yield Fact("open", [os.readlink(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd")[:-1]])

    report = run_probes(probe(list_descriptors))
    mine = os.readlink(f"/proc/self/fd/{write_end}")
    os.close(read_end), os.close(write_end)
    opened = report.facts["list_descriptors"]["open"]
    assert opened.count("/dev/null") == 3 and len(opened) == 4 and mine not in opened


def test_a_skipped_probe_has_the_reason() -> None:
    (result,) = run_probes(probe(raise_not_applicable)).probes
    assert (result.verdict, result.reason) == (Verdict.SKIPPED, "no such device on the bus")


def test_what_was_not_read_is_unknown_with_the_first_reasons() -> None:
    (result,) = run_probes(probe(leave_parts_out)).probes
    assert (result.verdict, result.reason) == (Verdict.UNKNOWN, "part 1; part 2; part 3 (and 1 more)")


def test_findings_before_an_unknown_count() -> None:
    report = run_probes(probe(warn_then_unknown), probe(fail_then_unknown))
    assert [result.verdict for result in report.probes] == [Verdict.UNKNOWN, Verdict.FAIL]
    assert [found.code for found in report.findings] == ["CLOCK_SKEW", "DISK_FULL"]
    assert report.probes[1].reason == "DISK_FULL /; the rest is unreadable"


def test_warnings_fail_where_asked() -> None:
    (result,) = run_probes(probe(warn_then_unknown), warnings_fail=True).probes
    assert result.verdict is Verdict.FAIL


def test_the_severity_is_the_catalogues_by_default() -> None:
    (found,) = run_probes(probe(warn_then_unknown)).findings
    assert found.severity is Severity.WARNING and found.doc == "docs/findings/CLOCK_SKEW.md"


FREEZER = Path("/sys/fs/cgroup/freezer")


@pytest.fixture
def freezer() -> Iterator[Path]:
    """A cgroup in which a process does not die of SIGKILL, as in a driver call that never returns."""
    group = FREEZER / f"laggard-test-{os.getpid()}"
    try:
        group.mkdir()
        (group / "freezer.state").read_text()
    except OSError:
        pytest.skip("needs root and the freezer of cgroup v1")
    yield group
    (group / "freezer.state").write_text("THAWED")
    until = time.monotonic() + 120
    while (group / "cgroup.procs").read_text().strip() and time.monotonic() < until:
        time.sleep(0.01)
    group.rmdir()


@pytest.mark.slow
def test_a_probe_that_cannot_be_killed_is_not_started_twice(freezer: Path, tmp_path: Path) -> None:
    starts = tmp_path / "starts"

    def hang_frozen(host: Host, thresholds: Thresholds) -> Items:
        with starts.open("a") as file:
            file.write("started\n")
        (freezer / "cgroup.procs").write_text(str(os.getpid()))
        (freezer / "freezer.state").write_text("FROZEN")
        yield from hang(host, thresholds)

    runner = Runner()
    stuck = probe(hang_frozen, 3.0)
    first = runner.run(Host(), [stuck], deadline_seconds=60)
    assert "no answer" in first.probes[0].reason and first.elapsed_seconds < 3.0 + GENEROUS_SECONDS
    second = runner.run(Host(), [stuck], deadline_seconds=60)
    assert second.probes[0].verdict is Verdict.UNKNOWN and "still stuck" in second.probes[0].reason
    assert starts.read_text() == "started\n"


# A process that survived SIGKILL is remembered between runs: its probe is not started again while it is there.


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LAGGARD_STATE_DIR", str(tmp_path / "state"))
    return tmp_path / "state"


@pytest.fixture
def stuck() -> Iterator[subprocess.Popen[bytes]]:
    """A process that lives: it stands in for one that a driver holds."""
    process = subprocess.Popen(["sleep", "600"])
    yield process
    process.kill()
    process.wait()


def check(host: Host, thresholds: Thresholds) -> Iterator[Finding | Fact]:
    yield Fact("checked", True)


PROBE = Probe("gpu", check, Thresholds())


def verdict(host: Host | None = None) -> tuple[Verdict, str]:
    (result,) = run(host or Host(), [PROBE], deadline_seconds=30).probes
    return result.verdict, result.reason


def test_another_run_starts_no_second_process(state: Path, stuck: subprocess.Popen[bytes]) -> None:
    StuckProcesses().add({"gpu": (stuck.pid, None)}, save=True)
    assert verdict() == (Verdict.UNKNOWN, f"process {stuck.pid} of an earlier run is still stuck in the kernel")
    stuck.kill()
    stuck.wait()
    assert verdict() == (Verdict.OK, "")


def test_a_reused_process_number_does_not_count(state: Path, stuck: subprocess.Popen[bytes]) -> None:
    StuckProcesses().add({"gpu": (stuck.pid, None)}, save=True)
    kept = json.loads((state / STUCK_FILE).read_text())
    kept["processes"]["gpu"]["started"] -= 1
    (state / STUCK_FILE).write_text(json.dumps(kept))
    assert verdict() == (Verdict.OK, "")


def test_a_process_that_has_ended_is_not_saved(state: Path, stuck: subprocess.Popen[bytes]) -> None:
    stuck.kill()
    stuck.wait()
    StuckProcesses().add({"gpu": (stuck.pid, None)}, save=True)
    assert not (state / STUCK_FILE).exists() and verdict()[0] is Verdict.OK


@pytest.mark.parametrize("content", ["", "[]", "{", '{"processes": {"gpu": {"pid": "x"}}}', "\0\xff"])
def test_a_damaged_file_counts_as_none(state: Path, content: str) -> None:
    state.mkdir(mode=0o700)
    (state / STUCK_FILE).write_text(content)
    assert verdict() == (Verdict.OK, "")


def test_a_directory_that_others_can_write_to_is_not_used(state: Path, stuck: subprocess.Popen[bytes]) -> None:
    StuckProcesses().add({"gpu": (stuck.pid, None)}, save=True)
    state.chmod(0o777)
    assert verdict() == (Verdict.OK, "")


def test_a_recorded_machine_is_judged_all_the_same(state: Path, stuck: subprocess.Popen[bytes], tmp_path: Path) -> None:
    StuckProcesses().add({"gpu": (stuck.pid, None)}, save=True)
    (tmp_path / "machine").mkdir()
    assert verdict(Host(str(tmp_path / "machine")))[0] is Verdict.OK
