"""/proc/PID/stat is parsed right whatever a process is called: it decides which process counts as alive or stuck."""

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from laggard.kit.processes import Stat, own_process, parse_stat, read_stat

TAIL = (
    b"1 7 7 0 -1 4194304 98 0 0 0 150 50 0 0 20 0 1 0 424242 8396800 212 18446744073709551615"
    b" 1 1 0 0 0 0 0 0 0 0 0 0 17 5 0 0 0 0 0 0 0 0 0 0 0 0 9"
)

TICKS = os.sysconf("SC_CLK_TCK")


def stat_of(state: str) -> Stat:
    return Stat(state, 7, 4194304, 200 / TICKS, 424242, 5, 9)


@given(st.text(max_size=15).map(str.encode), st.sampled_from("RSDTtIZX"))
def test_a_command_may_hold_anything(command: bytes, state: str) -> None:
    line = b"42 (" + command + b") " + state.encode() + b" " + TAIL + b"\n"
    assert parse_stat(line) == stat_of(state)


def test_a_command_that_looks_like_the_rest_is_no_state() -> None:
    assert parse_stat(b"42 (a) Z 1 2 (b) D " + TAIL) == stat_of("D")


@given(st.binary(max_size=200))
def test_anything_else_is_refused_or_read(data: bytes) -> None:
    try:
        stat = parse_stat(data)
    except ValueError:
        return
    assert len(stat.state) == 1


@pytest.mark.parametrize("data", [b"", b"42 (sleep) S 1 7", b"42 sleep S", b"42 (sleep) SS " + TAIL])
def test_what_is_cut_off_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="no /proc/PID/stat"):
        parse_stat(data)


def test_a_real_process_with_a_wicked_name(tmp_path: Path) -> None:
    program = tmp_path / "a) Z 0 (b"
    program.symlink_to("/bin/sleep")
    process = subprocess.Popen([program, "600"])
    try:
        deadline = time.monotonic() + 120
        while Path(f"/proc/{process.pid}/comm").read_text() != f"{program.name}\n":  # set a moment after exec returns
            assert time.monotonic() < deadline
        stat = read_stat(process.pid)
        assert stat is not None and not stat.has_ended and 0 <= stat.age_seconds < 60
        process.send_signal(signal.SIGKILL)
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        zombie = read_stat(process.pid)
        assert zombie is not None and zombie.has_ended and zombie.start_ticks == stat.start_ticks
    finally:
        process.kill()
        process.wait()
    assert read_stat(process.pid) is None


def test_it_finds_laggard_where_no_folder_of_pythons_has_it(tmp_path: Path) -> None:
    """With -I and -S Python looks in its own library alone: the command has to say where laggard is."""
    python, *words = own_process("laggard.kit.environment")
    done = subprocess.run([python, "-I", "-S", *words], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stderr) == (0, "")
