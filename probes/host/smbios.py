"""The memory that the firmware counts: SMBIOS's table of memory modules, which root alone may read."""

from __future__ import annotations

import struct
from typing import Final

from laggard.probes.errors import NotFound, Unknown
from laggard.probes.host.host import Host

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
