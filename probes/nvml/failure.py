"""Names what a call into NVML failed with, whatever nvidia-ml-py is installed.

Each of its versions lacks what its driver did not have yet: functions (nvmlDeviceGetMarginTemperature before 12.570),
structures, classes of errors. A missing name costs the field that needs it, and no other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

from laggard.probes.nvml.model import NOT_IN_NVIDIA_ML_PY, error_name

T = TypeVar("T")

_OTHER_VERSION: Final = frozenset(
    {"FUNCTION_NOT_FOUND", "ARGUMENT_VERSION_MISMATCH", "INVALID_ARGUMENT", NOT_IN_NVIDIA_ML_PY}
)
"""The errors which say that the call, or the version of its argument, is unknown to this driver or to this
nvidia-ml-py."""


def failure_name(error: Exception) -> str:
    """The name for Gpu.errors: NVML's own for pynvml.NVMLError, NOT_IN_NVIDIA_ML_PY for a name that pynvml lacks, else
    the type and text of the error."""
    code = getattr(error, "value", None)
    if isinstance(code, int):
        return error_name(code)
    if isinstance(error, AttributeError):
        return NOT_IN_NVIDIA_ML_PY
    return f"{type(error).__name__}: {error}"[:100]


def first_known(*reads: Callable[[], T]) -> T:
    """The value of the first of `reads` that this driver and this nvidia-ml-py know: the newest comes first. Raises
    what the last one raises."""
    for read in reads[:-1]:
        try:
            return read()
        except Exception as error:
            if failure_name(error) not in _OTHER_VERSION:
                raise
    return reads[-1]()
