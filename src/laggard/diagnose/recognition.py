"""Recognises the format of a file, or the formats of the parts of one that holds the outputs of several tools."""

from __future__ import annotations

from typing import NamedTuple

from laggard.diagnose.file_content import FileContent
from laggard.diagnose.file_format import FileFormat, KnownHardware
from laggard.diagnose.formats import FORMATS
from laggard.diagnose.input_file import InputFile
from laggard.diagnose.parts.expand import parts_of
from laggard.diagnose.unknown_format import what_is_known

FORMAT_NAMES = ", ".join(file_format.name for file_format in FORMATS)


class RecognisedFile(NamedTuple):
    file: InputFile
    format: FileFormat | None
    hardware: KnownHardware
    problem: str
    """The reason why the format judges only a part of the file; or, without a format, everything that is known of the
    file."""


def recognise(file: InputFile) -> tuple[RecognisedFile, ...]:
    """Returns the file; or those of its parts that are of a known format, where one of them is the output of a tool.
    What a job prints may hold prompts and heads too, and is one whole."""
    content = file.read()
    parts = parts_of(file, content)
    known = tuple(found for part in parts.files if (found := _recognise(part, part.read())).format)
    if parts.is_archive:
        told = parts.problem or ("" if known else f"none of its {len(parts.files)} files is of a known format")
        rest = RecognisedFile(file, None, KnownHardware(), f"is a tar archive: {told}") if told else None
        return (*known, *((rest,) if rest else ()))
    if any(part.format and not part.format.holds_others for part in known):
        return known
    return (_recognise(file, content),)


def _recognise(file: InputFile, content: FileContent) -> RecognisedFile:
    file_format = next((each for each in FORMATS if content.text and each.recognise(content)), None)
    if file_format is None:
        known = "; ".join(filter(None, (what_is_known(content, FORMAT_NAMES), content.problem)))
        return RecognisedFile(file, None, KnownHardware(), known)
    problem = content.problem if file_format.end_matters else content.problem_of_the_beginning
    return RecognisedFile(file, file_format, file_format.read_hardware(content), problem)
