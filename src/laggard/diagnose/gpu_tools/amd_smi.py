"""The format `amd-smi`: list, static, metric, bad-pages, xgmi and ras, as text, JSON or table. All files are one
machine's, so that the address of a GPU may stand in another file.

The text is a tree by indentation with `NAME: value` at its leaves, below `GPU: N`; the JSON has the same names in lower
case, in a list of objects with `gpu` or below `gpu_data`, and for XGMI below `xgmi_metric` and `link_status`. Source:
amdsmi, amdsmi_cli (amdsmi_commands.py, subcommands/xgmi.py and ras.py, amdsmi_logger.py).

A record of errors (CPER) is of the past: what a reset has put right since it does not say.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from laggard.diagnose.file_format import FileContent, FileFormat, FileJudgement, KnownHardware, without_colours
from laggard.diagnose.gpu_tools.smi_table import SAYS
from laggard.diagnose.pastes.section import one_of_many
from laggard.diagnose.rules import Row, table
from laggard.model import Finding, Fix, Severity

_WARNING: Final = Severity.WARNING


_AFIDS: Final = {row.pattern: row for row in table("afids").rows}
_NEWER: Final = Row("", "", "of a list that is newer than laggard's", "", "GPU_XID", _WARNING, Fix(""), {})
"""Numbers, and what they mean; those without a code were corrected, which is no finding."""


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


_MAX_CHARACTERS: Final = 8 << 20
_TABLE_HEAD = re.compile(r"^\| AMD-SMI +\S+", re.MULTILINE)
_TEXT_HEAD = re.compile(r"\AGPU: \d+\s*\n {4}[A-Z]|^GPU: \d+\s*\n {4}[A-Z][A-Z_]+:", re.MULTILINE)
_XGMI_HEAD = re.compile(r"^(?:LINK METRIC TABLE|XGMI LINK STATUS|GPU LINK PORT STATUS): *$", re.MULTILINE)
_JSON_HEAD = re.compile(
    r'\A\s*(?:\{\s*"(?:gpu_data|(?:xgmi_)?(?:metric|link_status|source_status))"\s*:\s*)?\[\s*(?:\[\s*)?\{\s*"gpu"\s*:\s*\d'
)
_CPER_HEAD = re.compile(r"^timestamp +gpu_id +severity\b", re.MULTILINE)
_THERMAL: Final = {
    "PROCHOT_VIOLATION_STATUS": "the platform (PROCHOT)",
    "SOCKET_THERMAL_VIOLATION_STATUS": "heat",
    "VR_THERMAL_VIOLATION_STATUS": "heat of its voltage regulators",
    "HBM_THERMAL_VIOLATION_STATUS": "heat of its memory",
}
"""What lowers clocks, of `amd-smi metric --throttle`; the limit of power (PPT) is no fault."""
_NO_DRIVER = re.compile(r"AMDSMI_STATUS_(?:DRIVER_NOT_LOADED|NO_DRV|NOT_INIT)")

_Values = Mapping[str, list[str]]


def recognise(content: FileContent) -> bool:
    text = without_colours(content.text[: 1 << 16])
    is_short = len(text) < 4096 and bool(_NO_DRIVER.search(text))
    heads = (_TABLE_HEAD, _TEXT_HEAD, _JSON_HEAD, _XGMI_HEAD, _CPER_HEAD)
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
    if _JSON_HEAD.search(text):
        yield from read_json(text)
    else:
        yield from (*read_text(text), *read_table(text), *read_xgmi(text), *read_cper(text))


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
    yield from _throttling(number, device, values)
    yield from _records(number, device, values)


def _throttling(number: int, device: str, values: _Values) -> Iterator[Finding]:
    reasons = [reason for name, reason in _THERMAL.items() if any(value == "ACTIVE" for value in _ending(values, name))]
    if reasons or any(value.upper() == "THROTTLED" for value in _ending(values, "THROTTLE_STATUS")):
        evidence = {"reasons_now": reasons} if reasons else {}
        why = f" for {reasons[0]}" if reasons else ""
        yield SAYS["amd_throttled"].found(evidence, number=number, device=device, why=why)


def _records(number: int, device: str, values: _Values) -> Iterator[Finding]:
    """The records of errors (CPER), by their AFIDs; those that amd-smi lists without numbers count where fatal."""
    afids = [int(text) for text in values.get("CPER/AFID", ()) if len(text) < 10]
    for afid in sorted(set(afids)):
        known = _AFIDS.get(str(afid), _NEWER)
        if known.code:
            times = f", {afids.count(afid)} times" if afids.count(afid) > 1 else ""
            row = SAYS["amd_afid"]._replace(code=known.code, severity=known.severity)
            evidence = {"afid": afid, "count": afids.count(afid)}
            yield row.found(evidence, number=number, device=device, afid=afid, told=f"{known.says}{times}")
    fatal = values.get("CPER/SEVERITY", []).count("FATAL")
    if fatal and not afids:
        noun = "error" if fatal == 1 else "errors"
        yield SAYS["amd_recorded"].found({"fatal": fatal}, number=number, device=device, fatal=fatal, noun=noun)


def _link(number: int, device: str, values: _Values) -> Iterator[Finding]:
    """The width alone: the speed is lower on an idle GPU."""
    width, most = _largest(values, "PCIE/WIDTH"), _largest(values, "BUS/MAX_PCIE_WIDTH", "PCIE/MAX_PCIE_WIDTH")
    if width and most and width < most:
        evidence = {"width_lanes": width, "most_width_lanes": most}
        yield SAYS["amd_narrow"].found(evidence, number=number, device=device, width=width, most=most)
    states = (state for value in _ending(values, "LINK_STATUS") for state in value.split("/"))
    down = [state for state in states if state.upper() in ("D", "DOWN")]
    if down:
        noun = "link" if len(down) == 1 else "links"
        evidence = {"xgmi_links_down": len(down)}
        yield SAYS["amd_links"].found(evidence, number=number, device=device, count=len(down), noun=noun)


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


def _ending(values: _Values, name: str) -> list[str]:
    return [value for path, each in values.items() if path.endswith(name) for value in each]


def _largest(values: _Values, *paths: str) -> int:
    texts = (text for path in paths for text in values.get(path, ()))
    return max((int(found[0]) for text in texts if (found := re.match(r"\d{1,15}", text))), default=0)


def _no_driver(words: str) -> Finding:
    return SAYS["amd_driver"].found(told=f"is not loaded, or did not start ({words})")


AMD_SMI = FileFormat("amd-smi", recognise, judge_together=judge_together)
