"""The format `torch_extensions`: a lock that a build of an extension left behind, for which processes wait forever.

Source: PyTorch (torch/utils/cpp_extension.py, torch/utils/file_baton.py): the file `lock` has no owner and no time.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from laggard.diagnose.pastes.paste_format import paste_format
from laggard.diagnose.pastes.section import Section
from laggard.model import Finding
from laggard.probes.probe import Fact, finding

_LOCK: Final = re.compile(
    r"^-r\S{8,10}\s+\d+\s+\S+\s+\S+\s+0\s+(.{5,40}?)\s+(\S*torch_extensions\S*/lock|lock)\s*$", re.MULTILINE
)
_WAIT: Final = re.compile(r"wait \(torch/utils/file_baton\.py|file_baton\.py\", line \d+, in wait")
_HEAD: Final = re.compile(rf"{_LOCK.pattern}|{_WAIT.pattern}", re.MULTILINE)
_FOLDER: Final = re.compile(r"\S*torch_extensions[\w./-]*")


def read(section: Section) -> Iterator[Finding | Fact]:
    text = f"{section.command}\n{section.text}"
    folder, lock, waits = _FOLDER.search(text), _LOCK.search(section.text), _WAIT.search(section.text)
    yield Fact("waits_for_a_lock", bool(waits))
    if not waits and not (folder and lock):
        return
    since = f" (since {lock[1]})" if lock else ""
    where = folder[0].rstrip("/:") if folder else "~/.cache/torch_extensions"
    yield finding(
        "JOB_STALE_LOCK",
        where,
        f"has a lock file that processes wait for{since}: torch's FileBaton, which a build that died left behind",
        evidence={"lock_since": lock[1] if lock else None, "waits": bool(waits)},
        fix="If no process builds this extension (no ninja, nvcc or c++ runs), remove its file `lock` and start again.",
        commands=("pgrep -a ninja", f"find {where} -name lock -mmin +30 -delete"),
    )


TORCH_LOCK: Final = paste_format("torch_extensions", _HEAD, read)
