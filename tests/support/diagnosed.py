"""Texts as files of `laggard diagnose`."""

from __future__ import annotations

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
