"""AMD's numbers of errors, AFIDs (AMD Field Identifiers), which `amd-smi ras` finds in the records of errors (CPER).

Source: AMD Field ID, document 70122, version 1.0, AFID Event List, as AMD's own decoder of such records has it
(error_map.c). A record is of the past: what a reset has put right since it does not
say.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from laggard.model import Severity

_WARNING: Final = Severity.WARNING


class Afid(NamedTuple):
    """`code` is empty for what was corrected, which is no finding."""

    meaning: str
    code: str = ""
    severity: Severity = Severity.CRITICAL


def _at_boot(*names: str) -> Mapping[int, Afid]:
    """The numbers from 1 on, of what fails at boot."""
    return {
        number: Afid(f"{name} failed at boot", "NVLINK_DOWN" if name in _LINKS_AT_BOOT else "GPU_LOST")
        for number, name in enumerate(names, 1)
    }


_LINKS_AT_BOOT: Final = ("WAFL link training", "XGMI link training")
AFIDS: Final[Mapping[int, Afid]] = {
    **_at_boot("firmware load", "HBM's self-test (BIST)", "HBM's memory test", "HBM training", "an unhandled step",
               "an unknown step", "USR CP link training", "USR DP link training", *_LINKS_AT_BOOT,
               "the boot controller (data abort)", "the boot controller"),
    13: Afid("PCIe error, corrected"),
    14: Afid("PCIe error, fatal (AER)", "PCIE_AER_ERRORS"),
    15: Afid("WAFL error, corrected"),
    16: Afid("WAFL error, fatal", "NVLINK_ERRORS"),
    17: Afid("XGMI error, corrected"),
    18: Afid("XGMI error, fatal", "NVLINK_ERRORS"),
    19: Afid("more bad pages of memory than the threshold allows", "GPU_ROW_REMAP_FAILED"),
    20: Afid("HBM error, fatal (on-die ECC)", "GPU_ECC_UNCORRECTED"),
    21: Afid("HBM error, fatal (end-to-end CRC)", "GPU_ECC_UNCORRECTED"),
    22: Afid("HBM error, uncorrectable (on-die ECC)", "GPU_ECC_UNCORRECTED", _WARNING),
    23: Afid("HBM error, uncorrectable (end-to-end CRC)", "GPU_ECC_UNCORRECTED", _WARNING),
    24: Afid("HBM error, corrected"),
    25: Afid("HBM error, fatal", "GPU_ECC_UNCORRECTED"),
    26: Afid("hardware assertion (HWA), fatal", "GPU_XID"),
    27: Afid("watchdog timeout (WDT), fatal", "GPU_XID"),
    28: Afid("error within the device, uncorrectable", "GPU_XID", _WARNING),
    29: Afid("error within the device, corrected"),
    30: Afid("error within the device, fatal", "GPU_XID"),
}  # fmt: skip


def explain_afid(number: int) -> Afid:
    return AFIDS.get(number) or Afid("of a list that is newer than laggard's", "GPU_XID", _WARNING)
