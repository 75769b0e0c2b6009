"""The memory that a collector no longer needs: what glibc keeps of it, and how often Python looks for garbage."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
from typing import Final

# Numbers of <malloc.h>, for mallopt(3).
_TRIM_THRESHOLD: Final = -1
_MMAP_THRESHOLD: Final = -3
_ARENA_MAX: Final = -8

ARENAS: Final = 2
"""The number of heaps: the event loop and the thread beside it allocate at once, and seldom a third."""

MAPPED_BYTES: Final = 4 << 20
"""The size from which on a block is mapped by itself, so that it goes back to the system when it is freed. Set by hand
it stays: by default it grows to 32 MiB with the blocks that are freed. With 256 KiB, each array of a hundred ranks was
mapped and its pages were cleared again and again, a tenth of a round's CPU time."""

TRIMMED_BYTES: Final = 64 << 20
"""The free memory at a heap's end from which on it is given back at once; the rest is after each round, by trim()."""

_OPTIONS: Final = {
    "MALLOC_ARENA_MAX": (_ARENA_MAX, ARENAS),
    "MALLOC_MMAP_THRESHOLD_": (_MMAP_THRESHOLD, MAPPED_BYTES),
    "MALLOC_TRIM_THRESHOLD_": (_TRIM_THRESHOLD, TRIMMED_BYTES),
}
"""The keys are variables of the environment with which an operator sets the same: that holds."""


def give_back() -> None:
    """Sets it for this process, before it has threads. Does nothing where the C library is not glibc."""
    with contextlib.suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        for variable, (option, value) in _OPTIONS.items():
            if variable not in os.environ:
                mallopt(option, value)


def trim() -> None:
    """Gives back the free pages between what is in use, of all heaps: after a round these are those of the round
    before. It takes some milliseconds for each GiB."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


COLLECTIONS: Final = (10_000, 10, 8)
"""The thresholds of gc.set_threshold(). Each round replaces what is held of every rank: by Python's own numbers the
young objects are looked at a hundred times a round, the tenth part of which dies soon after, and all objects of 4,096
nodes three times, for about 0.4 s each. At most 10,000 * 10 * 8 objects more than went come between two looks at
all."""


def look_rarely() -> None:
    gc.set_threshold(*COLLECTIONS)
