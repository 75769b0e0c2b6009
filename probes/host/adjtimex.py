"""Reads adjtimex(2): how well the kernel's clock is synchronised, as the kernel itself estimates it."""

from __future__ import annotations

import ctypes
import os

from laggard.probes.host.kernel import KernelClock

_STA_NANO = 0x2000  # the offset is in nanoseconds, not microseconds


class _Timex(ctypes.Structure):
    """The struct timex of <sys/timex.h>."""

    _fields_ = [
        ("modes", ctypes.c_uint),
        ("offset", ctypes.c_long),
        ("freq", ctypes.c_long),
        ("maxerror", ctypes.c_long),
        ("esterror", ctypes.c_long),
        ("status", ctypes.c_int),
        ("constant", ctypes.c_long),
        ("precision", ctypes.c_long),
        ("tolerance", ctypes.c_long),
        ("time", ctypes.c_long * 2),
        ("tick", ctypes.c_long),
        ("ppsfreq", ctypes.c_long),
        ("jitter", ctypes.c_long),
        ("shift", ctypes.c_int),
        ("stabil", ctypes.c_long),
        ("counts", ctypes.c_long * 4),
        ("tai", ctypes.c_int),
        ("reserved", ctypes.c_int * 11),
    ]


def read_clock() -> KernelClock:
    """The state of the kernel's clock. Changes nothing, since `modes` is 0. Raises OSError where a container forbids
    the call."""
    answer = _Timex()
    state = ctypes.CDLL(None, use_errno=True).adjtimex(ctypes.byref(answer))
    if state < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return KernelClock(
        state=state,
        status=answer.status,
        offset_seconds=answer.offset / (1e9 if answer.status & _STA_NANO else 1e6),
        maximum_error_seconds=answer.maxerror / 1e6,
        estimated_error_seconds=answer.esterror / 1e6,
    )
