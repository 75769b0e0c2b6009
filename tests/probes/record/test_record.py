"""`laggard healthcheck record`: a recording replays the verdict and the findings of what was recorded."""

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.coverage import firing, raised_by_probes
from support.judge import judge, judge_host
from support.materialise import expectation, names
from support.rows import rows

from laggard.cli import main
from laggard.probes.errors import Unknown
from laggard.probes.record import command
from laggard.probes.record.command import _exchangeable
from laggard.probes.record.masking import Mask
from laggard.probes.record.recorder import RecordingHost
from laggard.probes.registry import PROBES
from laggard.wire import WireError, decode

pytestmark = pytest.mark.apart

KEY = b"k" * 32
Copy = Callable[[str], Path]


def record(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    words = (sys.executable, "-m", "laggard", "healthcheck", "record", str(folder), *words)
    return subprocess.run(words, capture_output=True, text=True, timeout=300)


def report(root: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """The gate's report on the machine in `root`, without durations."""
    capsys.readouterr()
    main(["healthcheck", "--host-root", str(root), "--format", "json"])
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    document.pop("elapsed_seconds")
    for probe in document["probes"]:
        probe.pop("elapsed_seconds")
    return document


@pytest.mark.slow
def test_this_machine_replays(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    done = record(tmp_path / "machine")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("\n") == 1 and str(tmp_path / "machine") in done.stdout
    assert done.stderr.startswith("laggard: running ")
    replayed = report(tmp_path / "machine", capsys)
    assert replayed["node"] == os.uname().nodename
    assert not list((tmp_path / "machine").rglob(".notes*"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "flags"),
    [
        ("plain", ()),
        ("mount_hung", ()),
        ("disk_full", ("--mask",)),
        ("mount_hung", ("--mask",)),
        pytest.param("hgx_h100", ("--mask",), marks=pytest.mark.slow),
        pytest.param("rdma_gid_v1", ("--mask",), marks=pytest.mark.slow),
    ],
)
def test_a_recorded_machine_replays(
    name: str, flags: tuple[str, ...], copy_of: Copy, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = copy_of(name)
    done = record(tmp_path / "again", "--host-root", str(source), *flags)
    assert done.returncode == 0, done.stderr
    before, after = report(source, capsys), report(tmp_path / "again", capsys)
    if flags:
        before, after = (
            [(found["code"], found["severity"]) for found in document["findings"]] for document in (before, after)
        )
    assert after == before


def test_the_mask_hides_file_servers(copy_of: Copy, tmp_path: Path) -> None:
    assert record(tmp_path / "again", "--host-root", str(copy_of("mount_hung")), "--mask").returncode == 0
    mounts = (tmp_path / "again/proc/self/mounts").read_text()
    assert "nfs.example" not in mounts and "10.9.0.4" not in mounts, mounts
    assert ":/home /home nfs4 " in mounts and "@o2ib:/work /work lustre" in mounts, mounts


def one_for_each_code() -> list[str]:
    """One machine for each finding, and the machines that others are based on. All would take some minutes."""
    bases = {str(expectation(name)["base"]) for name in names() if "base" in expectation(name)}
    return sorted(bases | {firing(code)[0] for code in raised_by_probes()})


@pytest.mark.slow
@pytest.mark.parametrize("name", one_for_each_code())
def test_recorded_machines_replay(
    name: str, machine: Copy, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The probes run in this process; the tests above record with a process for each."""
    monkeypatch.setattr(command, "run", lambda host, probes, deadline_seconds: judge_host(host, probes))
    source = machine(name)
    assert main(["healthcheck", "record", str(tmp_path / "again"), "--host-root", str(source)]) == 0, (
        capsys.readouterr().err
    )
    assert judge(tmp_path / "again", PROBES) == judge(source, PROBES), expectation(name)["says"]


@pytest.mark.slow
def test_what_cannot_be_read_replays_with_the_same_reason(
    copy_of: Copy, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What cannot be read: a loop of symlinks, a folder in the place of a file, and a binary file."""
    source = copy_of("plain")
    mounts, comm = source / "proc/self/mounts", source / "proc/sys/vm/swappiness"
    mounts.unlink()
    mounts.symlink_to("mounts")
    comm.parent.mkdir(parents=True, exist_ok=True)
    comm.unlink(missing_ok=True)
    comm.mkdir()
    (source / "proc/self/limits").write_bytes(b"\xff\xfe\0")
    assert record(tmp_path / "again", "--host-root", str(source)).returncode == 0
    assert report(tmp_path / "again", capsys) == report(source, capsys)


AS_NOBODY = """
import importlib, os, pkgutil, sys
import ctypes, pynvml, msgspec, yaml, subprocess, socket, laggard.probes.record.command, laggard.probes
for found in pkgutil.walk_packages(laggard.probes.__path__, "laggard.probes."):
    importlib.import_module(found.name)
from laggard.cli import main
os.setgroups([]), os.setgid(65534), os.setuid(65534)
sys.exit(main(["healthcheck", "record", sys.argv[1]]))
"""


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be somebody else")
def test_what_is_forbidden_replays_as_forbidden() -> None:
    """Recorded live as user nobody, who may not read configuration space beyond 64 bytes, other users' environments and
    the kernel's log."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o777)
        words = [sys.executable, "-c", AS_NOBODY, f"{folder}/machine"]
        done = subprocess.run(words, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr


def test_of_an_environment_only_what_probes_use_is_recorded(tmp_path: Path) -> None:
    secret = {
        **os.environ,
        "AWS_SECRET_ACCESS_KEY": "swordfish",
        "NCCL_DEBUG": "INFO",
        "KUBERNETES_SERVICE_HOST": "10.1.2.3",
    }
    words = [sys.executable, "-m", "laggard", "healthcheck", "record", str(tmp_path / "machine")]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300, env=secret)
    assert done.returncode == 0, done.stderr
    facts = json.loads((tmp_path / "machine/laggard/facts.json").read_text())
    assert facts["environ"]["NCCL_DEBUG"] == "INFO"
    assert facts["environ"]["KUBERNETES_SERVICE_HOST"] == "10.1.2.3"  # whether GPUs may be missing depends on it
    assert not subprocess.run(["grep", "-rla", "swordfish", str(tmp_path / "machine")], capture_output=True).stdout


def test_only_an_empty_folder_is_written_to(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine").write_text("precious")
    assert main(["healthcheck", "record", str(tmp_path)]) == 64
    assert "is not empty" in capsys.readouterr().err
    assert main(["healthcheck", "record", str(tmp_path / "mine")]) == 64
    assert "cannot record into" in capsys.readouterr().err
    assert (tmp_path / "mine").read_text() == "precious"


@pytest.mark.slow
def test_a_hung_probe_does_not_hang_the_recording(copy_of: Copy, tmp_path: Path) -> None:
    source = copy_of("plain")
    (source / "proc/self/mounts").unlink()
    os.mkfifo(source / "proc/self/mounts")
    done = record(tmp_path / "again", "--host-root", str(source))
    assert done.returncode in (0, 2), done.stderr
    assert (tmp_path / "again/proc/sys/kernel/hostname").read_text() == "plain\n"


IDENTIFYING = """\
node_guid: 506b:4b03:00cc:a4d2
gid: fe80:0000:0000:0000:506b:4b03:00cc:a4d2
gid: 0000:0000:0000:0000:0000:ffff:c0a8:0a01
address: b8:59:9f:0c:11:22
uuid: GPU-12345678-9abc-def0-1234-56789abcdef0
Serial Number: 1654321001234
filer.example.org:/export /home/alice nfs4 rw,addr=192.168.10.1 0 0
gpu-a-07 gpu-a-07.example.org
"""


def test_the_mask_hides_names_and_keeps_related_values_related() -> None:
    masked = Mask({"gpu-a-07", "gpu-a-07.example.org", "filer.example.org"}, KEY).text(IDENTIFYING)
    for secret in ("506b", "a4d2", "c0a8", "b8:59", "12345678", "1654321001234", "filer", "alice", "192.168", "gpu-a"):
        assert secret not in masked, masked
    guid = re.search(r"node_guid: (\S+)", masked)
    assert guid and f"fe80:0000:0000:0000:{guid[1]}" in masked
    assert "0000:0000:0000:0000:0000:ffff:0a" in masked and len(masked.splitlines()) == len(IDENTIFYING.splitlines())


@rows("probes/unmasked")
def test_the_mask_leaves_what_identifies_nobody(text: str) -> None:
    assert Mask({"gpu-a-07"}, KEY).text(text) == text


@given(st.text())
def test_any_text_is_masked_the_same_way_each_time(text: str) -> None:
    assert Mask({"n1"}, KEY).text(text) == Mask({"n1"}, KEY).text(text)


def test_two_recordings_are_masked_differently() -> None:
    assert Mask(()).text("b8:59:9f:0c:11:22") != Mask(()).text("b8:59:9f:0c:11:22")


def test_a_folder_that_was_a_symlink_leads_out_of_no_recording(tmp_path: Path) -> None:
    """A user names settings files below a folder of theirs, and replaces that meanwhile; root records."""
    outside, users, recording = tmp_path / "outside", tmp_path / "users", tmp_path / "recording"
    for folder in (outside, users, recording):
        folder.mkdir()
    (outside / "conf").write_text("NCCL_ALGO=Ring\n")
    (users / "evil").symlink_to(outside)
    host = RecordingHost("/", str(recording))
    host.read_users_file(f"{users}/evil/conf", str(os.getpid()))
    (users / "evil").unlink()
    (users / "evil/cron.d").mkdir(parents=True)
    (users / "evil/cron.d/job").write_text("* * * * * root /tmp/NCCL_\n")
    with pytest.raises(Unknown, match="while it was recorded"):
        host.read_users_file(f"{users}/evil/cron.d/job", str(os.getpid()))
    assert os.listdir(outside) == ["conf"]


def test_all_probes_read_one_machine(tmp_path: Path) -> None:
    """A file system is mounted after one probe has asked for the sizes of all, and before another lists them."""
    mounts, recording = tmp_path / "mounts", tmp_path / "recording"
    recording.mkdir()
    mounts.write_text("tmpfs /scratch tmpfs rw 0 0\n")
    before = RecordingHost("/", str(recording)).read_bytes(str(mounts))
    mounts.write_text("tmpfs /scratch tmpfs rw 0 0\ntmpfs /late tmpfs rw 0 0\n")
    assert RecordingHost("/", str(recording)).read_bytes(str(mounts)) == before
    assert (recording / str(mounts)[1:]).read_bytes() == before


@pytest.mark.slow
@pytest.mark.parametrize("place", ["proc/sys/kernel/hostname", "laggard/facts.json"])
def test_a_recording_of_pipes_holds_nobody_up(place: str, copy_of: Copy) -> None:
    """Outside the probes' own processes, which have deadlines, nothing but files is opened in a recording."""
    source = copy_of("plain")
    (source / place).parent.mkdir(exist_ok=True)
    (source / place).unlink(missing_ok=True)
    os.mkfifo(source / place)
    words = [sys.executable, "-m", "laggard", "healthcheck", "--host-root", str(source), "--deadline", "5"]
    assert subprocess.run(words, capture_output=True, timeout=300).returncode in (0, 1, 2)


def test_a_recording_that_nests_without_end_is_damaged() -> None:
    with pytest.raises(WireError, match="nested too deeply"):
        decode(b"[" * 100_000 + b"]" * 100_000, dict[str, Any] | list[Any])


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, who could be led elsewhere")
def test_root_records_into_no_folder_that_another_user_can_exchange(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    os.chown(theirs, 1001, 1001)
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared").chmod(0o777)
    for folder in (theirs / "recording", tmp_path / "shared", tmp_path / "shared/recording"):
        assert main(["healthcheck", "record", str(folder)]) == 64
        assert "is not root's alone" in capsys.readouterr().err
        assert not folder.exists() or not any(folder.iterdir())
    monkeypatch.setenv("SUDO_UID", "1001")
    assert not _exchangeable(str(theirs))
    assert _exchangeable(str(tmp_path / "shared"))
