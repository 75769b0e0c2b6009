"""The formats `nvidia-smi topo -m`, `nvidia-smi nvlink -s` and `-e`, and `NCCL topology`: how GPUs reach each other.
What has fewer or slower links than its peers has lost some.

Of a matrix only groups whose other GPUs are all joined alike are judged: boards that join some pairs alone (DGX-1,
bridges) are judged for the GPUs that have no NVLink at all while most have. A link that nobody uses is inactive on each
GPU of the same kind; one that is inactive on few of them is down. Error counters are those since the driver was loaded.

NCCL's is the XML that NCCL_TOPO_DUMP_FILE and NCCL_GRAPH_DUMP_FILE name. Source: NCCL (src/graph/xml.cc, topo.cc). The
text is read by patterns: it may be cut, and no entity is expanded.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from laggard.diagnose.file_format import (
    FileContent,
    FileFormat,
    FileJudgement,
    KnownHardware,
    is_mostly,
    without_colours,
)
from laggard.diagnose.gpu_tools.smi_table import SAYS
from laggard.diagnose.pastes.section import Lack, Section, one_of_many, paste_format
from laggard.diagnose.rules import table
from laggard.kit.majority import majority
from laggard.model import Finding, Severity
from laggard.probes.nvlink.fabric_state import outside
from laggard.probes.nvml.model import Gpu, GpuFabricInfo
from laggard.probes.probe import Fact

_MAX_CHARACTERS: Final = 1 << 18
_MAX_LINES_BEFORE: Final = 10
_HEAD = re.compile(r"^[^\S\n]*GPU0\s+(?:GPU\d+|NIC\d+|mlx\w+|CPU|\S+)", re.MULTILINE)
_ROW = re.compile(r"^GPU(\d{1,3})[ \t]+(.*)$", re.MULTILINE)
_CELL: Final = re.compile(r"X|NV\d+|SYS|NODE|PHB|PXB|PIX|SOC|NS|OK")
_CELL_LINKS: Final = re.compile(r"NV(\d{1,3})")

Matrix = Mapping[int, tuple[int, ...]]
"""By GPU: the number of NVLinks to each GPU, 0 for its own place."""


def recognise_topology(content: FileContent) -> bool:
    text = without_colours(content.text[:_MAX_CHARACTERS])
    head = _HEAD.search(text)
    return head is not None and text.count("\n", 0, head.start()) < _MAX_LINES_BEFORE and bool(read_matrix(text))


def read_hardware_of_topology(content: FileContent) -> KnownHardware:
    return KnownHardware(gpus=len(read_matrix(without_colours(content.text[:_MAX_CHARACTERS]))) or None)


def judge_topology(content: FileContent, hardware: KnownHardware) -> FileJudgement:
    matrix = read_matrix(without_colours(content.text[:_MAX_CHARACTERS]))
    facts = {"gpus": len(matrix), "nvlinks": {f"GPU {gpu}": sum(links) for gpu, links in matrix.items()}}
    return FileJudgement(one_of_many(judge_matrix(matrix)), facts)


def read_matrix(text: str) -> Matrix:
    """The links by GPU; nothing where a row is cut."""
    rows = {int(row[1]): row[2].split() for row in _ROW.finditer(text) if _CELL.fullmatch(row[2].split()[0])}
    count = len(rows)
    if sorted(rows) != list(range(count)) or any(len(cells) < count for cells in rows.values()):
        return {}
    links = {gpu: (_CELL_LINKS.fullmatch(cell) for cell in cells[:count]) for gpu, cells in rows.items()}
    return {gpu: tuple(int(link[1]) if link else 0 for link in found) for gpu, found in links.items()}


def judge_matrix(matrix: Matrix) -> Iterator[Finding]:
    totals = {gpu: sum(links) for gpu, links in matrix.items()}
    joined = [gpu for gpu, total in totals.items() if total]
    if len(joined) < 2 or len(joined) == len(matrix) and len(set(totals.values())) == 1:
        return
    usual = Counter(total for total in totals.values() if total).most_common(1)[0][0]
    full = _joined_alike(matrix)
    for gpu, total in totals.items():
        alone = not total and 2 * len(joined) > len(matrix)
        fewer = full is not None and gpu not in full and 0 < total < usual
        if alone or fewer:
            severity = Severity.WARNING if full is None else Severity.CRITICAL  # bridges may join some pairs alone
            told = f"{total} NVLinks" if total else "no NVLink"
            evidence = {"nvlinks": total, "of_most": usual}
            yield SAYS["fewer_links"].found(evidence, severity, gpu=gpu, total=told, usual=usual)


def _joined_alike(matrix: Matrix) -> frozenset[int] | None:
    """The most GPUs each of which has as many links to each other one; None where most are not."""
    links = Counter(number for row in matrix.values() for number in row if number)
    number = links.most_common(1)[0][0]
    alike = {gpu: sum(1 for link in row if link == number) for gpu, row in matrix.items()}
    most = max(alike.values())
    group = frozenset(gpu for gpu, count in alike.items() if count == most)
    whole = most + 1 >= len(group) and 2 * len(group) > len(matrix)
    return group if whole else None


TOPOLOGY = FileFormat("nvidia-smi topo -m", recognise_topology, judge_topology, read_hardware_of_topology)


_MAX_NVLINK_CHARACTERS: Final = 4 << 20
_MAX_LINKS: Final = 256
_GPU = re.compile(r"GPU (\d{1,3}): (.{1,120}?) ?\(UUID: ")
_LINK = re.compile(r"\s+Link (\d{1,3}): (?:<?(inactive)>?|([\d.]+) GB/s)\s*$", re.IGNORECASE)
_ALL_INACTIVE = re.compile(r".*\ball links are in[Aa]ctive")
_COUNTER = re.compile(r"\s+Link (\d{1,3}): ([A-Z][\w /-]{2,40}?)(?: (?:Errors?|events))?: +(\d{1,19})(?: |$)")
NVLINK_LIMITS: Final = table("counters").of("nvlink_counter")


class GpuLinks(NamedTuple):
    number: int
    name: str
    speeds: dict[int, float]
    """By link, in GB/s; 0 of one that is inactive."""
    errors: dict[int, dict[str, int]]
    silent: bool = False
    """All of its links are said to be inactive, without a line of each."""


def recognise_nvlink(content: FileContent) -> bool:
    text = without_colours(content.text[: 1 << 16])
    lines = text.splitlines()
    has_links = any(_LINK.match(line) or _COUNTER.match(line) or _ALL_INACTIVE.match(line) for line in lines)
    return has_links and is_mostly(
        text, lambda line: _GPU.match(line) or re.match(r"\s+Link \d", line) or _ALL_INACTIVE.match(line)
    )


def read_hardware_of_nvlink(content: FileContent) -> KnownHardware:
    return KnownHardware(gpus=len(set(_GPU.findall(content.text[:_MAX_NVLINK_CHARACTERS]))) or None)


def judge_nvlink(content: FileContent, hardware: KnownHardware) -> FileJudgement:
    gpus = read_links(without_colours(content.text[:_MAX_NVLINK_CHARACTERS]))
    facts = {
        "active_links": {f"GPU {gpu.number}": sum(1 for speed in gpu.speeds.values() if speed) for gpu in gpus},
        "links_with_counters": sum(len(gpu.errors) for gpu in gpus),
    }
    found = one_of_many((*_down(gpus), *_outside(gpus), *(found for gpu in gpus for found in _errors(gpu))))
    alone = [f"GPU {gpu.number}" for gpu in gpus if gpu.silent] if not found else []
    why = f"all links of {', '.join(alone[:8])} are inactive, and no peer shows whether it has any" if alone else ""
    return FileJudgement(found, facts, why)


def read_links(text: str) -> tuple[GpuLinks, ...]:
    gpus: dict[int, GpuLinks] = {}
    gpu: GpuLinks | None = None
    for line in text.splitlines():
        if len(line) > 400:
            continue
        if head := _GPU.match(line):
            gpu = gpus.setdefault(int(head[1]), GpuLinks(int(head[1]), head[2], {}, {}))
        elif gpu and _ALL_INACTIVE.match(line):
            gpu = gpus[gpu.number] = gpu._replace(silent=True)
        elif gpu and (link := _LINK.match(line)) and len(gpu.speeds) < _MAX_LINKS:
            gpu.speeds[int(link[1])] = 0.0 if link[2] else float(link[3][:12].rstrip("."))
        elif gpu and (counter := _COUNTER.match(line)) and int(counter[1]) < _MAX_LINKS:
            gpu.errors.setdefault(int(counter[1]), {})[counter[2]] = int(counter[3])
    return tuple(gpus.values())


def _outside(gpus: tuple[GpuLinks, ...]) -> Iterator[Finding]:
    """As the probe of the fabric judges a machine whose links are all down. It may be a guest: nothing here tells."""
    dark = all(gpu.silent or (gpu.speeds and not any(gpu.speeds.values())) for gpu in gpus)
    machine = [Gpu(index=it.number, name=it.name, links=(False,), fabric=GpuFabricInfo(state=0)) for it in gpus if dark]
    return outside(machine, guest=True)


def _down(gpus: tuple[GpuLinks, ...]) -> Iterator[Finding]:
    usual = _usual_links(gpus)
    for listed in gpus:
        most = max((other.speeds for other in gpus if other.name == listed.name), key=len)
        gpu = listed._replace(speeds=dict.fromkeys(most, 0.0)) if listed.silent else listed
        down = [link for link, speed in gpu.speeds.items() if not speed and usual.get((gpu.name, link), True)]
        active = len(gpu.speeds) - sum(1 for speed in gpu.speeds.values() if not speed)
        peers = any(any(other.speeds.values()) for other in gpus if other.name == gpu.name)
        if down and peers:
            yield SAYS["links_down"].found(
                {"inactive": down, "active": active},
                number=gpu.number,
                count=len(down),
                all=len(gpu.speeds),
                names=", ".join(map(str, down)),
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
        evidence = {f"link_{link}": counts for link, counts in list(bad.items())[:18]}
        yield SAYS["links_errors"].found(
            evidence, number=gpu.number, count=len(bad), all=len(gpu.errors), told=told[:300]
        )


def _too_many(errors: Mapping[str, int]) -> dict[str, int]:
    def limit(name: str) -> int:
        return next((int(row.more["least"]) for row in NVLINK_LIMITS if row.regex.search(name)), 0)

    return {name: count for name, count in errors.items() if (least := limit(name)) and count >= least}


def _words(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.items())


NVLINK = FileFormat("nvidia-smi nvlink", recognise_nvlink, judge_nvlink, read_hardware_of_nvlink)


_NCCL_HEAD: Final = re.compile(r"<system version=\"\d+\"|<graphs version=\"\d+\"")
_TAG: Final = re.compile(r"<(/?pci|gpu|net|nvlink)\b([^<>]{0,2000})>")
_ATTRIBUTE: Final = re.compile(r"\b(\w+)=\"([^\"]{0,200})\"")
_MIN_PEERS: Final = 3
MAX_DEVICES: Final = 1024


class _Device(NamedTuple):
    address: str
    model: str
    pci_class: str
    speed: float
    width: int
    depth: int
    """How many bridges are above it: an uplink of a switch is no peer of the ports below it."""
    nvlinks: int = 0

    @property
    def kind(self) -> tuple[str, str, int]:
        return self.model, self.pci_class, self.depth


def read_nccl_topology(section: Section) -> Iterator[Finding | Fact | Lack]:
    devices = _devices(section.text)
    yield Fact("devices", len(devices))
    if not devices:
        yield Lack("a graph shows no links: give the file that NCCL_TOPO_DUMP_FILE names too")
    for device in devices:
        yield from _judge(device, [other for other in devices if other.kind == device.kind])


def _devices(text: str) -> list[_Device]:
    found: list[_Device] = []
    depth = 0
    for match in _TAG.finditer(text):
        values = dict(_ATTRIBUTE.findall(match[2]))
        if match[1] in ("pci", "/pci") and not match[2].endswith("/"):
            depth += 1 if match[1] == "pci" else -1
        if match[1] == "pci" and "busid" in values and len(found) < MAX_DEVICES:
            speed = re.match(r"\d{1,4}(?:\.\d{1,3})?", values.get("link_speed", ""))
            width = values.get("link_width", "")
            model = f"{values.get('vendor', '')}:{values.get('device', '')}"
            lanes = int(width) if width.isdecimal() and len(width) < 4 else 0
            found.append(
                _Device(
                    values["busid"], model, values.get("class", ""), float(speed[0]) if speed else 0.0, lanes, depth
                )
            )
        elif match[1] == "nvlink" and found and values.get("count", "").isdecimal():
            found[-1] = found[-1]._replace(nvlinks=found[-1].nvlinks + int(values["count"][:4]))
    return found


def _judge(device: _Device, peers: list[_Device]) -> Iterator[Finding]:
    """Compares with peers of the same model at the same depth. NCCL writes the most that both ends of a link can do
    (src/graph/xml.cc, max_link_*), so that a narrow one is the slot's. Of GPUs it writes the speed now since 2.30:
    idle ones lower it."""
    width = majority([peer.width for peer in peers], _MIN_PEERS) or 0
    speed = majority([peer.speed for peer in peers], _MIN_PEERS) or 0.0
    links = majority([peer.nvlinks for peer in peers], _MIN_PEERS) or 0
    is_gpu = device.pci_class.startswith("0x03")
    if 0 < device.width < width or (0 < device.speed < speed and not is_gpu):
        yield SAYS["slow_slot"].found(
            {"link_width": device.width, "link_speed": device.speed, "peers": len(peers)},
            device=device.address,
            own=f"x{device.width} at {device.speed:.1f} GT/s",
            peers=f"x{width} at {speed:.1f} GT/s",
        )
    if device.nvlinks < links:
        evidence = {"nvlinks": device.nvlinks, "peers_nvlinks": links}
        severity = Severity.CRITICAL if is_gpu else Severity.WARNING
        yield SAYS["few_links"].found(evidence, severity, device=device.address, nvlinks=device.nvlinks, links=links)


NCCL_TOPOLOGY: Final = paste_format("NCCL topology", _NCCL_HEAD, read_nccl_topology)
