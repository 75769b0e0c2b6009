"""What cannot be read is unknown, with the reason; never ok."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from support.damage import garble, remove
from support.judge import Check, judge, result_of

from laggard.probes.system import limits

pytestmark = pytest.mark.usefixtures("without_processes")

Copy = Callable[[str], Path]

NEEDED = {
    "limits": ["proc/2212/limits", "proc/2212/comm", "sys/class"],
    "clock": ["laggard/facts.json"],
    "disks": ["proc/self/mounts", "laggard/facts.json"],
}


def directory(path: Path) -> None:
    remove(path)
    path.mkdir()


def empty(path: Path) -> None:
    remove(path)
    path.touch()


def loop(path: Path) -> None:
    remove(path)
    path.symlink_to(path.name)


def huge(path: Path) -> None:
    remove(path)
    with path.open("wb") as file:
        file.truncate(1 << 30)


CASES = [(probe, path) for probe, paths in NEEDED.items() for path in paths]


@pytest.mark.parametrize("damage", [remove, garble, empty, loop, huge])
@pytest.mark.parametrize(("probe", "path"), CASES, ids=lambda value: str(value).replace("/", "-"))
def test_damage_is_unknown(
    probe: str,
    path: str,
    damage: Callable[[Path], None],
    copy_of: Copy,
    check: Check,
) -> None:
    machine = copy_of("healthy")
    (machine / "sys/module/nvidia_peermem").mkdir(parents=True, exist_ok=True)  # jobs use RDMA here
    damage(machine / path)
    result = result_of(check(machine, probe))
    assert result["verdict"] == "unknown"
    assert result["reason"] and "\n" not in result["reason"]


def test_a_process_that_has_ended_is_not_slurmd(copy_of: Copy) -> None:
    machine = copy_of("healthy")
    shutil.rmtree(machine / "proc/2212")
    (result,) = judge(machine, (limits.PROBE,)).probes
    assert result.verdict.value == "ok"
    assert judge(machine, (limits.PROBE,)).facts["limits"]["judged"] == "this process"


@pytest.mark.parametrize(
    ("probe", "path"),
    [case for case in CASES if case[1] != "sys/class"],
    ids=lambda value: str(value).replace("/", "-"),
)
def test_a_directory_in_a_files_place_is_unknown(probe: str, path: str, copy_of: Copy, check: Check) -> None:
    machine = copy_of("healthy")
    directory(machine / path)
    assert result_of(check(machine, probe))["verdict"] == "unknown"


def test_on_an_empty_tree_all_is_unknown(tmp_path: Path, check: Check) -> None:
    for probe in NEEDED:
        assert result_of(check(tmp_path, probe))["verdict"] == "unknown"


def test_a_mount_without_an_answer_is_unknown_and_the_others_count(copy_of: Copy, check: Check) -> None:
    machine = copy_of("disk_full")
    facts = json.loads((machine / "laggard/facts.json").read_text())
    del facts["file_systems"]["/scratch"]
    facts["errors"] = {"statvfs /scratch": "Input/output error"}
    (machine / "laggard/facts.json").write_text(json.dumps(facts))
    result = result_of(check(machine, "disks"))
    assert result["verdict"] == "fail"
    assert "DISK_FULL /" in result["reason"] and "cannot statvfs /scratch: Input/output error" in result["reason"]


def test_only_remote_and_read_only_mounts_are_skipped_with_the_reason(copy_of: Copy, check: Check) -> None:
    machine = copy_of("healthy")
    (machine / "proc/self/mounts").write_text("nfs:/root / nfs4 ro 0 0\nnfs:/home /home nfs4 rw 0 0\n")
    result = result_of(check(machine, "disks"))
    assert result["verdict"] == "skipped" and "2 mounts" in result["reason"]


def test_symlinks_are_followed_inside_the_recording(copy_of: Copy, check: Check) -> None:
    machine = copy_of("open_files_low")
    (machine / "proc/2212").rename(machine / "proc/999")
    (machine / "proc/2212").symlink_to("/proc/999")  # of the recording, not of the machine that reads it
    report = check(machine, "limits")
    assert (report["status"], [it["code"] for it in report["findings"]]) == (0, ["OPEN_FILES_LIMIT"])


@pytest.mark.parametrize("target", ["/etc/hostname", "../../../../../../../../../../../etc/hostname"])
def test_symlinks_do_not_lead_out(target: str, copy_of: Copy, tmp_path: Path, check: Check) -> None:
    machine = copy_of("healthy")
    remove(machine / "proc/sys/kernel/hostname")
    (machine / "proc/sys/kernel/hostname").symlink_to(target)
    assert check(machine)["node"] == "healthy"  # the folder's name: the link leads nowhere


AUDIT = """
import os, sys
log = sys.argv[1]
def audit(event, arguments):
    if event == "ctypes.dlopen":
        log_line(event)
    if event in ("open", "os.listdir", "os.scandir") and arguments:
        path = os.fsdecode(arguments[0]) if isinstance(arguments[0], (str, bytes)) else ""
        if path.startswith(("/proc", "/sys", "/etc")):
            log_line(path)
def log_line(text):
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(descriptor, (text + "\\n").encode())
    os.close(descriptor)
from laggard.cli import main
import laggard.gate.command
sys.addaudithook(audit)
status = main(["healthcheck", *sys.argv[2:]])
"""


def test_nothing_is_read_from_the_live_machine(copy_of: Copy, tmp_path: Path) -> None:
    """Not by the probes' processes either: they inherit the audit hook. The same hook sees what a live run reads."""
    machine = copy_of("healthy")
    environ = {**os.environ, "SLURM_JOB_ID": "1"}  # of a live machine it decides whose limits are judged
    for words, live in ((["--host-root", str(machine)], False), ([], True)):
        log = tmp_path / f"log-{live}"
        done = subprocess.run(
            [sys.executable, "-c", AUDIT, str(log), *words, "--format", "json"],
            env=environ,
            capture_output=True,
            text=True,
        )
        report = json.loads(done.stdout)
        assert log.exists() is live, log.read_text()
        assert report["facts"]["limits"]["judged"] == ("this job" if live else "slurmd")
