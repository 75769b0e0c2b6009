"""What has left laggard is refused in one line that says what serves instead."""

from __future__ import annotations

from pathlib import Path

import pytest

from laggard.cli import main
from laggard.kit.left import COMMANDS, FLAGS, SETTINGS


@pytest.mark.parametrize("name", [*COMMANDS, *FLAGS])
def test_a_command_or_flag(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*name.split(), "x"]) == 64
    told = {**COMMANDS, **FLAGS}[name]
    assert capsys.readouterr().err == f"laggard: `laggard {name}` left: {told}\n"


@pytest.mark.parametrize("name", SETTINGS)
def test_a_setting(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "collector.yaml"
    config.write_text(f"{name}: x\n")
    assert main(["collector", "--config", str(config), "--check-config"]) == 64
    told = f"laggard: {config}: the key `{name}` left: {SETTINGS[name]}\n"
    assert capsys.readouterr().err == told
