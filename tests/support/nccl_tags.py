"""Writes tests/data/nccl_first_tags.txt, the first release of NCCL that reads each variable: `cd tests && python -m
support.nccl_tags CLONE LIBRARY...`, with a clone of github.com/NVIDIA/nccl that has its tags, and libnccl.so.2 of the
releases after them, oldest first (wheels nvidia-nccl-cu13)."""

import ctypes
import re
import subprocess
import sys
from pathlib import Path

from laggard.nccl.variables import parse_version, variables, version_of_code
from support.paths import TESTS

FIRST_TAGS = TESTS / "data" / "nccl_first_tags.txt"

_TAG = re.compile(r"v(2\.\d+\.\d+)-\d+")
_SOURCE = ("*.cc", "*.cpp", "*.cu", "*.h")
_PATTERN = r'NCCL_PARAM\(\w+, *"\w+"|NCCL_PARAM\(\w+, *\w+, *NCCL_\w+|"NCCL_[A-Z0-9_]+"'


def first_tags() -> dict[str, str]:
    """The version of the first tag or library by variable; 2.3.5, the oldest, also stands for any before it."""
    return dict(line.split() for line in FIRST_TAGS.read_text().splitlines() if not line.startswith("#"))


def _read_tags(clone: Path) -> dict[str, str]:
    tags = [tag for tag in _git(clone, "tag").split() if _TAG.fullmatch(tag)]
    first: dict[str, str] = {}
    for tag in sorted(tags, key=lambda tag: [int(number) for number in re.findall(r"\d+", tag)]):
        for match in _git(clone, "grep", "-ohE", _PATTERN, tag, "--", *_SOURCE).splitlines():
            name = re.findall(r"\w+", match)[-1]
            first.setdefault(name if name.startswith("NCCL_") else f"NCCL_{name}", tag[1:].partition("-")[0])
    return first


def _read_library(path: Path) -> dict[str, str]:
    """The library's version by variable. Its debugging symbols name other things alike, so the table says which are
    variables."""
    code = ctypes.c_int()
    ctypes.CDLL(str(path)).ncclGetVersion(ctypes.byref(code))
    names = {match.decode() for match in re.findall(rb"NCCL_[A-Z0-9_]+(?=\0)", path.read_bytes())}
    return {name: version_of_code(code.value) for name in names & set(variables())}


def _git(clone: Path, *words: str) -> str:
    return subprocess.run(["git", "-C", str(clone), *words], check=True, capture_output=True, text=True).stdout


if __name__ == "__main__":
    found = _read_tags(Path(sys.argv[1]))
    for library in sys.argv[2:]:
        found = _read_library(Path(library)) | found
    lines = [f"{name} {found[name]}" for name in sorted(variables()) if name in found]
    newest = max(found.values(), key=parse_version)
    head = f"# The first release of NCCL (from 2.3.5 to {newest}) that reads the variable: support/nccl_tags.py.\n"
    FIRST_TAGS.write_text(head + "\n".join(lines) + "\n")
