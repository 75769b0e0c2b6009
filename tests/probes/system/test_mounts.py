"""MOUNT_HUNG: a mount that hangs delays no other. The hung one is a FUSE file system that never answers."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support.waiting import wait_for

from laggard.cli import main
from laggard.probes.host.host import Host
from laggard.probes.host.kernel import StatvfsReply
from laggard.probes.runner import runner
from laggard.probes.system import mounts
from laggard.probes.system.mounts import RemoteMountThresholds, check, query_statvfs

HANG = """
import ctypes, json, os, sys
libc = ctypes.CDLL(None, use_errno=True)
def mount(source, point):
    device = os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0".encode()
    if libc.mount(source.encode(), point.encode(), b"fuse.dead", 0, options):
        sys.exit("cannot mount: " + os.strerror(ctypes.get_errno()))
for number in (1, 2):
    mount("dead.example:/export", f"{sys.argv[1]}/hung{number}")
from laggard.cli import main
sys.exit(main(["healthcheck", "--profile", sys.argv[2], "--only", "mounts", "--format", "json"]))
"""


OF_A_USER = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
device = os.open("/dev/fuse", os.O_RDWR)
options = f"fd={device},rootmode=40000,user_id=1000,group_id=1000,allow_other".encode()
if libc.mount(b"rclone", sys.argv[1].encode(), b"fuse.rclone", 6, options):
    sys.exit("cannot mount: " + os.strerror(ctypes.get_errno()))
if sys.argv[2] == "dead":
    os.close(device)
from laggard.cli import main
sys.exit(main(["healthcheck", "--only", "mounts", "--gate", "enforce", "--collector", "none", "--format", "json"]))
"""


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    path = tmp_path / "profile.yaml"
    path.write_text(f"thresholds: {{mounts: {{answer_seconds: 0.5, jobs: ['{tmp_path}/*']}}}}\n")
    return path


