"""The facts of a node's report that should be the same on all nodes of the same hardware, and where to find them.

A report's facts are `{probe: {fact: value}}`, and a value may be nested: `{device: {property: value}}`. A path is the
list of keys that lead to a value; `*` stands for every entry of a mapping or list, and what is compared is the set of
values found there, so that neither the number of devices nor their addresses matter. Facts that rightly differ from
node to node are not listed (serial numbers, addresses, temperatures, counters, how full a disk is).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

MAX_VALUES = 64
"""The most distinct values of one fact on one node; a fact with more is no property that nodes share."""

MAX_CHARACTERS = 200

Path = tuple[str, ...]
Values = tuple[str, ...]
"""The distinct values of one fact on one node, sorted; as text, because they are shown as text."""


class ComparedFact(NamedTuple):
    """`name` is the device of the finding. Of `paths` the first that leads to a value counts. `command` shows the fact
    on a node. With `count_entries` the number of entries is compared, not the values; with `compare_keys` a mapping's
    keys, not its values; with `list_as_one` a list is one value, and an empty list is "none"."""

    name: str
    paths: tuple[Path, ...]
    fix: str
    command: str
    count_entries: bool = False
    compare_keys: bool = False
    list_as_one: bool = False


_SOFTWARE = "Install the same version on every node of a job: from one image, or pinned in the package manager."
_FIRMWARE = "Flash the version that the fleet has, or move the fleet to this one; mixed versions hide and make faults."
_HARDWARE = "Compare the node with a neighbour of the same model: a part is missing, was exchanged, or trained lower."
_SETTING = "Set it as on the other nodes, and where it is set at boot (image, kernel command line, BIOS profile)."

HARDWARE_PATHS: tuple[tuple[str, tuple[Path, ...]], ...] = (
    ("product", (("identity", "product"), ("identity", "cpu_model"))),
    ("gpu", (("identity", "gpu_models"), ("gpu_count", "models"))),
)
"""The facts by which two nodes are the same hardware: the server's product name (in a container that cannot see it, the
CPU), and its GPU models. A node of which only one is known is compared with nodes of which the same one is known."""

COMPARED_FACTS: tuple[ComparedFact, ...] = (
    ComparedFact("kernel release", (("identity", "kernel_release"),), _SOFTWARE, "uname -r"),
    ComparedFact("distribution", (("identity", "distribution"),), _SOFTWARE, "cat /etc/os-release"),
    ComparedFact(
        "nvidia driver version",
        (("identity", "nvidia_driver_version"),),
        _SOFTWARE,
        "cat /proc/driver/nvidia/version",
    ),
    ComparedFact(
        "nvidia driver flavour", (("identity", "nvidia_driver_flavour"),), _SOFTWARE, "modinfo -F license nvidia"
    ),
    ComparedFact("CUDA version", (("identity", "cuda_version"),), _SOFTWARE, "cat /usr/local/cuda/version.json"),
    ComparedFact("NCCL version", (("identity", "nccl_versions"),), _SOFTWARE, "ldconfig -p | grep libnccl"),
    ComparedFact("OFED version", (("identity", "ofed_version"),), _SOFTWARE, "cat /sys/module/mlx5_core/version"),
    ComparedFact("CPU model", (("identity", "cpu_model"),), _HARDWARE, "lscpu"),
    ComparedFact("CPU microcode", (("identity", "cpu_microcode"),), _FIRMWARE, "grep -m1 microcode /proc/cpuinfo"),
    ComparedFact("BIOS version", (("identity", "bios_version"),), _FIRMWARE, "cat /sys/class/dmi/id/bios_version"),
    ComparedFact(
        "GPU VBIOS", (("identity", "gpu_vbios"),), _FIRMWARE, "nvidia-smi --query-gpu=vbios_version --format=csv"
    ),
    ComparedFact("GPU count", (("identity", "gpu_count"),), _HARDWARE, "nvidia-smi -L"),
    ComparedFact(
        "GPU link width",
        (("inventory", "gpu_links", "*", "width"),),
        _HARDWARE,
        "nvidia-smi -q | grep -A3 'Link Width'",
    ),
    ComparedFact("NIC firmware", (("inventory", "rdma", "*", "firmware"),), _FIRMWARE, "ibv_devinfo | grep fw_ver"),
    ComparedFact("NIC kinds", (("inventory", "rdma", "*", "board"),), _HARDWARE, "ibv_devinfo | grep board_id"),
    ComparedFact("NIC link width", (("inventory", "rdma", "*", "link_width"),), _HARDWARE, "lspci -vv | grep LnkSta"),
    ComparedFact("NIC count", (("inventory", "rdma"),), _HARDWARE, "ls /sys/class/infiniband", count_entries=True),
    ComparedFact("NIC MTU", (("inventory", "rdma", "*", "mtu"),), _SETTING, "ip -br link; ibv_devinfo | grep mtu"),
    ComparedFact("GID layout", (("inventory", "gid_layouts", "*"),), _SETTING, "show_gids"),
    ComparedFact(
        "PFC priorities", (("roce_pfc", "priorities", "*"),), _SETTING, "mlnx_qos -i NETDEV", list_as_one=True
    ),
    ComparedFact(
        "ECN priorities", (("roce_ecn", "priorities", "*"),), _SETTING, "mlnx_qos -i NETDEV", list_as_one=True
    ),
    ComparedFact("ACS of bridges", (("acs", "bridges", "*"),), _SETTING, "lspci -vvv | grep ACSCtl", list_as_one=True),
    ComparedFact("IOMMU mode", (("iommu", "modes", "*"), ("iommu", "units")), _SETTING, "cat /proc/cmdline"),
    ComparedFact(
        "PCIe read request", (("pcie_requests", "read_request_bytes", "*"),), _SETTING, "lspci -vvv | grep MaxReadReq"
    ),
    ComparedFact("NVLinks up", (("nvlink", "links_up", "*"),), _HARDWARE, "nvidia-smi nvlink -s"),
    ComparedFact("GPUDirect", (("peermem", "way"),), _SETTING, "lsmod | grep peermem"),
    ComparedFact("CPU governors", (("governor", "governors"),), _SETTING, "cpupower frequency-info", compare_keys=True),
    ComparedFact("clock source", (("clock", "clock", "clock_source"),), _SETTING, "timedatectl"),
    ComparedFact("locked memory limit", (("limits", "locked_memory_bytes", "hard"),), _SETTING, "ulimit -H -l"),
    ComparedFact("open files limit", (("limits", "open_files", "hard"),), _SETTING, "ulimit -H -n"),
)


COMPARED_PROBES: frozenset[str] = frozenset(
    path[0]
    for paths in (*(paths for _, paths in HARDWARE_PATHS), *(it.paths for it in COMPARED_FACTS))
    for path in paths
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
    known = [values for _, paths in HARDWARE_PATHS if (values := _first_values(facts, paths))]
    return " with ".join(" and ".join(values) for values in known) or None


def value_of(facts: Mapping[str, Any], fact: ComparedFact) -> Values | None:
    """The node's value of the fact; None where it is not known, which is never a difference."""
    if fact.count_entries:
        found = next((there for path in fact.paths if (there := list(_at(facts, path)))), None)
        return (str(len(found[0])),) if found and isinstance(found[0], (list, dict)) else None
    if fact.compare_keys:
        found = next((there for path in fact.paths if (there := list(_at(facts, path)))), [])
        return _distinct(str(key) for entry in found if isinstance(entry, dict) for key in entry)
    return _first_values(facts, fact.paths, fact.list_as_one)


def _first_values(facts: Mapping[str, Any], paths: Iterable[Path], list_as_one: bool = False) -> Values | None:
    read = _one_value if list_as_one else _leaves
    for path in paths:
        values = _distinct(text for leaf in _at(facts, path) for text in read(leaf))
        if values:
            return values
    return None


def _distinct(texts: Iterable[str]) -> Values | None:
    distinct = set(texts)
    return tuple(sorted(distinct)) if 0 < len(distinct) <= MAX_VALUES else None


def _at(value: Any, path: Path) -> Iterator[Any]:
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
