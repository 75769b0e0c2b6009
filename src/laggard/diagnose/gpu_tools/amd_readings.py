"""What amd-smi prints, as values by GPU: its nested text, its JSON, the table of version 26 (ROCm 7), the tables of
`amd-smi xgmi` and that of `amd-smi ras --cper`. Source: amdsmi, amdsmi_cli (amdsmi_commands.py, subcommands/xgmi.py and
ras.py, amdsmi_logger.py).

The text is a tree by indentation with `NAME: value` at its leaves, below `GPU: N`; the JSON has the same names in lower
case, in a list of objects with `gpu` or below `gpu_data`, and for XGMI below `xgmi_metric` and `link_status`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

_MAX_READINGS: Final = 200_000
_MAX_DEPTH: Final = 12
_MAX_ENTRY_DEPTH: Final = 4
_GPU = re.compile(r"GPU: (\d{1,4})\s*$")
_LEAF = re.compile(r"( +)([A-Z][A-Z0-9_ ]{1,60}):(?: (.*))?$")
_TABLE_BDF = re.compile(r"\| ([0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.\d) +(\S.*?) +\|[^|]*?°?C +(\d+|N/A) ")
_XGMI_METRICS: Final = "LINK METRIC TABLE"
_XGMI_STATES: Final = ("XGMI LINK STATUS", "GPU LINK PORT STATUS")
_XGMI_ROW = re.compile(r"GPU(\d{1,4}) +([0-9a-fA-F:.]{7,12}) +(\S.*)$")
_CPER_ROW = re.compile(
    r"\d{4}/\d\d/\d\d \d\d:\d\d:\d\d +(\d{1,4}) +([A-Z][A-Z-]{2,30})(?: +\S{1,100} +([\d ]{1,200}))? *$"
)
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


def read_xgmi(text: str) -> Iterator[Reading]:
    """Yields what `amd-smi xgmi` prints of each link, as `XGMI/LINK_STATUS`: U, D or X (up, down, disabled), by place
    or by the peer's number; several links to one peer are joined by slashes."""
    title = ""
    for line in text.splitlines():
        if line.rstrip().endswith(":"):
            title = line.strip(": ")
        elif title in (_XGMI_METRICS, *_XGMI_STATES) and len(line) < 4000 and (row := _XGMI_ROW.match(line.strip())):
            yield Reading(int(row[1]), "BDF", row[2])
            for status in re.split(r"[ /]+", row[3].strip()) if title in _XGMI_STATES else ():
                yield Reading(int(row[1]), "XGMI/LINK_STATUS", status)


def read_cper(text: str) -> Iterator[Reading]:
    """Yields the errors that `amd-smi ras --cper` lists, as `CPER/SEVERITY`, and their numbers as `CPER/AFID`: these it
    knows where it writes the records into a folder."""
    for line in text.splitlines():
        if len(line) < 400 and (row := _CPER_ROW.match(line)):
            yield Reading(int(row[1]), "CPER/SEVERITY", row[2])
            for number in (row[3] or "").split():
                yield Reading(int(row[1]), "CPER/AFID", number)


def read_json(text: str) -> Iterator[Reading]:
    """Yields nothing where the text is no JSON."""
    try:
        tree = json.loads(text)
    except (ValueError, RecursionError):
        return
    for entry in _entries(tree):
        yield from _leaves(entry["gpu"], entry, "")


def _entries(tree: Any, depth: int = 0) -> Iterator[dict[str, Any]]:
    """Yields the outermost objects that have a GPU's number: of a list, of lists within it, below a name."""
    if isinstance(tree, dict) and isinstance(tree.get("gpu"), int):
        yield tree
    elif isinstance(tree, (dict, list)) and depth < _MAX_ENTRY_DEPTH:
        for below in list(tree.values() if isinstance(tree, dict) else tree)[:_MAX_READINGS]:
            yield from _entries(below, depth + 1)


def _leaves(gpu: int, tree: Any, path: str, depth: int = 0) -> Iterator[Reading]:
    if isinstance(tree, dict) and depth < _MAX_DEPTH and set(tree) != {"value", "unit"}:
        for name, value in list(tree.items())[:_MAX_READINGS]:
            yield from _leaves(gpu, value, f"{path}/{name}".strip("/").upper()[:200], depth + 1)
    elif isinstance(tree, list) and depth < _MAX_DEPTH:
        for value in tree[:_MAX_READINGS]:
            yield from _leaves(gpu, value, path, depth + 1)
    else:
        value = tree.get("value") if isinstance(tree, dict) else tree
        yield Reading(gpu, path, str(value)[:200])
