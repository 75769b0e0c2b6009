"""The formats `nvidia-smi nvlink -s` and `-e`: the links of each GPU, their speed or that they are inactive, and their
error counters since the driver was loaded.

A link that nobody uses is inactive on each GPU of the same kind; one that is inactive on few of them is down.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from laggard.diagnose.file_content import FileContent
from laggard.diagnose.file_format import FileFormat, FileJudgement, KnownHardware
from laggard.diagnose.gpu_tools.mostly import is_mostly
from laggard.diagnose.parts.terminal import without_colours
from laggard.model import Finding
from laggard.probes.probe import finding

_MAX_CHARACTERS: Final = 4 << 20
_MAX_LINKS: Final = 256
_GPU = re.compile(r"GPU (\d{1,3}): (.{1,120}?) ?\(UUID: ")
_LINK = re.compile(r"\s+Link (\d{1,3}): (?:<?(inactive)>?|([\d.]+) GB/s)\s*$", re.IGNORECASE)
_COUNTER = re.compile(r"\s+Link (\d{1,3}): ([A-Z][\w /-]{2,40}?)(?: (?:Errors?|events))?: +(\d{1,19})(?: |$)")
LIMITS: Final = (
    (re.compile(r"recovery successful", re.I), 10),
    (re.compile(r"recovery|failed|malformed|buffer|integrity|rx", re.I), 1),
    (re.compile(r"replay", re.I), 10),
    (re.compile(r"crc", re.I), 100),
)
"""The counts from which on a counter is a finding. What is not named here (FEC, symbols, effective errors) rises on
good links too."""
_DOWN_FIX: Final = (
    "Look for Xid 74, 149 and SXid in the kernel's log. End what runs on the GPUs and reset all of them together; a "
    "link that stays down is the board's, the bridge's or the NVSwitch's."
)
_ERRORS_FIX: Final = (
    "Watch whether it goes on under load and compare with the peers. Then reset all GPUs together; errors that come "
    "back are the board's, the bridge's or the NVSwitch's."
)


class GpuLinks(NamedTuple):
    number: int
    name: str
    speeds: dict[int, float]
    """By link, in GB/s; 0 of one that is inactive."""
    errors: dict[int, dict[str, int]]


def recognise(content: FileContent) -> bool:
    text = without_colours(content.text[: 1 << 16])
    lines = text.splitlines()
    has_links = any(_LINK.match(line) or _COUNTER.match(line) for line in lines)
    return has_links and is_mostly(text, lambda line: _GPU.match(line) or re.match(r"\s+Link \d", line))


def read_hardware(content: FileContent) -> KnownHardware:
    return KnownHardware(gpus=len(set(_GPU.findall(content.text[:_MAX_CHARACTERS]))) or None)


def judge(content: FileContent, hardware: KnownHardware) -> FileJudgement:
    gpus = read_links(without_colours(content.text[:_MAX_CHARACTERS]))
    facts = {
        "active_links": {f"GPU {gpu.number}": sum(1 for speed in gpu.speeds.values() if speed) for gpu in gpus},
        "links_with_counters": sum(len(gpu.errors) for gpu in gpus),
    }
    return FileJudgement((*_down(gpus), *(found for gpu in gpus for found in _errors(gpu))), facts)


def read_links(text: str) -> tuple[GpuLinks, ...]:
    gpus: dict[int, GpuLinks] = {}
    gpu: GpuLinks | None = None
    for line in text.splitlines():
        if len(line) > 400:
            continue
        if head := _GPU.match(line):
            gpu = gpus.setdefault(int(head[1]), GpuLinks(int(head[1]), head[2], {}, {}))
        elif gpu and (link := _LINK.match(line)) and len(gpu.speeds) < _MAX_LINKS:
            gpu.speeds[int(link[1])] = 0.0 if link[2] else float(link[3][:12].rstrip("."))
        elif gpu and (counter := _COUNTER.match(line)) and int(counter[1]) < _MAX_LINKS:
            gpu.errors.setdefault(int(counter[1]), {})[counter[2]] = int(counter[3])
    return tuple(gpus.values())


def _down(gpus: tuple[GpuLinks, ...]) -> Iterator[Finding]:
    usual = _usual_links(gpus)
    for gpu in gpus:
        down = [link for link, speed in gpu.speeds.items() if not speed and usual.get((gpu.name, link), True)]
        active = len(gpu.speeds) - sum(1 for speed in gpu.speeds.values() if not speed)
        peers = any(any(other.speeds.values()) for other in gpus if other.name == gpu.name)
        if down and peers:
            names = ", ".join(map(str, down))
            summary = f"has {len(down)} of {len(gpu.speeds)} NVLinks inactive: link {names}"
            evidence = {"inactive": down, "active": active}
            commands = (f"nvidia-smi nvlink -s -i {gpu.number}", "dmesg -T | grep -E 'Xid|SXid'")
            yield finding(
                "NVLINK_DOWN", f"GPU {gpu.number}", summary, evidence=evidence, fix=_DOWN_FIX, commands=commands
            )


def _usual_links(gpus: tuple[GpuLinks, ...]) -> Mapping[tuple[str, int], bool]:
    """Whether a link is active on most GPUs of a name; on half of them it is."""
    seen = Counter((gpu.name, link) for gpu in gpus for link in gpu.speeds)
    active = Counter((gpu.name, link) for gpu in gpus for link, speed in gpu.speeds.items() if speed)
    return {key: 2 * active[key] >= count or count == 1 for key, count in seen.items()}


def _errors(gpu: GpuLinks) -> Iterator[Finding]:
    bad = {link: counts for link, errors in gpu.errors.items() if (counts := _too_many(errors))}
    if bad:
        told = "; ".join(f"link {link}: {_words(counts)}" for link, counts in bad.items())
        yield finding(
            "NVLINK_ERRORS",
            f"GPU {gpu.number}",
            f"counts errors on {len(bad)} of {len(gpu.errors)} NVLinks since the driver was loaded: {told[:300]}",
            evidence={f"link_{link}": counts for link, counts in list(bad.items())[:18]},
            fix=_ERRORS_FIX,
            commands=(f"nvidia-smi nvlink -e -i {gpu.number}", f"nvidia-smi nvlink -s -i {gpu.number}"),
        )


def _too_many(errors: Mapping[str, int]) -> dict[str, int]:
    def limit(name: str) -> int | None:
        return next((least for pattern, least in LIMITS if pattern.search(name)), None)

    return {name: count for name, count in errors.items() if (least := limit(name)) and count >= least}


def _words(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.items())


NVLINK = FileFormat("nvidia-smi nvlink", recognise, judge, read_hardware)
