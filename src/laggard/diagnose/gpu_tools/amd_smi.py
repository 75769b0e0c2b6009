"""The format `amd-smi`: list, static, metric and bad-pages, as text or table. All files are one
machine's, so that the address of a GPU may stand in another file.

The text is a tree by indentation with `NAME: value` at its leaves, below `GPU: N`. Source: amdsmi, amdsmi_cli
(amdsmi_commands.py, amdsmi_logger.py).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from laggard.diagnose.file_format import FileContent, FileFormat, FileJudgement, KnownHardware, without_colours
from laggard.diagnose.gpu_tools.smi_table import SAYS
from laggard.diagnose.pastes.section import one_of_many
from laggard.model import Finding, Severity

_WARNING: Final = Severity.WARNING


_MAX_DEPTH: Final = 12
_GPU = re.compile(r"GPU: (\d{1,4})\s*$")
_LEAF = re.compile(r"( +)([A-Z][A-Z0-9_ ]{1,60}):(?: (.*))?$")
_TABLE_BDF = re.compile(r"\| ([0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.\d) +(\S.*?) +\|[^|]*?°?C +(\d+|N/A) ")
_TABLE_GPU = re.compile(r"\| +(\d{1,4}) +\S+ +\S+ +\S+ +\|")


class Reading(NamedTuple):
    gpu: int
    path: str
    """The names from the outermost on, in upper case: `ECC/TOTAL_UNCORRECTABLE_COUNT`."""
    value: str


def read_text(text: str) -> Iterator[Reading]:
    gpu: int | None = None
    stack: list[tuple[int, str]] = []
    for line in text.splitlines():
        if len(line) > 400:
            continue
        if head := _GPU.match(line):
            gpu, stack = int(head[1]), []
        elif gpu is not None and (leaf := _LEAF.match(line.rstrip())):
            while stack and stack[-1][0] >= len(leaf[1]):
                stack.pop()
            stack = [*stack[-_MAX_DEPTH:], (len(leaf[1]), leaf[2])]
            yield Reading(gpu, "/".join(name for _, name in stack), (leaf[3] or "").strip())


def read_table(text: str) -> Iterator[Reading]:
    """Yields address, name and uncorrectable errors (UEC); the number of a GPU stands in the row after its address."""
    first: re.Match[str] | None = None
    for line in text.splitlines():
        if len(line) > 400:
            continue
        if found := _TABLE_BDF.match(line):
            first = found
        elif first and (number := _TABLE_GPU.match(line)):
            gpu = int(number[1])
            yield Reading(gpu, "BDF", first[1])
            yield Reading(gpu, "ASIC/MARKET_NAME", first[2])
            yield Reading(gpu, "ECC/TOTAL_UNCORRECTABLE_COUNT", first[3])
            first = None


_MAX_CHARACTERS: Final = 8 << 20
_TABLE_HEAD = re.compile(r"^\| AMD-SMI +\S+", re.MULTILINE)
_TEXT_HEAD = re.compile(r"\AGPU: \d+\s*\n {4}[A-Z]|^GPU: \d+\s*\n {4}[A-Z][A-Z_]+:", re.MULTILINE)
_NO_DRIVER = re.compile(r"AMDSMI_STATUS_(?:DRIVER_NOT_LOADED|NO_DRV|NOT_INIT)")

_Values = Mapping[str, list[str]]


def recognise(content: FileContent) -> bool:
    text = without_colours(content.text[: 1 << 16])
    is_short = len(text) < 4096 and bool(_NO_DRIVER.search(text))
    heads = (_TABLE_HEAD, _TEXT_HEAD)
    return is_short or any(pattern.search(text) for pattern in heads)


def judge_together(contents: Iterable[FileContent], hardware: KnownHardware) -> FileJudgement:
    texts = [without_colours(content.document[:_MAX_CHARACTERS]) for content in contents]
    gpus: dict[int, dict[str, list[str]]] = {}
    for reading in (reading for text in texts for reading in _read(text)):
        gpus.setdefault(reading.gpu, {}).setdefault(reading.path, []).append(reading.value)
    findings = [found for number, values in sorted(gpus.items()) for found in _judge(number, values)]
    findings += [_no_driver(match[0]) for match in map(_NO_DRIVER.search, texts) if match][:1]
    return FileJudgement(one_of_many(findings), {"gpus": len(gpus)}, "" if gpus or findings else "it lists no GPU")


def _read(text: str) -> Iterator[Reading]:
    yield from (*read_text(text), *read_table(text))


def _judge(number: int, values: _Values) -> Iterator[Finding]:
    address = next(iter(values.get("BDF") or values.get("BUS/BDF") or values.get("PCIE/BDF") or [""]))
    device = f"GPU {number}" + (f" ({address.lower()})" if re.fullmatch(r"[\da-fA-F:.]{7,16}", address) else "")
    errors = _largest(values, "ECC/TOTAL_UNCORRECTABLE_COUNT")
    pages = {name: _pages(values, name) for name in ("RETIRED", "PENDING", "UN_RES")}
    counts = {f"{name.lower()}_pages": len(found) for name, found in pages.items() if found}
    if errors:
        evidence = {"uncorrectable": errors, "blocks": _blocks(values) or None, **counts}
        noun = "error" if errors == 1 else "errors"
        yield SAYS["amd_uncorrected"].found(evidence, number=number, device=device, errors=errors, noun=noun)
    if pages["UN_RES"]:
        yield SAYS["amd_unreserved"].found(counts, number=number, device=device, count=len(pages["UN_RES"]))
    if pages["PENDING"]:
        yield SAYS["amd_pending"].found(counts, number=number, device=device, count=len(pages["PENDING"]))
    yield from _link(number, device, values)


def _link(number: int, device: str, values: _Values) -> Iterator[Finding]:
    """The width alone: the speed is lower on an idle GPU."""
    width, most = _largest(values, "PCIE/WIDTH"), _largest(values, "BUS/MAX_PCIE_WIDTH", "PCIE/MAX_PCIE_WIDTH")
    if width and most and width < most:
        evidence = {"width_lanes": width, "most_width_lanes": most}
        yield SAYS["amd_narrow"].found(evidence, number=number, device=device, width=width, most=most)


def _pages(values: _Values, name: str) -> list[str]:
    """The addresses of faulty pages of one kind: in hexadecimal, or as JSON has them in decimal."""
    kinds = {path: each for path, each in values.items() if re.search(rf"(?:^|/){name}(?:/|$)", path)}
    number = r"0x[\da-fA-F]{2,16}"
    return [
        value
        for path, each in kinds.items()
        for value in each
        if re.fullmatch(rf"{number}|\d{{1,19}}" if path.endswith("/PAGE_ADDRESS") else number, value)
    ]


def _blocks(values: _Values) -> dict[str, str]:
    pattern = re.compile(r"ECC_BLOCKS/(\w+)/UNCORRECTABLE_COUNT")
    named = ((pattern.fullmatch(path), each) for path, each in values.items())
    return {match[1]: each[-1] for match, each in named if match and each[-1] not in ("0", "N/A")}


def _largest(values: _Values, *paths: str) -> int:
    texts = (text for path in paths for text in values.get(path, ()))
    return max((int(found[0]) for text in texts if (found := re.match(r"\d{1,15}", text))), default=0)


def _no_driver(words: str) -> Finding:
    return SAYS["amd_driver"].found(told=f"is not loaded, or did not start ({words})")


AMD_SMI = FileFormat("amd-smi", recognise, judge_together=judge_together)
