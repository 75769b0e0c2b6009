"""What the tests of verdicts from a store share."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from laggard.cli import main


@pytest.fixture
def locate(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, dict[str, Any]]]:
    """Runs `laggard locate` with these words. Returns its status and its document."""

    def run(*words: str) -> tuple[int, dict[str, Any]]:
        status = main(["locate", *words, "--format", "json"])
        document: dict[str, Any] = json.loads(capsys.readouterr().out)
        assert "error" not in document, document
        return status, document

    return run
