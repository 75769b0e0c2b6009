"""The formats that `laggard diagnose` recognises, and of which a file or its parts are. A new one is a constant in
a file of this folder or of one in it; the file's name stands here."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from laggard.diagnose import job_log, kernel_log, lspci, nccl, profilers, ras, settings, stack_dumps
from laggard.diagnose.archive import MAGIC, unpack
from laggard.diagnose.file_format import FileContent, FileFormat, KnownHardware
from laggard.diagnose.gpu_tools import amd_smi, dcgm, nvidia_smi, smi_table, topology
from laggard.diagnose.input_file import InputFile, PartFile
from laggard.diagnose.job_log import JOB_LOG
from laggard.diagnose.kernel_log import KERNEL_LOG
from laggard.diagnose.numbers import format as numbers
from laggard.diagnose.parts import Part, cut
from laggard.diagnose.pastes import (
    interfaces,
    pods,
    port_counters,
    rdma_ports,
    resources,
    routes,
    services,
    slurm,
    stuck_processes,
)
from laggard.diagnose.recordings import FIRST_BYTES, recording_kind

_MODULES: Final = (
    nvidia_smi, topology, smi_table, amd_smi, services, dcgm, stack_dumps, ras, nccl, profilers, lspci,
    rdma_ports, port_counters, interfaces, slurm, pods, resources, stuck_processes, routes, kernel_log, job_log,
    settings, numbers,
)  # fmt: skip
FORMATS: Final = tuple(
    sorted(
        dict.fromkeys(each for module in _MODULES for each in vars(module).values() if isinstance(each, FileFormat)),
        key=lambda each: each.fallback,
    )
)
"""Each that recognises a text judges it, save what another one covers."""


_PACKED: Final = {b"\xfd7zXZ\x00": ("xz", "xz -dc"), b"BZh": ("bzip2", "bzip2 -dc")}
_BEGINNINGS: Final = {
    b"PK\x03\x04": "is a zip archive of a program's own (torch.save writes one), which holds no logs",
    b"SQLite format 3\0": "is an SQLite database (TraceML keeps one: give its final_summary.json)",
    b"\x80": "is a pickle, which laggard never loads: torchfrtrace reads the Flight Recorder's dumps",
    b"\x7fELF": "is a program or a core dump",
}
_BINARY_SHARE: Final = 0.1


def what_is_known(content: FileContent) -> str:
    """Returns what the file is instead, to follow its name in a sentence."""
    first = content.first_bytes
    if not first:
        return "" if content.problem else "is empty"
    for beginning, (name, command) in _PACKED.items():
        if first.startswith(beginning):
            return f"is packed with {name}: unpack it first, as in `{command} FILE | laggard diagnose -`"
    for beginning, known in _BEGINNINGS.items():
        if first.startswith(beginning):
            return known
    if _is_binary(first):
        return "holds binary data of no known format"
    return "is of no known format (`laggard diagnose --help` lists those that are)"


def is_text(content: FileContent) -> bool:
    """Returns whether a content is a text, and is packed in no way that is known."""
    first = content.first_bytes
    return bool(first) and not first.startswith((*_PACKED, *_BEGINNINGS)) and not _is_binary(first)


def _is_binary(data: bytes) -> bool:
    strange = sum(byte < 32 and byte not in b"\t\n\r\x1b\x08\x0c" for byte in data)
    return strange > _BINARY_SHARE * len(data)


_TASK: Final = "task "
_MIN_ASKED_LINES: Final = 3
"""The fewest lines of a command's output that may hold what was asked: a version and a name have fewer."""
_NUMBER = re.compile(r"\d+")
FORMAT_NAMES = ", ".join(file_format.name for file_format in FORMATS)


class RecognisedFile(NamedTuple):
    """A file, or one part of one: of all parts together each line has one."""

    file: InputFile
    formats: tuple[FileFormat, ...]
    """The formats that it is judged as: several where it is a paste of several tools' output."""
    hardware: KnownHardware
    problem: str = ""
    """The reason why the format judges only a part of the file; or, without a format, everything that is known of the
    file."""
    recording: str = ""
    """The kind of recording that a part of a file is; empty: it is none. It is judged with the others of its kind."""
    readers: str = ""
    """The names of the formats that read it, here or in the whole that it is a part of."""
    first_line: int | None = None
    is_cut: bool = False
    """True: its lines are those of the parts that follow it."""


