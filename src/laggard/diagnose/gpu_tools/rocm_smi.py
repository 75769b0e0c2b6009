"""The format `rocm-smi`: its table of GPUs, of each release, its JSON, and what it says of errors. A GPU that gives no
reading where its peers do is lost or hangs.

Source: rocm_smi_lib, python_smi_tools/rocm_smi.py: the JSON has an object `cardN` for each GPU, with a text for each
reading, and one `system`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from laggard.diagnose.file_format import FileContent, FileFormat, FileJudgement, KnownHardware, without_colours
from laggard.diagnose.gpu_tools.smi_table import SAYS
from laggard.diagnose.pastes.section import one_of_many
from laggard.model import Finding

_MAX_CHARACTERS: Final = 1 << 20
_MIN_ABSENT: Final = 4
"""The number of readings that only this GPU lacks, from which on it does not answer; a fan or a cap may be N/A."""
_HEAD = re.compile(r"=+ *(?:ROCm System Management Interface|ROCm SMI|End of ROCm SMI Log)", re.IGNORECASE)
_COLUMNS = re.compile(r"^(?:GPU|Device)\s.*(?:Temp|Perf|SCLK)", re.MULTILINE)
_ROW = re.compile(r"^(\d{1,3})\s+(\S.*)$")
_ABSENT = re.compile(r"\b(?:N/A|None|unknown|unsupported)\b", re.IGNORECASE)
_RAS_GPU = re.compile(r"GPU\[(\d{1,3})\]\s*: *RAS INFO")
_RAS_ROW = re.compile(r"\s*(\w{2,12})\s+ENABLED\s+(\d{1,15})\s+(\d{1,15})\s*$")
_NO_DRIVER = re.compile(r"Driver not initialized|amdgpu not found in modules|No AMD GPUs specified")
_JSON = re.compile(r'\A\s*\{\s*"card\d{1,3}"\s*:\s*\{')
_CARD = re.compile(r"card(\d{1,3})")
_XGMI_ERROR = re.compile(r"GPU\[(\d{1,3})\]\s*: *XGMI Error count: *([12])\b")


class _Row(NamedTuple):
    gpu: int
    text: str
    absent: int


def recognise(content: FileContent) -> bool:
    text = without_colours(content.document[: 1 << 16])
    is_known = bool(_HEAD.search(text) or _JSON.search(text))
    return is_known or (len(text) < 4096 and bool(_NO_DRIVER.search(text)))


def judge(content: FileContent, hardware: KnownHardware) -> FileJudgement:
    text = without_colours(content.document[:_MAX_CHARACTERS])
    cards = _cards(text)
    rows = tuple(_rows_of(cards) if cards else _rows(text))
    findings = (*_silent(rows), *_memory(text), *_links(text, cards), *_driver(text))
    return FileJudgement(one_of_many(findings), {"gpus": len(rows)})


def _rows(text: str) -> Iterator[_Row]:
    columns = _COLUMNS.search(text)
    for line in text[columns.end() :].splitlines() if columns else ():
        if found := _ROW.match(line[:400]):
            yield _Row(int(found[1]), found[2].strip(), len(_ABSENT.findall(found[2])))


def _cards(text: str) -> dict[int, dict[str, str]]:
    """The readings of each GPU by name; empty where the text is no JSON."""
    try:
        tree = json.loads(text) if _JSON.search(text) else {}
    except (ValueError, RecursionError):
        return {}
    return {
        int(found[1]): {str(name)[:200]: str(value)[:200] for name, value in readings.items()}
        for card, readings in tree.items()
        if (found := _CARD.fullmatch(card)) and isinstance(readings, dict)
    }


def _rows_of(cards: dict[int, dict[str, str]]) -> Iterator[_Row]:
    names = {name for readings in cards.values() for name in readings}
    for gpu, readings in cards.items():
        told = [name for name, value in readings.items() if not _ABSENT.search(value)]
        yield _Row(gpu, f"{len(told)} of {len(names)} readings", len(names) - len(told))


def _links(text: str, cards: dict[int, dict[str, str]]) -> Iterator[Finding]:
    """What `--showxgmierr` found since it was read last: one error, or several."""
    counts = {int(gpu): count for gpu, count in _XGMI_ERROR.findall(text)}
    counts |= {gpu: of["XGMI Error count"] for gpu, of in cards.items() if of.get("XGMI Error count") in ("1", "2")}
    for gpu, count in counts.items():
        yield SAYS["rocm_links"].found(number=gpu, told="an error" if count == "1" else "errors")


def _silent(rows: tuple[_Row, ...]) -> Iterator[Finding]:
    usual = min((row.absent for row in rows), default=0)
    for row in rows:
        if row.absent >= usual + _MIN_ABSENT and len(rows) > 1:
            yield SAYS["rocm_silent"].found({"row": row.text}, number=row.gpu, absent=row.absent)


def _memory(text: str) -> Iterator[Finding]:
    """What `--showrasinfo` shows of each block."""
    gpu: int | None = None
    for line in text.splitlines():
        if head := _RAS_GPU.match(line):
            gpu = int(head[1])
        elif gpu is not None and (row := _RAS_ROW.match(line[:400])) and int(row[3]):
            evidence = {"block": row[1], "corrected": int(row[2])}
            yield SAYS["rocm_uncorrected"].found(evidence, number=gpu, errors=row[3], block=row[1])


def _driver(text: str) -> Iterator[Finding]:
    if said := _NO_DRIVER.search(text):
        yield SAYS["amd_driver"].found(told=f"is not loaded, or has no GPU: {said[0]}")


ROCM_SMI = FileFormat("rocm-smi", recognise, judge)
