"""A flood of lines, which any user can cause, hides nothing: what was seen is kept, and what nobody saw is unknown."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from support.judge import Check
from support.users_text import kernel_records, mount_with_option, now

from laggard.cli import main
from laggard.probes.gpu.model.driver_log import find_xids
from laggard.probes.host.host import Host
from laggard.probes.host.kernel_log import MAX_RECORDS, LogMemory, parse_messages, read_kmsg, remember, with_memory

Machine = Callable[[str], Path]

XID = "NVRM: Xid (PCI:0000:9b:00): 95, pid=7, Uncontained: LTC TAG"


def record(number: int, seconds: float, text: str = "tmpfs: Unknown parameter 'x'") -> str:
    return f"6,{number},{round(seconds * 1e6)},-;{text}\n"


def flood(first: int, seconds: float, count: int = 300) -> str:
    return "".join(record(first + place, seconds) for place in range(count))


def test_what_was_seen_is_kept_when_a_flood_washes_it_away() -> None:
    memory = remember(LogMemory(), record(0, 0.0) + record(1, 500.0, XID))
    memory = remember(memory, flood(2, 900.0))
    log = with_memory(memory, flood(250, 1000.0))
    assert [found.code for found in find_xids(log)] == [95]
    assert remember(memory, log).since == remember(memory, flood(250, 1000.0)).since == 0.0


def test_a_gap_that_nobody_saw_ends_what_is_known() -> None:
    memory = remember(LogMemory(), record(0, 0.0) + record(1, 500.0, XID))
    memory = remember(memory, flood(3, 900.0))
    assert memory.since == 900.0 and [number for number, _ in memory.records] == [1], "it was seen all the same"
    assert remember(memory, flood(303, 950.0)).since == 900.0, "the next look follows without a gap"


@pytest.mark.parametrize(
    ("log", "since"),
    [
        ("", None),
        (record(0, 0.0), 0.0),
        (record(1, 0.0), 0.0),
        (record(912, 400.0), 400.0),
        ("<6>[    0.000000] Linux version 6.8.0\n", 0.0),
        ("<6>[  400.000000] x\n<6>[  401.000000] y\n", 400.0),
    ],
)
def test_how_far_back_a_log_reaches(log: str, since: float | None) -> None:
    assert remember(LogMemory(), log).since == since


def test_the_memory_is_bounded_and_says_where_it_begins() -> None:
    many = "".join(record(place, float(place), XID) for place in range(MAX_RECORDS + 10))
    memory = remember(LogMemory(), many)
    assert len(memory.records) == MAX_RECORDS and memory.since == 10.0
    assert remember(LogMemory(), record(0, 0.0, XID + "y" * 8192)).records[0][1].startswith(f"6,0,0,-;{XID}")


def test_a_look_at_this_machines_log_is_seamless() -> None:
    """The next look at a log that a user writes into meanwhile."""
    kernel_records(now())  # skips where there is none
    host = Host()
    host.remember_kernel_log()
    before = host.kernel_log_since(host.kernel_log())
    mount_with_option(b"x\nNVRM: Xid (PCI:0000:9b:00): 95")
    host.remember_kernel_log()
    log = host.kernel_log()
    assert host.kernel_log_since(log) == before and find_xids(log) == []


@pytest.mark.parametrize(("name", "probe"), [("gpu_xid", "gpu_xid"), ("nic_firmware_silent", "rdma_driver")])
def test_a_log_that_was_washed_away_is_unknown_and_rejects_no_job(
    name: str, probe: str, machine: Machine, tmp_path: Path, check: Check, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "node"
    shutil.copytree(machine(name), root, symlinks=True)
    (root / "laggard/kmsg").unlink()
    (root / "laggard/kmsg").write_text(flood(99_999, 863_999.0))
    report = check(root, probe)
    (result,) = report["probes"]
    assert result["verdict"] == "unknown" and "reaches back 0.0 h of 24.0 h" in result["reason"], result
    gate = ["--profile", "prolog", "--gate", "enforce", "--collector", "none"]
    assert main(["healthcheck", "--host-root", str(root), "--only", probe, *gate]) == 0
    assert "gate: pass, what is unknown rejects" in capsys.readouterr().out
    (root / "laggard/kmsg").write_text(record(0, 0.0) + flood(1, 863_999.0))
    assert check(root, probe)["probes"][0]["verdict"] == "ok"
    (root / "laggard/kmsg").write_text(flood(99_999, 700_000.0))
    assert check(root, probe)["probes"][0]["verdict"] == "ok", "it reaches back further than is asked"


def test_a_young_machines_log_is_whole(machine: Machine, tmp_path: Path, check: Check) -> None:
    root = tmp_path / "node"
    shutil.copytree(machine("hgx_h100_gpus"), root, symlinks=True)
    for path, text in {"laggard/kmsg": record(912, 30.0), "proc/uptime": "600.00 600.00\n"}.items():
        (root / path).unlink()
        (root / path).write_text(text)
    assert check(root, "gpu_xid")["probes"][0]["verdict"] == "ok"


def test_what_was_seen_before_a_flood_still_counts_with_one(machine: Machine, tmp_path: Path, check: Check) -> None:
    """A finding stands beside the unknown."""
    root = tmp_path / "node"
    shutil.copytree(machine("gpu_xid"), root, symlinks=True)
    xid = next(line for line in (root / "laggard/kmsg").read_text().split("\n") if "): 119," in line)
    (root / "laggard/kmsg").unlink()
    (root / "laggard/kmsg").write_text(xid + "\n" + flood(99_999, 863_999.0))
    report = check(root, "gpu_xid")
    assert [found["severity"] for found in report["findings"]] == ["critical"] and report["status"] == 1


def test_crashes_of_a_process_with_a_drivers_name_push_nothing_out() -> None:
    xid = "3,0,1000000,-;NVRM: Xid (PCI:0000:19:00): 79, pid=7, GPU has fallen off the bus."
    memory = remember(LogMemory(), xid)
    crash = "NVRM: x[31]: segfault at 0 ip 00007f sp 00007f error 4 in x[400000+1000]"
    memory = remember(memory, "\n".join(f"6,{number},{number}000000,-;{crash}" for number in range(1, 5000)))
    assert [line for _, line in memory.records] == [xid]


# The kernel's log of this machine: by its device, and in a container that has none.

READ = "from laggard.probes.host.kernel_log import read_kmsg; print(read_kmsg(), end='')"


def _lines(text: str) -> set[str]:
    """Of all messages with a time. Records of one level and time are one message where the device is hidden."""
    messages = (message.text for message in parse_messages(text) if message.seconds is not None)
    return {line.replace(r"\x09", "\t") for message in messages for line in message.split(r"\x0a")}


@pytest.mark.parametrize("hide", ["mount -t tmpfs none /dev", "mount --bind /dev/null /dev/kmsg"])
def test_a_container_without_the_device_gets_the_same_messages(hide: str) -> None:
    if os.geteuid() != 0 or not shutil.which("unshare"):
        pytest.skip("needs root, to hide /dev/kmsg from a process")
    try:
        with_device = _lines(read_kmsg())
    except OSError as error:
        pytest.skip(f"this machine shows its kernel's log to nobody: {error}")
    words = ["unshare", "--mount", "sh", "-c", f'{hide} && exec "$0" -c "$1"', sys.executable, READ]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300)
    if "unshare" in done.stderr:
        pytest.skip(f"no mount namespace here: {done.stderr}")
    assert done.returncode == 0, done.stderr
    without = _lines(done.stdout)
    assert len(without & with_device) > 0.9 * len(without) > 0, "the rest came meanwhile"
