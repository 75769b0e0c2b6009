"""What `laggard locate --trace` loads: whoever reads a recording needs no daemon, no page and no HTTP."""

import contextlib
import io
import json
import subprocess
import sys
from pathlib import Path

import pytest
from support import recordings
from support.recordings import lines, write

from laggard.cli import main

ROOMS = "catalogue cli collector.locate_command locate model nccl rankfile recommend recording stacks wire "


ROOMS += "kit.address kit.collector_client kit.constants kit.errors kit.left kit.limits kit.majority kit.parts "


ROOMS += "kit.environment kit.processes kit.progress kit.terminal kit.users kit.words"


"""What may be loaded: what reads a recording, judges it and says so."""

MAX_MODULES = 120
"""Against a room that loads all of its files where a few are asked for."""

SCRIPT = """
import sys
from laggard.cli import main
before = set(sys.modules)
status = main(["locate", "--trace", sys.argv[1]])
own = [name.partition(".")[2] for name in sys.modules if name.startswith("laggard.")]
others = {name.partition(".")[0] for name in sys.modules} - set(sys.stdlib_module_names)
others -= {"laggard", "typing_extensions", "sitecustomize"}  # the last is the distribution's
print("status", status, "modules", len(own), "of others", *sorted(name for name in others if not name.startswith("_")))
print("rooms", *sorted(own))
print("stdlib", *sorted({"asyncio", "ssl", "http", "socket"} & set(sys.modules)))
"""


@pytest.fixture
def slow_rank(tmp_path: Path) -> Path:
    return write(tmp_path / "recording.jsonl", lines(0) + lines(1, 0.15))


def test_it_loads_numpy_and_few_modules(slow_rank: Path) -> None:
    done = subprocess.run([sys.executable, "-P", "-c", SCRIPT, str(slow_rank)], capture_output=True, text=True)
    assert "Rank 1 on n1 is slow in forward" in done.stdout, done.stderr
    told, rooms, stdlib = done.stdout.splitlines()[-3:]
    words = told.split()
    assert words[:2] == ["status", "1"] and words[4:] == ["of", "others", "msgspec", "numpy"], told
    assert int(words[3]) <= MAX_MODULES, f"laggard locate --trace loads {words[3]} of laggard's modules"
    others = [
        name
        for name in rooms.split()[1:]
        if name not in ("collector", "commands", "kit", "kit.flags") and not _is_in_rooms(name)
    ]
    assert not others, f"laggard locate --trace loads {', '.join(others)}"
    assert stdlib == "stdlib", f"no network is needed: {stdlib}"


def _is_in_rooms(module: str) -> bool:
    return any(module == room or module.startswith(f"{room}.") for room in ROOMS.split())


def test_the_document_goes_to_a_stream_of_text(tmp_path: Path) -> None:
    for rank in range(4):
        recordings.write(tmp_path / f"rank-{rank}.jsonl", recordings.lines(rank, slow=0.1 if rank == 2 else 0.0))
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        status = main(["locate", "--trace", str(tmp_path), "--format", "json"])
    location = json.loads(printed.getvalue())
    assert (status, location["verdict"]) == (1, "fail") and location["culprits"][0]["ranks"] == [2]
