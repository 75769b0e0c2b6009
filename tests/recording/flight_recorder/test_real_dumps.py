"""Dumps of a real job on gloo, from the hang to what `laggard locate --trace` prints."""

import json
import os
import pickle
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.flight_recorder import dump, entry
from support.paths import TRAINING

pytestmark = pytest.mark.slow
SCRIPT = TRAINING / "flight_recorder_dumps.py"


def located(path: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "laggard", "locate", "--trace", str(path), *words]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture(params=["hang", "mismatch"])
def job(request: pytest.FixtureRequest, tmp_path: Path, launch: Callable[..., Any]) -> tuple[str, Path]:
    folder = tmp_path / "dumps"
    folder.mkdir()
    launch(SCRIPT, [str(folder), request.param], ranks=4, hooks=False)
    for flag in [*folder.glob("*.stuck"), *folder.glob("*.done")]:
        flag.unlink()
    for file in folder.iterdir():  # as after a watchdog's timeout
        os.utime(file, (time.time() + 600,) * 2)
    return request.param, folder


def test_a_real_jobs_dumps_are_judged(job: tuple[str, Path]) -> None:
    fault, folder = job
    text, document = located(folder), json.loads(located(folder, "--format", "json").stdout)
    assert text.returncode == 1 and document["verdict"] == "fail", text
    if fault == "hang":
        assert text.stdout.startswith("Rank 1 is hung: the others wait for it.")
        waits = ("tp:0-1, in which rank 0 stayed", "dp:1-3, in which rank 3 stayed")  # told is who waits longer
        assert any(f"Never came to all_reduce number 4 of {each}" in text.stdout for each in waits), text.stdout
        (culprit,) = document["culprits"]
        assert (culprit["ranks"], culprit["victims"]) == ([1], [0, 2, 3])
    else:
        assert (
            "rank 0 called all_reduce number 4 of tp:0-1 of 4,096 bytes, where rank 1 called barrier number 4"
            in text.stdout
        )
        assert document["culprits"] == [] and "mismatch" in [note["kind"] for note in document["notes"]]
    real = pickle.loads((folder / "fr_trace_0").read_bytes())  # our own job wrote it
    ours = dump([("0", "default_pg", [0])], [entry(("0", "default_pg", [0]), "all_reduce", 1)], {0: (1, 1)})
    assert real.keys() == ours.keys(), "the dumps that tests make have the fields of a real one"
    assert real["entries"][0].keys() == ours["entries"][0].keys()
    assert {type(real["pg_status"][key]) for key in real["pg_status"]} == {dict}
