"""Writes tests/data/nccl_first_tags.txt, the first release tag of NCCL whose source reads each variable: `cd tests &&
python -m support.nccl_tags CLONE`, with a clone of github.com/NVIDIA/nccl that has its tags."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from support.paths import TESTS

FIRST_TAGS = TESTS / "data" / "nccl_first_tags.txt"

_TAG = re.compile(r"v(2\.\d+\.\d+)-\d+")
_SOURCE = ("*.cc", "*.cpp", "*.cu", "*.h")
_PATTERN = r'NCCL_PARAM\(\w+, *"\w+"|NCCL_PARAM\(\w+, *\w+, *NCCL_\w+|"NCCL_[A-Z0-9_]+"'


def first_tags() -> dict[str, str]:
    """The version of the first tag by variable; 2.3.5, the oldest tag, also stands for any version before it."""
    return dict(line.split() for line in FIRST_TAGS.read_text().splitlines() if not line.startswith("#"))


def _read(clone: Path) -> dict[str, str]:
    tags = [tag for tag in _git(clone, "tag").split() if _TAG.fullmatch(tag)]
    first: dict[str, str] = {}
    for tag in sorted(tags, key=lambda tag: [int(number) for number in re.findall(r"\d+", tag)]):
        for match in _git(clone, "grep", "-ohE", _PATTERN, tag, "--", *_SOURCE).splitlines():
            name = re.findall(r"\w+", match)[-1]
            first.setdefault(name if name.startswith("NCCL_") else f"NCCL_{name}", tag[1:].partition("-")[0])
    return first


def _git(clone: Path, *words: str) -> str:
    return subprocess.run(["git", "-C", str(clone), *words], check=True, capture_output=True, text=True).stdout


if __name__ == "__main__":
    from laggard.nccl.variables import variables

    found = _read(Path(sys.argv[1]))
    lines = [f"{name} {found[name]}" for name in sorted(variables()) if name in found]
    head = (
        "# The first tag of NVIDIA/nccl (from 2.3.5 to 2.30.7) whose source reads the variable: support/nccl_tags.py.\n"
    )
    FIRST_TAGS.write_text(head + "\n".join(lines) + "\n")
