"""FLEET_OUTLIER: nodes that differ from the majority of nodes with their hardware, in the nodes' rows and as text.
Pure: from facts to findings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from msgspec import structs

from laggard.catalogue.findings import finding_type
from laggard.kit.majority import majority
from laggard.kit.words import capital, counted, listed, printable_line
from laggard.model import Finding, Fix, Note, Report, Severity
from laggard.wire.nodes import NodeFinding, NodeRow

# The facts of a node's report that should be the same on all nodes of the same hardware, and where to find them.
#
# A report's facts are `{probe: {fact: value}}`, and a value may be nested: `{device: {property: value}}`. A path has
# the keys that lead to a value, with dots between them; `*` stands for every entry of a mapping or list, and what is
# compared is the set of values found there, so that neither the number of devices nor their addresses matter. Facts
# that rightly differ from node to node are not listed (serial numbers, addresses, temperatures, counters, how full a
# disk is).

MAX_VALUES = 64
"""The most distinct values of one fact on one node; a fact with more is no property that nodes share."""

MAX_CHARACTERS = 200

Values = tuple[str, ...]
"""The distinct values of one fact on one node, sorted; as text, because they are shown as text."""


class ComparedFact(NamedTuple):
    """`name` is the device of the finding. Of `paths`, with spaces between them, the first that leads to a value
    counts. `command` shows the fact on a node. With `count_entries` the number of entries is compared, not the values;
    with `compare_keys` a mapping's keys, not its values; with `list_as_one` a list is one value, and an empty list is
    "none". With `enough` values are numbers, and one that is no less than this share of the median is no difference;
    with `compare_each` a value that most nodes have is wanted of all, and what a node has beside it is its own."""

    name: str
    paths: str
    fix: str
    command: str
    count_entries: bool = False
    compare_keys: bool = False
    list_as_one: bool = False
    compare_each: bool = False
    enough: float = 0.0


_SOFTWARE = "Install the same version on every node of a job: from one image, or pinned in the package manager."
_FIRMWARE = "Flash the version that the fleet has, or move the fleet to this one; mixed versions hide and make faults."
_HARDWARE = "Compare the node with a neighbour of the same model: a part is missing, was exchanged, or trained lower."
_SETTING = "Set it as on the other nodes, and where it is set at boot (image, kernel command line, BIOS profile)."

HARDWARE_PATHS = ("identity.product identity.cpu_model", "identity.gpu_models gpu_count.models")
"""The facts by which two nodes are the same hardware: the server's product name (in a container that cannot see it, the
CPU), and its GPU models. A node of which only one is known is compared with nodes of which the same one is known."""

COMPARED_FACTS: tuple[ComparedFact, ...] = (
    ComparedFact("kernel release", "identity.kernel_release", _SOFTWARE, "uname -r"),
    ComparedFact("distribution", "identity.distribution", _SOFTWARE, "cat /etc/os-release"),
    ComparedFact(
        "nvidia driver version", "identity.nvidia_driver_version", _SOFTWARE, "cat /proc/driver/nvidia/version"
    ),
    ComparedFact("nvidia driver flavour", "identity.nvidia_driver_flavour", _SOFTWARE, "modinfo -F license nvidia"),
    ComparedFact("CUDA version", "identity.cuda_version", _SOFTWARE, "cat /usr/local/cuda/version.json"),
    ComparedFact("NCCL version", "identity.nccl_versions", _SOFTWARE, "ldconfig -p | grep libnccl"),
    ComparedFact("OFED version", "identity.ofed_version", _SOFTWARE, "cat /sys/module/mlx5_core/version"),
    ComparedFact("CPU model", "identity.cpu_model", _HARDWARE, "lscpu"),
    ComparedFact("CPU microcode", "identity.cpu_microcode", _FIRMWARE, "grep -m1 microcode /proc/cpuinfo"),
    ComparedFact("BIOS version", "identity.bios_version", _FIRMWARE, "cat /sys/class/dmi/id/bios_version"),
    ComparedFact("GPU VBIOS", "identity.gpu_vbios", _FIRMWARE, "nvidia-smi --query-gpu=vbios_version --format=csv"),
    ComparedFact("GPU count", "identity.gpu_count", _HARDWARE, "nvidia-smi -L"),
    ComparedFact("memory", "expected.memory.memory", _HARDWARE, "free -b; dmidecode -t 17", enough=0.96),
    ComparedFact("processors", "expected.processors.processors", _HARDWARE, "lscpu", enough=0.96),
    ComparedFact("mounts", "expected.mounts", _SETTING, "findmnt", compare_keys=True, compare_each=True),
    ComparedFact("whole GPUs", "gpu_count.whole", _SETTING, "nvidia-smi -L"),
    ComparedFact("partition keys", "rdma_devices.partition_keys", _SETTING, "ibstat; smpquery pkeys -D 0"),
    ComparedFact("GPU link width", "inventory.gpu_links.*.width", _HARDWARE, "nvidia-smi -q | grep -A3 'Link Width'"),
    ComparedFact("NIC firmware", "inventory.rdma.*.firmware", _FIRMWARE, "ibv_devinfo | grep fw_ver"),
    ComparedFact("NIC kinds", "inventory.rdma.*.board", _HARDWARE, "ibv_devinfo | grep board_id"),
    ComparedFact("NIC link width", "inventory.rdma.*.link_width", _HARDWARE, "lspci -vv | grep LnkSta"),
    ComparedFact("NIC count", "inventory.rdma", _HARDWARE, "ls /sys/class/infiniband", count_entries=True),
    ComparedFact("NIC MTU", "inventory.rdma.*.mtu", _SETTING, "ip -br link; ibv_devinfo | grep mtu"),
    ComparedFact("GID layout", "inventory.gid_layouts.*", _SETTING, "show_gids"),
    ComparedFact("PFC priorities", "roce_pfc.priorities.*", _SETTING, "mlnx_qos -i NETDEV", list_as_one=True),
    ComparedFact("ECN priorities", "roce_ecn.priorities.*", _SETTING, "mlnx_qos -i NETDEV", list_as_one=True),
    ComparedFact("ACS of bridges", "acs.bridges.*", _SETTING, "lspci -vvv | grep ACSCtl", list_as_one=True),
    ComparedFact("IOMMU mode", "iommu.modes.* iommu.units", _SETTING, "cat /proc/cmdline"),
    ComparedFact("PCIe read request", "pcie_requests.read_request_bytes.*", _SETTING, "lspci -vvv | grep MaxReadReq"),
    ComparedFact("NVLinks up", "nvlink.links_up.*", _HARDWARE, "nvidia-smi nvlink -s"),
    ComparedFact("GPUDirect", "peermem.way", _SETTING, "lsmod | grep peermem"),
    ComparedFact("CPU governors", "governor.governors", _SETTING, "cpupower frequency-info", compare_keys=True),
    ComparedFact("clock source", "clock.clock.clock_source", _SETTING, "timedatectl"),
    ComparedFact("locked memory limit", "limits.locked_memory_bytes.hard", _SETTING, "ulimit -H -l"),
    ComparedFact("open files limit", "limits.open_files.hard", _SETTING, "ulimit -H -n"),
)


COMPARED_PROBES: frozenset[str] = frozenset(
    path.partition(".")[0]
    for paths in (*HARDWARE_PATHS, *(it.paths for it in COMPARED_FACTS))
    for path in paths.split()
)
"""The probes that tell of the facts, and of the hardware."""


class ComparedNode(NamedTuple):
    """The node's values of COMPARED_FACTS, in their order. `hardware`: None where it is not known; `has_facts`: whether
    the node told anything."""

    hardware: str | None
    values: tuple[Values | None, ...]
    has_facts: bool


def compared_node(facts: Mapping[str, Any]) -> ComparedNode:
    """The values in a report's facts. Reading them takes a fifth of a millisecond."""
    hardware = hardware_of(facts)
    values = tuple(value_of(facts, fact) for fact in COMPARED_FACTS) if hardware is not None else ()
    return ComparedNode(hardware, values, bool(facts))


