"""Tells a virtual machine from a physical one."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Final

from laggard.kit.words import lazy_pattern, runs
from laggard.probes.errors import Unknown, or_none
from laggard.probes.host.host import Host
from laggard.probes.host.jobs import status_words

_VENDORS: Final = (
    "QEMU",
    "Xen",
    "VMware, Inc.",
    "innotek GmbH",
    "OpenStack Foundation",
    "Bochs",
    "Amazon EC2",
    "Alibaba Cloud",
    "KubeVirt",
    "Parallels",
)
_PRODUCTS: Final = (
    "KVM",
    "KVM Virtual Machine",
    "Virtual Machine",
    "Google Compute Engine",
    "HVM domU",
    "OpenStack Nova",
)
_METAL: Final = lazy_pattern(r"[a-z0-9-]+\.metal(-[a-z0-9]+)?")
"""The product names of Amazon's machines without a hypervisor: `g5g.metal`, `i8g.metal-24xl`."""


def is_virtual_machine(host: Host) -> bool | None:
    """Whether the machine is virtual; None where that is unknown. On x86 the CPU's `hypervisor` flag decides; on Arm,
    which has no such flag, the vendor and product names of the firmware (DMI)."""
    cpus = host.text("/proc/cpuinfo")
    flags = next((line for line in cpus.splitlines() if line.startswith("flags")), None)
    if flags is not None:
        return "hypervisor" in flags.split()
    vendor, product = host.text("/sys/class/dmi/id/sys_vendor"), host.text("/sys/class/dmi/id/product_name")
    if vendor in _VENDORS or product in _PRODUCTS:
        return not _METAL.fullmatch(product)
    return False if cpus and vendor else None


_LOG_SECONDS: Final = 60.0
"""The time by which the log may begin late: nothing of a driver comes in the first minute, and its clock differs."""


def read_uptime(host: Host) -> float:
    """The seconds since boot. Raises Unknown."""
    try:
        seconds = float(host.read("/proc/uptime").split()[0])
    except (IndexError, ValueError):
        seconds = math.nan
    if not 0 <= seconds < math.inf:
        raise Unknown("/proc/uptime holds no number of seconds")
    return seconds


def read_status(host: Host, name: str) -> str:
    """The first word of this name in /proc/self/status. Raises Unknown."""
    words = status_words(host.read, "self", name)
    if not words:
        raise Unknown(f"/proc/self/status has no line {name}")
    return words[0]


def read_memory_sizes(host: Host) -> Mapping[str, int]:
    """The numbers of /proc/meminfo by name, as bytes; so are counts, which have no unit there. Raises Unknown."""
    pairs = (line.partition(":")[::2] for line in host.read("/proc/meminfo").splitlines())
    found = {name: int(words[0]) << 10 for name, rest in pairs if (words := rest.split()) and words[0].isdecimal()}
    if "MemTotal" not in found:
        raise Unknown("/proc/meminfo has no MemTotal")
    return found


def has_just_booted(host: Host, grace_seconds: float) -> bool:
    """Whether less than `grace_seconds` have passed since boot; False where that is not known."""
    uptime = or_none(read_uptime, host)
    return uptime is not None and uptime < grace_seconds


def require_log(host: Host, log: str, since: float, uptime: float) -> None:
    """Raises Unknown where records of the kernel's log from after `since`, in seconds after boot, were overwritten and
    nobody saw them: a flood of lines, which any user can cause, hides what came before."""
    begins = host.kernel_log_since(log)
    if begins is not None and begins > max(since, 0.0) + _LOG_SECONDS:
        wanted = uptime - max(since, 0.0)
        raise Unknown(
            f"the kernel's log reaches back {(uptime - begins) / 3600:.1f} h of {wanted / 3600:.1f} h: what came before"
            " was overwritten, and no agent saw it (log_buf_len= of the kernel makes its buffer larger)"
        )


def loaded_modules(host: Host) -> frozenset[str]:
    """The loaded modules. A kernel without modules has no such file; /sys then lists what is built in. Raises
    Unknown."""
    text = host.read_if_present("/proc/modules")
    if not text:
        return frozenset(host.entries("/sys/module"))
    names = {line.split()[0] for line in text.splitlines() if line.split()}
    if not all(re.fullmatch(r"[\w-]+", name) for name in names):
        raise Unknown("/proc/modules holds lines that are no modules")
    return frozenset(names)


_MAX_NUMBER = 1 << 16  # larger than any machine; a damaged list must not fill the memory


def parse_cpu_list(text: str, where: str) -> frozenset[int]:
    """The numbers in a list such as `0,1,4-7`. Raises Unknown, with the path `where` in its message."""
    numbers: set[int] = set()
    for part in text.strip().split(",") if text.strip() else ():
        first, dash, last = part.strip().partition("-")
        last = last if dash else first
        if not (_is_number(first) and _is_number(last) and int(first) <= int(last)):
            raise Unknown(f"{where} holds no list of numbers: {text[:60]!r}")
        numbers.update(range(int(first), int(last) + 1))
    return frozenset(numbers)


def format_cpu_list(numbers: frozenset[int]) -> str:
    """The list of `numbers`, for people to read: the inverse of parse_cpu_list."""
    return ",".join(f"{low}" if low == high else f"{low}-{high}" for low, high in runs(sorted(numbers)))


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) < 6 and int(text) < _MAX_NUMBER
