"""Takes a file that holds the outputs of several tools apart: archives, bug reports, what was copied out of a terminal,
one command on many machines. Each part is then recognised as if it were a file."""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Iterable, Iterator
from typing import BinaryIO, Final, NamedTuple, cast

from laggard.diagnose.file_content import FileContent
from laggard.diagnose.input_file import InputFile, open_unpacked, read_member
from laggard.diagnose.parts.archive import MAX_ARCHIVE_BYTES, Archive, Member, Source
from laggard.diagnose.parts.bug_report import split_bug_report
from laggard.diagnose.parts.machines import split_machines
from laggard.diagnose.parts.own_stacks import split_own_stacks
from laggard.diagnose.parts.part import Part
from laggard.diagnose.parts.server_answers import split_dumps
from laggard.diagnose.parts.session import MAX_SESSION_CHARACTERS, split_session
from laggard.diagnose.parts.terminal import without_colours
from laggard.diagnose.parts.zip_archive import MAGIC, ZipArchive, ZipMember

MAX_HELD_BYTES: Final = 256 << 20
"""The most bytes of an archive's members that are held: their text is needed until all of it is judged."""
_MAX_REPORT_CHARACTERS: Final = 64 << 20
_MARK: Final = b"NVIDIA bug report"
_MARK_BYTES: Final = 4096
_TAR: Final = (257, b"ustar")


class PartFile(InputFile):
    """A part of a file, which is held."""

    def __init__(self, path: str, content: FileContent) -> None:
        super().__init__(path)
        self._kept = content
        self.held_bytes = content.held_bytes


class Parts(NamedTuple):
    files: tuple[InputFile, ...] = ()
    is_archive: bool = False
    problem: str = ""
    """The reason why these are not all parts."""
    packing: str = "tar"


def parts_of(file: InputFile, content: FileContent) -> Parts:
    """Returns the parts of a file with this content; none of one that is a whole."""
    if content.first_bytes[_TAR[0] :].startswith(_TAR[1]):
        return _tar_parts(file, content)
    if content.first_bytes.startswith(MAGIC):
        return _zip_parts(file, content)
    return Parts(tuple(_text_parts(file.path, content)))


def _text_parts(path: str, content: FileContent) -> Iterator[InputFile]:
    parts = _split(content)
    hosts = dict.fromkeys(part.host for part in parts if part.host)
    for part in parts:
        held = FileContent.of_text(part.text)
        held.host = part.host or content.host
        held.other_hosts = tuple(host for host in hosts if host != held.host) if len(hosts) <= 4 else ()
        yield PartFile(f"{path}: {part.name}" if part.name else path, held)


def _split(content: FileContent) -> tuple[Part, ...]:
    if content.held_bytes > _MAX_REPORT_CHARACTERS:
        return ()
    report = split_bug_report("".join(content.pieces())) if _MARK in content.raw_beginning[:_MARK_BYTES] else ()
    if report or content.held_bytes > MAX_SESSION_CHARACTERS:
        return report
    if own := split_own_stacks(content.raw):
        return own
    text = without_colours(content.text)
    if dumps := split_dumps(content.text):
        return dumps
    return split_session(text) or split_machines(text)


def _tar_parts(file: InputFile, content: FileContent) -> Parts:
    with _source(file, content) as source:
        archive = Archive(source)
        parts = _members(file, archive.members())
        return parts._replace(problem=parts.problem or archive.problem or (content.problem if file.path == "-" else ""))


def _zip_parts(file: InputFile, content: FileContent) -> Parts:
    """None of what is no archive, but a checkpoint or another program's file."""
    if file.path != "-" and not os.path.isfile(file.path) and content.skipped_bytes:
        return Parts((), True, "it is too large to be read within another archive", "zip")
    with contextlib.ExitStack() as stack:
        whole = not content.skipped_bytes
        source = io.BytesIO(content.raw) if whole else stack.enter_context(open(file.path, "rb"))
        archive = ZipArchive(source)
        parts = _members(file, archive.members())
        problem = parts.problem or archive.problem
    return Parts(parts.files, True, problem, "zip") if parts.files or problem else Parts()


def _members(file: InputFile, members: Iterable[Member | ZipMember]) -> Parts:
    files: list[InputFile] = []
    held = unpacked = 0
    for member in members:
        if held >= MAX_HELD_BYTES or unpacked >= MAX_ARCHIVE_BYTES:
            return Parts(tuple(files), True, f"only {len(files)} files of the archive were read: it is too large")
        inner, size = read_member(cast(BinaryIO, member), MAX_ARCHIVE_BYTES - unpacked)
        held, unpacked = held + inner.held_bytes, unpacked + size
        path = f"{file.path}: {member.name}"
        files += list(_text_parts(path, inner)) or [PartFile(path, inner)]
    return Parts(tuple(files), True)


@contextlib.contextmanager
def _source(file: InputFile, content: FileContent) -> Iterator[Source]:
    """Yields the unpacked archive from its beginning. Of standard input only what was kept is there."""
    if not content.skipped_bytes or file.path == "-":
        yield io.BytesIO(content.raw if not content.skipped_bytes else content.raw_beginning)
        return
    with open_unpacked(file.path) as source:
        yield source
