"""An NCCL to take along: the wheel's library has code for many kinds of GPUs, 344 MB, and torch may bring one that is
too old. Packed for one kind of GPU, with zeros in the place of the others' code, it has 44 MB (2.32.3, sm_90).

    python3 scripts/gpu_check/nccl_library.py LIBNCCL.SO.2 90 .nccl/libnccl.so.2.xz

Standard library only.
"""

from __future__ import annotations

import lzma
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

PACKED = ".nccl/libnccl.so.2.xz"
_MAGIC = struct.pack("<I", 0xBA55ED50)  # of a fat binary: then version, size of the header, size of what follows
_CUBIN = 2  # kind of an entry that is machine code; others are PTX


class Code(NamedTuple):
    """Device code in a library: `begin` and `end` are places in its bytes, `kind` is that of its entry."""

    begin: int
    end: int
    kind: int
    architecture: int


def device_code(library: bytes) -> Iterator[Code]:
    """What NVIDIA's compiler put into a library; its form is that of cuobjdump's listings and no documentation's."""
    at = library.find(_MAGIC)
    while at >= 0:
        _, version, head, size = struct.unpack_from("<IHHQ", library, at)
        end = at + head + size
        if (version, head) == (1, 16) and end <= len(library):
            yield from _entries(library, at + head, end)
        else:
            end = at + len(_MAGIC)
        at = library.find(_MAGIC, end)


def _entries(library: bytes, at: int, end: int) -> Iterator[Code]:
    while at + 64 <= end:
        kind, _, head, size = struct.unpack_from("<HHIQ", library, at)
        (architecture,) = struct.unpack_from("<I", library, at + 28)
        if head < 64 or at + head + size > end:
            return
        yield Code(at + head, at + head + size, kind, architecture)
        at += head + size


def packed(library: bytes, architecture: int) -> bytes:
    """The library with the machine code of one architecture alone (90: sm_90), compressed. Raises ValueError where it
    has none of it."""
    kept, found = bytearray(library), list(device_code(library))
    if not any((each.kind, each.architecture) == (_CUBIN, architecture) for each in found):
        raise ValueError(f"there is no code for sm_{architecture} in this library")
    for code in found:
        if (code.kind, code.architecture) != (_CUBIN, architecture):
            kept[code.begin : code.end] = bytes(code.end - code.begin)
    return lzma.compress(bytes(kept), preset=1)


if __name__ == "__main__":
    source, number, target = sys.argv[1:]
    Path(target).parent.mkdir(parents=True, exist_ok=True)
    Path(target).write_bytes(packed(Path(source).read_bytes(), int(number)))
