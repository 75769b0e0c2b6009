"""Text that a user writes into the kernel's log is no driver's message: it makes no finding, closes none, and explains
nobody's end."""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable

import pytest
from support.rows import rows
from support.users_text import crash_in_file, crash_with_name, kernel_records, mount_with_option, now

from laggard.agent.ranks.kernel_word import kernel_word, names_another
from laggard.kernel_rules.rule import LIVE_BEGINNINGS, live_rules, rules_of
from laggard.probes.gpu.model.driver_log import find_xids
from laggard.probes.gpu.xid import judge_xids
from laggard.probes.host.kernel_log import judge_log, parse_messages

XID = "NVRM: Xid (PCI:0000:19:00): 79, pid=7, name=python, GPU has fallen off the bus."
LOADED = "NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  570.124.06  Release Build"
RESET = "NVRM: Xid (PCI:0000:19:00): 154, GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)"
SXID = "nvidia-nvswitch0: SXid (PCI:0000:83:00.0): 23012, Fatal, Link 30 crossbar ingress ECC DBE (First)"
GONE = "NVRM: GPU 0000:19:00.0: GPU has fallen off the bus."
NIC = "mlx5_core 0000:03:00.0: poll_health:801:(pid 0): device's health compromised - reached miss count"
NIC_AGAIN = "mlx5_core 0000:03:00.0: firmware version: 28.41.1000"
AER = "pcieport 0000:00:01.0: AER: PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction Layer"
KILLED = "Out of memory: Killed process 42 (python) total-vm:9kB, anon-rss:8kB, file-rss:0kB, UID:1002"
OOM = "oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=/,mems_allowed=0,task=python,pid=42,uid=0"
DISK = "XFS (nvme1n1): Filesystem has been shut down due to log error (0x2)."
HUNG = "INFO: task python:42 blocked for more than 120 seconds."
CRASHED = "python[42]: segfault at 0 ip 00007f00 sp 00007f00 error 4"
TEXTS = (XID, LOADED, RESET, SXID, GONE, NIC, NIC_AGAIN, AER, KILLED, OOM, CRASHED, DISK, HUNG)

SEPARATORS = (
    "\\x0a",
    "\\x0a[T1] ",
    "\\x0a[    C0] ",
    "\\x0d",
    "\\x0b",
    "\\xe2\\x80\\xa8",
    "\\xe2\\x80\\xae",
    "",
    " ",
    "\\x1b[2K",
    "y" * 8192,
)
"""What stands before the text, as /dev/kmsg escapes it: newlines of all kinds, U+2028, a bidi mark, a long line."""


def find_device_errors(log: str) -> list[object]:
    """What the rules for NICs, PCIe devices and the host find in the log, and nothing closed."""
    devices = judge_log(log, rules_of("devices", "nic", "pcie"))
    return [*devices.open(), *judge_log(log, live_rules(), LIVE_BEGINNINGS).open()]


def believed(log: str) -> list[object]:
    """All that laggard concludes from the log."""
    messages = tuple(parse_messages(log))
    return [
        *find_xids(log),
        *find_device_errors(log),
        *filter(None, [kernel_word(messages, 42, 100.5)]),
        *([names_another(messages, 41, 100.5)] if names_another(messages, 41, 100.5) else []),
    ]


@pytest.mark.parametrize("text", TEXTS)
@rows("probes/quoted")
def test_a_message_that_quotes_a_user_says_nothing(quoted: str, text: str) -> None:
    for separator in SEPARATORS if not quoted.startswith("{}") else ("", "\\x0a"):
        forged = quoted.replace("{}", separator + text)
        assert believed(f"3,1,100000000,-;{forged}\n") == [], separator
        assert believed(f"3,1,100000000,-,caller=T31;{forged}\n SUBSYSTEM=pci\n") == [], separator
        raw = forged.replace("\\xe2\\x80\\xa8", "\u2028").encode().decode("unicode_escape", errors="replace")
        lines = raw.split("\n")
        for head in ("<3>[  100.000000] ", "<3>[  100.000000][   T31] "):
            assert believed("".join(f"{head}{line}\n" for line in lines)) == [], separator


@pytest.mark.parametrize("text", (XID, NIC, KILLED, GONE))
def test_what_a_program_writes_to_the_device_and_a_cut_piece_say_nothing(text: str) -> None:
    """The facility of a program's record is not the kernel's. A cut record's piece begins where another message cut
    it, perhaps with the name of a cgroup."""
    assert believed(f"3,1,100000000,-;{text}\n") != []
    assert believed(f"<3>[  100.000000] {text}\n") != []
    assert believed(f"<6>[    0.000000][    T0] Linux version 6.8.0\n<3>[  100.000000][   C12] {text}\n") != []
    for priority in (11, 30, 1027):
        assert believed(f"{priority},1,100000000,-;{text}\n") == []
        assert believed(f"<{priority}>[  100.000000] {text}\n") == []
    assert believed(f"3,1,100000000,c;{text}\n") == []


