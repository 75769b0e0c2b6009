"""The format `nvidia-smi`: its table, `nvidia-smi -L`, and what it prints where there is no table. The tables of
several nodes are compared with each other."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from laggard.diagnose.file_content import FileContent
from laggard.diagnose.file_format import FileFormat, FileJudgement, KnownHardware
from laggard.diagnose.gpu_tools.smi_messages import LINE, context, judge_messages
from laggard.diagnose.gpu_tools.smi_table import HEAD, Table, read_table
from laggard.diagnose.gpu_tools.smi_table_findings import judge_table, missing
from laggard.diagnose.origin import on_host
from laggard.diagnose.parts.terminal import without_colours
from laggard.model import Finding

_MAX_CHARACTERS: Final = 4 << 20
_SAMPLE_CHARACTERS: Final = 1 << 18
_MAX_MESSAGE_LINES: Final = 60
_MIN_SHARE: Final = 0.6
_LISTED = re.compile(r"^GPU (\d{1,4}): .{1,120}\(UUID: ", re.MULTILINE)
_DATE = re.compile(r"[A-Z][a-z]{2} [A-Z][a-z]{2} [ \d]\d [\d:]{8} \d{4}\s*$")


class _Output(NamedTuple):
    content: FileContent
    text: str
    table: Table


def recognise(content: FileContent) -> bool:
    """Returns whether a table is most of the text, or every line is a message that nvidia-smi prints."""
    text = without_colours(content.text[:_SAMPLE_CHARACTERS])
    lines = [line for line in text.splitlines() if line.strip() and not _DATE.match(line)]
    known = sum(1 for line in lines if line.startswith(("|", "+")) or LINE.search(line[:400]))
    if HEAD.search(text):
        return known >= _MIN_SHARE * len(lines)
    return 0 < len(lines) <= _MAX_MESSAGE_LINES and known == len(lines) and not text.startswith(("|", "+"))


def read_hardware(content: FileContent) -> KnownHardware:
    text = _text(content)
    count = len(read_table(text).gpus) or len(_LISTED.findall(text))
    return KnownHardware(gpus=count or None)


def judge(content: FileContent, hardware: KnownHardware) -> FileJudgement:
    return judge_together([content], hardware)


def judge_together(contents: Iterable[FileContent], hardware: KnownHardware) -> FileJudgement:
    outputs = [_Output(content, text := _text(content), read_table(text)) for content in contents]
    findings = [
        *(on_host(found, output.content) for output in outputs for found in _judge(output)),
        *(on_host(found, output.content) for output, found in _compare(outputs)),
    ]
    evidence = {name: value for output in outputs for name, value in context(output.text).items()}
    facts = {
        "gpus": sum(len(output.table.gpus) for output in outputs),
        "models": sorted({gpu.name for output in outputs for gpu in output.table.gpus})[:16],
        "driver_versions": sorted({output.table.driver_version for output in outputs} - {""}),
        **evidence,
    }
    is_cut = any(HEAD.search(output.text) and not output.table.gpus for output in outputs)
    return FileJudgement(tuple(findings), facts, "" if findings or not is_cut else "no row of a GPU is in its table")


def _judge(output: _Output) -> Iterator[Finding]:
    yield from judge_messages(output.text)
    yield from judge_table(output.table)


def _compare(outputs: Iterable[_Output]) -> Iterator[tuple[_Output, Finding]]:
    """Yields what nodes lack whose GPUs sit where some of a peer's do: boards of one kind have them at one address."""
    boards = {output.content.host: output for output in outputs if output.content.host and output.table.gpus}
    whole = max(boards.values(), key=lambda output: len(output.table.gpus), default=None)
    for output in boards.values():
        if whole is None or len(whole.table.gpus) <= len(output.table.gpus):
            continue
        here, there = _places(output), _places(whole)
        if here < there and 2 * len(here) > len(there):
            absent = sorted(bus_id for bus_id, _ in there - here)
            reason = f"{output.content.host} lists {len(here)} where {whole.content.host} lists {len(there)}"
            yield output, missing(f"GPU {', '.join(absent)}", len(here), len(there), reason)


def _places(output: _Output) -> set[tuple[str, str]]:
    return {(gpu.bus_id, gpu.name) for gpu in output.table.gpus}


def _text(content: FileContent) -> str:
    return without_colours(content.text[:_MAX_CHARACTERS])


NVIDIA_SMI_TABLE = FileFormat("nvidia-smi", recognise, judge, read_hardware, judge_together)
