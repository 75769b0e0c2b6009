"""Recognises the format of a file, or the formats of the parts of one that holds the outputs of several tools."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final, NamedTuple

from laggard.diagnose.file_content import FileContent
from laggard.diagnose.file_format import FileFormat, KnownHardware
from laggard.diagnose.formats import FORMATS
from laggard.diagnose.input_file import InputFile
from laggard.diagnose.job_log import JOB_LOG
from laggard.diagnose.parts.expand import parts_of
from laggard.diagnose.parts.zip_archive import MAGIC
from laggard.diagnose.recordings import FIRST_BYTES, recording_kind
from laggard.diagnose.unknown_format import is_text, what_is_known

_NUMBER = re.compile(r"\d+")
FORMAT_NAMES = ", ".join(file_format.name for file_format in FORMATS)


class RecognisedFile(NamedTuple):
    file: InputFile
    formats: tuple[FileFormat, ...]
    """The formats that the file is judged as: several where it is a paste of several tools' output."""
    hardware: KnownHardware
    problem: str
    """The reason why the format judges only a part of the file; or, without a format, everything that is known of the
    file."""
    recording: str = ""
    """The kind of recording that a part of a file is; empty: it is none. It is judged with the others of its kind."""


class Siblings:
    """Remembers files whose paths differ in numbers alone, as the logs of a job's ranks do: after some of one kind the
    next is of it too, and is not searched for any other."""

    _ALIKE: Final = 4
    _MIN_BYTES: Final = 32 << 10
    """The size below which a file is recognised by itself: people paste less by hand."""

    def __init__(self) -> None:
        self._seen: dict[str, int] = {}

    def recognise(self, file: InputFile) -> tuple[RecognisedFile, ...]:
        """As recognise() does, for what is given beside others."""
        shape = _NUMBER.sub("0", file.path)
        if self._seen.get(shape, 0) >= self._ALIKE:
            content = file.read()
            if content.held_bytes >= self._MIN_BYTES and is_text(content):
                return (RecognisedFile(file, (JOB_LOG,), KnownHardware(), content.problem),)
        found = recognise(file)
        alike = len(found) == 1 and found[0].formats and all(each.whole == JOB_LOG.whole for each in found[0].formats)
        self._seen[shape] = self._seen.get(shape, 0) + 1 if alike else 0
        return found


def recognise(file: InputFile) -> tuple[RecognisedFile, ...]:
    """Returns the file; or those of its parts that are of a known format, where one of them is the output of a tool.
    What a job prints may hold prompts and heads too, and is one whole."""
    content = file.read()
    parts = parts_of(file, content)
    whole = None if parts.is_archive else _recognise(file, content)
    known = tuple(found for part in parts.files if (found := _recognise_part(part)).formats or found.recording)
    if whole and whole.formats and all(file_format.shares for file_format in whole.formats):
        return (whole, *filter(_is_of_a_tool, known))  # its readers know prompts, and the commands behind them
    if parts.is_archive:
        told = parts.problem or ("" if known else f"none of its {len(parts.files)} files is of a known format")
        rest = RecognisedFile(file, (), KnownHardware(), f"is a {parts.packing} archive: {told}") if told else None
        return (*known, *((rest,) if rest else ()))
    if any(part.recording or not all(it.holds_others for it in part.formats) for part in known):
        return known
    return (whole or _recognise(file, content),)


def _recognise_part(part: InputFile) -> RecognisedFile:
    content = part.read()
    if kind := recording_kind(content.raw_beginning[:FIRST_BYTES]):
        return RecognisedFile(part, (), KnownHardware(), "", kind)
    return _recognise(part, content)


def _is_of_a_tool(part: RecognisedFile) -> bool:
    """Whether a part is the output of a tool whose reader takes one output alone."""
    return not any(file_format.shares or file_format.holds_others for file_format in part.formats)


def _recognise(file: InputFile, content: FileContent) -> RecognisedFile:
    formats = () if content.first_bytes.startswith(MAGIC) or not content.text else _formats_of(content)
    if not formats:
        known = "; ".join(filter(None, (what_is_known(content), content.problem)))
        return RecognisedFile(file, (), KnownHardware(), known)
    end_matters = any(file_format.end_matters for file_format in formats)
    problem = content.problem if end_matters else content.problem_of_the_beginning
    hardware = merge_hardware(file_format.read_hardware(content) for file_format in formats)
    return RecognisedFile(file, formats, hardware, problem)


def _formats_of(content: FileContent) -> tuple[FileFormat, ...]:
    """Returns each format that shares its texts and recognises the file, and the first of the others that does."""
    formats: list[FileFormat] = []
    alone = False
    for each in FORMATS:
        if alone and not each.shares:
            continue
        if not (each.fallback and formats) and each.recognise(content):
            formats.append(each)
            alone |= not each.shares
    return tuple(formats)


def merge_hardware(shown: Iterable[KnownHardware]) -> KnownHardware:
    """Merges what the files show of the machine; where several show the same thing, the first counts."""
    gpus, rdma = None, None
    for each in shown:
        gpus = each.gpus if gpus is None else gpus
        rdma = each.rdma if rdma is None else rdma
    return KnownHardware(gpus, rdma)