def hardware_of(facts: Mapping[str, Any]) -> str | None:
    """The name of the node's hardware, None where nothing of it is known."""
    known = [values for paths in HARDWARE_PATHS if (values := _first_values(facts, paths))]
    return " with ".join(" and ".join(values) for values in known) or None


def value_of(facts: Mapping[str, Any], fact: ComparedFact) -> Values | None:
    """The node's value of the fact; None where it is not known, which is never a difference."""
    if fact.count_entries:
        found = next(_at(facts, fact.paths.split(".")), None)
        return (str(len(found)),) if isinstance(found, (list, dict)) else None
    if fact.compare_keys:
        found = _at(facts, fact.paths.split("."))
        return _distinct(str(key) for entry in found if isinstance(entry, dict) for key in entry)
    return _first_values(facts, fact.paths, fact.list_as_one)


def _first_values(facts: Mapping[str, Any], paths: str, list_as_one: bool = False) -> Values | None:
    read = _one_value if list_as_one else _leaves
    for path in paths.split():
        values = _distinct(text for leaf in _at(facts, path.split(".")) for text in read(leaf))
        if values:
            return values
    return None


def _distinct(texts: Iterable[str]) -> Values | None:
    distinct = set(texts)
    return tuple(sorted(distinct)) if 0 < len(distinct) <= MAX_VALUES else None


