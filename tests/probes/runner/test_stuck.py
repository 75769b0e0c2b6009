"""A process that survived SIGKILL is remembered between runs: its probe is not started again while it is there."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from laggard.model import Finding, Verdict
from laggard.probes.host.host import Host
from laggard.probes.probe import Fact, Probe, Thresholds
from laggard.probes.runner.runner import run
from laggard.probes.runner.state_file import STUCK_FILE, StuckProcesses


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
