"""What the command line does before any command runs."""

from __future__ import annotations

import gc
import sys

import pytest

from laggard.cli import main


@pytest.mark.parametrize(
    ("words", "collects"), [(["healthcheck", "--only", "limits"], False), (["metrics", "list"], True)]
)
def test_only_the_gate_runs_without_the_garbage_collector(
    words: list[str], collects: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["laggard", *words])
    try:
        main()
        assert gc.isenabled() == collects
    finally:
        gc.enable()
