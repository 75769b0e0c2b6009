"""Which facts of a node's report should be the same on every node of the same hardware, and where they stand.

A report's facts are `{probe: {fact: value}}`, and a value may be nested: `{device: {property: value}}`. A path names
the way down; `*` stands for every entry of a mapping or list, and what is compared is the set of values found there,
so that neither the number of devices nor their addresses matter. Not listed is what rightly differs from node to node
(serial numbers, addresses, temperatures, counters, how full a disk is).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

MOST_VALUES = 64
"""Distinct values of one fact on one node; more is no property that nodes share."""

MOST_LETTERS = 200

Path = tuple[str, ...]
Values = tuple[str, ...]
"""The distinct values of one fact on one node, sorted; as text, because that is how they are shown."""


class Comparable(NamedTuple):
    """`name` is the device of the finding. `paths`: the first that leads to a value counts. `counted`: not the values
    are compared but how many entries there are; `named`: what a mapping's keys are, not its values; `whole`: a list is
    one value, and an empty one is "none". `look`: the command that shows the fact on a node."""

    name: str
    paths: tuple[Path, ...]
    fix: str
    look: str
    counted: bool = False
    named: bool = False
    whole: bool = False


_SOFTWARE = "Install the same version on every node of a job: from one image, or pinned in the package manager."
_FIRMWARE = "Flash the version that the fleet has, or move the fleet to this one; mixed versions hide and make faults."
_HARDWARE = "Compare the node with a neighbour of the same model: a part is missing, was exchanged, or trained lower."
_SETTING = "Set it as on the other nodes, and where it is set at boot (image, kernel command line, BIOS profile)."

KIND_PATHS: tuple[tuple[str, tuple[Path, ...]], ...] = (
    ("product", (("identity", "product"), ("identity", "cpu_model"))),
    ("gpu", (("identity", "gpu_models"), ("gpu_count", "models"))),
)
"""What makes two nodes the same hardware: the server's product name (in a container that cannot see it, the CPU), and
its GPU models. A node of which only one is known is of a kind of its own: its likes are those equally unknown."""

COMPARABLES: tuple[Comparable, ...] = (
    Comparable("kernel release", (("identity", "kernel_release"),), _SOFTWARE, "uname -r"),
    Comparable("distribution", (("identity", "distribution"),), _SOFTWARE, "cat /etc/os-release"),
    Comparable(
        "nvidia driver version",
        (("identity", "nvidia_driver_version"),),
        _SOFTWARE,
        "cat /proc/driver/nvidia/version",
    ),
    Comparable(
        "nvidia driver flavour", (("identity", "nvidia_driver_flavour"),), _SOFTWARE, "modinfo -F license nvidia"
    ),
    Comparable("CUDA version", (("identity", "cuda_version"),), _SOFTWARE, "cat /usr/local/cuda/version.json"),
    Comparable("NCCL version", (("identity", "nccl_versions"),), _SOFTWARE, "ldconfig -p | grep libnccl"),
    Comparable("OFED version", (("identity", "ofed_version"),), _SOFTWARE, "cat /sys/module/mlx5_core/version"),
    Comparable("CPU model", (("identity", "cpu_model"),), _HARDWARE, "lscpu"),
    Comparable("CPU microcode", (("identity", "cpu_microcode"),), _FIRMWARE, "grep -m1 microcode /proc/cpuinfo"),
    Comparable("BIOS version", (("identity", "bios_version"),), _FIRMWARE, "cat /sys/class/dmi/id/bios_version"),
    Comparable(
        "GPU VBIOS", (("identity", "gpu_vbios"),), _FIRMWARE, "nvidia-smi --query-gpu=vbios_version --format=csv"
    ),
    Comparable("GPU count", (("identity", "gpu_count"),), _HARDWARE, "nvidia-smi -L"),
    Comparable(
        "GPU link width",
        (("inventory", "gpu_links", "*", "width"),),
        _HARDWARE,
        "nvidia-smi -q | grep -A3 'Link Width'",
    ),
    Comparable("NIC firmware", (("inventory", "rdma", "*", "firmware"),), _FIRMWARE, "ibv_devinfo | grep fw_ver"),
    Comparable("NIC kinds", (("inventory", "rdma", "*", "board"),), _HARDWARE, "ibv_devinfo | grep board_id"),
    Comparable("NIC link width", (("inventory", "rdma", "*", "link_width"),), _HARDWARE, "lspci -vv | grep LnkSta"),
    Comparable("NIC count", (("inventory", "rdma"),), _HARDWARE, "ls /sys/class/infiniband", counted=True),
    Comparable("NIC MTU", (("inventory", "rdma", "*", "mtu"),), _SETTING, "ip -br link; ibv_devinfo | grep mtu"),
    Comparable("GID layout", (("inventory", "gid_layouts", "*"),), _SETTING, "show_gids"),
    Comparable("PFC priorities", (("roce_pfc", "priorities", "*"),), _SETTING, "mlnx_qos -i NETDEV", whole=True),
    Comparable("ECN priorities", (("roce_ecn", "priorities", "*"),), _SETTING, "mlnx_qos -i NETDEV", whole=True),
    Comparable("ACS of bridges", (("acs", "bridges", "*"),), _SETTING, "lspci -vvv | grep ACSCtl", whole=True),
    Comparable("IOMMU mode", (("iommu", "modes", "*"), ("iommu", "units")), _SETTING, "cat /proc/cmdline"),
    Comparable(
        "PCIe read request", (("pcie_requests", "read_request_bytes", "*"),), _SETTING, "lspci -vvv | grep MaxReadReq"
    ),
    Comparable("NVLinks up", (("nvlink", "links_up", "*"),), _HARDWARE, "nvidia-smi nvlink -s"),
    Comparable("GPUDirect", (("peermem", "way"),), _SETTING, "lsmod | grep peermem"),
    Comparable("CPU governors", (("governor", "governors"),), _SETTING, "cpupower frequency-info", named=True),
    Comparable("clock source", (("clock", "clock", "clock_source"),), _SETTING, "timedatectl"),
    Comparable("locked memory limit", (("limits", "locked_memory_bytes", "hard"),), _SETTING, "ulimit -H -l"),
    Comparable("open files limit", (("limits", "open_files", "hard"),), _SETTING, "ulimit -H -n"),
)


def hardware_kind(facts: Mapping[str, Any]) -> str | None:
    """The name of the kind of hardware, None where nothing of it is known."""
    known = [values for _, paths in KIND_PATHS if (values := _first(facts, paths))]
    return " with ".join(" and ".join(values) for values in known) or None


def value_of(facts: Mapping[str, Any], comparable: Comparable) -> Values | None:
    """The node's value; None: not known, which is never a difference."""
    if comparable.counted:
        found = next((there for path in comparable.paths if (there := list(_at(facts, path)))), None)
        return (str(len(found[0])),) if found and isinstance(found[0], (list, dict)) else None
    if comparable.named:
        found = next((there for path in comparable.paths if (there := list(_at(facts, path)))), [])
        return _distinct(str(key) for entry in found if isinstance(entry, dict) for key in entry)
    return _first(facts, comparable.paths, comparable.whole)


