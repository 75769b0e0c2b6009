"""glibc gives back what a round no longer needs, unless an operator says otherwise."""

import ctypes
import os
import subprocess
import sys

import pytest

LOOK = """
import ctypes, sys
from laggard.collector import memory

class Info(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in ("arena", "ordblks", "smblks", "hblks", *"123456")]

info = ctypes.CDLL(None).mallinfo2
info.restype = Info
if sys.argv[1] == "set":
    memory.give_back()
large = bytearray(16 << 20)
del large
before = info().hblks
kept = bytearray(8 << 20)
memory.trim()
print(info().hblks - before)
"""
GLIBC = pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallinfo2"), reason="glibc's malloc alone tells")


def _mapped(word: str, **variables: str) -> int:
    """How many blocks of their own eight megabytes take after sixteen were freed."""
    command = [sys.executable, "-P", "-c", LOOK, word]
    run = subprocess.run(command, env={**os.environ, **variables}, check=True, capture_output=True, text=True)
    return int(run.stdout)


@GLIBC
def test_a_large_block_is_mapped_by_itself_whatever_was_freed_before() -> None:
    assert (_mapped("default"), _mapped("set")) == (0, 1)


@GLIBC
def test_what_an_operator_sets_holds() -> None:
    assert _mapped("set", MALLOC_MMAP_THRESHOLD_=str(32 << 20)) == 0
