"""This thread's capabilities, given up for a moment (capset(2))."""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Iterator
from typing import Final

CAP_DAC_READ_SEARCH: Final = 2  # capability.h
_VERSION_3: Final = 0x20080522
_libc: Final = ctypes.CDLL(None, use_errno=True)


class _Header(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


class _Set(ctypes.Structure):
    """Capabilities 0 to 31; a second one has the rest."""

    _fields_ = (("effective", ctypes.c_uint32), ("permitted", ctypes.c_uint32), ("inheritable", ctypes.c_uint32))


@contextlib.contextmanager
def without_capability(number: int) -> Iterator[None]:
    """Takes a capability below 32 from the effective set of this thread, and puts it back where it was there. Raises
    OSError."""
    sets = (_Set * 2)()
    _call("capget", sets)
    before = sets[0].effective
    sets[0].effective = before & ~(1 << number)
    _call("capset", sets)
    try:
        yield
    finally:
        sets[0].effective = before
        _call("capset", sets)


def _call(name: str, sets: object) -> None:
    header = _Header(_VERSION_3, 0)  # 0: this thread
    if getattr(_libc, name)(ctypes.byref(header), sets):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
