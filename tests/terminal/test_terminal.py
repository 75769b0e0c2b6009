"""What commands print on a terminal: wrapped to its width and coloured; and the same bytes as ever anywhere else."""

from __future__ import annotations

import subprocess
import sys

import pytest
from support import recordings
from support.materialise import materialise
from support.paths import REPOSITORY
from support.terminal import LONG, terminal, without_escapes

pytestmark = pytest.mark.slow  # a process for each screen

LAGGARD = [sys.executable, "-m", "laggard"]
WITHOUT_RICH = "import sys; sys.modules['rich'] = None; from laggard.cli import main; sys.exit(main(sys.argv[1:]))"
LOG = str(REPOSITORY / "tests/data/job_logs/gpu_memory.log")
LOG_COMMAND = "      nvidia-smi --query-compute-apps=pid,used_memory --format=csv"


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("machines") / "disk_full"
    materialise("disk_full", folder)
    return str(folder)


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("recording")
    for rank in range(4):
        recordings.write(folder / f"rank-{rank}.jsonl", recordings.lines(rank, slow=0.1 if rank == 2 else 0.0))
    return str(folder)


def screen(words: list[str], columns: int, command: list[str] = LAGGARD, **environ: str) -> str:
    """All that a terminal of this width is sent."""
    with terminal([*command, *words], columns=columns, environ=environ) as shown:
        return shown.read_to_the_end().replace("\r\n", "\n")


def piped(words: list[str], **environ: str) -> str:
    done = subprocess.run([*LAGGARD, *words], capture_output=True, text=True, timeout=LONG, env=environ or None)
    assert done.stderr == ""
    return done.stdout


def words_of(text: str) -> list[str]:
    return without_escapes(text).split()


@pytest.mark.parametrize("columns", [60, 120])
def test_a_diagnosis_is_wrapped_and_says_the_same(columns: int) -> None:
    drawn = screen(["diagnose", LOG], columns)
    rows = [row.rstrip() for row in without_escapes(drawn).splitlines()]
    assert LOG_COMMAND in rows, "a command to copy is whole"
    assert max(len(row) for row in rows if row != LOG_COMMAND and LOG not in row) <= min(columns, 100)
    assert words_of(drawn) == words_of(piped(["diagnose", LOG]))
    assert "\x1b[1;31mRank 3 failed first" in drawn, "the answer stands out"


@pytest.mark.parametrize("columns", [60, 120])
def test_a_healthcheck_has_its_answer_its_findings_and_no_row_too_long(columns: int, machine: str) -> None:
    rows = without_escapes(screen(["healthcheck", "--host-root", machine], columns)).splitlines()
    assert rows[0] == "laggard: DISK_FULL / 99 % used, 2.2 GiB left"
    assert "critical DISK_FULL: / 99 % used, 2.2 GiB left" in rows
    assert "      du -xh --max-depth=2 / | sort -h | tail -n 20" in rows
    assert "  More: laggard findings explain DISK_FULL" in rows
    assert "fail disks: DISK_FULL /" in rows
    assert max(map(len, rows)) <= min(columns, 100), rows


def test_a_table_fits_and_wraps_its_last_column() -> None:
    rows = without_escapes(screen(["findings", "list"], 60)).splitlines()
    assert rows[2].split() == ["code", "severity", "summary"]
    assert max(map(len, rows)) <= 60 and any(row.startswith(" " * 30) for row in rows)


def test_a_location_keeps_its_command_whole(recording: str) -> None:
    drawn = without_escapes(screen(["locate", "--trace", recording], 60)).splitlines()
    plain = piped(["locate", "--trace", recording]).splitlines()
    (command,) = (line.partition(": ")[2] for line in plain if "laggard recommend" in line)
    assert f"    {command}" in drawn, "on a row of its own where it does not fit behind its words"
    assert [word for row in drawn for word in row.split()] == [word for line in plain for word in line.split()]


def test_json_is_the_same_bytes_on_a_terminal(recording: str) -> None:
    for words in (["diagnose", LOG], ["locate", "--trace", recording], ["findings", "list"]):
        asked = [*words, "--format", "json"]
        assert screen(asked, 60) == piped(asked)


def test_without_rich_a_terminal_gets_the_plain_text(machine: str) -> None:
    drawn = screen(["diagnose", LOG], 80, [sys.executable, "-c", WITHOUT_RICH])
    assert drawn == piped(["diagnose", LOG], COLUMNS="80")
    assert screen(["findings", "list"], 60, [sys.executable, "-c", WITHOUT_RICH]) == piped(["findings", "list"])


@pytest.mark.parametrize(
    ("name", "value", "bold"), [("NO_COLOR", "1", True), ("CLICOLOR", "0", True), ("TERM", "dumb", False)]
)
def test_who_wants_no_colours_gets_none(name: str, value: str, bold: bool) -> None:
    drawn = screen(["diagnose", LOG], 60, **{name: value})
    assert "\x1b[1m" in drawn if bold else "\x1b" not in drawn
    assert "\x1b[3" not in drawn and "\x1b[1;3" not in drawn, "a colour"
    assert max(len(row) for row in without_escapes(drawn).splitlines() if row != LOG_COMMAND and LOG not in row) <= 60


def test_an_error_is_wrapped_too() -> None:
    rows = without_escapes(screen(["healthcheck", "--gate", "sometimes"], 60)).splitlines()
    assert rows[0].startswith("laggard: argument --gate") and max(map(len, rows)) <= 60
    assert any("`laggard healthcheck --help`" in row for row in rows)