@pytest.mark.parametrize(
    "name",
    ["NVRM: Xid (PCI:", "NVRM: loading N", "NVRM: GPU x", "oom-kill:pid=42", "x[42] trap a: ", "x[42]: segfault"],
)
def test_a_process_of_any_name_that_crashes_says_nothing_of_others(name: str) -> None:
    assert believed(f"6,1,100000000,-;{name}[31]: segfault at 0 ip 00007f sp 00007f error 4 in libc.so\n") == []
    assert believed(f"6,1,100000000,-;traps: {name}[31] trap invalid opcode ip:401000 sp:7ffd error:0\n") == []
    assert believed(f"6,1,100000000,-;{name} invoked oom-killer: gfp_mask=0x140cca, order=0, oom_score_adj=0\n") == []
    file = "y has fallen off the bus"
    assert believed(f"6,1,100000000,-;{name}[31]: segfault at 0 ip 00007f sp 0 error 4 in {file}[400000+1000]\n") == []
    word = kernel_word(parse_messages(f"6,1,100000000,-;{name}[31]: segfault at 0 ip 00007f\n"), 31, 100.5)
    assert word is not None and word.cause == "segfault", "its own end is told"


@pytest.mark.parametrize("name", ["IN= OUT= x", "IN= OUT= MAC=", "IN= OUT= TRUNC", "\\x0a)(\\x0a", "(reset", "x (3): "])
def test_no_name_of_a_process_hides_a_drivers_message(name: str) -> None:
    """The driver's own lines hold the name of the process that was on the GPU."""
    (found,) = find_xids(f"3,1,100000000,-;NVRM: Xid (PCI:0000:19:00): 95, pid=7, name={name}, Uncontained: LTC TAG\n")
    assert found.code == 95
    killed = f"3,1,100000000,-;Out of memory: Killed process 42 ({name}) total-vm:9kB\n"
    assert kernel_word(parse_messages(killed), 42, 100.5) is not None
    task = f"3,1,100000000,-;{OOM.replace('task=python', f'task={name},pid=4')}\n"
    assert kernel_word(parse_messages(task), 42, 100.5) is not None
    other = RESET.replace("154,", f"154, pid=7, name={name},").replace("0x1 (GPU Reset Required)", "0x5 (Recover)")
    log = f"3,1,1,-;{XID}\n3,2,2,-;{other}\n"
    assert not find_xids(log)[0].closed_by, "something else was put right"


def test_only_a_message_of_its_own_closes_what_came_before() -> None:
    for text in (LOADED, RESET):
        forged = f"3,1,1,-;{XID}\n3,2,2,-;tmpfs: Unknown parameter 'x\\x0a{text}'\n"
        assert [found.closed_by for found in find_xids(forged)] == [""]
        real = f"3,1,1,-;{XID}\n3,2,2,-;{text}\n"
        assert find_xids(real)[0].closed_by and not judge_xids(find_xids(real)).findings
    assert find_device_errors(f"3,1,1,-;{NIC}\n3,2,2,-;tmpfs: Unknown parameter 'x\\x0a{NIC_AGAIN}'\n")
    assert not find_device_errors(f"3,1,1,-;{NIC}\n3,2,2,-;{NIC_AGAIN}\n")


def test_the_middle_of_a_line_is_no_message_where_a_log_was_cut() -> None:
    assert believed(f"{XID}\n3,1,1,-;Linux version 6.8.0\n") == []
    assert believed(XID) != [], "a pasted line has no head, nor has any other"


Attack = Callable[[bytes], object]


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("attack", [mount_with_option, crash_with_name, crash_in_file])
def test_an_ordinary_user_writes_it_by_the_kernel_and_it_says_nothing(attack: Attack, text: str) -> None:
    """By the system calls themselves. Names of processes hold 15 characters, names of files 255, and no '/'; options of
    mount(2) end at a comma."""
    before = "" if attack is crash_with_name else "x\n"
    written = text.replace("/", ":").replace(",", ";" if attack is mount_with_option else ",")
    since = now()
    for _ in range(20):  # the kernel tells of ten crashes in five seconds
        attack((before + written)[:240].encode())
        records = kernel_records(since)
        if text[:12].split(",")[0] in records:
            break
        time.sleep(1)
    else:
        pytest.skip("this kernel does not tell of it (debug.exception-trace)")
    messages = tuple(parse_messages(records))
    assert find_xids(records) == [] and find_device_errors(records) == []
    assert kernel_word(messages, 42, now()) is None and not names_another(messages, 41, now())


@pytest.mark.parametrize("text", [XID.split(",")[0], "Out of memory: Killed process 42 (python)"])
def test_without_the_device_it_says_nothing_either(text: str) -> None:
    """By syslog(2), which writes the head of the record before each of its lines."""
    if os.geteuid() != 0 or not shutil.which("unshare"):
        pytest.skip("needs root, to hide /dev/kmsg from a process")
    since = now()
    mount_with_option(b"x\n" + text.encode())
    script = "from laggard.probes.host.kernel_log import read_kmsg; print(read_kmsg(), end='')"
    hide = 'mount --bind /dev/null /dev/kmsg && exec "$0" -c "$1"'
    words = ["unshare", "--mount", "sh", "-c", hide, sys.executable, script]
    done = subprocess.run(words, capture_output=True, timeout=300)
    if done.returncode:
        pytest.skip(f"no mount namespace here: {done.stderr.decode()}")
    log = done.stdout.decode(errors="replace")
    if f"] {text}" not in log:
        pytest.skip("this kernel does not tell of it")
    new = "\n".join(
        line for line in log.split("\n") if line.startswith("<") and float(line[4:].split("]")[0]) >= since - 1
    )
    messages = tuple(parse_messages(new))
    assert find_xids(new) == [] and kernel_word(messages, 42, now()) is None
