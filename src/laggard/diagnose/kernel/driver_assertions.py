"""The assertions of NVIDIA's driver (`NVRM: nvAssertFailedNoLog: Assertion failed: ... @ kernel_gsp.c:2059`): alone
they are noise that healthy machines write too; beside a GPU's failure they say where the driver stood.

Source: open-gpu-kernel-modules, src/nvidia/inc/libraries/utils/nvassert.h.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

import msgspec

from laggard.diagnose.kernel.lines import LogLine
from laggard.model import Finding

_ASSERTION = re.compile(r"NVRM: (?:GPU\d+ )?(?:nv(?:Assert|Check)\w*: |.{0,80}\b[Aa]ssertion failed)")
_OF_A_FAILURE: Final = ("GPU_XID", "GPU_LOST", "GPU_DRIVER_FAILED", "FABRIC_NOT_READY")
_NEAR_SECONDS: Final = 60.0
_MAX_HELD: Final = 256
_MAX_SHOWN: Final = 3
_MAX_SHOWN_CHARACTERS: Final = 200


class DriverAssertions:
    """Takes the records of one host in order."""

    def __init__(self) -> None:
        self.count = 0
        self._held: list[LogLine] = []

    def feed(self, record: LogLine) -> None:
        if record.text.startswith("NVRM: ") and "sser" in record.text and _ASSERTION.match(record.text):
            self.count += 1
            if len(self._held) < _MAX_HELD:
                self._held.append(record)

    def beside(self, findings: Iterable[Finding], seconds: Iterable[float | None]) -> list[Finding]:
        """Returns the findings, those of a GPU's failure with the assertions near in time as evidence. `seconds`: when
        the driver reported failures."""
        times = [each for each in seconds if each is not None]
        near = [each.text for each in self._held if _is_near(each.seconds, times)][:_MAX_SHOWN]
        return [_with(found, near) if near and found.code in _OF_A_FAILURE else found for found in findings]


def _is_near(seconds: float | None, times: list[float]) -> bool:
    return seconds is not None and any(abs(seconds - time) <= _NEAR_SECONDS for time in times)


def _with(found: Finding, texts: list[str]) -> Finding:
    told = [text[:_MAX_SHOWN_CHARACTERS] for text in texts]
    return msgspec.structs.replace(found, evidence={**found.evidence, "driver_assertions": told})
