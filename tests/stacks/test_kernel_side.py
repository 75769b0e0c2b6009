"""Where a thread stands in the kernel: real processes, and what the kernel and strangers may write."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.hostile import compiled

from laggard.stacks.kernel_side import (
    NO_CALL,
    NOT_TOLD,
    RUNNING,
    SLEEPING,
    STOPPED,
    TRACED,
    UNINTERRUPTIBLE,
    KernelSide,
    NotThere,
    checked,
    read_kernel_side,
    text_of_side,
)

needs_compiler = pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")


@contextlib.contextmanager
def process(*words: str) -> Iterator[int]:
    """A process that prints the number of the one to look at. Yields that."""
    started = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        assert started.stdout is not None
        yield int(started.stdout.readline())
    finally:
        os.killpg(started.pid, signal.SIGKILL)
        started.communicate()


def until(pid: int, is_so: Callable[[KernelSide], bool]) -> KernelSide:
    deadline = time.monotonic() + 60
    while not is_so(side := read_kernel_side(pid, pid, os.geteuid())):
        assert time.monotonic() < deadline, side
        time.sleep(0.02)
    return side


def python(code: str) -> tuple[str, ...]:
    return sys.executable, "-c", f"import os, threading; print(os.getpid(), flush=True); {code}"


def test_who_waits_for_a_lock_is_in_futex() -> None:
    with process(*python("lock = threading.Lock(); lock.acquire(); lock.acquire()")) as pid:
        side = until(pid, lambda it: it.state == SLEEPING and "futex" in it.waits_in)
    assert text_of_side(side).startswith("in the kernel: futex"), side
    assert "(system call futex)" in text_of_side(side), side
    assert not side.stands


def test_who_is_stopped_is_stopped_by_a_signal() -> None:
    with process(*python("threading.Event().wait()")) as pid:
        os.kill(pid, signal.SIGSTOP)
        side = until(pid, lambda it: it.state == STOPPED)
    assert text_of_side(side) == "stopped by a signal" and side.stands


@needs_compiler
def test_who_waits_uninterruptibly_is_told_so(tmp_path: Path) -> None:
    with process(compiled("stand_in_kernel", tmp_path), "uninterruptible") as pid:
        side = until(pid, lambda it: it.state == UNINTERRUPTIBLE)
    text = text_of_side(side)
    assert text.startswith("uninterruptible: ") and side.stands and side.waits_in in text, side


@needs_compiler
def test_who_is_traced_is_told_with_the_debugger(tmp_path: Path) -> None:
    with process(compiled("stand_in_kernel", tmp_path), "traced") as pid:
        side = until(pid, lambda it: it.state == TRACED)
        assert text_of_side(side) == f"stopped by a debugger (process {side.tracer})" and side.tracer


@needs_compiler
def test_who_computes_is_in_no_system_call(tmp_path: Path) -> None:
    with process(compiled("stand_in_kernel", tmp_path), "spin") as pid:
        side = until(pid, lambda it: it.state == RUNNING and it.call == NOT_TOLD)
    assert text_of_side(side) == "on a CPU, or ready for one, in no system call" and not side.stands


def test_another_users_process_and_none_are_not_there() -> None:
    with process(*python("threading.Event().wait()")) as pid:
        with pytest.raises(NotThere):
            read_kernel_side(pid, pid, os.geteuid() + 1)
        assert read_kernel_side(pid, pid, whole=False).call == NOT_TOLD
    with pytest.raises(NotThere):
        read_kernel_side(1 << 22, 1 << 22)


def write(proc: Path, **files: str) -> None:
    folder = proc / "7" / "task" / "7"
    folder.mkdir(parents=True)
    for name, text in files.items():
        (folder / name).write_text(text)


NFS = """[<0>] rpc_wait_bit_killable+0x1e/0xb0 [sunrpc]
[<0>] __rpc_execute+0x15e/0x490 [sunrpc]
[<0>] nfs_wait_on_request+0x52/0xa0 [nfs]
[<0>] do_syscall_64+0x5b/0x80
"""


def test_what_the_kernel_writes_is_read(tmp_path: Path) -> None:
    status = "Name:\tpython\nState:\tD (disk sleep)\nTracerPid:\t0\nUid:\t1000\t1000\t1000\t1000\n"
    write(tmp_path, status=status, wchan="rpc_wait_bit_killable", syscall="0 0x3 0x7ffc 0x1000\n", stack=NFS)
    side = read_kernel_side(7, 7, 1000, str(tmp_path))
    assert side.functions[0] == "rpc_wait_bit_killable [sunrpc]" and len(side.functions) == 4
    assert text_of_side(side, "x86_64") == "uninterruptible: rpc_wait_bit_killable (system call read, NFS)"
    assert text_of_side(side._replace(call=63), "aarch64").endswith("(system call read, NFS)")
    assert text_of_side(side, "s390x") == "uninterruptible: rpc_wait_bit_killable (system call number 0, NFS)"


def test_what_is_not_permitted_is_left_out(tmp_path: Path) -> None:
    write(tmp_path, status="State:\tS (sleeping)\nUid:\t1\t1\t1\t1\n", wchan="0")
    side = read_kernel_side(7, 7, 1, str(tmp_path))
    assert side == KernelSide(SLEEPING) and not side.is_whole
    assert text_of_side(side) == "in the kernel: it waits"


@pytest.mark.parametrize(
    ("module", "whose"),
    [("mmfs26", "GPFS"), ("nvidia", "NVIDIA's driver"), ("ext4", "")],
)
def test_whose_wait_it_is_is_told_where_a_module_is_known(module: str, whose: str) -> None:
    side = KernelSide(UNINTERRUPTIBLE, "schedule_timeout", NO_CALL, (f"wait_for_it [{module}]",))
    told = f"a page fault, {whose}" if whose else "a page fault"
    assert text_of_side(side) == f"uninterruptible: schedule_timeout ({told})"


@pytest.mark.parametrize(
    "values",
    [
        ("Q", "", 0, (), 0),
        ("SD", "", 0, (), 0),
        ("S", "futex\nKilled", 0, (), 0),
        ("S", "", 0, ("<script>",), 0),
        ("S", "", 0, ("a [b] c",), 0),
        ("S", "", 0, ("f",) * 33, 0),
    ],
)
def test_values_from_elsewhere_are_bounded(values: tuple[str, str, int, tuple[str, ...], int]) -> None:
    with pytest.raises(ValueError, match="no place in a kernel"):
        checked(*values)


def test_the_numbers_are_those_of_this_machines_headers() -> None:
    """The table of calls against the headers that a compiler uses here."""
    import platform

    import laggard.stacks.kernel_side as kernel_side

    if platform.machine() != "x86_64" or shutil.which("gcc") is None:
        pytest.skip("needs gcc on x86-64")
    code = "#include <sys/syscall.h>\n"
    run = subprocess.run(["gcc", "-E", "-dM", "-"], input=code, capture_output=True, text=True, check=True, timeout=60)
    names = {}
    for line in run.stdout.splitlines():
        words = line.split()
        if len(words) == 3 and words[1].startswith("__NR_") and words[2].isdigit():
            names[int(words[2])] = words[1].removeprefix("__NR_")
    assert {number: names.get(number) for number in kernel_side._X86_64} == dict(kernel_side._X86_64)
