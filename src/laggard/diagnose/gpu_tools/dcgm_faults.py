"""DCGM's words for what it found on a GPU, as findings: one table for `dcgmi diag` and `dcgmi health`. Pure.

The words are those of dcgm_errors.h (DCGM_FR_*), which are the same in DCGM 2, 3 and 4 but for a few.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from laggard.model import Finding, Severity
from laggard.probes.probe import finding

_MEMORY: Final = "Drain the node and reset the GPU, then run `dcgmi diag -r 3`. If it fails again, return the board."
_FABRIC: Final = "Look for Xid 74, 149 and SXid in the kernel's log, and reset all GPUs of the board together."
_COOLING: Final = "Check inlet temperature, fans or coolant flow, and heat-sink seating; compare with the other GPUs."
_BOARD: Final = "Take the node out of service and return the board: there is no spare row for the faulty one."
_PCIE: Final = "Reseat the card, riser or cable and check the slot's settings; then replace the device, then the board."
_ANY: Final = (
    "Take the node out of service and run `dcgmi diag -r 3` while nothing else runs; then follow DCGM's advice."
)
RULES: Final = tuple(
    (re.compile(pattern, re.IGNORECASE), code, fix)
    for pattern, code, fix in (
        (r"row.remap\w* (?:has )?fail|remapping fail", "GPU_ROW_REMAP_FAILED", _BOARD),
        (r"fabric manager|fabric.{0,20}not", "FABRIC_NOT_READY", "Restart nvidia-fabricmanager and read its log."),
        (r"nvlink.{0,60}(?:down|inactive)", "NVLINK_DOWN", _FABRIC),
        (r"nvlink.{0,80}(?:error|replay|recovery|crc|ber\b)|nvlink system", "NVLINK_ERRORS", _FABRIC),
        (r"uncorrectable|double.?bit|\bdbe\b|volatile.{0,20}ecc|faulty memory|memory elements", "GPU_ECC_UNCORRECTED",
         _MEMORY),
        (r"pending.{0,30}(?:retire|remap)|(?:retire|remap)\w*.{0,30}pending", "GPU_ROW_REMAP_PENDING", _MEMORY),
        (r"fallen off|is lost|not responding|cannot be accessed", "GPU_LOST", _MEMORY),
        (r"pci\w*.{0,40}(?:generation|width|bandwidth)|pcie.{0,60}replay|replay.{0,60}pcie|pcie system",
         "PCIE_LINK_DEGRADED", _PCIE),
        (r"thermal violation|temperature|slowdown.{0,30}therm|thermal system", "GPU_TOO_HOT", _COOLING),
        (r"thrott|power violation|hw.?slowdown|power system|power brake", "GPU_THROTTLED", _COOLING),
        (r"\bxid\b", "GPU_XID", _MEMORY),
        (r"persistence mode", "GPU_PERSISTENCE_OFF", "Turn it on: `nvidia-smi -pm 1`, or run nvidia-persistenced."),
    )
)  # fmt: skip
_NOT_THE_GPU = re.compile(
    r"graphics process|running process|permission|environment variable|internal error|child pro", re.I
)
"""What a diagnostic meets that is no fault of a GPU."""


_CUT_SPACES: Final = 2
"""The spaces after a cell that is full, whose last word may go on in the next row."""


def joined(text: str, cell: str) -> str:
    """Adds a row's cell to the text of the rows above. DCGM cuts words where a row is full."""
    rest = cell.rstrip()
    return text + rest + (" " if len(cell) - len(rest) > _CUT_SPACES else "")


class Failure(NamedTuple):
    """What one test says of one GPU. `failed`: of the test; False: a warning, or that it was not whole."""

    gpu: str
    """Its number; `Switch 3` of what is no GPU; empty where the text names none."""
    test: str
    text: str
    failed: bool


def failure_finding(failure: Failure, commands: tuple[str, ...]) -> Finding:
    code, fix = next(
        ((code, fix) for pattern, code, fix in RULES if pattern.search(failure.text)), ("GPU_DIAG_FAILED", _ANY)
    )
    if code == "GPU_DIAG_FAILED" and not failure.text:
        code, fix = next(((c, f) for p, c, f in RULES if p.search(failure.test)), (code, fix))
    harmless = bool(_NOT_THE_GPU.search(failure.text)) or code == "GPU_PERSISTENCE_OFF"
    verb = "failed" if failure.failed else "has a warning of"
    summary = f"{verb} DCGM's test {failure.test}" + (f": {failure.text}" if failure.text else "")
    return finding(
        code,
        f"GPU {failure.gpu}" if failure.gpu.isdigit() else failure.gpu or "the GPUs",
        summary[:1000],
        evidence={
            "test": failure.test,
            "entity": f"GPU{failure.gpu}" if failure.gpu.isdigit() else failure.gpu or None,
        },
        fix=fix,
        commands=commands,
        severity=Severity.CRITICAL if failure.failed and not harmless else Severity.WARNING,
    )
