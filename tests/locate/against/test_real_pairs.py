"""Two real trainings by gloo, of which one has a longer forward pass, compared by the command."""

import json
import platform
from collections.abc import Callable
from pathlib import Path

import pytest
from support.launch import Ranks
from support.paths import REPOSITORY

from laggard.cli import main
from laggard.wire import decode
from laggard.wire.digest import Comparison

pytestmark = pytest.mark.slow

SCRIPT = REPOSITORY / "tests" / "support" / "training" / "compared_runs.py"


@pytest.fixture
def run(tmp_path_factory: pytest.TempPathFactory, launch_in: Callable[..., Ranks]) -> Callable[..., Path]:
    """Records a training with these words."""

    def recorded(*words: str) -> Path:
        place = tmp_path_factory.mktemp("run")
        launch_in(place, SCRIPT, words, extra={"LAGGARD_RECORD_DIR": str(place / "recording")})
        return place / "recording"

    return recorded


def test_the_command_says_what_else_changed(
    run: Callable[..., Path], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The recordings have the versions; in one of them torch's is another."""
    now = tmp_path / "now"
    now.mkdir()
    for file in run("forward=30").iterdir():
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        (around,) = (line["environment"] for line in lines if line.get("kind") == "environment")
        assert around["python"] == platform.python_version() and around["OMP_NUM_THREADS"] == "1"
        around["torch"] = "9.9"
        (now / file.name).write_text("".join(json.dumps(line) + "\n" for line in lines))
    before = str(run())
    assert main(["locate", "--trace", str(now), "--against", before]) == 1
    text = capfd.readouterr().out
    assert "forward +" in text and "; nothing else changed but torch " in text and " -> 9.9." in text
    assert main(["locate", "--trace", str(now), "--against", before, "--format", "json"]) == 1
    found = decode(capfd.readouterr().out.encode(), Comparison)
    assert [each.name for each in found.differences or ()] == ["torch"]