def _first(facts: Mapping[str, Any], paths: Iterable[Path], whole: bool = False) -> Values | None:
    for path in paths:
        values = _distinct(text for leaf in _at(facts, path) for text in (_whole(leaf) if whole else _leaves(leaf)))
        if values:
            return values
    return None


def _distinct(texts: Iterable[str]) -> Values | None:
    distinct = set(texts)
    return tuple(sorted(distinct)) if 0 < len(distinct) <= MOST_VALUES else None


def _at(value: Any, path: Path) -> Iterator[Any]:
    """What stands at the end of `path`; nothing where it does not lead anywhere."""
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


def _whole(value: Any) -> Iterator[str]:
    if isinstance(value, list):
        yield " ".join(_leaves(value)) or "none"
    else:
        yield from _leaves(value)


def _leaves(value: Any) -> Iterator[str]:
    """Plain values as text. A list's entries count each; null, empty text and the word `unknown` are not known; deeper
    nesting is none."""
    for leaf in value if isinstance(value, list) else (value,):
        if isinstance(leaf, bool):
            yield "yes" if leaf else "no"
        elif isinstance(leaf, float) and leaf.is_integer():
            yield str(int(leaf))
        elif isinstance(leaf, (int, float)) or (isinstance(leaf, str) and leaf.strip() not in ("", "unknown")):
            yield str(leaf).strip()[:MOST_LETTERS]