class Siblings:
    """Remembers files whose paths differ in numbers alone, as the logs of a job's ranks do, given as files or in an
    archive: after some text of one kind the next file is of it too, and is not searched for any other."""

    _ALIKE_BYTES: Final = 128 << 10
    """The text of one kind after which the next is: people paste less by hand."""

    def __init__(self) -> None:
        self._seen: dict[str, int] = {}

    def recognise(self, file: InputFile) -> tuple[RecognisedFile, ...]:
        """Returns the file; or its parts, where it is an archive or one of them is the output of a tool. What a job
        prints may hold prompts and heads too, and is one whole."""
        content = file.read()
        unpacked = unpack(file, content)
        if unpacked is None:
            return self._of_file(file, content)
        found = tuple(each for it in unpacked.files if not file.deadline.is_over() for each in self._of_member(it))
        is_known = any(each.readers or each.recording for each in found)
        late = "its files were not all looked at: it takes too long" if file.deadline.is_over() else ""
        strange = "" if is_known else f"none of its {len(unpacked.files)} files is of a known format"
        told = unpacked.problem or late or strange
        rest = RecognisedFile(file, (), KnownHardware(), f"is a {unpacked.packing} archive: {told}", is_cut=True)
        return (*found, *((rest,) if told else ()))

    def _of_member(self, file: InputFile) -> tuple[RecognisedFile, ...]:
        """A member that no reader takes is told as such, and makes nothing unknown."""
        content = file.read()
        found = self._of_file(file, content)
        return found if len(found) > 1 or found[0].readers else (found[0]._replace(problem=content.problem),)

    def _of_file(self, file: InputFile, content: FileContent) -> tuple[RecognisedFile, ...]:
        shape = _NUMBER.sub("0", file.path)
        if self._seen.get(shape, 0) >= self._ALIKE_BYTES and is_text(content):
            return (RecognisedFile(file, (JOB_LOG,), KnownHardware(), content.problem, readers=JOB_LOG.name),)
        found = _of_text(file, content)
        alike = len(found) == 1 and found[0].formats and all(each.whole == JOB_LOG.whole for each in found[0].formats)
        self._seen[shape] = self._seen.get(shape, 0) + content.held_bytes if alike else 0
        return found


def _of_text(file: InputFile, content: FileContent) -> tuple[RecognisedFile, ...]:
    if isinstance(file, PartFile) and (kind := recording_kind(content.raw_beginning[:FIRST_BYTES])):
        return (RecognisedFile(file, (), KnownHardware(), recording=kind),)
    whole = _recognise(file, content)
    cuts = cut(content)
    is_whole = KERNEL_LOG in whole.formats and all(it.line is None and not it.name.startswith(_TASK) for it in cuts)
    parts = () if is_whole else tuple(_parts(file, content, cuts))
    if not any(map(_is_of_a_tool, parts)):
        unread = next((part.problem for part in parts if part.problem and not part.formats), "")
        reads_all = any(it.holds_others for it in whole.formats)
        return (whole if whole.problem or reads_all else whole._replace(problem=unread),)
    shared = tuple(each for each in whole.formats if each.shares)  # their readers know prompts, and compare hosts
    parts = tuple(part._replace(formats=tuple(it for it in part.formats if not it.shares)) for part in parts)
    if not shared:
        return parts
    names = ", ".join(each.name for each in shared)
    return (whole._replace(formats=shared, readers=names, is_cut=True), *parts)


def _parts(file: InputFile, content: FileContent, parts: Sequence[Part]) -> Iterator[RecognisedFile]:
    hosts = dict.fromkeys(part.host for part in parts if part.host)
    for part in parts:
        held = FileContent.of_text(part.text)
        held.host = part.host or content.host
        held.other_hosts = tuple(host for host in hosts if host != held.host) if len(hosts) <= 4 else ()
        lines = f"lines {part.line}-{part.line + part.text.count(chr(10)) - 1}" if part.line else ""
        inner = PartFile(f"{file.path}: {part.name or lines}", held)
        kind = recording_kind(held.raw_beginning[:FIRST_BYTES])
        found = RecognisedFile(inner, (), KnownHardware(), recording=kind) if kind else _recognise(inner, held)
        is_asked = part.of_command and part.text.count("\n") >= _MIN_ASKED_LINES
        unread = f"`{part.name}` is read by no reader" if is_asked else ""
        yield found._replace(first_line=part.line, problem=found.problem if found.formats else unread)


def _is_of_a_tool(part: RecognisedFile) -> bool:
    """Whether a part is the output of a tool whose reader takes one output alone, or a recording."""
    return bool(part.recording) or any(not (it.shares or it.holds_others) for it in part.formats)


def _recognise(file: InputFile, content: FileContent) -> RecognisedFile:
    formats = () if content.first_bytes.startswith(MAGIC) or not content.text else _formats_of(content)
    if not formats:
        known = "; ".join(filter(None, (what_is_known(content), content.problem)))
        return RecognisedFile(file, (), KnownHardware(), known)
    end_matters = any(file_format.end_matters for file_format in formats)
    problem = content.problem if end_matters else content.problem_of_the_beginning
    hardware = merge_hardware(file_format.read_hardware(content) for file_format in formats)
    return RecognisedFile(file, formats, hardware, problem, readers=", ".join(each.name for each in formats))


def _formats_of(content: FileContent) -> tuple[FileFormat, ...]:
    """Returns each format that recognises the text: one thing in a paste hides no other."""
    formats: list[FileFormat] = []
    for each in FORMATS:
        covered = any(each.name in other.covers for other in formats)
        if not covered and not (each.fallback and formats) and each.recognise(content):
            formats = [*(other for other in formats if other.name not in each.covers), each]
    return tuple(formats)


def merge_hardware(shown: Iterable[KnownHardware]) -> KnownHardware:
    """Merges what the files show of the machine; where several show the same thing, the first counts."""
    gpus, rdma = None, None
    for each in shown:
        gpus = each.gpus if gpus is None else gpus
        rdma = each.rdma if rdma is None else rdma
    return KnownHardware(gpus, rdma)
