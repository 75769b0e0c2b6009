"""DISK_FULL of a file system that users fill: whose files these are, and whether that may drain a node."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from support.judge import Check
from support.materialise import materialise
from support.rows import rows

from laggard.probes.host.host import Host

USER = "12345"
GIB = 1 << 30


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """A machine whose `/` of 440 GiB is full; `usages` is set by fill()."""
    return materialise("disk_full", tmp_path / "machine")


def fill(machine: Path, for_all: bool = True, **gibibytes: int) -> None:
    """Says how much of `/` each user has: `root=1` or `user=400`."""
    facts = json.loads((machine / "laggard/facts.json").read_text())
    names = {"root": "0", "user": USER}
    usage = {names[name]: size * GIB for name, size in gibibytes.items()}
    facts["usages"] = {"/": {"bytes_by_user": usage, "complete": True, "for_all": for_all}}
    (machine / "laggard/facts.json").write_text(json.dumps(facts))


def finding(report: dict[str, Any]) -> dict[str, Any]:
    (found,) = report["findings"]
    assert found["code"] == "DISK_FULL"
    return dict(found)


def test_the_user_whose_files_fill_it_is_named(machine: Path, check: Check) -> None:
    fill(machine, root=12, user=420)
    found = finding(check(machine, "disks"))
    assert f"99 % used (most by user {USER}), 2" in found["summary"] and found["severity"] == "critical"
    assert found["evidence"]["bytes_by_user"] == {USER: 420 * GIB, "0": 12 * GIB}
    fill(machine, root=300, user=130)
    assert USER not in finding(check(machine, "disks"))["summary"]


@rows("probes/filled_disks")
def test_a_site_may_have_no_node_drained_for_what_users_fill(
    machine: Path, check: Check, tmp_path: Path, filled: dict[str, Any], severity: str
) -> None:
    profile = tmp_path / "profile.yaml"
    profile.write_text("thresholds: {disks: {filled_by_users: warning}}\n")
    fill(machine, **filled)
    assert finding(check(machine, "disks", "--profile", str(profile)))["severity"] == severity
    assert finding(check(machine, "disks"))["severity"] == "critical"


def test_a_recording_of_an_older_version_says_nothing_of_users(machine: Path, check: Check) -> None:
    found = finding(check(machine, "disks"))
    assert found["severity"] == "critical" and "bytes_by_user" not in found["evidence"]


def test_a_disk_without_a_name_in_the_pod_is_told_by_its_device(tmp_path: Path, check: Check) -> None:
    found = finding(check(materialise("pod_kubelet_disk_full", tmp_path / "pod"), "disks"))
    assert (found["device"], found["fix"]["commands"]) == ("/dev/nvme1n1p1", ["df -h", "df -i"])
    assert found["summary"].endswith("the kubelet's disk, where /tmp of this pod lies")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be several users")
def test_files_are_counted_once_by_owner_and_no_link_is_followed(tmp_path: Path) -> None:
    room = tmp_path / "room"
    (room / "deep" / "er").mkdir(parents=True)
    mine, theirs = room / "mine", room / "deep" / "er" / "theirs"
    mine.write_bytes(b"x" * (1 << 20))
    theirs.write_bytes(b"x" * (3 << 20))
    os.chown(theirs, int(USER), 0)
    os.link(theirs, room / "again")
    (tmp_path / "elsewhere").write_bytes(b"x" * (9 << 20))
    (room / "link").symlink_to(tmp_path)
    room.chmod(0o1777)
    usage = Host().usage(str(room))
    assert 3 << 20 <= usage.bytes_by_user[USER] < 4 << 20 and 1 << 20 <= usage.bytes_by_user["0"] < 2 << 20
    assert usage.complete and usage.for_all
    room.chmod(0o755)
    assert not Host().usage(str(room)).for_all