def report_with_hung_mounts(tmp_path: Path, profile: Path) -> dict[str, Any]:
    """Returns the report of this machine with two mounts of a dead server, in a mount namespace of its own."""
    for number in (1, 2):
        (tmp_path / f"hung{number}").mkdir(exist_ok=True)
    command = ["unshare", "--mount", sys.executable, "-c", HANG, str(tmp_path), str(profile)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    if not done.stdout:
        pytest.skip(f"no FUSE mounts here: {done.stderr.strip()[-200:]}")
    return dict(json.loads(done.stdout))


@pytest.mark.slow
def test_a_real_hung_mount_is_found_in_time(tmp_path: Path, profile: Path) -> None:
    report = report_with_hung_mounts(tmp_path, profile)
    (finding,) = report["findings"]
    assert (finding["code"], finding["severity"]) == ("MOUNT_HUNG", "critical")
    assert finding["device"] == str(tmp_path / "hung1")
    assert finding["evidence"]["server"] == "dead.example:/export"
    assert finding["evidence"]["silent_seconds"] >= 0.5
    (probe,) = report["probes"]
    assert "/hung2: was not reached" in probe["reason"], "the second mount of the dead server is not waited for as well"


def live() -> Host:
    """This machine, as a probe's process has it."""
    host = Host()
    host.run = partial(runner.run, host)
    return host


def test_each_server_has_its_own_time(monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.statvfs

    def statvfs(path: str) -> os.statvfs_result:
        if path == "/hung":
            time.sleep(600)
        if path == "/stale":
            raise OSError(116, "Stale file handle")
        return real("/")

    monkeypatch.setattr(mounts.os, "statvfs", statvfs)
    paths = {"a": ["/hung", "/behind"], "b": ["/stale", "/well"], "c": ["/fine"]}
    for seconds in (0.3, 2.0, 15.0, 90.0):  # on a busy machine those that answer may take long, too
        replies = query_statvfs(live(), paths, seconds)
        if replies["/stale"].error == "Stale file handle" and replies["/well"] == replies["/fine"] == StatvfsReply():
            break
    assert replies["/hung"].silent_seconds >= seconds and "was not reached" in replies["/behind"].error
    assert replies["/stale"].error == "Stale file handle"
    assert replies["/well"] == replies["/fine"] == type(replies["/fine"])()


def test_a_server_that_is_still_silent_is_not_asked_a_second_time(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A process that SIGKILL does not end is left behind, and the next run finds it."""
    monkeypatch.setenv("LAGGARD_STATE_DIR", str(tmp_path))
    monkeypatch.setattr(mounts.os, "statvfs", lambda path: time.sleep(600))
    left: list[int] = []
    monkeypatch.setattr(runner, "kill_group", left.append)
    monkeypatch.setattr(runner, "reap", list)
    first = query_statvfs(live(), {"filer": ["/mnt"]}, 0.3)["/mnt"]
    try:
        silent = wait_for(lambda: query_statvfs(live(), {"filer": ["/mnt"]}, 0.3)["/mnt"].silent_seconds)
        assert silent >= first.silent_seconds > 0 and len(left) == 1, "no second process was started"
    finally:
        for pid in left:
            os.kill(pid, 9)
            os.waitpid(pid, 0)


def test_a_mount_that_cannot_be_judged_is_unknown(
    copy_of: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    root = copy_of("mount_hung")
    (root / "laggard/replies.json").write_text(json.dumps({"/home": {}, "/work": {"error": "Protocol error"}}))
    main(["healthcheck", "--host-root", str(root), "--only", "mounts", "--format", "json"])
    (probe,) = json.loads(capsys.readouterr().out)["probes"]
    assert probe["verdict"] == "unknown"
    assert "/work: Protocol error" in probe["reason"] and "/sets: not recorded" in probe["reason"]


def test_users_mounts_do_not_keep_the_servers_from_being_asked(
    copy_of: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """fusermount lets any user mount as many as they like, under any names."""
    root = copy_of("mount_hung")
    own = [f"sshfs{n} /a/{n} fuse.sshfs rw,nosuid,user_id=1000,group_id=1000 0 0" for n in range(200)]
    table = root / "proc/self/mounts"
    table.write_text("\n".join(own) + "\n" + table.read_text())
    main(["healthcheck", "--host-root", str(root), "--only", "mounts", "--format", "json"])
    report = json.loads(capsys.readouterr().out)
    assert "MOUNT_HUNG" in {found["code"] for found in report["findings"]}
    assert "file systems that users have mounted" in report["facts"]["mounts"]["not_asked"]


@pytest.mark.slow
@pytest.mark.parametrize(("state", "words"), [("silent", "has not answered for"), ("dead", "not connected")])
def test_a_users_real_mount_rejects_no_job(state: str, words: str, tmp_path: Path) -> None:
    """Their rclone hangs, or has died: the kernel has written down whose mount it is."""
    command = ["unshare", "--mount", sys.executable, "-c", OF_A_USER, str(tmp_path), state]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    if not done.stdout:
        pytest.skip(f"no FUSE mounts here: {done.stderr.strip()[-200:]}")
    (finding,) = json.loads(done.stdout)["findings"]
    assert (done.returncode, finding["code"], finding["severity"]) == (0, "MOUNT_HUNG", "warning")
    assert words in finding["summary"] and "a user's" in finding["summary"]


def test_a_users_mount_with_the_filers_name_is_asked_apart(copy_of: Callable[[str], Path]) -> None:
    """What hangs in it must not count as the filer's silence: the process that asks holds a lock by that name."""
    root = copy_of("mount_closed")
    table = root / "proc/self/mounts"
    user = "nfs.example:/home /home/alice/mine fuse.sshfs rw,user_id=1000,group_id=1000,allow_other 0 0\n"
    table.write_text(table.read_text() + user)
    asked: list[Mapping[str, Sequence[str]]] = []

    class Asking(Host):
        def statvfs_replies(self, points: Mapping[str, Sequence[str]], ask: object) -> Mapping[str, StatvfsReply]:
            asked.append(points)
            return {point: StatvfsReply() for group in points.values() for point in group}

    list(check(Asking(str(root)), RemoteMountThresholds()))
    assert asked[0]["nfs.example:/home"] == ["/home"]
    assert sum("/home/alice/mine" in points for points in asked[0].values()) == 1
