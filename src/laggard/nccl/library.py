"""Finds the version of the NCCL, or of AMD's RCCL, that this process has loaded. Never loads one: two NCCLs in a
process are a fault."""

from __future__ import annotations

import ctypes
import os
import re

from laggard.nccl.variables import version_of_code

_LIBRARY = re.compile(r" (/.*/lib[nr]ccl\.so[.0-9]*)(?: \(deleted\))?$", re.MULTILINE)
_MAX_MAPS_BYTES = 16 << 20


def loaded_version(proc: str) -> str:
    """The loaded library's version, such as `2.27.5`; empty where none is loaded (or NCCL is linked into torch itself).
    RCCL has the functions and version numbers of the NCCL that it was made from (ROCm/rccl, src/nccl.h.in).

    `proc`: /proc/self, whose `maps` has the path of the library's file.
    """
    path = _library_path(proc)
    if not path:
        return ""
    try:
        library = ctypes.CDLL(path, mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
        code = ctypes.c_int(0)
        status = library.ncclGetVersion(ctypes.byref(code))
    except (OSError, AttributeError):
        return ""
    return version_of_code(code.value) if status == 0 and code.value > 0 else ""


def _library_path(proc: str) -> str:
    try:
        with open(f"{proc}/maps", encoding="utf-8", errors="surrogateescape") as file:
            match = _LIBRARY.search(file.read(_MAX_MAPS_BYTES))
    except OSError:
        return ""
    return match[1] if match else ""
