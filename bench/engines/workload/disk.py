"""What a step reads of a disk: a part of a file, past the page cache, as of a data set that is larger than memory."""

import mmap
import os

from workload import plan

PART_BYTES = 128 << 10

_file = -1
_parts = 1
_number = 0


def read() -> None:
    """Reads the next part, where the plan has a file."""
    global _file, _parts, _number
    if not plan.DISK:
        return
    if _file < 0:
        _file = os.open(plan.DISK, os.O_RDONLY | os.O_DIRECT)
        _parts = max(1, os.fstat(_file).st_size // PART_BYTES)
    with mmap.mmap(-1, PART_BYTES) as page:  # aligned, as O_DIRECT asks
        os.preadv(_file, [page], (_number % _parts) * PART_BYTES)
    _number += 1
