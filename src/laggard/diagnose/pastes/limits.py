"""The format `ulimit -a`: a limit of locked memory with which RDMA cannot register buffers. /proc/PID/limits is read
too."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from laggard.diagnose.pastes.paste_format import paste_format
from laggard.diagnose.pastes.section import Section
from laggard.model import Finding, Severity
from laggard.probes.probe import Fact, finding

_HEAD: Final = re.compile(
    r"^(?:max locked memory\s+\(kbytes, -l\)\s+\w+|Max locked memory\s+\w+\s+\w+\s+bytes)", re.MULTILINE
)
_LOCKED: Final = re.compile(
    r"^(?:max locked memory\s+\(kbytes, -l\)\s+(\d{1,18}|unlimited)"
    r"|Max locked memory\s+(\d{1,18}|unlimited)\s+\w+\s+bytes)",
    re.MULTILINE,
)
_SEEN: Final = re.compile(
    r"[Cc]ouldn't allocate MR|ibv_reg_mr|failed to create mr|failed to register memory", re.IGNORECASE
)
MIN_LOCKED_BYTES: Final = 1 << 30
"""The least memory that a process may lock for RDMA: NCCL registers hundreds of MB for each GPU."""


def read(section: Section) -> Iterator[Finding | Fact]:
    for match in list(_LOCKED.finditer(section.text))[:64]:
        limit = match[1] or match[2]
        yield Fact("locked_memory", limit)
        size = None if limit == "unlimited" else int(limit) * (1024 if match[1] else 1)
        if size is not None and size < MIN_LOCKED_BYTES:
            yield _finding(size, bool(_SEEN.search(section.text)))


def _finding(size: int, seen: bool) -> Finding:
    return finding(
        "MEMLOCK_LIMIT",
        "locked memory",
        f"is limited to {size // 1024} KiB (ulimit -l)" + (": RDMA could not register memory" if seen else ""),
        severity=Severity.CRITICAL if seen else Severity.WARNING,
        evidence={"limit_bytes": size},
        fix="Where jobs use RDMA, set memlock to unlimited: in /etc/security/limits.conf, and as LimitMEMLOCK=infinity "
        "of the service that starts them (slurmd, containerd); restart it.",
        commands=("ulimit -l", "systemctl show slurmd -p LimitMEMLOCK"),
    )


LIMITS: Final = paste_format("ulimit -a", _HEAD, read)
