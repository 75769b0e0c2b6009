"""What faulthandler writes is read in the form in which the Python of this machine writes it."""

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from laggard.stacks.fault_text import faults_of, header, last_dump, read_faults
from laggard.stacks.sampled import CRASHED, HELD, NO_FRAME, TERMINATED, SampledError

PROGRAM = """
    import faulthandler, os, signal, sys, threading, time
    file = open(sys.argv[1], "ab", buffering=0)
    file.write({head!r})
    ready = threading.Event()
    def beside(): ready.set(); time.sleep(60)
    threading.Thread(target=beside, daemon=True).start(); ready.wait()
    def inner(): {act}
    def outer(): inner()
    outer()
"""


def dumped(tmp_path: Path, act: str, head: bytes | None = None) -> Path:
    path = tmp_path / "x.fault"
    code = textwrap.dedent(PROGRAM).format(act=act, head=head or header("j", 2, "n1", 5, 1))
    subprocess.run([sys.executable, "-c", code, str(path)], timeout=60, stderr=subprocess.DEVNULL)
    return path


@pytest.mark.parametrize(
    ("act", "why"),
    [
        ("faulthandler.dump_traceback_later(0.1, file=file); time.sleep(1)", HELD),
        ("faulthandler.register(15, file=file, chain=True); os.kill(os.getpid(), 15); time.sleep(1)", TERMINATED),
        ("faulthandler.enable(file=file); os.kill(os.getpid(), signal.SIGSEGV); time.sleep(1)", CRASHED),
        ("faulthandler.enable(file=file); os.abort()", CRASHED),
    ],
)
def test_a_dump_tells_why_and_where(tmp_path: Path, act: str, why: str) -> None:
    found = read_faults(str(dumped(tmp_path, act)), os.geteuid())
    assert found is not None and found.why == why
    assert (found.job_id, found.rank, found.node, found.pid) == ("j", 2, "n1", 5)
    main = next(thread for thread in found.threads if thread.stacks[0].frames[-1].function == "<module>")
    names = [frame.function for frame in main.stacks[0].frames]
    assert names == ["inner", "outer", "<module>"]
    others = [thread.stacks[0].frames for thread in found.threads if thread is not main]
    assert [frames[0].function for frames in others] in ([], ["beside"])


def test_one_thread_that_a_signal_asks_is_read(tmp_path: Path) -> None:
    number = int(signal.SIGUSR2)
    act = f"faulthandler.register({number}, file=file, all_threads=False); os.kill(os.getpid(), {number})"
    dump = last_dump(dumped(tmp_path, act).read_text())
    assert dump is not None
    (thread,) = dump.threads
    assert [frame.function for frame in thread.frames] == ["inner", "outer", "<module>"]


def test_of_several_dumps_the_last_counts(tmp_path: Path) -> None:
    first = "[faulthandler.dump_traceback(file) for _ in range(2)]"
    act = f"{first}; faulthandler.dump_traceback_later(0.1, file=file); time.sleep(1)"
    dump = last_dump(dumped(tmp_path, act).read_text())
    assert dump is not None and dump.timed_out and len(dump.threads) == 2


def test_the_training_thread_comes_first() -> None:
    text = header("j", 0, "n", 1, 0xB) + b"\n".join(
        (
            b"Timeout (0:00:20)!",
            b"Thread 0x000000000000000a (most recent call first):",
            b'  File "/a.py", line 3 in other',
            b"",
            b"Thread 0x000000000000000b (most recent call first):",
            b'  File "/b.py", line 4 in train',
        )
    )
    found = faults_of(text, 1.0)
    assert found is not None and [thread.stacks[0].frames[0].function for thread in found.threads] == ["train", "other"]


def test_a_file_without_a_dump_says_nothing() -> None:
    assert faults_of(header("j", 0, "n", 1, 1), 1.0) is None


def test_another_file_is_refused() -> None:
    for text in (b"Thread 0x1 (most recent call first):\n", b'{"laggard_faults": 2}\n', b"\x00" * 99):
        with pytest.raises(SampledError):
            faults_of(text, 1.0)


HEAD = "Current thread 0x1 (most recent call first):\n"


@given(st.text(max_size=300))
def test_no_text_breaks_the_reader(text: str) -> None:
    """It reads frames, or nothing; and what it reads can be told on one line."""
    for each in (text, HEAD + text, f'{HEAD}  File "{text}", line 3 in {text}'):
        dump = last_dump(each)
        frames = [frame for thread in dump.threads for frame in thread.frames] if dump else []
        assert all(frame.function.isprintable() and frame.file.isprintable() for frame in frames)


def test_a_training_thread_without_a_frame_is_not_taken_for_another() -> None:
    head = header("j", 0, "n", 7, 0x1)
    text = (
        b"Timeout (0:00:20)!\n"
        b'Thread 0x0000000000000002 (most recent call first):\n  File "/home/u/feed.py", line 7 in feed\n\n'
        b"Thread 0x0000000000000001 (most recent call first):\n  <no Python frame>\n"
    )
    found = faults_of(head + text, 1.0)
    assert found is not None and found.training.stacks[0].frames == (NO_FRAME,)
