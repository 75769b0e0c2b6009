"""The findings of nodes: the GPUs that each is about, and the nodes that fail, in one line. Pure.

A report is an agent's word, and may hold anything: what cannot be read is not known.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from laggard.kit.words import counted, joined, natural, printable_line
from laggard.locate.job_timings import UNLISTED, UNNAMED, NodeFindings
from laggard.model import Finding, Note, Severity
from laggard.wire.nodes import NodeFinding, NodeRow

MAX_GPUS = 64
"""The most GPUs of a machine; with more the whole mapping counts as not known."""

MAX_UUID = 64
"""The most characters of a UUID."""

_ADDRESS = r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]"
_GPU = re.compile(rf"GPU (\d{{1,3}})(?: \(({_ADDRESS})\))?")
_GPU_ADDRESSES = re.compile(rf"GPU ({_ADDRESS}(?:, {_ADDRESS})*)")
_PCI_DEVICE = re.compile(_ADDRESS)
_GPU_OF_A_RING = re.compile(r".* GPU \d{1,6}")  # by its rank there
_NUMA_NODE = re.compile(r"node(\d{1,3})")


class NodeGpus(NamedTuple):
    """The UUIDs of a machine's GPUs by PCI address and by index, and the NUMA nodes of its GPUs and network adapters by
    PCI address."""

    by_address: Mapping[str, str]
    by_index: Mapping[int, str]
    numa_nodes: Mapping[str, int]

    @classmethod
    def of(cls, facts: Mapping[str, Any]) -> NodeGpus:
        """The GPUs that a report's facts tell of."""
        listed = _mapping(_mapping(facts.get("gpu_count")).get("uuids"))
        gpus = {uuid: _mapping(about) for uuid, about in listed.items() if 0 < len(uuid) <= MAX_UUID}
        if len(gpus) > MAX_GPUS:
            gpus = {}
        nodes = _mapping(_mapping(facts.get("numa")).get("nodes"))
        return cls(
            {bus_id: uuid for uuid, about in gpus.items() if isinstance(bus_id := about.get("bus_id"), str)},
            {index: uuid for uuid, about in gpus.items() if isinstance(index := about.get("index"), int)},
            {address: node for address, node in nodes.items() if isinstance(node, int) and node >= 0},
        )

    @property
    def uuids(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((*self.by_index.values(), *self.by_address.values())))

    def about(self, device: str) -> tuple[str, ...] | None:
        """The UUIDs of the GPUs that a finding about `device` concerns, UNLISTED or UNNAMED for one without; None:
        the whole machine. A network adapter, or a NUMA node, concerns the GPUs of that NUMA node."""
        if found := _GPU.fullmatch(device):
            index, address = found.groups()
            return (self.by_address.get(address, UNLISTED) if address else self.by_index.get(int(index), UNLISTED),)
        if found := _GPU_ADDRESSES.fullmatch(device):
            return tuple(self.by_address.get(address, UNLISTED) for address in found[1].split(", "))
        if _GPU_OF_A_RING.fullmatch(device):
            return (UNNAMED,)
        if found := _NUMA_NODE.fullmatch(device):
            return self._near(int(found[1]))
        if _PCI_DEVICE.fullmatch(device):
            uuid = self.by_address.get(device)
            return (uuid,) if uuid else self._near(self.numa_nodes.get(device))
        return None

    def _near(self, numa_node: int | None) -> tuple[str, ...] | None:
        """The GPUs of that NUMA node. Where it has none, or not known ones, GPUs of other nodes use what is there."""
        near = (address for address, node in self.numa_nodes.items() if node == numa_node)
        return tuple(uuid for address in near if (uuid := self.by_address.get(address))) or None


NO_GPUS: Final = NodeGpus({}, {}, {})


def findings_by_node(findings: Sequence[NodeFinding], gpus: Mapping[str, NodeGpus]) -> dict[str, NodeFindings]:
    """The findings that matter, by node. `gpus`: by the URL of the agent."""
    of_node: dict[str, list[Finding]] = {}
    urls: dict[str, str] = {}
    for found in findings:
        of_node.setdefault(found.node, []).append(found.finding)
        urls.setdefault(found.node, found.url)
    by_node = {node: node_findings(those, gpus.get(urls[node], NO_GPUS)) for node, those in of_node.items()}
    return {node: those for node, those in by_node.items() if those.codes}


