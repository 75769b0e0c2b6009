"""Texts as files of `laggard diagnose`, and what the command answers."""

import json
from pathlib import Path
from typing import Any

import pytest

from laggard.cli import main
from laggard.diagnose.command import diagnose
from laggard.diagnose.file_format import FileContent
from laggard.diagnose.input_file import InputFile
from laggard.wire.diagnosis import Diagnosis


class TextFile(InputFile):
    """Stands in for a file on disk that holds `text`."""

    def __init__(self, text: str, path: str = "log") -> None:
        super().__init__(path)
        self._content = FileContent.of_text(text)

    def read(self) -> FileContent:
        return self._content


def diagnose_text(*texts: str) -> Diagnosis:
    return diagnose([TextFile(text, f"log{number or ''}") for number, text in enumerate(texts)])


def answer(capsys: pytest.CaptureFixture[str], *paths: Path | str) -> tuple[int, dict[str, Any]]:
    """Returns the exit status and the document."""
    status = main(["diagnose", "--format", "json", *map(str, paths)])
    return status, json.loads(capsys.readouterr().out)


def answer_in_words(capsys: pytest.CaptureFixture[str], *paths: Path | str) -> tuple[int, str]:
    """Returns the exit status and the text, without its line breaks."""
    status = main(["diagnose", *map(str, paths)])
    return status, " ".join(capsys.readouterr().out.split())