def _at(value: Any, path: Sequence[str]) -> Iterator[Any]:
    """The values at the end of `path`; none where it leads nowhere."""
    if not path:
        yield value
    elif path[0] == "*":
        for entry in _entries(value):
            yield from _at(entry, path[1:])
    elif isinstance(value, dict) and path[0] in value:
        yield from _at(value[path[0]], path[1:])


def _entries(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


def _one_value(value: Any) -> Iterator[str]:
    """The leaves as by _leaves(), but a list's entries are joined to one text."""
    if isinstance(value, list):
        yield " ".join(_leaves(value)) or "none"
    else:
        yield from _leaves(value)


def _leaves(value: Any) -> Iterator[str]:
    """Plain values as text, each entry of a list for itself. Null, empty text and the word `unknown` are not known
    values; deeper nesting is ignored."""
    for leaf in value if isinstance(value, list) else (value,):
        if isinstance(leaf, bool):
            yield "yes" if leaf else "no"
        elif isinstance(leaf, float) and leaf.is_integer():
            yield str(int(leaf))
        elif isinstance(leaf, (int, float)) or (isinstance(leaf, str) and leaf.strip() not in ("", "unknown")):
            yield str(leaf).strip()[:MAX_CHARACTERS]


# FLEET_OUTLIER: nodes that differ from the majority of nodes with their hardware. Pure: from facts to findings.
#
# Only what should be the same everywhere is compared (ComparedFact), and only among nodes of the same hardware.
# What is usual takes a strict majority of the nodes whose value is known: a tie proves nothing, and a value that is not
# known is no difference. Where many nodes differ at once the fleet is being changed, and no single node is at fault:
# then there is one note in place of findings.

CODE = "FLEET_OUTLIER"

MIN_NODES = 3
"""The least number of nodes: where two differ, neither is the outlier."""

MANY_RATIO = 0.25
"""The largest share of the nodes that may be outliers. More (and more than one) are a change under way, not as many
faults."""

MAX_NOTES = 32
_MAX_NAMES = 6
_MAX_TEXT = 120


class Consensus(NamedTuple):
    """The result of comparing the nodes: the findings by node, and notes on what could not be compared and on what
    holds for many nodes at once."""

    findings: Mapping[str, tuple[Finding, ...]]
    notes: tuple[Note, ...]


def consensus(nodes: Mapping[str, ComparedNode]) -> Consensus:
    """Compares the nodes' facts, hardware by hardware. `nodes`: by any unique name of the node; their order does not
    matter."""
    by_hardware: dict[str, list[str]] = {}
    unknown = []
    for node in sorted(nodes):
        hardware = nodes[node].hardware
        if hardware is not None:
            by_hardware.setdefault(hardware, []).append(node)
        elif nodes[node].has_facts:
            unknown.append(node)
    notes = []
    if unknown:
        text = f"{counted(len(unknown), 'node')} not compared, their hardware is not known: {_names(unknown)}"
        notes.append(Note("fleet_unknown", text))
    findings: dict[str, list[Finding]] = {}
    for hardware, members in sorted(by_hardware.items()):
        if len(members) < MIN_NODES:
            notes.append(_too_few_note(hardware, members))
            continue
        for place, fact in enumerate(COMPARED_FACTS):
            for result in _compare(hardware, fact, {node: nodes[node].values[place] for node in members}):
                if isinstance(result, Note):
                    notes.append(result)
                else:
                    node, finding = result
                    findings.setdefault(node, []).append(finding)
    return Consensus({node: tuple(found) for node, found in sorted(findings.items())}, _bounded(notes))


def _compare(
    hardware: str, fact: ComparedFact, values: Mapping[str, Values | None]
) -> Iterator[Note | tuple[str, Finding]]:
    """Compares one fact of all nodes of the same hardware: a note, or the outliers with their findings, or nothing."""
    known = {node: value for node, value in values.items() if value is not None}
    if len(known) < MIN_NODES:
        return
    if fact.compare_each:
        for entry in sorted({entry for value in known.values() for entry in value}):
            has = {node: ("yes",) if entry in value else ("no",) for node, value in known.items()}
            yield from _lacking(hardware, fact._replace(name=f"{fact.name}: {entry}"), has, ("yes",))
        return
    if fact.enough:
        yield from _less(hardware, fact, known)
        return
    usual = majority(known.values())
    if usual is None:
        text = f"{fact.name}: no majority among {len(known)} nodes of {_short(hardware)}: {_counts(known.values())}"
        yield Note("fleet_tie", text)
        return
    yield from _outliers(hardware, fact, known, usual, [node for node in known if known[node] != usual])


def _less(hardware: str, fact: ComparedFact, known: Mapping[str, Values]) -> Iterator[Note | tuple[str, Finding]]:
    """What is less than most have; more is none. A number that only one node has is a part that failed there; several
    nodes with one number were bought so."""
    numbers = {node: int(value[0]) for node, value in known.items() if value[0].isascii() and value[0].isdecimal()}
    if len(numbers) >= MIN_NODES:
        usual = sorted(numbers.values())[len(numbers) // 2]
        enough = {node: (str(usual if it >= fact.enough * usual else it),) for node, it in numbers.items()}
        yield from _lacking(hardware, fact, enough, (str(usual),))


def _lacking(
    hardware: str, fact: ComparedFact, known: Mapping[str, Values], usual: Values
) -> Iterator[Note | tuple[str, Finding]]:
    """The nodes that do not have what more than half of the nodes have. Critical is one that is alone with what it
    has."""
    lacking = [node for node, value in known.items() if value != usual]
    if 2 * len(lacking) >= len(known):
        return
    for result in _outliers(hardware, fact, known, usual, lacking):
        if not isinstance(result, Note) and sum(value == known[result[0]] for value in known.values()) == 1:
            yield result[0], structs.replace(result[1], severity=Severity.CRITICAL)
        else:
            yield result


def _outliers(
    hardware: str, fact: ComparedFact, known: Mapping[str, Values], usual: Values, outliers: Sequence[str]
) -> Iterator[Note | tuple[str, Finding]]:
    """A finding for each outlier, or, where there are many, one note."""
    if len(outliers) > max(1, MANY_RATIO * len(known)):
        text = (
            f"{fact.name}: {len(outliers)} of {len(known)} nodes of {_short(hardware)} differ from the majority, "
            f"as in a rolling update: {_counts(known.values())}; for example {_names(outliers)}"
        )
        yield Note("fleet_changing", text)
    else:
        for node in outliers:
            yield node, _finding(hardware, fact, known[node], usual, len(known) - len(outliers), len(known))


def _finding(hardware: str, fact: ComparedFact, value: Values, usual: Values, holders: int, known: int) -> Finding:
    described = finding_type(CODE)
    return Finding(
        code=CODE,
        severity=described.severity,
        device=fact.name,
        summary=f"is {_text(value)}; {holders} of {known} nodes of the same hardware have {_text(usual)}",
        evidence={
            "value": _text(value),
            "majority_value": _text(usual),
            "nodes_with_majority": holders,
            "nodes_compared": known,
            "hardware": _short(hardware),
        },
        fix=Fix(fact.fix, (fact.command,)),
        doc=described.doc,
        action=described.action,
    )


def _too_few_note(hardware: str, nodes: Sequence[str]) -> Note:
    text = f"{counted(len(nodes), 'node')} of {_short(hardware)} ({_names(nodes)}): {MIN_NODES} are needed to compare"
    return Note("fleet_small", text, node=nodes[0] if len(nodes) == 1 else None)


def _bounded(notes: Sequence[Note]) -> tuple[Note, ...]:
    if len(notes) <= MAX_NOTES:
        return tuple(notes)
    return (*notes[: MAX_NOTES - 1], Note("fleet_more", f"and {len(notes) - MAX_NOTES + 1} more notes of this sort"))


def _counts(values: Iterable[Values]) -> str:
    """The number of nodes that have each value, for people; the most frequent value first."""
    ranked = sorted(Counter(values).items(), key=lambda item: (-item[1], item[0]))
    shown = ", ".join(f"{_text(value)} on {count}" for value, count in ranked[:_MAX_NAMES])
    return shown + (f" and {len(ranked) - _MAX_NAMES} more values" if len(ranked) > _MAX_NAMES else "")


def _names(nodes: Sequence[str]) -> str:
    return listed([_short(node) for node in nodes], _MAX_NAMES)


def _text(value: Values) -> str:
    return _short(", ".join(value))


def _short(text: str) -> str:
    return printable_line(text, _MAX_TEXT)


MAX_LINES = 12


class FleetComparison(NamedTuple):
    """The outliers, and notes on what could not be compared."""

    findings: tuple[NodeFinding, ...] = ()
    notes: tuple[Note, ...] = ()


def tells_the_same(before: Report, now: Report) -> bool:
    """Whether two reports have the same facts to compare, which takes a tenth of the time of reading them. To Python 1
    and true are equal, too: a node that exchanges them is compared by what it said before."""
    try:
        return all(before.facts.get(probe) == now.facts.get(probe) for probe in COMPARED_PROBES)
    except RecursionError:  # facts may be nested as deeply as could just be read
        return False


def with_codes(row: NodeRow, codes: Mapping[str, tuple[str, ...]]) -> NodeRow:
    """The row with the codes that its node got from the comparison."""
    return structs.replace(row, findings=tuple(dict.fromkeys((*row.findings, *codes.get(row.url, ())))))


def fleet_lines(findings: Sequence[NodeFinding], notes: Sequence[Note]) -> tuple[str, ...]:
    """The outliers, then the notes, one line each, for people."""
    lines = [f"{it.node}: {it.finding.device} {it.finding.summary}" for it in findings[:MAX_LINES]]
    if len(findings) > MAX_LINES:
        lines.append(f"and {len(findings) - MAX_LINES} more outliers")
    return tuple(printable_line(line) for line in (*lines, *(capital(note.text) for note in notes)))
