"""Which NCCL this process has loaded. It is asked, never loaded: a second NCCL in a process is a fault of its own."""

from __future__ import annotations

import ctypes
import os
import re

from laggard.nccl.variables import version_of_code

_LIBRARY = re.compile(r" (/.*/libnccl\.so[.0-9]*)(?: \(deleted\))?$", re.MULTILINE)
_MOST_MAPS = 16 << 20


def loaded_version(proc: str) -> str:
    """`2.27.5`, as the loaded libnccl says; empty where none is loaded (or it is linked into torch itself).

    `proc`: /proc/self, whose `maps` names the library's file.
    """
    path = _path(proc)
    if not path:
        return ""
    try:
        library = ctypes.CDLL(path, mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
        code = ctypes.c_int(0)
        status = library.ncclGetVersion(ctypes.byref(code))
    except (OSError, AttributeError):
        return ""
    return version_of_code(code.value) if status == 0 and code.value > 0 else ""


def _path(proc: str) -> str:
    try:
        with open(f"{proc}/maps", encoding="utf-8", errors="surrogateescape") as file:
            match = _LIBRARY.search(file.read(_MOST_MAPS))
    except OSError:
        return ""
    return match[1] if match else ""
