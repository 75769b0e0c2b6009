"""NCCL's logs: NCCL_DEBUG=INFO of one process or of a whole job, alone or among everything else that a job prints."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from typing import Final

from laggard.diagnose.file_format import Kind, Reading, Told
from laggard.nccl.log.lines import NO_WRITER, PrefixCache, lines_in
from laggard.nccl.log.reader import NcclLogReader
from laggard.probes.nccl.model.job import HardwareFacts
from laggard.probes.nccl.rules.log_findings import judge_nccl_log

_WORD: Final = re.compile(r"NCCL (?:INFO|WARN|TRACE|CALL|version) ")
_DEVICES: Final = re.compile(r"NET/IB : Using \[0\]")
_BEGINNING: Final = 16 << 20
"""In characters: a job prints a lot before its first collective."""
_TRIES: Final = 256
_LINE: Final = 2048


def recognise(text: str) -> bool:
    """A line that names its host and process, or is NCCL's from its first word on; prose about NCCL is neither."""
    heads = PrefixCache()
    found = _WORD.finditer(text, 0, _BEGINNING)
    return any(_is_nccl(text, match, heads) for match in itertools.islice(found, _TRIES))


def _is_nccl(text: str, match: re.Match[str], heads: PrefixCache) -> bool:
    start = text.rfind("\n", max(0, match.start() - _LINE), match.start()) + 1
    if start == match.start():
        return True
    lines = lines_in(text[max(start, match.start() - _LINE) : match.end()], heads)
    return any(line.writer != NO_WRITER for line in lines)


def tell(text: str) -> Told:
    """NCCL lists the RDMA devices that it finds. That it finds none says nothing of the machine."""
    return Told(rdma=True if _DEVICES.search(text) else None)


def read(text: str, told: Told) -> Reading:
    return read_together([text], told)


def read_together(texts: Sequence[str], told: Told) -> Reading:
    """As one job: NCCL_DEBUG_FILE makes a file for each process."""
    reader = NcclLogReader()
    for text in texts:
        reader.feed(text)
        reader.end()
    judgement = judge_nccl_log(reader.log(), HardwareFacts(rdma=told.rdma, gpus=told.gpus))
    return Reading(judgement.findings, judgement.facts, judgement.gaps)


NCCL_LOG = Kind("NCCL log", recognise, read, tell, read_together)
