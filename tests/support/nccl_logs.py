"""Logs of NCCL in tests/data/nccl_logs, written in the forms of its releases: for each fault one that has it, and the
healthy ones that come close. expect.json: by name, the findings (code, severity, device), what the log lacks, the
codes that it comes near to, and the code of the job's end that it shows."""

import json
from functools import cache
from typing import Any, Final

from support.paths import DATA

NCCL_LOGS: Final = DATA / "nccl_logs"

LOG_CODES: Final = (
    "TCP_FALLBACK",
    "GPUDIRECT_OFF",
    "SHM_INSTEAD_OF_P2P",
    "NCCL_VERSION_MIXED",
    "NCCL_DIAGNOSTICS",
    "NCCL_WQE_SLOW",
    "OFI_SENDRECV",
)
"""The findings that `laggard diagnose` makes from NCCL's logs."""


@cache
def log_expectations() -> dict[str, dict[str, Any]]:
    return dict(json.loads((NCCL_LOGS / "expect.json").read_text()))


def log_text(name: str) -> str:
    return (NCCL_LOGS / f"{name}.log").read_text()


def logs_firing(code: str) -> list[str]:
    """First those that show it alone and as its usual severity, critical."""
    shown = {name: {row[0]: row[1] for row in expected["findings"]} for name, expected in log_expectations().items()}
    found = [name for name in shown if code in shown[name]]
    return sorted(found, key=lambda name: (shown[name][code] != "critical", len(shown[name]), name))


def logs_near(code: str) -> list[str]:
    return [name for name, expected in log_expectations().items() if code in expected.get("near", ())]
