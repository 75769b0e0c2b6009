"""Progress: on a terminal's standard error alone, with share and time left, and gone at the end."""

import io
import os
import pty
import select
import subprocess
import sys
from pathlib import Path

import pytest
from support.terminal import LONG, terminal

from laggard.kit.progress import Bar, Progress, size_of, size_text

DIAGNOSE = [sys.executable, "-m", "laggard", "diagnose", "-"]
TEXT = b"nothing that anybody knows\n"


@pytest.fixture(autouse=True)
def a_terminal_that_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    """The run itself may have none, as in cron."""
    monkeypatch.setenv("TERM", "xterm-256color")


@pytest.mark.slow
def test_long_work_shows_a_line_that_goes() -> None:
    with terminal(DIAGNOSE, only_error=True) as shown:
        shown.wait_for("recognising 1 file, 1 s")
        stdout, _ = shown.process.communicate(TEXT, timeout=LONG)
        left = shown.read_to_the_end()
    assert left.endswith("\r\x1b[K"), "it is gone at the end"
    assert b"recognising" not in stdout and stdout.startswith(b"Cannot tell: ")


@pytest.mark.slow
def test_a_log_of_the_same_work_has_none_of_it() -> None:
    done = subprocess.run(DIAGNOSE, input=TEXT, capture_output=True, timeout=LONG)
    assert done.stderr == b""


def test_a_stage_that_reads_files_knows_its_share(tmp_path: Path) -> None:
    path = tmp_path / "large"
    path.write_bytes(bytes(3_000_000))
    assert size_text(size_of([path, tmp_path / "no such"])) == "3 MB" and size_of([tmp_path]) == 3_000_000
    ours, theirs = pty.openpty()
    with os.fdopen(theirs, "w") as stream, Progress(stream) as progress:
        progress.begin_reading("reading 3 MB", 3_000_000)
        with open(path, "rb", buffering=0) as file:
            file.read(1_500_000)
            seen = until(ours, "reading 3 MB")
            assert "[############............] 50 %, reading 3 MB" in seen
    os.close(ours)


def test_the_time_that_is_left_comes_from_the_share(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("laggard.kit.progress.time.monotonic", lambda: now[0])
    ours, theirs = pty.openpty()
    with os.fdopen(theirs, "w") as stream:
        bar = Bar(stream)
        bar.show(0.0, "waiting for 2 nodes")
        now[0] += 30.0  # nothing was done yet: this says nothing of what follows
        bar.show(0.0, "connecting")
        now[0] += 10.0
        bar.show(0.25, "all_reduce 1K")
        assert "all_reduce 1K, about 30 s left" in until(ours, "all_reduce 1K")
    os.close(ours)


def test_what_is_no_terminal_gets_nothing() -> None:
    stream = io.StringIO()
    with Progress(stream) as progress:
        progress.begin("anything", 2)
        progress.add(1)
    bar = Bar(stream)
    bar.show(0.5, "half")
    bar.clear()
    assert stream.getvalue() == ""


def until(terminal_fd: int, text: str) -> str:
    seen = ""
    while text not in seen:
        assert select.select([terminal_fd], [], [], LONG)[0], f"{text!r} was not drawn: {seen!r}"
        seen += os.read(terminal_fd, 65536).decode()
    return seen
