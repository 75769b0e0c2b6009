"""Which probes have a process: those that read alone share one, what has nothing to judge has none, and one that is
stuck keeps back those alone that would wait for the same."""

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.materialise import materialise

from laggard.model import Verdict
from laggard.probes.choose import gate_probes
from laggard.probes.errors import NotApplicable, Unknown
from laggard.probes.host.host import Host
from laggard.probes.probe import Fact, Probe, ProbeGroup, Thresholds
from laggard.probes.runner import runner
from laggard.probes.runner.runner import ProbeProcess, run
from laggard.probes.runner.state_file import StuckProcesses

APART, ALIKE = ProbeGroup("apart", 30.0, waits_alike=False), ProbeGroup("alike", 30.0)


@pytest.fixture
def forks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A place for each process that the runner starts."""
    started: list[int] = []
    fork = runner.fork

    def counted() -> int:
        started.append(os.getpid())
        return fork()

    monkeypatch.setattr(runner, "fork", counted)
    return started


def check(host: Host, thresholds: Thresholds) -> Iterator[Fact]:
    yield Fact("pid", os.getpid())


def refuse(error: Exception) -> Callable[[Host, Thresholds], None]:
    def needs(host: Host, thresholds: Thresholds) -> None:
        raise error

    return needs


@pytest.mark.parametrize("has_server", [False, True])
def test_a_gate_starts_a_process_for_each_kind_of_waiting(has_server: bool, forks: list[int], tmp_path: Path) -> None:
    """What the kernel holds, GPUs, configuration space, RDMA, the ranks' environments; and network file systems."""
    machine = materialise("plain", tmp_path / "machine")
    mounts = "/dev/sda2 / ext4 rw 0 0\n" + "filer:/home /home nfs4 rw 0 0\n" * has_server
    (machine / "proc/self/mounts").write_text(mounts)
    report = run(Host(str(machine)), gate_probes(), deadline_seconds=60)
    skipped = {it.name for it in report.probes if it.verdict is Verdict.SKIPPED}
    assert len(forks) == 5 + has_server and "site_checks" in skipped and ("mounts" in skipped) != has_server


def test_a_probe_that_has_nothing_to_judge_starts_no_process(forks: list[int]) -> None:
    probe = Probe("tables", check, Thresholds(), needs=refuse(NotApplicable("no table")))
    (result,) = run(Host(), [probe], deadline_seconds=30).probes
    assert (result.verdict, result.reason, forks) == (Verdict.SKIPPED, "no table", [])


@pytest.mark.parametrize("error", [Unknown("cannot read the table"), ValueError("a defect")])
def test_where_that_cannot_be_told_the_check_says_what_is_wrong(error: Exception, forks: list[int]) -> None:
    (result,) = run(Host(), [Probe("tables", check, Thresholds(), needs=refuse(error))], deadline_seconds=30).probes
    assert result.verdict is Verdict.OK and len(forks) == 1


@pytest.fixture
def stuck(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[subprocess.Popen[bytes]]:
    """A process that lives: it stands in for one that a dead disk holds."""
    monkeypatch.setenv("LAGGARD_STATE_DIR", str(tmp_path / "state"))
    process = subprocess.Popen(["sleep", "600"])
    yield process
    process.kill()
    process.wait()


@pytest.mark.parametrize(("group", "name", "unknown"), [(APART, "b", "b"), (ALIKE, "alike", "abc")])
def test_what_is_stuck_keeps_back_what_would_wait_for_the_same(
    group: ProbeGroup, name: str, unknown: str, stuck: subprocess.Popen[bytes]
) -> None:
    StuckProcesses().add({name: (stuck.pid, None)}, save=True)
    report = run(Host(), [Probe(each, check, Thresholds(), group=group) for each in "abc"], deadline_seconds=30)
    assert [it.name for it in report.probes if "still stuck" in it.reason or "not reached" in it.reason] == [*unknown]
    others = {report.facts[it.name]["pid"] for it in report.probes if it.verdict is Verdict.OK}
    assert len(others) == len(set("abc") - set(unknown)) // 2


@pytest.mark.parametrize(("group", "name"), [(APART, "b"), (ALIKE, "alike")])
def test_a_process_that_hangs_is_known_by_what_hung_in_it(group: ProbeGroup, name: str, tmp_path: Path) -> None:
    def hang(host: Host, thresholds: Thresholds) -> Iterator[Fact]:
        time.sleep(600)
        yield Fact("pid", 0)

    probes = [Probe(each, hang if each == "b" else check, Thresholds(), group=group) for each in "abc"]
    process = ProbeProcess(probes, time.monotonic() + 60)
    process.start(Host(), {each.name: Host().counter_history for each in probes})
    try:
        while not process.answers:
            process.read_answers()
        process.on_deadline()
    finally:
        process.close()
        runner.kill_group(process.pid)
        os.waitpid(process.pid, 0)
    assert process.name == name and [it.observation.verdict.value for it in process.answers] == [
        "ok",
        "unknown",
        "unknown",
    ]
