"""What a machine is: virtual or not, its memory, its modules, its time since boot, and lists of its processors."""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Mapping
from typing import Final

from laggard.kit.words import lazy_pattern, runs
from laggard.probes.errors import NotFound, Unknown, or_none
from laggard.probes.host.host import Host
from laggard.probes.host.jobs import status_words
from laggard.probes.tables import rules

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
    if {vendor, product} & {row.pattern for row in rules("virtual_machines")}:
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


# The memory that the firmware counts: SMBIOS's table of memory modules, which root alone may read.

_MODULES: Final = "/sys/firmware/dmi/entries"
_MODULE_BYTES: Final = 0x54  # of SMBIOS's structure 17; what follows are its texts, serial numbers among them
_NO_DRAM: Final = (4, 5, 6, 7)  # memory technology: NVDIMM and persistent memory


def installed_memory(host: Host) -> int:
    """The bytes of all memory modules, where root alone may read them by laggard's reader. Raises NotFound."""
    try:
        return modules_bytes(host)
    except Unknown as error:
        if host.recorded:
            raise NotFound(str(error)) from None
    from laggard.probes.host.reader import NoReader, ask  # sockets are slow to import, and root needs none

    try:
        return int(ask("installed_memory"))
    except (NoReader, ValueError) as error:
        raise NotFound(f"the firmware's count of memory cannot be read: {error}") from None


def modules_bytes(host: Host) -> int:
    """The bytes of all memory modules; 0 where one of them is of unknown size. Raises Unknown."""
    files = [f"{_MODULES}/{name}/raw" for name in host.entries(_MODULES) if name.startswith("17-")]
    sizes = [_module_bytes(host.read_parts(path, lambda read: read(0, _MODULE_BYTES))) for path in files]
    return 0 if None in sizes else sum(size or 0 for size in sizes)


def _module_bytes(data: bytes) -> int | None:
    """The size of a memory module in SMBIOS's structure 17 (DSP0134, 7.18); None: not known; 0: an empty slot."""
    if len(data) < 0x15 or data[0] != 17:
        return None
    (size,) = struct.unpack_from("<H", data, 0x0C)
    if len(data) > 0x28 and data[1] > 0x28 and data[0x28] in _NO_DRAM:
        return 0
    if size == 0x7FFF and len(data) >= 0x20:
        return int((struct.unpack_from("<I", data, 0x1C)[0] & 0x7FFFFFFF) << 20)
    return None if size in (0xFFFF, 0x7FFF) else (size & 0x7FFF) << (10 if size & 0x8000 else 20)


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