def codes_by(findings: Iterable[NodeFinding], place: Callable[[NodeFinding], str]) -> dict[str, tuple[str, ...]]:
    """The codes of the findings by their place, the node or its agent's URL, each once."""
    codes: dict[str, dict[str, None]] = {}
    for found in findings:
        codes.setdefault(place(found), {})[found.finding.code] = None
    return {name: tuple(of_place) for name, of_place in codes.items()}


def node_findings(findings: Iterable[Finding], gpus: NodeGpus) -> NodeFindings:
    """Those of one machine's findings that matter. Of one code that is here of single GPUs and there of the whole
    machine, the machine counts."""
    about: dict[str, tuple[str, ...] | None] = {}
    for found in findings:
        if found.severity is Severity.INFO:
            continue
        here, before = gpus.about(found.device), about.get(found.code, ())
        about[found.code] = None if here is None or before is None else tuple(dict.fromkeys((*before, *here)))
    of_gpus = {code: uuids for code, uuids in about.items() if uuids is not None}
    return NodeFindings(tuple(about), of_gpus, gpus.uuids)


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


_MAX_CODES: Final = 3  # of one node
_MAX_KINDS: Final = 3  # of nodes with other findings
_MAX_NAMES: Final = 4  # of nodes with the same findings
_MAX_NAME_CHARACTERS: Final = 64


def failing_note(nodes: Sequence[NodeRow], findings: Sequence[NodeFinding]) -> Note | None:
    """The nodes by what is wrong with them, what most of them have first, of thousands as of two in one line; None
    where no node fails. `findings`: the worst first."""
    alike = _by_codes([row for row in nodes if row.verdict == "fail"], findings)
    if not alike:
        return None
    failing = sum(map(len, alike.values()))
    most = sorted(alike.items(), key=lambda item: (-len(item[1]), item[0]))
    told = [f"{_codes_text(codes)} on {_names_text(names)}" for codes, names in most[:_MAX_KINDS]]
    left = sum(len(names) for _, names in most[_MAX_KINDS:])
    told += [f"other findings on {counted(left, 'node')}"] if left else []
    them, verb = ("it", "fails") if failing == 1 else ("them", "fail")
    first = next((codes[0] for codes, _ in most if codes), "")
    how = f"laggard findings explain {first}" if first else "laggard healthcheck there says what is wrong"
    text = f"{failing} of {counted(len(nodes), 'node')} {verb} the health checks: {'; '.join(told)}"
    return Note("nodes_failing", f"{text}. Keep jobs off {them} until that is mended: {how}")


def _by_codes(rows: Sequence[NodeRow], findings: Sequence[NodeFinding]) -> Mapping[tuple[str, ...], list[str]]:
    """The names of nodes by the codes of their critical findings, which are why they fail."""
    codes: dict[str, dict[str, None]] = {row.url: {} for row in rows}
    for found in findings:
        if found.url in codes and found.finding.severity is Severity.CRITICAL:
            codes[found.url][found.finding.code] = None
    alike: dict[tuple[str, ...], list[str]] = {}
    for row in rows:
        alike.setdefault(tuple(codes[row.url]), []).append(row.node or row.url.partition("://")[2])
    return alike


def _codes_text(codes: Sequence[str]) -> str:
    more = [f"{len(codes) - _MAX_CODES} more"] if len(codes) > _MAX_CODES else []
    return joined([*codes[:_MAX_CODES], *more]) or "something without a code"


def _names_text(names: Sequence[str]) -> str:
    shown = [printable_line(name, _MAX_NAME_CHARACTERS) for name in sorted(names, key=natural)[:_MAX_NAMES]]
    more = [f"{len(names) - len(shown)} more"] if len(names) > len(shown) else []
    return joined([*shown, *more])
