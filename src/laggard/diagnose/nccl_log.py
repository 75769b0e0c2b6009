"""The format `NCCL log`: NCCL_DEBUG=INFO of a process or a job, alone or within the other output of a job."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable
from typing import Final

from laggard.diagnose.file_content import FileContent
from laggard.diagnose.file_format import FileFormat, FileJudgement, KnownHardware
from laggard.nccl.log.lines import NO_WRITER, PrefixCache, lines_in
from laggard.nccl.log.reader import NcclLogReader
from laggard.probes.nccl.model.job import HardwareFacts
from laggard.probes.nccl.rules.log_findings import judge_nccl_log

_WORD: Final = re.compile(r"(?:NCCL (?:INFO|WARN|ATTN|DIAG|TRACE|CALL|version)|RCCL version) ")
_DEVICES: Final = re.compile(r"NET/IB : Using \[0\]")
_SEARCHED_MATCHES: Final = 256
_LINE_CHARACTERS: Final = 2048


def recognise(content: FileContent) -> bool:
    """Looks for a line that names its host and process, or begins with NCCL's own words. Prose does neither."""
    heads = PrefixCache()
    found = ((piece, match) for piece in content.pieces() for match in _WORD.finditer(piece))
    return any(_is_nccl(piece, match, heads) for piece, match in itertools.islice(found, _SEARCHED_MATCHES))


def _is_nccl(text: str, match: re.Match[str], heads: PrefixCache) -> bool:
    start = text.rfind("\n", max(0, match.start() - _LINE_CHARACTERS), match.start()) + 1
    if start == match.start():
        return True
    lines = lines_in(text[max(start, match.start() - _LINE_CHARACTERS) : match.end()], heads)
    return any(line.writer != NO_WRITER for line in lines)


def read_hardware(content: FileContent) -> KnownHardware:
    """Finds RDMA where NCCL lists RDMA devices. That it lists none does not prove that the machine has none."""
    return KnownHardware(rdma=True if any(map(_DEVICES.search, content.pieces())) else None)


def judge(content: FileContent, hardware: KnownHardware) -> FileJudgement:
    return judge_together([content], hardware)


def judge_together(contents: Iterable[FileContent], hardware: KnownHardware) -> FileJudgement:
    """Judges the files as the log of one job: NCCL_DEBUG_FILE makes a file for each process."""
    reader = NcclLogReader()
    for content in contents:
        for piece in content.pieces():
            reader.feed(piece)
        reader.end()
    judgement = judge_nccl_log(reader.log(), HardwareFacts(rdma=hardware.rdma, gpus=hardware.gpus))
    return FileJudgement(judgement.findings, judgement.facts, judgement.gaps)


NCCL_LOG = FileFormat("NCCL log", recognise, judge, read_hardware, judge_together, end_matters=True, holds_others=True)
