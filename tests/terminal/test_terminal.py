"""What commands print on a terminal: wrapped to its width and coloured; and the same bytes as ever anywhere else."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from support import recordings
from support.paths import REPOSITORY
from support.terminal import LONG, terminal, without_escapes

from laggard.nccl.tuner import COLLECTIVES

pytestmark = pytest.mark.slow  # a process for each screen

LAGGARD = [sys.executable, "-m", "laggard"]
WITHOUT_RICH = "import sys; sys.modules['rich'] = None; from laggard.cli import main; sys.exit(main(sys.argv[1:]))"
LOG = str(REPOSITORY / "tests/data/job_logs/gpu_memory.log")
LOG_COMMAND = "      nvidia-smi --query-compute-apps=pid,used_memory --format=csv"


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("recording")
    for rank in range(4):
        recordings.write(folder / f"rank-{rank}.jsonl", recordings.lines(rank, slow=0.1 if rank == 2 else 0.0))
    return str(folder)


PROGRESS = re.compile(r"(?:\r\x1b\[K[^\r\n]*)+\r\x1b\[K")


def screen(words: list[str], columns: int, command: list[str] = LAGGARD, **environ: str) -> str:
    """All that a terminal of this width is sent, but for the progress that a busy machine has time to show."""
    with terminal([*command, *words], columns=columns, environ=environ) as shown:
        return PROGRESS.sub("", shown.read_to_the_end().replace("\r\n", "\n"))


def piped(words: list[str], status: int | None = None, **environ: str) -> str:
    done = subprocess.run([*LAGGARD, *words], capture_output=True, text=True, timeout=LONG, env=environ or None)
    assert done.stderr == "" and status in (None, done.returncode)
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


def test_a_location_keeps_its_command_whole(recording: str) -> None:
    drawn = without_escapes(screen(["locate", "--trace", recording], 60)).splitlines()
    plain = piped(["locate", "--trace", recording]).splitlines()
    (command,) = (line.partition(": ")[2] for line in plain if "laggard recommend" in line)
    assert f"    {command}" in drawn, "on a row of its own where it does not fit behind its words"
    assert [word for row in drawn for word in row.split()] == [word for line in plain for word in line.split()]


def test_json_is_the_same_bytes_on_a_terminal(recording: str) -> None:
    report = ["tune", "report", "campaign", RUNS]
    for words in (["diagnose", LOG], ["locate", "--trace", recording], ["findings", "list"], report):
        asked = [*words, "--format", "json"]
        assert screen(asked, 60) == piped(asked)


def test_without_rich_a_terminal_gets_the_plain_text() -> None:
    drawn = screen(["diagnose", LOG], 80, [sys.executable, "-c", WITHOUT_RICH])
    assert drawn == piped(["diagnose", LOG], COLUMNS="80")
    for words in (["findings", "list"], ["tune", "report", "campaign", RUNS]):
        assert screen(words, 60, [sys.executable, "-c", WITHOUT_RICH]) == piped(words)


@pytest.mark.parametrize(
    ("name", "value", "bold"), [("NO_COLOR", "1", True), ("CLICOLOR", "0", True), ("TERM", "dumb", False)]
)
def test_who_wants_no_colours_gets_none(name: str, value: str, bold: bool) -> None:
    drawn = screen(["diagnose", LOG], 60, **{name: value})
    assert "\x1b[1m" in drawn if bold else "\x1b" not in drawn
    assert "\x1b[3" not in drawn and "\x1b[1;3" not in drawn, "a colour"
    assert max(len(row) for row in without_escapes(drawn).splitlines() if row != LOG_COMMAND and LOG not in row) <= 60


RUNS = str(REPOSITORY / "tests/data/tables/pmbs25_model2_step2.csv")
LACKING = "allreduce,65537,1048576,ring,simple,4,-1,-1\n"
WHOLE = "".join(f"{name},0,18446744073709551615,ring,simple,0,-1,-1,-1,-1\n" for name in COLLECTIVES)


def test_tuner_tables_are_judged_in_colour_and_a_compiled_one_is_as_in_a_file(tmp_path: Path) -> None:
    lacking, whole, measured = tmp_path / "lacking.csv", tmp_path / "whole.csv", tmp_path / "measured.csv"
    lacking.write_text(LACKING)
    whole.write_text(WHOLE)
    drawn = screen(["tune", "table", "lint", str(lacking)], 60)
    assert drawn.startswith("\x1b[1;31m") and "\x1b[36m`laggard tune table compile`" in drawn
    assert words_of(drawn) == words_of(piped(["tune", "table", "lint", str(lacking)], status=1))
    assert screen(["tune", "table", "lint", str(whole)], 100).startswith(f"\x1b[1;32m{whole}: every message")
    rows = without_escapes(screen(["tune", "table", "simulate", str(whole)], 100)).splitlines()
    assert ["collective", "bytes", "setting", "channels", "row"] in [row.split() for row in rows]
    narrow = ["tune", "table", "simulate", str(lacking)]
    told, plain = (set(words_of(text.replace(",", ""))) for text in (screen(narrow, 50), piped(narrow)))
    assert plain <= told, "no value is cut where a table has no room"
    measured.write_text(
        "collective,size_bytes,algorithm,protocol,channels,latency_us\nallreduce,1048576,ring,simple,4,900\n"
    )
    compiling = ["tune", "table", "compile", str(measured), "--nodes", "2", "--ranks", "16"]
    assert without_escapes(screen(compiling, 40)) == piped(compiling)
