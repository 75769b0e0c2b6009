"""Reads values with nvmlDeviceGetFieldValues: many in one call, each with an error of its own."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

from laggard.probes.nvml.model import IMPLAUSIBLE, NOT_IN_NVIDIA_ML_PY, error_name

# Names what a call into NVML failed with, whatever nvidia-ml-py is installed.
#
# Each of its versions lacks what its driver did not have yet: functions (nvmlDeviceGetMarginTemperature before 12.570),
# structures, classes of errors. A missing name costs the field that needs it, and no other.

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


_PLAIN: Final = {  # NVML_FI_DEV_* of nvml.h
    "memory_temperature_celsius": 82,
    "slowdown_margin_celsius": 194,
    "gpu_max_margin_celsius": 196,
    "recovery_action": 230,
}
_THROTTLED: Final = {"sw_thermal": 269, "hw_thermal": 270, "hw_power_brake": 271}  # nanoseconds in all
_LINK_ERRORS: Final = {  # for the link in scopeId, the first field that answers; Blackwell has none of 161 to 163
    "replay": (161,),
    "recovery": (162, 215),  # 215: how often the link went from up to recovery, successful or not
    "crc": (163,),
}
_LINK_TOTALS: Final = {"replay": 52, "recovery": 59, "crc": 38}
_POLICIES: Final = {"thermal": 1, "board_limit": 3}  # NVML_PERF_POLICY_*
_FORMATS: Final = ("d", "I", "L", "Q", "q", "i", "H")  # of struct, by NVML_VALUE_TYPE_*

Answer = int | str
"""The number, or the name of the error."""


def read_fields(nvml: Any, handle: Any, links: int) -> tuple[dict[str, Any], dict[str, str]]:
    """The values and the errors, by the names of Gpu's fields. `links`: how many NVLinks the GPU has."""
    ids = [*_PLAIN.values(), *_THROTTLED.values(), *_LINK_TOTALS.values()]
    answers = dict(zip(ids, _answers(nvml, handle, ids), strict=True))
    values: dict[str, Any] = {}
    errors: dict[str, str] = {}
    for name, field in _PLAIN.items():
        answer = answers[field]
        if isinstance(answer, str):
            errors[name] = answer
        else:
            values[name] = answer
    _add_throttled(answers, values, errors)
    if links:
        _add_link_errors(nvml, handle, links, answers, values, errors)
    return values, errors


def _add_throttled(answers: dict[int, Answer], values: dict[str, Any], errors: dict[str, str]) -> None:
    found = {name: answer for name, field in _THROTTLED.items() if isinstance(answer := answers[field], int)}
    if found:
        values["throttled_nanoseconds"] = found
    else:
        errors["throttled_nanoseconds"] = str(answers[_THROTTLED["hw_thermal"]])


def _add_link_errors(
    nvml: Any, handle: Any, links: int, totals: dict[int, Answer], values: dict[str, Any], errors: dict[str, str]
) -> None:
    found = {name: _by_link(nvml, handle, name, links, totals) for name in _LINK_ERRORS}
    counts = {name: by_link for name, by_link in found.items() if not isinstance(by_link, str)}
    if counts:
        values["link_errors"] = counts
    else:
        errors["link_errors"] = str(found["replay"])


def _by_link(nvml: Any, handle: Any, name: str, links: int, totals: dict[int, Answer]) -> tuple[int, ...] | str:
    """The errors called `name` by link, else the total of all links, else the name of the error."""
    for field in _LINK_ERRORS[name]:
        answers = _answers(nvml, handle, [(field, link) for link in range(links)])
        numbers = tuple(answer for answer in answers if isinstance(answer, int))
        if len(numbers) == links:
            return numbers
    total = totals[_LINK_TOTALS[name]]
    return (total,) if isinstance(total, int) else total


def read_violations(nvml: Any, handle: Any, values: dict[str, Any], errors: dict[str, str]) -> None:
    """Reads the throttle counters of older drivers into `values` and `errors`. They only tell heat from the limits of
    the board."""
    found: dict[str, int] = {}
    for name, policy in _POLICIES.items():
        try:
            found[name] = int(nvml.nvmlDeviceGetViolationStatus(handle, policy).violationTime)
        except Exception as error:
            errors["throttled_nanoseconds"] = failure_name(error)
    if found:
        values["throttled_nanoseconds"] = found
        errors.pop("throttled_nanoseconds", None)


def _answers(nvml: Any, handle: Any, ids: Sequence[int | tuple[int, int]]) -> list[Answer]:
    """The answer for each of `ids`: a field, or a field and its scope."""
    try:
        return [_answer(value) for _, value in zip(ids, nvml.nvmlDeviceGetFieldValues(handle, list(ids)), strict=True)]
    except Exception as error:
        return [failure_name(error)] * len(ids)


def _answer(value: Any) -> Answer:
    """The union is decoded from its bytes, since older versions of nvidia-ml-py lack its newer members."""
    if value.nvmlReturn:
        return error_name(value.nvmlReturn)
    if not 0 <= value.valueType < len(_FORMATS):
        return f"{IMPLAUSIBLE} of type {value.valueType}"
    (number,) = struct.unpack_from(_FORMATS[value.valueType], bytes(value.value))
    return number if isinstance(number, int) else _integer(number)


def _integer(number: float) -> Answer:
    return int(number) if abs(number) < 1 << 62 else f"{IMPLAUSIBLE} {number}"
