"""What `laggard diagnose` costs of what was made to cost much: packings, lists of members, lines. In memory and CPU
time of a process, as a login node would pay it."""

import bz2
import importlib
import io
import lzma
import pkgutil
import re
import struct
import subprocess
import sys
import time
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.diagnosed import diagnose_text

import laggard.diagnose
import laggard.nccl.log

MAX_MEBIBYTES = 100
MAX_CPU_SECONDS = 10.0
LINE = b"n1:101:202 [0] NCCL INFO "


def zip_of(method: int, packed: bytes, size: int, crc: int = 0, times: int = 1, claimed: int | None = None) -> bytes:
    """An archive that lists one piece of packed data `times` times."""
    head = struct.pack("<HHHIII", method, 0, 0x21, crc, len(packed), min(size, 0xFFFFFFFE))
    local = struct.pack("<4sHH", b"PK\3\4", 46, 0) + head + struct.pack("<HH", 5, 0) + b"00000"
    listed = b"".join(
        struct.pack("<4sHHH", b"PK\1\2", 46, 46, 0) + head + struct.pack("<HHHHHII", 5, 0, 0, 0, 0, 0, 0) + b"%05d" % n
        for n in range(times)
    )
    count = times if claimed is None else claimed
    return local + packed + listed + struct.pack("<4sHHHHIIH", b"PK\5\6", 0, 0, count, count, len(listed),
                                                 len(local) + len(packed), 0)  # fmt: skip


def by_bzip2() -> bytes:
    piece, packer = b"\n" * (1 << 20), bz2.BZ2Compressor(9)
    return zip_of(12, b"".join(packer.compress(piece) for _ in range(512)) + packer.flush(), 512 << 20)


def by_lzma() -> bytes:
    chain = {"id": lzma.FILTER_LZMA1, "dict_size": 1 << 20}
    packer = lzma.LZMACompressor(lzma.FORMAT_RAW, filters=[chain])
    packed = b"".join(packer.compress(b"\n" * (1 << 20)) for _ in range(512)) + packer.flush()
    return zip_of(14, struct.pack("<BBH", 9, 4, 5) + struct.pack("<BI", 93, 1 << 20) + packed, 512 << 20)


def deflated(piece: bytes) -> bytes:
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    return packer.compress(piece) + packer.flush()


def one_piece_listed_often() -> bytes:
    piece = b"step 1 loss 2.0\n" * 7000
    return zip_of(8, deflated(piece), len(piece), zlib.crc32(piece), 9000)


def more_members_than_are_claimed() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for number in range(20_000):
            archive.writestr(f"{number}.log", "step 1 loss 2\n")
    data = bytearray(buffer.getvalue())
    at = data.rindex(b"PK\5\6")
    data[at + 8 : at + 12] = struct.pack("<HH", 1, 1)
    return bytes(data)


def members_that_unpack_to_much() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for number in range(12):
            archive.writestr(f"{number}.log", b"step 1 loss 2\n" * 4_000_000)
    return buffer.getvalue()


def lines_of_many_matches() -> bytes:
    comm = b"comm 0x55 rank %d nRanks 8 nNodes 1 localRanks 8 localNranks 8 MNNVL 0\n"
    ranks = b"".join(LINE + comm % rank for rank in range(8))
    return ranks + (LINE + b"NET/IB: WQE slow: " + b"dev=a delta=1n " * 2000 + b"\n") * 170


@pytest.mark.slow
@pytest.mark.parametrize(
    "make",
    [
        by_bzip2,
        by_lzma,
        one_piece_listed_often,
        more_members_than_are_claimed,
        members_that_unpack_to_much,
        lines_of_many_matches,
    ],
)
def test_what_was_made_to_cost_much_does_not(make: Callable[[], bytes], tmp_path: Path) -> None:
    path = tmp_path / "given"
    path.write_bytes(make())
    told = (
        "import time; spent = time.process_time();"
        "peak = next(line.split()[1] for line in open('/proc/self/status') if line.startswith('VmHWM'));"
        "print(status, int(peak) >> 10, spent)"
    )
    run = f"import sys; from laggard.cli import main; status = main(['diagnose', sys.argv[1]]); {told}"
    done = subprocess.run([sys.executable, "-c", run, str(path)], capture_output=True, text=True, check=True)
    status, mebibytes, seconds = done.stdout.split()[-3:]
    assert int(status) == 2 and "Cannot tell" in done.stdout
    assert int(mebibytes) < MAX_MEBIBYTES and float(seconds) < MAX_CPU_SECONDS


def patterns() -> list[re.Pattern[str]]:
    """All patterns of the readers, wherever a module keeps them."""
    modules = [
        importlib.import_module(found.name)
        for package in (laggard.diagnose, laggard.nccl.log)
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
    ]
    found = {each.pattern: each for module in modules for value in vars(module).values() for each in within(value)}
    return [found[key] for key in sorted(found)]


def within(value: Any) -> Iterator[re.Pattern[str]]:
    if isinstance(value, re.Pattern) and isinstance(value.pattern, str):
        yield value
    elif isinstance(value, (tuple, list)):
        for each in value:
            yield from within(each)


PATTERNS = patterns()
PUMPED_CHARACTERS = 30_000


@pytest.mark.slow
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_a_pattern_that_is_pumped_costs_what_its_text_is_long(data: st.DataObject) -> None:
    """A part of a text that a pattern takes, many times over in one line, behind what stands before it: through the
    whole command."""
    pattern = data.draw(st.sampled_from(PATTERNS))
    text = data.draw(st.from_regex(pattern)).replace("\n", " ")[:400] or "x"
    begin = data.draw(st.integers(0, len(text) - 1))
    end = data.draw(st.integers(begin + 1, len(text)))
    line = text[:begin] + text[begin:end] * (PUMPED_CHARACTERS // (end - begin)) + "\n"
    before = time.process_time()
    diagnose_text(text + "\n" + line * 8)
    assert time.process_time() - before < MAX_CPU_SECONDS, pattern.pattern
