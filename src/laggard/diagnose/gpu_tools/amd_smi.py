"""The format `amd-smi`: list, static, metric, bad-pages, xgmi and ras, as text, JSON or table. All files are one
machine's, so that the address of a GPU may stand in another file.

The text is a tree by indentation with `NAME: value` at its leaves, below `GPU: N`; the JSON has the same names in lower
case, in a list of objects with `gpu` or below `gpu_data`, and for XGMI below `xgmi_metric` and `link_status`. Source:
amdsmi, amdsmi_cli (amdsmi_commands.py, subcommands/xgmi.py and ras.py, amdsmi_logger.py).

AFIDs, AMD's numbers of errors in records (CPER): AMD Field ID, document 70122, version 1.0, AFID Event List, as AMD's
own decoder of such records has it (error_map.c). A record is of the past: what a reset has put right since it does not
say.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from laggard.diagnose.file_format import FileContent, FileFormat, FileJudgement, KnownHardware, without_colours
from laggard.model import Finding, Severity
from laggard.probes.probe import finding

_WARNING: Final = Severity.WARNING


class Afid(NamedTuple):
    """`code` is empty for what was corrected, which is no finding."""

    meaning: str
    code: str = ""
    severity: Severity = Severity.CRITICAL


def _at_boot(*names: str) -> Mapping[int, Afid]:
    """The numbers from 1 on, of what fails at boot."""
    return {
        number: Afid(f"{name} failed at boot", "NVLINK_DOWN" if name in _LINKS_AT_BOOT else "GPU_LOST")
        for number, name in enumerate(names, 1)
    }


_LINKS_AT_BOOT: Final = ("WAFL link training", "XGMI link training")
AFIDS: Final[Mapping[int, Afid]] = {
    **_at_boot("firmware load", "HBM's self-test (BIST)", "HBM's memory test", "HBM training", "an unhandled step",
               "an unknown step", "USR CP link training", "USR DP link training", *_LINKS_AT_BOOT,
               "the boot controller (data abort)", "the boot controller"),
    13: Afid("PCIe error, corrected"),
    14: Afid("PCIe error, fatal (AER)", "PCIE_AER_ERRORS"),
    15: Afid("WAFL error, corrected"),
    16: Afid("WAFL error, fatal", "NVLINK_ERRORS"),
    17: Afid("XGMI error, corrected"),
    18: Afid("XGMI error, fatal", "NVLINK_ERRORS"),
    19: Afid("more bad pages of memory than the threshold allows", "GPU_ROW_REMAP_FAILED"),
    20: Afid("HBM error, fatal (on-die ECC)", "GPU_ECC_UNCORRECTED"),
    21: Afid("HBM error, fatal (end-to-end CRC)", "GPU_ECC_UNCORRECTED"),
    22: Afid("HBM error, uncorrectable (on-die ECC)", "GPU_ECC_UNCORRECTED", _WARNING),
    23: Afid("HBM error, uncorrectable (end-to-end CRC)", "GPU_ECC_UNCORRECTED", _WARNING),
    24: Afid("HBM error, corrected"),
    25: Afid("HBM error, fatal", "GPU_ECC_UNCORRECTED"),
    26: Afid("hardware assertion (HWA), fatal", "GPU_XID"),
    27: Afid("watchdog timeout (WDT), fatal", "GPU_XID"),
    28: Afid("error within the device, uncorrectable", "GPU_XID", _WARNING),
    29: Afid("error within the device, corrected"),
    30: Afid("error within the device, fatal", "GPU_XID"),
}  # fmt: skip


def explain_afid(number: int) -> Afid:
    return AFIDS.get(number) or Afid("of a list that is newer than laggard's", "GPU_XID", _WARNING)


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
_RESET: Final = "Drain the node and reset the GPU (`amd-smi reset -G -g N`); if errors come back, return the board."
_LINK: Final = "Reseat the card or its board, and check the slot's settings in the firmware."
_HOT: Final = "Check inlet temperature, fans or coolant flow; compare with the other GPUs."

_Values = Mapping[str, list[str]]


def recognise(content: FileContent) -> bool:
    text = without_colours(content.text[: 1 << 16])
    is_short = len(text) < 4096 and bool(_NO_DRIVER.search(text))
    heads = (_TABLE_HEAD, _TEXT_HEAD, _JSON_HEAD, _XGMI_HEAD, _CPER_HEAD)
    return is_short or any(pattern.search(text) for pattern in heads)


def judge_together(contents: Iterable[FileContent], hardware: KnownHardware) -> FileJudgement:
    texts = [without_colours(content.text[:_MAX_CHARACTERS]) for content in contents]
    gpus: dict[int, dict[str, list[str]]] = {}
    for reading in (reading for text in texts for reading in _read(text)):
        gpus.setdefault(reading.gpu, {}).setdefault(reading.path, []).append(reading.value)
    findings = [found for number, values in sorted(gpus.items()) for found in _judge(number, values)]
    findings += [_no_driver(match[0]) for match in map(_NO_DRIVER.search, texts) if match][:1]
    return FileJudgement(tuple(findings), {"gpus": len(gpus)}, "" if gpus or findings else "it lists no GPU")


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
        plural = "error" if errors == 1 else "errors"
        summary = f"{errors} memory {plural} not correctable (uncorrectable ECC)"
        evidence = {"uncorrectable": errors, "blocks": _blocks(values) or None, **counts}
        yield _finding("GPU_ECC_UNCORRECTED", number, device, summary, evidence, _RESET)
    if pages["UN_RES"]:
        summary = f"could not reserve {len(pages['UN_RES'])} faulty pages of its memory: they may be used"
        yield _finding("GPU_ROW_REMAP_FAILED", number, device, summary, counts, _RESET)
    if pages["PENDING"]:
        summary = f"has {len(pages['PENDING'])} faulty pages of its memory, whose retirement is pending"
        yield _finding("GPU_ROW_REMAP_PENDING", number, device, summary, counts, _RESET, Severity.WARNING)
    yield from _link(number, device, values)
    yield from _throttling(number, device, values)
    yield from _records(number, device, values)


def _throttling(number: int, device: str, values: _Values) -> Iterator[Finding]:
    reasons = [reason for name, reason in _THERMAL.items() if any(value == "ACTIVE" for value in _ending(values, name))]
    if reasons:
        summary = f"lowers its clocks now for {reasons[0]}"
        yield _finding("GPU_THROTTLED", number, device, summary, {"reasons_now": reasons}, _HOT, Severity.WARNING)
    elif any(value.upper() == "THROTTLED" for value in _ending(values, "THROTTLE_STATUS")):
        yield _finding("GPU_THROTTLED", number, device, "lowers its clocks now", {}, _HOT, Severity.WARNING)


def _records(number: int, device: str, values: _Values) -> Iterator[Finding]:
    """The records of errors (CPER), by their AFIDs; those that amd-smi lists without numbers count where fatal."""
    afids = [int(text) for text in values.get("CPER/AFID", ()) if len(text) < 10]
    for afid in sorted(set(afids)):
        meaning, code, severity = explain_afid(afid)
        if code:
            times = f", {afids.count(afid)} times" if afids.count(afid) > 1 else ""
            summary = f"AFID {afid}: {meaning}{times}"
            yield _finding(code, number, device, summary, {"afid": afid, "count": afids.count(afid)}, _RESET, severity)
    fatal = values.get("CPER/SEVERITY", []).count("FATAL")
    if fatal and not afids:
        summary = f"{fatal} fatal error{'' if fatal == 1 else 's'} recorded (CPER)"
        fix = "Read which: `amd-smi ras --cper --folder DIR` tells the AFID of each record. " + _RESET
        yield _finding("GPU_XID", number, device, summary, {"fatal": fatal}, fix)


def _link(number: int, device: str, values: _Values) -> Iterator[Finding]:
    """The width alone: the speed is lower on an idle GPU."""
    width, most = _largest(values, "PCIE/WIDTH"), _largest(values, "BUS/MAX_PCIE_WIDTH", "PCIE/MAX_PCIE_WIDTH")
    if width and most and width < most:
        evidence = {"width_lanes": width, "most_width_lanes": most}
        summary = f"runs on {width} PCIe lanes of {most} (width x{width}, not x{most})"
        yield _finding("PCIE_LINK_DEGRADED", number, device, summary, evidence, _LINK)
    states = (state for value in _ending(values, "LINK_STATUS") for state in value.split("/"))
    down = [state for state in states if state.upper() in ("D", "DOWN")]
    if down:
        summary = f"has {len(down)} XGMI link{'s' if len(down) > 1 else ''} down"
        yield _finding("NVLINK_DOWN", number, device, summary, {"xgmi_links_down": len(down)}, _LINK)


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
    fix = "Load it (`modprobe amdgpu`), and read what it says in the kernel's log; build it for the running kernel."
    summary = f"is not loaded, or did not start ({words})"
    commands = ("lsmod | grep amdgpu", "dkms status")
    return finding("GPU_DRIVER_FAILED", "the amdgpu driver", summary, evidence={}, fix=fix, commands=commands)


def _finding(
    code: str,
    number: int,
    device: str,
    summary: str,
    evidence: Mapping[str, object],
    fix: str,
    severity: Severity | None = None,
) -> Finding:
    commands = (f"amd-smi metric --ecc-blocks -g {number}", f"amd-smi bad-pages -g {number}", "dmesg -T | grep amdgpu")
    return finding(code, device, summary, evidence=evidence, fix=fix, commands=commands, severity=severity)


AMD_SMI = FileFormat("amd-smi", recognise, judge_together=judge_together)
